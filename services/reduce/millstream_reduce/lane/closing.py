"""The closing of windows: when a reduce lane hands them over to be computed.

Above it: the reduce lane. Below it: the queue, which freezes windows and writes hand-overs to the log.
"""

from __future__ import annotations

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.intake import IsDue
from millstream_reduce.lane.progress import LaneProgress
from millstream_reduce.queue import Queue

HAND_OVERS_AWAITED_MAX = 2
"""The most hand-overs computed at a time. While that many run, closed windows wait, and are then handed over
together."""


class EarlyResults:
    """Decides when early results are computed, and of which windows: by the clock, or by count."""

    def __init__(self, queue: Queue, now_s: float, *, every_s: float | None = None, count: int | None = None) -> None:
        """`every_s`: of every window with new records, at this interval by the clock. `count`: of each window that has
        received this many since its last early result. Without either there are none."""
        self._queue = queue
        self._every_s = every_s
        self._count = count
        self._last_s = now_s
        # A window may have new records, or enough of them, from before a restart.
        self._has_new = queue.open_windows > 0
        self._rows_to_look = 0
        """How many more records are needed before any window can have enough."""

    def admitted(self, rows: int) -> None:
        """This many records have been added to windows."""
        self._has_new |= rows > 0
        self._rows_to_look -= rows

    def counted(self) -> list[wal_pb2.HandOver]:
        """Hand-overs of the windows that have enough records."""
        if self._count is None or self._rows_to_look > 0:
            return []
        hand_overs = self._queue.early(self._count)
        self._rows_to_look = self._queue.rows_to_early(self._count)
        return hand_overs

    def elapsed(self, now_s: float) -> list[wal_pb2.HandOver]:
        """Hand-overs of the windows that have new records, when it is time."""
        if self.pause_s(now_s) != 0:
            return []
        self._last_s, self._has_new = now_s, False
        return self._queue.early()

    def pause_s(self, now_s: float) -> float | None:
        """Seconds until it is time; None until a new record has arrived."""
        if self._every_s is None or not self._has_new:
            return None
        return max(0.0, self._last_s + self._every_s - now_s)


class Closing:
    """What becomes of a window:

        OPEN ──► watermark ──► CLOSED, waiting ──► fewer than two hand-overs awaited ──► HANDED OVER
          └──► early results due ──► their rows so far are HANDED OVER; the window stays OPEN

    `_waiting_since_s` is the only state: whether closed windows wait, and since when.
    """

    def __init__(self, queue: Queue, progress: LaneProgress, early: EarlyResults, *, lateness_us: int) -> None:
        self._queue = queue
        self._progress = progress
        self._early = early
        self._lateness_us = lateness_us
        self._waiting_since_s: float | None = None

    def admitted(self, rows: int) -> None:
        """This many records have been added to windows."""
        self._early.admitted(rows)

    def pause_s(self) -> float | None:
        """How long nothing has to be checked if nothing happens; None: until something happens."""
        pause_s = self._early.pause_s(self._now_s())
        return None if pause_s is None else max(0.001, pause_s)

    def when_due(self) -> IsDue:
        """At which watermark there would be something to do. Valid until something is appended or handed over."""
        oldest_us = self._queue.oldest_end_us()

        def due(watermark_us: int) -> bool:
            if not self._is_closed(oldest_us, watermark_us):
                return False
            # Windows that cannot be handed over yet are checked at once: that is when their waiting begins.
            return self._may_hand_over or self._waiting_since_s is None

        return due

    def hand_over(self, watermark_us: int) -> list[wal_pb2.HandOver]:
        """Freeze the windows that the watermark has closed, and those whose early results are due."""
        if not self._may_hand_over:
            if self._waiting_since_s is None and self._is_closed(self._queue.oldest_end_us(), watermark_us):
                self._waiting_since_s = self._now_s()
            return []
        # Records in the same frame as the end of their window are counted before the window closes.
        early = self._early.counted()
        closed = self._queue.close(watermark_us)
        closed_at_s, self._waiting_since_s = self._waiting_since_s or self._now_s(), None
        if not closed:
            early += self._early.elapsed(self._now_s())
        self._progress.handed_over(early)
        self._progress.handed_over(closed, closed_at_s)
        return [*early, *closed]

    def keep_promise(self) -> list[wal_pb2.HandOver]:
        """The watermark published downstream also holds where the log does not know about it: no older result may
        follow.

        Windows that were open held the watermark back. But of windows that closed together in several hand-overs, the
        log may have only the first: the others are handed over now.
        """
        promised_us = self._progress.core.watermark_us
        if not START_OF_TIME_US < promised_us < END_OF_TIME_US:
            return []
        hand_overs = self._queue.close(promised_us + self._lateness_us)
        self._progress.handed_over(hand_overs)
        return hand_overs

    @property
    def _may_hand_over(self) -> bool:
        return self._progress.awaited < HAND_OVERS_AWAITED_MAX

    def _is_closed(self, end_us: int | None, watermark_us: int) -> bool:
        return end_us is not None and watermark_us - end_us >= self._lateness_us

    def _now_s(self) -> float:
        return self._progress.core.clock.monotonic_s()
