"""What a sink is to the vertex that runs it.

Above it: the sink lane of the vertex process. Below it: one module per kind of sink. A sink knows frames, positions
and its target; it does not know ledgers or watermarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, runtime_checkable

from millstream.codes.code import Code
from millstream.frame import Frame
from millstream.record import Position
from millstream_udf import columns


class Guarantee(Enum):
    """How often a record reaches the target, whatever process fails."""

    EXACTLY_ONCE_TRANSACTIONAL = "exactly once (position kept in the target)"
    EXACTLY_ONCE_IDEMPOTENT = "exactly once, if the target honours the record's id"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class SinkFrame:
    """Records of one stored frame, or some of them."""

    frame: Frame
    sequence: int
    """Stream sequence of the stored frame."""
    first_index: int
    """Index of this frame's first record in the stored frame."""
    id_prefix: str
    """"<vertex>/<edge>/<partition>/<sequence>/": with the record's index in the stored frame, its id forever."""
    picked: Sequence[int] | None = None
    """Index of each record in the stored frame, ascending; None if they follow `first_index` without a gap."""
    attempt: int = 0
    """Number of earlier attempts with these records."""
    name: str = ""
    """Name of the stored frame, from its writer: a different frame at the same sequence has a different name. Empty if
    it has none."""

    def indexes(self) -> Sequence[int]:
        """Index of each record in the stored frame."""
        if self.picked is not None:
            return self.picked
        return range(self.first_index, self.first_index + self.frame.records)

    def record_ids(self) -> list[str]:
        """The source's ids if it gave them, otherwise stable ids derived from position and index."""
        given = self.frame.ids()
        if given is not None:
            return given
        return [f"{self.id_prefix}{index}" for index in self.indexes()]

    def take(self, rows: Sequence[int]) -> SinkFrame:
        """Some of the records (ascending, not empty), each with its id in this frame."""
        if len(rows) == self.frame.records:
            return self
        ids = self.record_ids()
        indexes = self.indexes()
        picked = [indexes[row] for row in rows]
        # The frame gets explicit ids: a consumer that numbers from `first_index`, such as a user's sink, would ignore
        # the gaps.
        ids_column = columns.pack_bytes([ids[row].encode() for row in rows])
        frame = replace(self.frame.take(rows), ids_column=ids_column)
        return replace(self, frame=frame, first_index=picked[0], picked=picked)


def exact_end(frames: Sequence[SinkFrame], end: Position) -> Position:
    """`end`, the lane's position after `frames`, relative to the frame that contains it.

    A mark in the middle of a frame names the frame before it. The sequence of that frame depends on where the lane
    started, so two such positions cannot be compared. Exact positions can, and `exact_position` returns the same ones.
    """
    if not frames or end.record_index == 0:
        return end
    return Position.within(frames[-1].sequence, end.record_index)


def frame_at(position: Position) -> int:
    """Sequence of the frame that holds the last record before an exact position."""
    return position.sequence + (position.record_index > 0)


def exact_position(frame: SinkFrame, index: int) -> Position:
    """The lane's position after the records of `frame` below `index` (an index in the stored frame)."""
    return Position.within(frame.sequence, index)


@dataclass(frozen=True, slots=True)
class SinkFailure:
    """A record that a sink could not write."""

    index: int
    """Row of the `SinkFrame`: 0 for its first record."""
    reason: str
    """Short and from a small set, because records are counted by it; details are in `detail`."""
    retryable: bool
    """False if a retry cannot help (the target refused it); the policy's `onFailure` applies immediately."""
    fallback: bool = False
    """Whether the sink itself asks for the fallback sink."""
    drop: bool = False
    """Whether the sink itself asks to drop the record, which is counted under `reason`."""
    attempted: int = 1
    """As how many attempts this counts. 0 if the record was not tried because an earlier one failed, or if the sink
    asked for a later time."""
    asked: bool = False
    """Whether the sink's function asked for the record again. The number of times is limited."""
    delay_s: float = 0.0
    """Minimum number of seconds before the next attempt."""
    detail: str = ""
    """What happened to this record, for messages."""
    shows_value: bool = False
    """Whether the detail shows part of the record's value."""
    code: Code | None = None
    """Code of the error with which the lane stops because of the record, if its problem has one."""

    @property
    def untried(self) -> bool:
        """Whether the record was only left for the next attempt, because an earlier one failed."""
        return not self.attempted and not self.asked and not self.delay_s


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of one `write`."""

    failures: Sequence[Sequence[SinkFailure]] = field(default_factory=tuple)
    """Failures for each `SinkFrame`, in order; empty if all records were accepted."""


class RefusedLateError(Exception):
    """Records of a whole delivery were found to be refused when it was made. The target has nothing of it. It has to be
    written again: the result of that write has the failures of these records, too."""


class DivideDeliveryError(Exception):
    """A whole delivery of several records has ended the process of the sink's function, which had no other call. The
    target has nothing of it. It has to be made as smaller deliveries, so that the record that is the cause is found.
    The text says how the process ended."""


class SinkLane(Protocol):
    """The open target of one lane, under one epoch. Used by one task."""

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def durable(self) -> Position | None:
        """The position that the target certainly has; None for a target without positions (records are then durable
        when `write` returns).

        Right after opening, this is the target's own position. The lane still continues from its mark: a sink accepts
        records at or below this position without writing them again, so that records that it refuses are refused and
        counted as before. A sink that collects records before it commits (files) advances the position when it commits.
        """

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        """Accept these records, after which the lane is at `end`. `frames` is empty if there are no records for this
        sink.

        Raises `RetryLaterError` if no record was accepted and the same call may be repeated (target away, disk full),
        and `FencedError` if another owner has opened the lane since. After any other error or a cancellation, the lane
        must be closed. A sink with a position (`durable`) returns no retryable failures, except for records that it has
        not tried because an earlier one was refused: it accepts the whole write or raises.
        """

    async def flush(self) -> None:
        """Make all accepted records durable now: at the end, while draining, and when the upstream buffer fills up.

        Raises as `write` does; nothing is lost by `RetryLaterError`, and the call may be repeated.
        """

    async def tick(self) -> None:
        """Called at least every second: for time-based commits. Raises as `flush` does."""


@runtime_checkable
class WholeLane(SinkLane, Protocol):
    """A lane whose owner requires whole deliveries (`SinkOwner.whole`): its position is never within one.

    A delivery consists of the writes between two flushes; in a lane that does not collect, of one write. If records of
    a write are refused, the target has none of its records before the next call. The flush that follows may raise
    `RefusedLateError`. Both calls may raise `DivideDeliveryError`.
    """

    @property
    def collects(self) -> bool:
        """Whether a write reaches the target only when `flush` is called. Otherwise it does when `write` returns,
        unless some of its records were refused."""

    @property
    def is_ripe(self) -> bool:
        """Whether the collected records should be flushed now."""

    @property
    def delivery_records_max(self) -> int:
        """Number of records after which a delivery should end."""

    async def reach(self) -> Position:
        """The target's position, with every former owner fenced. Raises `RetryLaterError` while the target is away."""


@runtime_checkable
class DividingLane(WholeLane, Protocol):
    """A lane of whole deliveries that may raise `DivideDeliveryError`."""

    @property
    def divides(self) -> bool:
        """Whether it may. A delivery is then no larger than what a mark holds."""


@runtime_checkable
class FinishingLane(SinkLane, Protocol):
    """A lane that makes records durable while it accepts others."""

    @property
    def in_progress(self) -> Position | None:
        """The position that `durable` will reach without further records or time. None as for `durable`."""


@runtime_checkable
class GatheringLane(SinkLane, Protocol):
    """A lane that may gather records of several frames in one request. Its target keeps no position, and a repeated
    request has no further effect, so that a larger write repeats nothing that counts."""

    @property
    def gathers(self) -> bool:
        """Whether a write of several frames costs less than a write of each."""


class UnkeptLane:
    """The common part of lanes whose target keeps no position: records are durable when `write` returns, at least
    once."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    @property
    def durable(self) -> Position | None:
        return None

    async def flush(self) -> None:
        """Every write is durable when it returns."""

    async def tick(self) -> None:
        """There are no time-based commits."""
