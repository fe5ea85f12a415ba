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
    """How often a record reaches the target, whatever dies."""

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
    """Index in the stored frame of each record, rising; None when they follow `first_index` without a gap."""
    attempt: int = 0
    """0 when these records are offered for the first time."""
    name: str = ""
    """The stored frame's, by its writer: another frame at its sequence has another. Empty where it has none."""

    def indexes(self) -> Sequence[int]:
        """Index in the stored frame of each record."""
        if self.picked is not None:
            return self.picked
        return range(self.first_index, self.first_index + self.frame.records)

    def record_ids(self) -> list[str]:
        """The source's own ids where it gave them, else stable ones made of position and index."""
        given = self.frame.ids()
        if given is not None:
            return given
        return [f"{self.id_prefix}{index}" for index in self.indexes()]

    def take(self, rows: Sequence[int]) -> SinkFrame:
        """Some of the records (rising, not empty), each with the id it has here."""
        if len(rows) == self.frame.records:
            return self
        ids = self.record_ids()
        indexes = self.indexes()
        picked = [indexes[row] for row in rows]
        # Ids go into the frame: who numbers from `first_index`, as a user's sink does, would count past the gaps.
        ids_column = columns.pack_bytes([ids[row].encode() for row in rows])
        frame = replace(self.frame.take(rows), ids_column=ids_column)
        return replace(self, frame=frame, first_index=picked[0], picked=picked)


def exact_end(frames: Sequence[SinkFrame], end: Position) -> Position:
    """`end`, the lane's position after `frames`, counted from right before the frame it lies in.

    A mark in the middle of a frame names the frame before. That one's sequence depends on where the lane came from,
    so two such positions cannot be compared; these can, and `exact_position` gives the same ones.
    """
    if not frames or end.record_index == 0:
        return end
    return Position.within(frames[-1].sequence, end.record_index)


def frame_at(position: Position) -> int:
    """Sequence of the frame that holds the last record before an exact position."""
    return position.sequence + (position.record_index > 0)


def exact_position(frame: SinkFrame, index: int) -> Position:
    """Where a lane stands when it has done the records of `frame` below `index` (an index in the stored frame)."""
    return Position.within(frame.sequence, index)


@dataclass(frozen=True, slots=True)
class SinkFailure:
    """One record a sink could not write."""

    index: int
    """Row of the `SinkFrame` given: 0 for its first record."""
    reason: str
    """Short and from a small set, because records are counted by it; what is particular stands in `detail`."""
    retryable: bool
    """False: trying again cannot help (refused by the target); the policy's `onFailure` applies at once."""
    fallback: bool = False
    """The sink itself asks for the fallback sink."""
    drop: bool = False
    """The sink itself asks to leave the record out, counted under `reason`."""
    attempted: bool = True
    """False: costs no attempt. It was not tried because one before it failed, or the sink asked for another time."""
    asked: bool = False
    """The sink's function asked to see it again; how often it may is bounded."""
    delay_s: float = 0.0
    """Not to be tried again before this many seconds."""
    detail: str = ""
    """What happened to this record, for messages."""
    shows_value: bool = False
    """The detail shows something of the record's value."""
    code: Code | None = None
    """Of the error, where the lane has to stop over the record and there is one for what is wrong with it."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of one `write`."""

    failures: Sequence[Sequence[SinkFailure]] = field(default_factory=tuple)
    """Per `SinkFrame`, in order; empty when everything was taken."""


class SinkLane(Protocol):
    """The open target of one lane, under one epoch. Used by one task."""

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def durable(self) -> Position | None:
        """How far the target is for sure; None for a target that does not know (what `write` returned is then durable).

        Right after opening, this is what the target itself says. The lane goes on from its mark anyway: a sink
        takes what is at or below this position without writing it again, so that a record it refuses is refused, and
        counted, as it was before. A sink that collects before it commits (files) raises it as it commits.
        """

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        """Take these records, after which the lane is at `end`. `frames` may be empty: nothing was for this sink.

        Raises `RetryLaterError` when nothing of it was taken and the same call may be repeated (target away, disk
        full), and `FencedError` when another owner has opened the lane since. After any other error, or when it is
        cancelled, the lane must be closed. A sink with a position (`durable`) gives no retryable failures: it takes the
        whole write or raises.
        """

    async def flush(self) -> None:
        """Make everything taken durable now: at the end, while draining, and when the buffer upstream runs full.

        Raises as `write` does; nothing is lost by `RetryLaterError`, and the call may be repeated.
        """

    async def tick(self) -> None:
        """Called at least every second: for time-based commits. Raises as `flush` does."""


@runtime_checkable
class WholeLane(SinkLane, Protocol):
    """A lane whose owner asks for whole deliveries (`SinkOwner.whole`): its position is never within one.

    A delivery is what is written from one flush to the next; of a lane that does not collect, each write. Where records
    of a write are refused, nothing of it is in the target before the next call.
    """

    @property
    def collects(self) -> bool:
        """A write is in the target only when `flush` is called; otherwise when it returns, unless records of it were
        refused."""

    @property
    def is_ripe(self) -> bool:
        """It is time to flush what was collected."""

    @property
    def delivery_records_max(self) -> int:
        """Records after which a delivery should end."""

    async def reach(self) -> Position:
        """How far the target is, with every former owner fenced. Raises `RetryLaterError` while it is away."""


class UnkeptLane:
    """What lanes have in common whose target keeps no position: what `write` returned is durable, at least once."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    @property
    def durable(self) -> Position | None:
        return None

    async def flush(self) -> None:
        """Every write is durable when it returns."""

    async def tick(self) -> None:
        """Nothing waits for a time."""
