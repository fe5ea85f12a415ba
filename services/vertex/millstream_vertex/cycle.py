"""Detects an empty cycle, for lanes whose input closes a cycle: their upstream lanes cannot end before them.

A commit moves marks and frames together, so the state of all ledgers at one moment is complete: if every lane that
feeds the cycle from outside has ended, and every buffer inside holds nothing beyond its reader's mark, nothing moves
and nothing will. The ledgers cannot be read at a single moment, so they are read twice: if both reads are equal,
nothing moved between the end of the first and the start of the second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import RetryLaterError
from millstream.ledger.protocol import Ledger
from millstream.record import BufferId, LaneId

_log = logging.getLogger(__name__)

ASK_INTERVAL_S = 0.2
"""Time between two checks of the cycle."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A strongly connected component of the graph, as the lanes that have to be checked."""

    entering: Sequence[LaneId]
    """Lanes that bring records into the cycle from outside."""
    inside: Sequence[tuple[LaneId, str]]
    """Lanes whose buffer is written inside the cycle, each with the vertex that writes it."""


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
    for lane, writer in cycle.inside:
        stored = await ledgers[lane.vertex].mark(lane)
        done = stored.mark.sequence if stored is not None else 0
        last = await ledgers[writer].last_sequence(BufferId(lane.input, lane.partition))
        if last > done:
            return None
        state.append((done, last))
    return state
