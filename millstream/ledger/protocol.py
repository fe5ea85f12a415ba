"""The ledger: the boundary between a vertex and what keeps its facts.

Above it: the vertex process. Below it: JetStream (`jetstream.py`) or memory (`memory.py`), which pass one contract
suite (`tests/contract/ledger`). It knows lanes, buffers, marks and encoded frames; it does not know what a frame holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from millstream import limits
from millstream.ledger.sharing import SEPARATE, Sharing
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2


class DurabilityLevel(Enum):
    """What an acknowledged commit survives."""

    FSYNC = "fsync"
    """Power loss: every write is fsynced before it is acknowledged."""
    PROCESS = "process"
    """The death of any process, not of the operating system."""
    MEMORY = "memory"
    """Nothing: for tests."""
    UNVERIFIED = "unverified"
    """Whatever the broker keeps. Only to be asked for, where its settings cannot be read and its user knows them."""


@dataclass(frozen=True, slots=True)
class Durability:
    """What was found out about the broker at start."""

    level: DurabilityLevel
    verified: bool
    """False when the server's settings could not be read."""
    evidence: str
    """Where it was read, or why it could not be."""


class StoredMark(NamedTuple):
    """A lane's mark as the ledger holds it."""

    mark: mark_pb2.Mark
    sequence: int
    """Stream sequence of the message that holds the mark: what the next commit is guarded with."""


class FrameWrite(NamedTuple):
    """One frame on its way into a buffer."""

    buffer: BufferId
    data: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Frames in order, ids, then the mark. All or nothing."""

    lane: LaneId
    frames: Sequence[FrameWrite]
    """One for several edges that share it (`Ledger.sharing`) is given once, for the buffer of any of them."""
    mark: mark_pb2.Mark
    """`commit_id` is chosen by the caller and new for every commit."""
    after: int
    """`StoredMark.sequence` of the lane's previous mark."""
    ids: bytes = b""
    """Digests of record ids to remember, one after the other (sources that may repeat themselves)."""
    ids_ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """A commit that has landed."""

    mark_sequence: int
    frame_sequences: tuple[int, ...]
    """Stream sequence of each frame, in the order of `Commit.frames`."""


class Witness(NamedTuple):
    """A frame that was read, as its writer named it: another frame at its sequence has another name."""

    lane: str
    """Key of the lane that wrote it."""
    sequence: int
    number: int
    """Among what that lane wrote to the buffer, from 1."""
    commit: int
    """Of the id of its commit, 64 bits."""

    @property
    def name(self) -> str:
        """ "<lane> <number> <commit>", the last in hexadecimal: what the frame is called wherever it is stored."""
        return f"{self.lane} {self.number} {self.commit:016x}"


class GivenUp(NamedTuple):
    """Frames of a lane that a repair gave up: behind a stream sequence, they go on with another number."""

    lane: str
    sequence: int
    """Up to here."""
    after: int
    """Number of the last frame before."""
    through: int
    """The next one is one more. Below `after`: the lane's frames were written again under other numbers."""


class StoredIds(NamedTuple):
    """Ids of one commit, or a part of them."""

    digests: bytes
    """As in `Commit.ids`."""
    age_s: float
    """For how long they have been stored, a little less rather than more."""


class StoredFrame(NamedTuple):
    """One frame as read from a buffer."""

    sequence: int
    data: bytes
    witness: Witness | None = None
    """Its name; None for one that has none that can be read: no lane writes such a frame."""


@dataclass(slots=True)
class LedgerStatistics:
    """Running totals of one open ledger. Read by metrics, tests and the screen."""

    commits: int = 0
    commit_messages: int = 0
    commit_bytes: int = 0
    commit_seconds: float = 0.0
    """Sum over all commits, from sending to answer."""
    answers_settled: int = 0
    """Commits whose answer was lost and that were settled by reading the mark."""
    full_refusals: int = 0
    frames_read: int = 0
    bytes_read: int = 0
    read_restarts: int = 0
    """Times a reader had to set its consumer up again."""
    trims: int = 0


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """Settings of a vertex's ledger."""

    frames_per_buffer_max: int
    """Hard bound on what each lane that writes to a buffer has in it, kept by the server."""
    bytes_max: int = limits.LEDGER_BYTES_MAX
    """Hard bound of the ledger, all buffers together, kept by the server and reserved in its storage from the start.
    Without it a server that runs out of storage in the middle of a batch stores half of it."""
    replicas: int = 1
    """Copies in a broker cluster."""
    ids_ttl_s: float = field(default=0.0)
    """Longest time ids are kept; 0 when no lane gives ids."""
    sharing: Sharing = SEPARATE
    """Edges that share a stored copy of their frames. It counts when the ledger is created; one that exists keeps its
    own."""


class Ledger(Protocol):
    """The ledger of one vertex.

    The owner of a lane calls `take_over`, then `commit` one after another. A downstream vertex calls `read` and `trim`
    on the ledger of its upstream vertex. All methods may be used by several tasks at once; commits of one lane may
    not overlap.
    """

    @property
    def vertex(self) -> str: ...

    @property
    def ledger_id(self) -> str:
        """The same for as long as the ledger exists, another after it was rebuilt: positions begin again then."""

    @property
    def durability(self) -> Durability: ...

    @property
    def sharing(self) -> Sharing:
        """Edges that share a stored copy of their frames. Each method takes the buffer of any of them, and means that
        copy: a frame is written once, for all of them, and is trimmed when all of them have passed it."""

    def statistics(self) -> LedgerStatistics: ...

    async def mark(self, lane: LaneId) -> StoredMark | None:
        """The lane's mark, read from the leader; None before its first."""

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        """Become the owner: writes the same mark under the next epoch. The owner before is fenced from now on."""

    async def commit(self, commit: Commit) -> Receipt:
        """Store everything or nothing, and return when it is durable.

        A lost answer is settled inside, however long the broker stays away (the connection is retried forever;
        cancel to give up). Raises `FencedError` when another owner has taken over, `BufferFullError` or
        `StorageFullError` when nothing was stored and the same commit may be tried again.
        """

    def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        """Ids committed by this lane that have not expired, the oldest first: all of them, at whatever pace they come.

        For the owner of the lane, after `take_over`.
        """

    def read(
        self,
        buffer: BufferId,
        after: int,
        witnesses: Iterable[Witness] | None = None,
        given_up: Iterable[GivenUp] = (),
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        """Frames of a buffer in order, those after stream sequence `after`; waits for more forever.

        Survives restarts of the broker without a gap or a repetition. `witnesses`: the last frame that was read before
        of each lane that writes to the buffer; None where that is not known. Raises `DamageError` before it hands out
        anything that does not follow what was read: the newest of them, or the last frame handed out, is not in the
        buffer any more or is another, or a lane's next frame is not there. `given_up`: what a repair said need not be.
        """

    def watch(self, buffer: BufferId, after: int) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        """Committed frames of a buffer as they pass, those after stream sequence `after`; waits for more forever.

        For a caller that only looks: the buffer's reader, its owner and trims do not wait for it. It gets a frame when
        the reader does, and keeps as much in memory as a reader may; what is trimmed while it is behind is left out,
        which the numbers in the frames' names show.
        """

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        """Remove the frames of each of these buffers up to and including that stream sequence.

        A frame that holds the present mark of the lane that wrote it stays until that lane commits again. So what
        waits in a buffer is what comes after its reader's mark, not what is stored.
        """

    async def leave(self, edges: Collection[str]) -> None:
        """Store the frames of these edges apart from now on. Their buffers are empty then: it is for a time when
        nothing waits in them and no lane has an owner that runs."""

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        """Up to `frames` stored frames after `after`, without consuming anything and without waiting."""

    async def last_sequence(self, buffer: BufferId) -> int:
        """Stream sequence of the last frame of the buffer that is still stored; 0 when none is.

        It may be one that was read and trimmed; see `trim`.
        """


class Broker(Protocol):
    """Where a pipeline's ledgers live."""

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        """The ledger of `vertex`, made when it does not exist and brought to `limits` when it does.

        Raises `DurabilityError` when the broker keeps less than was asked for at opening.
        """

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        """The ledger of `vertex` as it is; None when it does not exist (yet)."""

    async def delete(self, vertex: str | None = None) -> None:
        """Remove everything the pipeline keeps in this broker, or what one of its vertices keeps."""
