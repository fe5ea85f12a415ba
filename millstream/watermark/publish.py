"""Publishes in the background: keeps the newest entry of each lane and stores it at most once per interval.

    publish ─► newest entry ─► interval since the last put over?  and: wanted soon, or the longer interval over? ─► put

Above it: a store's `publish` and `flush`. Below it: the store's put, which reports the result of one attempt. It does
not know what an entry means.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from millstream import limits
from millstream.errors import FencedError, RetryLaterError
from millstream.pauses import RepeatedFailure
from millstream.watermark.store import NewEntry, OtStatistics
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

_log = logging.getLogger(__name__)

Put = Callable[[str, OtEntry], Awaitable[None]]
"""Stores one entry. Raises `RetryLaterError` if it may not be stored, and `FencedError` if a newer epoch is stored."""


@dataclass(slots=True)
class _Slot:
    """The newest entry of one lane, and its state."""

    key: str
    entry: NewEntry
    epoch: int = 0
    """Epoch of the last entry that was put."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """The entry has not been passed to a put yet."""
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    """No entry is waiting or in progress."""
    soon: asyncio.Event = field(default_factory=asyncio.Event)
    """The entry does not wait for the end of the longer interval."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """A task waits for the entry, so the entry does not wait for the end of the interval."""
    fenced: bool = False


class CoalescingPublisher:
    """One task per lane, in a task group that the store owns."""

    def __init__(
        self,
        put: Put,
        statistics: OtStatistics,
        tasks: asyncio.TaskGroup,
        *,
        interval_s: float = limits.OT_PUBLISH_INTERVAL_S,
        little_s: float = limits.OT_LITTLE_INTERVAL_S,
    ) -> None:
        self._put = put
        self._statistics = statistics
        self._tasks = tasks
        self._interval_s = interval_s
        self._little_s = little_s
        self._slots: dict[str, _Slot] = {}
        self._running: list[asyncio.Task[None]] = []
        self._closed = False
        self._failure = RepeatedFailure()

    def publish(self, key: str, entry: NewEntry, *, soon: bool) -> None:
        """As `OtStore.publish`."""
        slot = self._slots.get(key)
        if slot is not None and slot.fenced and _made(entry).epoch > slot.epoch:
            # The lane came back to this process after another process owned it.
            del self._slots[key]
            slot = None
        if slot is None:
            slot = self._slots[key] = _Slot(key, entry)
            self._running.append(self._tasks.create_task(self._publish_lane(slot), name=f"watermark of {key}"))
        elif slot.fenced:
            return
        elif slot.waiting.is_set():
            self._statistics.coalesced += 1
        slot.entry = entry
        slot.stored.clear()
        slot.waiting.set()
        if soon:
            slot.soon.set()

    async def flush(self) -> None:
        """As `OtStore.flush`."""
        for slot in self._slots.values():
            if not slot.stored.is_set():
                slot.hurry.set()
                slot.soon.set()
        for slot in list(self._slots.values()):
            await slot.stored.wait()

    def cancel(self) -> None:
        """End the tasks. Entries that are not stored by now are never stored."""
        # A client that waits with `asyncio.wait_for` may lose the cancellation if the answer arrives at the same moment
        # (Python 3.11), so the loop checks this flag as well.
        self._closed = True
        for task in self._running:
            task.cancel()

    async def _publish_lane(self, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        begun_s = -math.inf
        while not self._closed:
            await slot.waiting.wait()
            await _wait_for(slot.soon, begun_s + self._little_s - loop.time())
            slot.waiting.clear()
            slot.soon.clear()
            begun_s = loop.time()
            entry = _made(slot.entry)
            slot.epoch = entry.epoch
            try:
                await self._put(slot.key, entry)
            except FencedError as error:
                _log.warning("lane %s: watermarks are no longer published: %s", slot.key, error)
                slot.fenced = True
                slot.stored.set()
                self._statistics.fenced += 1
                return
            except RetryLaterError as error:
                self._note_failure(slot, error)
                slot.waiting.set()
                slot.soon.set()
                await asyncio.sleep(limits.OT_RETRY_INTERVAL_S)
                continue
            self._statistics.published += 1
            self._statistics.last_error = ""
            self._failure.over(_log, "watermarks are stored: ")
            if not slot.waiting.is_set():
                slot.stored.set()
            await _wait_for(slot.hurry, begun_s + self._interval_s - loop.time())
            slot.hurry.clear()

    def _note_failure(self, slot: _Slot, error: RetryLaterError) -> None:
        self._statistics.put_failures += 1
        # One for all lanes: what keeps one from being stored mostly keeps all.
        if line := self._failure.line("its watermark could not be stored; retrying"):
            _log.warning("lane %s: %s: %s", slot.key, line, error)
        self._statistics.last_error = str(error)


def _made(entry: NewEntry) -> OtEntry:
    return entry if isinstance(entry, OtEntry) else entry()


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after this many seconds."""
    if seconds > 0 and not event.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
