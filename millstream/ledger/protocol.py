"""The ledger: the interface between a vertex and the storage of its state.

Above it: the vertex process. Below it: the implementations in JetStream and Redis (`millstream/buffers`) and in memory
(`memory.py`), which pass one contract suite (`tests/contract/ledger`). It knows lanes, buffers, marks and encoded
frames; it does not know the contents of a frame.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from millstream import codes, limits
from millstream.errors import DurabilityError
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
    """Whatever the broker keeps. Used only on request, if the broker's settings cannot be read but the user knows
    them."""


_STRENGTH = {DurabilityLevel.MEMORY: 0, DurabilityLevel.PROCESS: 1, DurabilityLevel.FSYNC: 2}


@dataclass(frozen=True, slots=True)
class Durability:
    """The durability of the broker, as determined at the start."""

    level: DurabilityLevel
    verified: bool
    """False if the server's settings could not be read."""
    evidence: str
    """Where the settings were read, or why they could not be read."""

    def check(self, require: DurabilityLevel, where: str, *, to_know: str, to_have: str) -> None:
        """Raise `DurabilityError` if the durability is below `require`, or may be because it is not known. `where`: the
        broker, for the message. `to_know`, `to_have`: what its user can do to show, or to get, a sufficient one."""
        if require is DurabilityLevel.UNVERIFIED or _STRENGTH[self.level] >= _STRENGTH[require]:
            return
        if not self.verified:
            raise DurabilityError(
                codes.DURABILITY_UNKNOWN,
                f"it is not known whether {where} keeps what it acknowledges, but durability {require.value!r} is "
                f"required: {self.evidence}. {to_know}, start with `--durability unverified`",
            )
        raise DurabilityError(
            codes.NOT_DURABLE,
            f"{where} may lose acknowledged data: its durability is {self.level.value!r}, but {require.value!r} is "
            f"required ({self.evidence}). Set {to_have}, or ask for a weaker durability by name",
        )


class StoredMark(NamedTuple):
    """A lane's mark as the ledger holds it."""

    mark: mark_pb2.Mark
    sequence: int
    """Stream sequence of the message that holds the mark. It guards the next commit."""


class FrameWrite(NamedTuple):
    """One frame to be written to a buffer."""

    buffer: BufferId
    data: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Frames in order, ids, then the mark. The ledger stores all of them or nothing."""

    lane: LaneId
    frames: Sequence[FrameWrite]
    """A frame that several edges share (`Ledger.sharing`) is listed once, for the buffer of any of them."""
    mark: mark_pb2.Mark
    """The caller chooses a new `commit_id` for every commit."""
    after: int
    """`StoredMark.sequence` of the lane's previous mark."""
    ids: bytes = b""
    """Concatenated digests of record ids to remember (for sources that may repeat records)."""
    ids_ttl_s: float = 0.0
    replaces: bytes = b""
    """`commit_id` of the lane's previous mark; empty if there is none. In a ledger that was set back and written again,
    another mark may have the sequence `after`."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A stored commit."""

    mark_sequence: int
    frame_sequences: tuple[int, ...]
    """Stream sequence of each frame, in the order of `Commit.frames`."""


class Witness(NamedTuple):
    """A frame that was read, with the name that its writer gave it. A different frame at the same sequence has a
    different name."""

    lane: str
    """Key of the lane that wrote it."""
    sequence: int
    number: int
    """Its number among the frames that the lane wrote to the buffer, from 1."""
    commit: int
    """The first 64 bits of the id of its commit."""

    @property
    def name(self) -> str:
        """ "<lane> <number> <commit>", with the commit in hexadecimal: the name that is stored with the frame."""
        return f"{self.lane} {self.number} {self.commit:016x}"


class GivenUp(NamedTuple):
    """Frames of a lane that a repair gave up. The lane's frames after them continue with a different number."""

    lane: str
    sequence: int
    """The last stream sequence that this covers."""
    after: int
    """Number of the lane's last frame before them."""
    through: int
    """The next frame has this number plus one. Lower than `after` if the lane's frames were written again under other
    numbers."""


class StoredIds(NamedTuple):
    """Some or all ids of one commit."""

    digests: bytes
    """As in `Commit.ids`."""
    age_s: float
    """How long they have been stored; rather too low than too high."""


class StoredFrame(NamedTuple):
    """One frame as read from a buffer."""

    sequence: int
    data: bytes
    witness: Witness | None = None
    """Its name; None if it has no readable name. No lane writes a frame without a name."""


@dataclass(slots=True)
class LedgerStatistics:
    """Running totals of one open ledger. Read by metrics, tests and the screen."""

    commits: int = 0
    commit_messages: int = 0
    commit_bytes: int = 0
    commit_seconds: float = 0.0
    """Time from sending to answer, summed over all commits."""
    answers_settled: int = 0
    """Commits whose answer was lost and whose result was read from the mark."""
    full_refusals: int = 0
    frames_read: int = 0
    bytes_read: int = 0
    read_restarts: int = 0
    """How often a reader had to recreate its consumer."""
    trims: int = 0

    def committed(self, seconds: float, messages: int, size: int) -> None:
        """Count a commit. `seconds`: from sending to answer. `size`: its bytes."""
        self.commits += 1
        self.commit_messages += messages
        self.commit_bytes += size
        self.commit_seconds += seconds

    def read(self, frame: StoredFrame) -> None:
        """Count a frame that a reader returns."""
        self.frames_read += 1
        self.bytes_read += len(frame.data)


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """Settings of a vertex's ledger."""

    frames_per_buffer_max: int
    """Hard limit on the frames of each lane in a buffer, enforced by the server."""
    bytes_max: int = limits.LEDGER_BYTES_MAX
    """Hard limit on the size of the ledger, all buffers together. The server enforces it and reserves the storage from
    the start. Without a limit, a server that runs out of storage in the middle of a batch stores half of it."""
    ids_ttl_s: float = field(default=0.0)
    """The longest time that ids are kept; 0 if no lane commits ids."""
    sharing: Sharing = SEPARATE
    """Edges that share a stored copy of their frames. Used only when the ledger is created; an existing ledger keeps
    its own value."""


class Ledger(Protocol):
    """The ledger of one vertex.

    The owner of a lane calls `take_over`, then `commit` for one commit after another. A downstream vertex calls `read`
    and `trim` on the ledger of its upstream vertex. Several tasks may use all methods at the same time, but commits of
    one lane must not overlap.
    """

    @property
    def vertex(self) -> str:
        """The vertex that commits here."""

    @property
    def ledger_id(self) -> str:
        """Stays the same while the ledger exists. A rebuilt ledger has a new id, and its positions start over."""

    @property
    def durability(self) -> Durability:
        """As determined when the ledger was opened."""

    @property
    def sharing(self) -> Sharing:
        """Edges that share a stored copy of their frames. Each method accepts the buffer of any of these edges, and
        applies to the copy: a frame is written once, for all edges, and is trimmed when all of them have passed it."""

    @property
    def packs(self) -> bool:
        """Whether the frames of a commit to one buffer are to be stored as one (`millstream.ledger.packs`)."""

    @property
    def compresses(self) -> bool:
        """Whether stored frames may be compressed (`millstream.ledger.compression`)."""

    @property
    def holds_arrow(self) -> bool:
        """Whether stored frames may have Arrow columns in place of values (`millstream_udf.arrow_values`)."""

    def statistics(self) -> LedgerStatistics:
        """Totals since the ledger was opened."""

    async def mark(self, lane: LaneId) -> StoredMark | None:
        """The lane's mark, read from the leader; None before the first one."""

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        """Become the owner: write the same mark under the next epoch, which fences the previous owner."""

    async def commit(self, commit: Commit) -> Receipt:
        """Store everything or nothing, and return when it is durable.

        It handles a lost answer itself, however long the broker is unavailable (it retries the connection forever; to
        give up, cancel it). Raises `FencedError` if another owner has taken over, and `BufferFullError` or
        `StorageFullError` if nothing was stored and the same commit may be tried again.
        """

    def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        """All ids committed by this lane that have not expired, the oldest first, with no limit on the time it takes.

        For the owner of the lane, after `take_over`.
        """

    def read(
        self,
        buffer: BufferId,
        after: int,
        witnesses: Iterable[Witness] | None = None,
        given_up: Iterable[GivenUp] = (),
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        """The frames of a buffer after stream sequence `after`, in order; waits for more forever.

        Survives restarts of the broker without a gap or a repetition. `witnesses`: the last frame that was read from
        each lane that writes to the buffer; None if that is not known. Raises `DamageError` before it returns a frame
        that does not follow what was read: if the newest witness, or the last frame returned, is no longer in the
        buffer or was replaced by another, or if a lane's next frame is missing. `given_up`: frames that may be missing
        because a repair gave them up.
        """

    def watch(self, buffer: BufferId, after: int) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        """The committed frames of a buffer after stream sequence `after`, as they pass; waits for more forever.

        For a caller that only observes: the buffer's reader, its owner and trims do not wait for it. It gets a frame
        when the reader does, and may keep as much in memory as a reader. It misses frames that are trimmed before it
        has read them; the numbers in the frames' names show that.
        """

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        """Remove the frames of each of these buffers up to and including the given stream sequence.

        A frame that holds the current mark of the lane that wrote it stays until that lane commits again. So the frames
        that wait in a buffer are those after its reader's mark, not all that are stored.
        """

    async def leave(self, edges: Collection[str]) -> None:
        """Store the frames of these edges separately from now on. Their buffers are empty after that, so call it only
        while nothing waits in them and no lane has a running owner."""

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        """Up to `frames` stored frames after `after`, without consuming anything and without waiting."""

    async def last_sequence(self, buffer: BufferId) -> int:
        """Stream sequence of the last frame of the buffer that is still stored; 0 if there is none.

        That frame may have been read and trimmed; see `trim`.
        """


class Broker(Protocol):
    """Where a pipeline's ledgers live."""

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        """The ledger of `vertex`. Creates it if it does not exist; otherwise applies `limits` to it.

        Raises `DurabilityError` if the broker's durability is below the level that was required at opening.
        """

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        """The ledger of `vertex`, unchanged; None if it does not exist (yet)."""

    async def delete(self, vertex: str | None = None) -> None:
        """Remove everything that the pipeline, or one of its vertices, keeps in this broker."""
