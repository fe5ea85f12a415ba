"""The interface of a technology that keeps a pipeline's records between its steps.

    registry ──► technology ──► access (credentials) ──► open buffer: ledgers, OT stores, health, repairs
                     └────────► a server that a run starts

Above it: worker, runner and commands, which use nothing else of a technology. Below it: the interfaces of ledgers and
OT stores. A technology is a folder beside this file, or a package that is registered in the entry point group
`millstream.buffers`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from millstream.ledger.protocol import Broker, DurabilityLevel, StoredFrame
from millstream.record import BufferId, LaneId
from millstream.watermark.store import OtStores


class Access(Protocol):
    """The address of a broker, and the credentials for it. The `repr` contains no secrets."""

    @property
    def url(self) -> str:
        """The URL, without user or password."""

    @property
    def place(self) -> str:
        """Host and port, for messages."""

    @property
    def identity(self) -> str:
        """The user, for messages."""


class LostMessages(NamedTuple):
    """Messages of a ledger that the broker reports as lost."""

    what: str
    """The broker's name for the ledger, for messages."""
    sequences: Sequence[int]
    bytes: int


@dataclass(frozen=True, slots=True)
class TornCommit:
    """A partially stored commit."""

    ledger: str
    """The broker's name for the ledger."""
    first: int
    last: int
    """First and last sequence of the stored part."""
    why: str
    frames: Sequence[tuple[BufferId, StoredFrame]]


class Repairs(Protocol):
    """Operations on the data of a stopped pipeline that a repair needs beyond those of ledgers and OT stores."""

    async def last_sequence(self, vertex: str) -> int:
        """The last sequence of the vertex's ledger; 0 if there is none."""

    async def lost(self, vertex: str) -> LostMessages | None:
        """The messages of the vertex's ledger that the broker reports as lost."""

    async def torn(self, lane: LaneId) -> TornCommit | None:
        """The last commit of a lane, if it is partially stored or its mark cannot be read."""

    async def cut(self, vertex: str, torn: TornCommit) -> None:
        """Remove the stored part of a torn commit."""

    async def holds_mark(self, vertex: str, sequence: int) -> bool:
        """Whether the frame at that sequence holds the current mark of a lane."""

    async def remove(self, vertex: str, buffer: BufferId, sequence: int) -> None:
        """Remove one frame, if it still exists."""


class InterStepBuffer(Protocol):
    """An open connection to everything that a pipeline keeps in one broker."""

    @property
    def broker(self) -> Broker:
        """The ledgers of the pipeline."""

    @property
    def stores(self) -> OtStores:
        """The OT stores of the pipeline."""

    @property
    def repairs(self) -> Repairs:
        """Operations for a repair of the pipeline's data."""

    def trouble(self) -> str | None:
        """Why nothing can be read or stored now; None if there is no problem."""


@dataclass(frozen=True, slots=True)
class OpenBuffer:
    """`InterStepBuffer`, from its parts."""

    broker: Broker
    stores: OtStores
    repairs: Repairs
    trouble: Callable[[], str | None]


class Link(Protocol):
    """A connection to a broker, over which the data of a pipeline can be opened several times."""

    def open(
        self, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC, tolerate_lost: bool = False
    ) -> AbstractAsyncContextManager[InterStepBuffer]:
        """The pipeline's buffers, with separate statistics and last puts. Opening a ledger for writing raises
        `DurabilityError` if the broker's durability is below `require`. With `tolerate_lost`, a ledger is opened even
        if the broker reports that it lost messages of it: for a repair."""


class WriteFailure(Enum):
    """Why a broker could not write. It has to be restarted: it does not know what the disk has."""

    FULL = "the disk is full"
    BROKEN = "a write or a sync failed"


class BrokerAnswer(NamedTuple):
    """A broker's answer about its health."""

    failure: WriteFailure | None = None
    """None if every write has succeeded since the start of the broker, as far as it says."""
    why: str = ""
    """What has failed."""


class Server(Protocol):
    """A broker that a run starts for itself: its files, its command, its health. Created for every run."""

    port: int
    """The port on the loopback interface at which the broker listens; 0 if it does not."""

    @property
    def access(self) -> Access:
        """The address of the broker, and the credentials for it."""

    def prepare(self) -> Mapping[str, str]:
        """Create the broker's directories. Returns the contents of the files below its directory that the broker and
        its clients read at the start, including `access.json` for `Technology.load_access`. Raises
        `InfrastructureError`."""

    def command(self) -> list[str]:
        """The command that starts the broker. Raises `InfrastructureError` if the program is missing.

        Empty if there is no process: the clients open the files that `prepare` has created. Then `is_ready`, `ask`,
        `ended`, `log_entry` and `says_full` are not called.
        """

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the broker's process in addition to those of this one."""

    async def is_ready(self, pid: int) -> bool:
        """Whether the process accepts connections."""

    async def ask(self) -> BrokerAnswer | None:
        """Ask the broker for its health. Returns when it has answered, however long that takes. None if there is no
        broker, or if it closes the connection."""

    def ended(self, pid: int) -> None:
        """Remove files of the ended process that its successor does not use."""

    def log_entry(self, line: bytes) -> bytes | None:
        """Convert a line of the broker's output to our log format; None for a line without information."""

    def says_full(self, line: bytes) -> bool:
        """Whether a line of the output reports that the disk is full. The broker may then store nothing more, although
        it still answers."""


@runtime_checkable
class Technology(Protocol):
    """One way to keep records between steps. A class that is derived from this one has its `open`."""

    @property
    def key(self) -> str:
        """The name of the technology in `spec.interStepBuffer` and after `--ledger`."""

    def load_access(self, path: Path | None, url: str) -> Access:
        """Access to the broker at `url`, with the credentials from the file at `path`, if there is one.

        Raises `UserError` for a URL that contains a password, and for an unusable file. No message contains a secret.
        """

    def secret_files(self, path: Path) -> Sequence[Path]:
        """The access file, and the files of secrets that it names."""

    def connect(self, access: Any, *, name: str) -> AbstractAsyncContextManager[Link]:
        """A connection. `access`: an access of this technology. `name`: the name of the client, for the broker. Raises
        `InfrastructureError` if the broker cannot be reached or cannot keep ledgers."""

    @asynccontextmanager
    async def open(
        self,
        access: Any,
        pipeline: str,
        *,
        name: str,
        require: DurabilityLevel = DurabilityLevel.FSYNC,
        tolerate_lost: bool = False,
    ) -> AsyncIterator[InterStepBuffer]:
        """`connect` and `Link.open` in one call, for a caller that opens one pipeline once."""
        async with (
            self.connect(access, name=f"millstream {pipeline} {name}") as link,
            link.open(pipeline, require=require, tolerate_lost=tolerate_lost) as buffer,
        ):
            yield buffer

    def server(self, directory: Path, *, durability: DurabilityLevel, port: int | None, buffers: int) -> Server:
        """A server over the files in `directory`. It uses `port` if that is free. `buffers`: how many it will hold."""

    async def raw_limit(self, directory: Path, *, records: int, record_bytes: int, fsync: bool) -> float:
        """Records per second that a server below `directory` stores if it does nothing else."""
