"""When a watcher reads its OT store again: often while there is news, seldom while there is none.

    news ─► every OT_REREAD_INTERVAL_S ─── none for OT_QUIET_AFTER_S ───► every OT_QUIET_REREAD_INTERVAL_S
                     ▲────────────────────────── news ────────────────────────────┘

The effect of a lost message lasts until the next read. A store that was quiet for long is idle, or its lanes wait; then
a few seconds matter less than what it costs all idle processes, and the broker, to ask whether there is still nothing.

Above it: the watches of stores. Below it: the clock of the event loop. It reads nothing itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from millstream.limits import (
    OT_QUIET_AFTER_S,
    OT_QUIET_REREAD_INTERVAL_S,
    OT_REREAD_INTERVAL_S,
    OT_RETRY_INTERVAL_S,
)
from millstream.pauses import until_next


class Rereads:
    """The reads of one watch. One task waits for the next one."""

    def __init__(self) -> None:
        self._news_s = self._now_s()
        self._rests = False
        """Whether the task waits for the longer time."""
        self._lost = False
        self._wake = asyncio.Event()

    def on_news(self) -> None:
        """Called for each entry that is newer than the last one of its lane, heard or read."""
        self._news_s = self._now_s()
        if self._rests:
            self._wake.set()

    def on_loss(self) -> None:
        """Called when the connection is lost: the next read is due when there is one again."""
        self._lost = True
        self._wake.set()

    def begin(self) -> None:
        """Begin a read. It covers what an earlier loss of the connection has cost."""
        self._lost = False

    async def next(self) -> None:
        """Return when the next read is due, after one that has succeeded."""
        # All stores of a process read at the same moments, so their requests and answers share packets.
        if self._now_s() - self._news_s >= OT_QUIET_AFTER_S:
            self._rests = True
            try:
                heard = await self._wait(until_next(OT_QUIET_REREAD_INTERVAL_S))
            finally:
                self._rests = False
            if self._lost or not heard:
                return
        await self._wait(until_next(OT_REREAD_INTERVAL_S))

    async def retry(self) -> None:
        """Return when the next attempt is due, after one that has failed."""
        # A loss until now caused this failure; only a later one is a reason to read again immediately.
        self._lost = False
        await self._wait(OT_RETRY_INTERVAL_S)

    async def _wait(self, seconds: float) -> bool:
        """Wait for that time. Returns early, and True, on a loss, or on news during the longer time."""
        if self._lost:
            return True
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                return True
        return False

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
