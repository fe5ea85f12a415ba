"""What a source is to the vertex that runs it.

Above it: the source lane of the vertex process. Below it: one module per kind of source. A source knows records and
positions; it does not know ledgers, marks or watermarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from millstream.frame import Frame
from millstream.statistics import ListenerStatistics


@dataclass(frozen=True, slots=True)
class InvalidRecord:
    """A piece of input that cannot become a record. The source's `onInvalid` says what happens to it."""

    value: bytes
    """The input as it was found; the beginning of it when it is larger than a record may be."""
    reason: str
    """Where it stands (file and line), what is wrong with it and what was expected."""
    place: str = ""
    """The first of these alone, where the source knows it."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What one read gave."""

    frame: Frame | None
    """None: nothing was ready in time."""
    position: bytes
    """Where the source stands after this batch, in its own encoding; goes into the mark. For an empty batch it may
    repeat the last."""
    ended: bool = False
    """Nothing will follow, ever."""
    invalid: tuple[InvalidRecord, ...] = ()
    """Input before `position` that is not in `frame` because it could not be read; each counts as an input of the
    lane."""
    made_up: bytes = b""
    """For each record of the frame 1 where its id was made up by the source and never comes again, 0 where it was
    given; empty where all were."""

    def rows_made_up(self, rows: Sequence[int]) -> bytes:
        """Of `made_up`, what belongs to these rows of the frame."""
        return bytes(self.made_up[row] for row in rows) if self.made_up else b""


class SourceLane(Protocol):
    """One open split of a source. Opened at a position, read by one task."""

    @property
    def replayable(self) -> bool:
        """True: reading again from a position gives the same records. False: records carry ids, and may be repeated;
        or, of a source that counts them at most once, they carry none and never come again."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        """The next batch: whatever is ready, at most the limits; an empty one after `timeout_s`. Never waits to fill
        up.

        Raises a `UserError` for input that cannot be used (what, which file and line) and `InfrastructureError` for
        input that cannot be reached. A single record larger than `bytes_max` comes alone.
        """

    async def committed(self, position: bytes) -> None:
        """Everything up to `position` is durable: external acks may be given."""

    def pending(self) -> int | None:
        """Records known to wait at the source; None when it cannot be known."""

    async def drain(self) -> None:
        """Take nothing new in from outside; what was taken in is still read. After it, `read` gives the rest, then
        empty batches."""


@runtime_checkable
class LogLane(Protocol):
    """One that reads a log whose server says how long it is, in bytes."""

    def pending_bytes(self) -> int | None:
        """Bytes of the log that wait at the source; None as long as that is not known."""


def pending_bytes(lane: SourceLane) -> int | None:
    """Bytes that are known to wait at the source of a lane, of any kind."""
    return lane.pending_bytes() if isinstance(lane, LogLane) else None


@runtime_checkable
class ListeningLane(Protocol):
    """One that others connect to."""

    def listener(self) -> ListenerStatistics:
        """Who is connected, and what was refused."""
