"""What a lane learns from its upstream lanes: input watermark and end of input. A back edge has its own rules.

A cycle. The upstream lanes of an input that closes it cannot end before it, so it ends when the cycle is empty.

A commit moves marks and frames together, so the state of all ledgers at one moment is complete: if every lane that
feeds the cycle from outside has ended, and every buffer inside holds nothing beyond its reader's mark, nothing moves
and nothing will. The ledgers cannot be read at a single moment, so they are read twice: if both reads are equal,
nothing moved between the end of the first and the start of the second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from millstream.account import consumed
from millstream.errors import RetryLaterError
from millstream.ledger.protocol import Ledger
from millstream.record import BufferId, LaneId
from millstream.watermark.fetch import WatermarkFetcher
from millstream.watermark.store import OtUpdate

_log = logging.getLogger(__name__)


class LaneInput(WatermarkFetcher):
    """An input of a lane: listens to the upstream vertex's OT store."""

    def __init__(
        self,
        buffer: BufferId,
        upstream: Collection[LaneId],
        *,
        back_edge: bool,
        changed: asyncio.Event | None = None,
    ) -> None:
        """`changed`: the event of a task that follows several inputs."""
        super().__init__(buffer, upstream)
        self._quiet_end: int | None = None
        self.back_edge = back_edge
        """Whether the input closes a cycle. Such an input does not hold back the watermark, and ends when the cycle is
        empty (`wait_until_empty`): its upstream lanes can only end after it."""
        self.changed = changed or asyncio.Event()
        """Set when the input has changed. The task that follows the watermark clears it."""
        self._wake_reader = asyncio.Event()

    def bind(self, wake_reader: asyncio.Event) -> None:
        """Also set this event whenever the input changes."""
        self._wake_reader = wake_reader

    def observe(self, update: OtUpdate) -> None:
        if self.add(update):
            self._set()

    def end_sequence(self) -> int | None:
        """The last sequence that this input will ever have; None until it is known."""
        return self._quiet_end if self.back_edge else super().end_sequence()

    def cycle_is_empty(self) -> None:
        """End the input: nothing moves in the cycle any more, and nothing will enter it."""
        self._quiet_end = 0
        self._set()

    def _set(self) -> None:
        self.changed.set()
        self._wake_reader.set()


ASK_INTERVAL_S = 0.2
"""Time between two checks of the cycle."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A strongly connected component of the graph, as the lanes that have to be checked."""

    entering: Sequence[LaneId]
    """Lanes that bring records into the cycle from outside."""
    inside: Sequence[tuple[LaneId, BufferId, str]]
    """Lanes that read a buffer which is written inside the cycle, each with that buffer and the vertex that writes
    it."""


async def wait_until_empty(cycle: Cycle, ledgers: Mapping[str, Ledger], interval_s: float = ASK_INTERVAL_S) -> None:
    """Return once the cycle is empty and nothing can enter it. `ledgers`: the ledgers by vertex."""
    before: list[tuple[int, int]] | None = None
    while True:
        try:
            now = await _look(cycle, ledgers)
        except RetryLaterError as error:
            _log.warning("cannot check the cycle now: %s", error)
            now = None
        if now is not None and now == before:
            return
        before = now
        await asyncio.sleep(interval_s)


async def _look(cycle: Cycle, ledgers: Mapping[str, Ledger]) -> list[tuple[int, int]] | None:
    """The position of every lane and the end of every buffer inside the cycle; None if work remains."""
    for lane in cycle.entering:
        stored = await ledgers[lane.vertex].mark(lane)
        if stored is None or not stored.mark.ended:
            return None
    state: list[tuple[int, int]] = []
    for lane, buffer, writer in cycle.inside:
        stored = await ledgers[lane.vertex].mark(lane)
        read = consumed(lane, stored.mark) if stored is not None else []
        done = next((one.position.sequence for one in read if one.buffer == buffer), 0)
        last = await ledgers[writer].last_sequence(buffer)
        if last > done:
            return None
        state.append((done, last))
    return state
