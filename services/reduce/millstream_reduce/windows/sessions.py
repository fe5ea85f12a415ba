"""Sessions: a window for each burst of rows of a key, from its first row to the timeout after its last. Pure.

A row at t is by itself the session [t, t + timeout). Sessions of one key that share a moment are one session, in
whatever order their rows come; sessions that only touch are two, since the watermark may have closed the first by the
time the second begins.

Whether a row is late is decided by merging first: it is when the session that it would be in, with all open sessions
that it meets, has ended. Rows are judged one after the other, so one that comes later in the same batch does not count.
Of a key's open sessions at most one began before the limit, since all of them go on beyond it: a row whose own session
has ended can only meet that one, and does when it ends after the other's start.

    limit: what ends up to here is closed
      ┆
  [───┆──)   the open session that began before        [···)     late: it ends before that
      ┆ [────)   others                                   [···)  not late: from now on the session begins with it
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millstream.clock import END_OF_TIME_US
from millstream_reduce.values import Key, Location, Rows, Window, WindowContents
from millstream_reduce.windowing import Keys, Times
from millstream_reduce.windows.grouping import NO_ROWS, parts
from millstream_reduce.windows.keyed import NO_LIMIT
from millstream_reduce.windows.span_windows import SpanWindows

_LAST_US = END_OF_TIME_US - 1
"""A row at the very end of time counts as one at this time: no window can end after it."""


class SessionWindows(SpanWindows):
    """Sessions of one key each, or of all rows."""

    def _late_until(self) -> int:
        if self._ended:
            return END_OF_TIME_US
        return max(self.closed_us - self._config.lateness_us - self._config.timeout_us, NO_LIMIT)

    def _joining(self, times: Times, keys: Keys | None, too_late: npt.NDArray[np.bool_]) -> Rows:
        if self._ended:
            return NO_ROWS
        limit, timeout = self._limit_us(), self._config.timeout_us
        # Others neither join nor bring the start of a session forward.
        rows = np.flatnonzero(times < limit)
        codes = [0] * len(rows) if keys is None or not self.needs_keys else keys.codes[rows].tolist()
        starts: dict[int, int] = {}
        joined: list[int] = []
        for row, time, code in zip(rows.tolist(), times[rows].tolist(), codes, strict=True):
            start = starts.get(code)
            if start is None:
                start = self._start_before(keys.values[code] if keys is not None and self.needs_keys else None, limit)
                starts[code] = start
            if time + timeout > start:
                if too_late[row]:
                    joined.append(row)
                starts[code] = min(start, time)
        return np.array(joined, np.int64)

    def _start_before(self, key: Key, limit: int) -> int:
        """Start of the key's open session that began before the limit; without one, the limit."""
        slots = self._open_slots(key)
        return min(int(self._slots.start[slots[0]]), limit) if slots else limit

    def _check_open(self, times: Times, location: Location) -> None:
        """Rows may join sessions that are open; `replayed` sees what did not."""

    def _parts(self, times: Times, groups: Rows) -> Rows:
        return parts(np.minimum(times, _LAST_US), groups, self._config.timeout_us)

    def _spans(self, times: Times, firsts: Rows) -> tuple[Rows, Rows, Rows]:
        start = np.minimum(np.minimum.reduceat(times, firsts), _LAST_US)
        last = np.maximum.reduceat(times, firsts)
        timeout = self._config.timeout_us
        return start, np.minimum(last, END_OF_TIME_US - timeout) + timeout, start

    def early(self, windows_max: int | None = None, rows_min: int = 1) -> list[WindowContents]:
        columns, used = self._slots, self._slots.used
        grown = np.flatnonzero(columns.open[:used] & (columns.rows[:used] - columns.seen[:used] >= rows_min))
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

    def rows_to_early(self, rows_min: int) -> int:
        # One row may bring together what two sessions have.
        return 1
