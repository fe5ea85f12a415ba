"""Sessions: a window for each burst of rows of a key, from its first row to the timeout after its last. Pure.

A row at t is by itself the session [t, t + timeout). Sessions of one key that share a moment are one session, in
whatever order their rows come; sessions that only touch are two, since the watermark may have closed the first by the
time the second begins. A row is late when its own session is closed, whatever others are still open.
"""

from __future__ import annotations

import numpy as np

from millstream.clock import END_OF_TIME_US
from millstream_reduce.values import Window, WindowContents
from millstream_reduce.windowing import Rows, Times
from millstream_reduce.windows.grouping import parts
from millstream_reduce.windows.keyed import NO_LIMIT
from millstream_reduce.windows.spans import SpanWindows


class SessionWindows(SpanWindows):
    """Sessions of one key each, or of all rows."""

    def _late_until(self) -> int:
        if self._ended:
            return END_OF_TIME_US
        return max(self._closed_us - self._config.lateness_us - self._config.timeout_us, NO_LIMIT)

    def _parts(self, times: Times, groups: Rows) -> Rows:
        return parts(times, groups, self._config.timeout_us)

    def _spans(self, times: Times, firsts: Rows) -> tuple[Rows, Rows, Rows]:
        # A row at the very end of time counts as one before it: no window can end after it.
        start = np.minimum(np.minimum.reduceat(times, firsts), END_OF_TIME_US - 1)
        last = np.maximum.reduceat(times, firsts)
        timeout = self._config.timeout_us
        return start, np.minimum(last, END_OF_TIME_US - timeout) + timeout, start

    def early(self, windows_max: int | None = None) -> list[WindowContents]:
        columns, used = self._slots, self._slots.used
        grown = np.flatnonzero(columns.open[:used] & (columns.rows[:used] > columns.seen[:used]))
        if not len(grown):
            return []
        slots = self._in_order(grown)[:windows_max]
        columns.early[slots] += 1
        columns.seen[slots] = columns.rows[slots]
        named = (columns.start[slots], columns.end[slots], columns.key[slots], columns.early[slots])
        windows = zip(*(column.tolist() for column in named), strict=True)
        return [
            WindowContents(Window(*window), pieces)
            for window, pieces in zip(windows, columns.contents(slots), strict=True)
        ]
