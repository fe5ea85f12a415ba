"""What a sink is to the vertex that runs it.

Above it: the sink lane of the vertex process. Below it: one module per kind of sink. A sink knows frames, positions
and its target; it does not know ledgers or watermarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from millstream.frame import Frame
from millstream.record import Position


class Guarantee(Enum):
    """How often a record reaches the target, whatever dies."""

    EXACTLY_ONCE_TRANSACTIONAL = "exactly once (position kept in the target)"
    EXACTLY_ONCE_IDEMPOTENT = "exactly once, if the target honours the record's id"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class SinkFrame:
    """Records of one stored frame, or a slice of them."""

    frame: Frame
    sequence: int
    """Stream sequence of the stored frame."""
    first_index: int
    """Index of this frame's first record in the stored frame."""
    id_prefix: str
    """"<vertex>/<edge>/<partition>/<sequence>/": with the record's index in the stored frame, its id at every attempt."""

    def record_ids(self) -> list[str]:
        """The source's own ids where it gave them, else stable ones made of position and index."""
        given = self.frame.ids()
        if given is not None:
            return given
        first = self.first_index
        return [f"{self.id_prefix}{index}" for index in range(first, first + self.frame.records)]


@dataclass(frozen=True, slots=True)
class SinkFailure:
    """One record a sink could not write."""

    index: int
    """Index in the `SinkFrame` given."""
    reason: str
    retryable: bool
    """False: trying again cannot help (refused by the target); the policy's `onFailure` applies at once."""
    fallback: bool = False
    """The sink itself asks for the fallback sink."""
    drop: bool = False
    """The sink itself asks to leave the record out, counted under `reason`."""


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

        Right after opening, this is what the target itself says, and the lane goes on from there if it is further than the
        mark. A sink that collects before it commits (files) raises it as it commits.
        """

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        """Take these records, after which the lane stands at `end`. Raises `RetryLaterError` when the target cannot be reached at all."""

    async def flush(self) -> None:
        """Make everything taken durable now: at the end, while draining, and when the buffer upstream runs full."""

    async def tick(self) -> None:
        """Called at least every second: for time-based commits."""
