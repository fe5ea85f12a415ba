"""What a technology has to bring to keep a pipeline's records between its steps.

    registry ──► technology ──► access (who one is) ──► open buffer: ledgers, OT stores, health, repairs
                     └────────► a server of a run's own

Above it: worker, runner and commands, which know nothing else of a technology. Below it: the boundaries of ledgers and
OT stores. A technology is one folder beside this file, or a package that names itself in the entry point group
`millstream.buffers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from millstream.ledger.protocol import Broker, DurabilityLevel, StoredFrame
from millstream.record import BufferId, LaneId
from millstream.watermark.store import OtStores


class Access(Protocol):
    """Where a broker is, and who one is to it. Secrets are not part of its text."""

    @property
    def url(self) -> str:
        """Without user or password."""

    @property
    def place(self) -> str:
        """Host and port, for messages."""

    @property
    def identity(self) -> str:
        """Who one is, for messages."""


class LostMessages(NamedTuple):
    """What a broker says that it has lost of a ledger."""

    what: str
    """Whose they were, for people."""
    sequences: Sequence[int]
    bytes: int


@dataclass(frozen=True, slots=True)
class TornCommit:
    """A commit that is stored in part."""

    ledger: str
    """What the broker calls it."""
    first: int
    last: int
    """Sequences."""
    why: str
    frames: Sequence[tuple[BufferId, StoredFrame]]


class Repairs(Protocol):
    """What a repair does with what a pipeline that does not run has stored, beyond ledgers and OT stores."""

    async def last_sequence(self, vertex: str) -> int:
        """The last one of the vertex's ledger; 0 when there is none."""

    async def lost(self, vertex: str) -> LostMessages | None:
        """What the broker says it has lost of the vertex's ledger."""

    async def torn(self, lane: LaneId) -> TornCommit | None:
        """The commit at the end of what a lane wrote, where that is stored in part or its mark cannot be read."""

    async def cut(self, vertex: str, torn: TornCommit) -> None:
        """Remove what is stored of it."""

    async def holds_mark(self, vertex: str, sequence: int) -> bool:
        """Whether the frame at that sequence holds the present mark of a lane."""

    async def remove(self, vertex: str, buffer: BufferId, sequence: int) -> None:
        """Remove one frame; it may be gone already."""


class InterStepBuffer(Protocol):
    """All that a pipeline keeps in one broker, open."""

    @property
    def broker(self) -> Broker:
        """Its ledgers."""

    @property
    def stores(self) -> OtStores:
        """Its OT stores."""

    @property
    def repairs(self) -> Repairs: ...

    def trouble(self) -> str | None:
        """Why nothing can be read or stored now; None while all is well."""


class Link(Protocol):
    """A connection to a broker, over which several may open what a pipeline keeps there."""

    def open(
        self, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC, tolerate_lost: bool = False
    ) -> AbstractAsyncContextManager[InterStepBuffer]:
        """The pipeline's buffers, with counts and last puts of their own. Opening a ledger for writing raises
        `DurabilityError` when the broker keeps less than `require`. With `tolerate_lost`, ledgers are opened of which
        the broker says that it lost something: for a repair."""


class Server(Protocol):
    """A broker that a run starts for itself: its files, its command, its health. Created for every run."""

    port: int
    """It listens there, on the loopback."""

    @property
    def access(self) -> Access:
        """How to reach it."""

    def prepare(self) -> Mapping[str, str]:
        """Make its directories. Returns the files below its directory that it and its clients read at the start, with
        `access.json` for `Technology.load_access` among them. Raises `InfrastructureError`."""

    def command(self) -> list[str]:
        """What starts it. Raises `InfrastructureError` when there is no such program."""

    @property
    def environment(self) -> Mapping[str, str]: ...

    async def is_ready(self, pid: int) -> bool:
        """Whether the process takes connections."""

    async def answers(self) -> bool:
        """Asks it; returns when it has answered, however long that takes."""

    def ended(self, pid: int) -> None:
        """Remove what the process has left behind that is of no use to the next one."""

    def log_entry(self, line: bytes) -> bytes | None:
        """A line that it wrote as a log line like all others; None for one that says nothing."""

    def says_disk_full(self, line: bytes) -> bool:
        """Whether a line says that it could not write, and that it has to be started again for that."""


class Technology(Protocol):
    """One way to keep records between steps."""

    @property
    def key(self) -> str:
        """In `spec.interStepBuffer`, and after `--ledger`."""

    @property
    def programs(self) -> Sequence[str]:
        """Names of the programs that are servers of it."""

    @property
    def distributions(self) -> Sequence[str]:
        """Python distributions that it uses."""

    def load_access(self, path: Path | None, url: str) -> Access:
        """How to reach the broker at `url`, which the file at `path` says; without one: without credentials.

        Raises `UserError` for a URL with a password in it, and for a file that cannot be used; no message holds a
        secret.
        """

    def secret_files(self, path: Path) -> Sequence[Path]:
        """That file, and the files of secrets that it names."""

    def connect(self, access: Any, *, name: str) -> AbstractAsyncContextManager[Link]:
        """A connection. `access`: of this technology. `name`: who connects, for the broker. Raises
        `InfrastructureError` when the broker cannot be reached or cannot keep ledgers."""

    def open(
        self,
        access: Any,
        pipeline: str,
        *,
        name: str,
        require: DurabilityLevel = DurabilityLevel.FSYNC,
        tolerate_lost: bool = False,
    ) -> AbstractAsyncContextManager[InterStepBuffer]:
        """`connect` and `Link.open` in one, for who opens one pipeline once."""

    def server(self, directory: Path, *, durability: DurabilityLevel, port: int | None) -> Server:
        """A server over the files in `directory`. `port`: taken if it is free."""

    async def raw_limit(self, directory: Path, *, records: int, record_bytes: int, fsync: bool) -> float:
        """Records per second that a server below `directory` stores, when nothing else is done."""
