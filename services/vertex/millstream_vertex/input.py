"""What a lane learns from its upstream lanes: input watermark and end of input. A back edge has its own rules."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from millstream.record import BufferId, LaneId
from millstream.watermark.fetch import WatermarkFetcher
from millstream.watermark.store import OtUpdate


class LaneInput:
    """An input of a lane: listens to the upstream vertex's OT store."""

    def __init__(self, buffer: BufferId, upstream: Collection[LaneId], *, back_edge: bool) -> None:
        self._fetcher = WatermarkFetcher(buffer, upstream)
        self._quiet_end: int | None = None
        self.back_edge = back_edge
        """Whether the input closes a cycle. Such an input does not hold back the watermark, and ends when the cycle is
        empty (`cycle.py`): its upstream lanes can only end after it."""
        self.changed = asyncio.Event()
        """Set when the input has changed. The task that follows the watermark clears it."""
        self._wake_reader = asyncio.Event()

    def bind(self, wake_reader: asyncio.Event) -> None:
        """Also set this event whenever the input changes."""
        self._wake_reader = wake_reader

    def observe(self, update: OtUpdate) -> None:
        self._fetcher.observe(update)
        if self._fetcher.news.is_set():
            self._fetcher.news.clear()
            self._set()

    def watermark_at(self, sequence: int) -> int:
        """See `WatermarkFetcher.watermark_at`."""
        return self._fetcher.watermark_at(sequence)

    def end_sequence(self) -> int | None:
        """The last sequence that this input will ever have; None until it is known."""
        return self._quiet_end if self.back_edge else self._fetcher.end_sequence()

    def cycle_is_empty(self) -> None:
        """End the input: nothing moves in the cycle any more, and nothing will enter it."""
        self._quiet_end = 0
        self._set()

    def forget(self, sequence: int) -> None:
        self._fetcher.forget(sequence)

    def _set(self) -> None:
        self.changed.set()
        self._wake_reader.set()
