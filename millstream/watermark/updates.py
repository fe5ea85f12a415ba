"""The bounded queue between a watch and the task that takes its updates. It drops outdated updates.

Above it: the tasks that iterate over `OtStore.watch`. Below it: the store's subscription and its re-reads, which may
deliver the same entry twice and out of order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from millstream import limits
from millstream.watermark.rereads import Rereads
from millstream.watermark.store import OtStatistics, OtUpdate


class UpdateQueue(AsyncIterator[OtUpdate]):
    """Yields every update that supersedes the previous update of its lane."""

    def __init__(self, statistics: OtStatistics, updates_max: int = limits.OT_UPDATES_WAITING_MAX) -> None:
        self._statistics = statistics
        self._updates_max = updates_max
        self._newest: dict[str, OtUpdate] = {}
        self._waiting: deque[OtUpdate] = deque()
        self._ready = asyncio.Event()
        self._error: Exception | None = None
        self._updated: set[str] | None = None
        self.rereads = Rereads()
        self.closed = False
        """Whether no more updates will be taken."""

    def on_update(self, update: OtUpdate) -> None:
        """Add an update that was just published."""
        if self._updated is not None:
            self._updated.add(update.key)
        self._offer(update)

    def begin_reading(self) -> None:
        """Start a read of the whole bucket, during which updates continue to arrive."""
        self._updated = set()

    def finish_reading(self, stored: list[OtUpdate]) -> None:
        """Add the contents of the bucket. A lane that had an update meanwhile keeps that update, which is newer."""
        on_update, self._updated = self._updated or set(), None
        self._statistics.rereads += 1
        for update in stored:
            if update.key not in on_update:
                self._offer(update)

    def abandon_reading(self) -> None:
        """End a read that failed."""
        self._updated = None

    def fail(self, error: Exception) -> None:
        """Raise `error` when the next update is taken."""
        self._error = error
        self._ready.set()

    def close(self) -> None:
        """Close the queue: no more updates will be taken. This also ends a task that lost its cancellation (see
        `publish.py`)."""
        self.closed = True

    def _offer(self, update: OtUpdate) -> None:
        known = self._newest.get(update.key)
        if known is not None and not update.supersedes(known):
            return
        self._newest[update.key] = update
        self.rereads.on_news()
        self._waiting.append(update)
        if len(self._waiting) > self._updates_max:
            # Intermediate steps only make a reader's answers more precise. The newest update of each lane must arrive.
            self._waiting = deque({waiting.key: waiting for waiting in self._waiting}.values())
        self._ready.set()

    async def __anext__(self) -> OtUpdate:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._ready.clear()
            await self._ready.wait()
        self._statistics.updates += 1
        return self._waiting.popleft()
