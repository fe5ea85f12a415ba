"""Waits for more units before a commit, as long as that pays off.

Above it: the lane's core, which commits. Below it: `Linger`, which decides how long, and the tracker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.clock import Clock
from millstream.limits import BARE_COMMIT_INTERVAL_S, COMMIT_LINGER_S
from millstream_reader.tracker import Tracker
from millstream_vertex.in_order import InOrder
from millstream_vertex.pacing import NOTHING_IS_LITTLE, Linger, Little, enough
from millstream_writer.committer import Unit


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a lane's commits and their publication may wait."""

    commit_interval_s: float = 0.0
    """The minimum time between two commits while no reader may wait for output."""
    linger_s: float = COMMIT_LINGER_S
    """How long a commit with output waits for more at most. See `Linger`."""
    little: Little = NOTHING_IS_LITTLE
    """How much progress may be committed later if it has no output, and published later."""


AS_USUAL = Pace()


class Gatherer:
    """Gathers the units of one lane for its next commit."""

    def __init__(self, units: InOrder[Sequence[Unit]], tracker: Tracker, clock: Clock, pace: Pace) -> None:
        self._units = units
        self._tracker = tracker
        self._clock = clock
        self._pace = pace
        self._linger = Linger(pace.linger_s)
        self._waiting: asyncio.Timeout | None = None
        self._hurried = False
        tracker.on_crowd = self.hurry

    async def gather(self, waiting: deque[Unit], committed_s: float) -> None:
        """Wait for more units: without output, until an interval after the last commit; with output, while this pays
        off."""
        begun_s: float | None = None
        until_s, there = 0.0, 0
        self._hurried = False
        while True:
            now_s = self._clock.monotonic_s()
            if begun_s is None:
                until_s = committed_s + self._bare_interval_s(waiting)
            records = sum(frame.records for unit in waiting for _, frame in unit.frames)
            size = sum(unit.size for unit in waiting)
            if begun_s is None and records:
                begun_s, there = now_s, len(waiting)
                until_s = now_s + self._linger.begin(now_s, records, size)
            if now_s >= until_s or self._hurried or (records and (self._tracker.crowded or enough(records, size))):
                break
            try:
                async with asyncio.timeout(until_s - now_s) as self._waiting:
                    ready = await self._units.ready()
            except TimeoutError:
                # The event loop's timers may fire a millisecond early, and the wait may be as short as that.
                continue
            finally:
                self._waiting = None
            if not ready:
                break
            waiting.extend(unit for units in ready for unit in units)
            if begun_s is not None and not self._linger.expects_more(until_s - self._clock.monotonic_s()):
                break
        if begun_s is not None:
            now_s = self._clock.monotonic_s()
            self._linger.end(now_s, len(waiting), now_s - begun_s, len(waiting) - there)

    def hurry(self) -> None:
        """Stop waiting for more units: a longer wait gains nothing."""
        self._hurried = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def _bare_interval_s(self, waiting: Sequence[Unit]) -> float:
        """The minimum time between two commits without output."""
        interval_s = self._pace.commit_interval_s
        if not interval_s:
            return 0.0
        accounts = [unit.account for unit in waiting]
        little = self._pace.little.covers(
            sum(account.inputs for account in accounts), sum(account.input_bytes for account in accounts)
        )
        return BARE_COMMIT_INTERVAL_S if little else interval_s
