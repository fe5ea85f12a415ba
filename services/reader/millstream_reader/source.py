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
    """The input unchanged; only its beginning if it is larger than a record may be."""
    reason: str
    """The place of the input (file and line), what is wrong with it and what was expected."""
    place: str = ""
    """Only the place, if the source knows it."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The result of one read."""

    frame: Frame | None
    """None if nothing was ready in time."""
    position: bytes
    """The source's position after this batch, in its own encoding. It is stored in the mark. An empty batch may repeat
    the last position."""
    ended: bool = False
    """Whether this is the last batch."""
    invalid: tuple[InvalidRecord, ...] = ()
    """Input before `position` that is not in `frame` because it could not be read. Each item counts as an input of the
    lane."""
    made_up: bytes = b""
    """For each record of the frame: 1 if the source generated its id, which never occurs again, 0 if the sender gave
    it. Empty if all ids were given."""

    def rows_made_up(self, rows: Sequence[int]) -> bytes:
        """The part of `made_up` for these rows of the frame."""
        return bytes(self.made_up[row] for row in rows) if self.made_up else b""


class SourceLane(Protocol):
    """One open split of a source. It was opened at a position, and one task reads it."""

    @property
    def replayable(self) -> bool:
        """True if reading again from a position returns the same records. False if records have ids and may be
        repeated, or, in a source with at-most-once delivery, have no ids and are never repeated."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        """The next batch: what is ready, up to the limits; an empty one after `timeout_s`. It does not wait for a full
        batch.

        Raises a `UserError` for input that cannot be used (what, which file and line) and `InfrastructureError` for
        input that cannot be reached. After `RetryLaterError`, the call has taken nothing: the lane waits, and reads
        again from the same position. A single record larger than `bytes_max` is returned alone.
        """

    async def committed(self, position: bytes) -> None:
        """Everything up to `position` is durable: the lane may acknowledge it outside."""

    def pending(self) -> int | None:
        """Number of records that wait at the source; None if it is not known."""

    async def drain(self) -> None:
        """Accept no new records from outside. After it, `read` returns the rest of the accepted ones, then empty
        batches."""


@runtime_checkable
class MeasuredLane(Protocol):
    """One whose source has a size in bytes: a log of a server, files, objects."""

    def pending_bytes(self) -> int | None:
        """Bytes that wait at the source; None as long as that is not known."""


@runtime_checkable
class VersionedLane(Protocol):
    """One that reads a table version by version."""

    def pending_versions(self) -> int | None:
        """Versions that are not read to their end; None as long as that is not known."""


@runtime_checkable
class HeldUpLane(Protocol):
    """One whose reads can be empty although its source has records."""

    def is_held_up(self) -> bool:
        """Whether the source may have records that cannot be read now, for example because its server is away. Such a
        source is not silent."""


def is_held_up(lane: SourceLane) -> bool:
    """Whether a source of any kind is known to be held up."""
    return isinstance(lane, HeldUpLane) and lane.is_held_up()


def pending_bytes(lane: SourceLane) -> int | None:
    """Bytes that are known to wait at the source of a lane, of any kind."""
    return lane.pending_bytes() if isinstance(lane, MeasuredLane) else None


def pending_versions(lane: SourceLane) -> int | None:
    """Versions of a table that are known to wait at the source of a lane, of any kind."""
    return lane.pending_versions() if isinstance(lane, VersionedLane) else None


@runtime_checkable
class ListeningLane(Protocol):
    """A source that clients connect to."""

    def listener(self) -> ListenerStatistics:
        """Open connections and refusals."""
