"""Global windows that give a result whenever the watermark passes a multiple of a period. Pure.

A row belongs to the result at the first multiple after its time, or, if that was already given, to the next one: a
global window never closes, so no row is late for it before time ends. A result is named by the first time it contains
and by the multiple at which it was given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Rows, WindowContents
from millstream_reduce.windowing import Times
from millstream_reduce.windows import encoding
from millstream_reduce.windows.config import WindowConfig
from millstream_reduce.windows.grouping import parts
from millstream_reduce.windows.history import GlobalWindows
from millstream_reduce.windows.keyed import NO_LIMIT
from millstream_reduce.windows.span_windows import SpanWindows


class PeriodWindows(GlobalWindows, SpanWindows):
    """Global windows of one key each, or of all rows, with a trigger in event time."""

    def __init__(self, config: WindowConfig) -> None:
        if config.every_us is None:
            raise ValueError("a global window without a period has no results at its multiples")
        self._period = config.every_us
        super().__init__(config)

    def _periods(self, times: Times) -> Rows:
        # The first period that 64 bits can express whole takes in what comes before it, the last one the end of time.
        first = max(self._limit_us() // self._period, -(-START_OF_TIME_US // self._period))
        periods: Rows = np.minimum(times, END_OF_TIME_US - 1) // self._period
        return np.maximum(periods, first)

    def _parts(self, times: Times, groups: Rows) -> Rows:
        return parts(self._periods(times), groups, 1)

    def _spans(self, times: Times, firsts: Rows) -> tuple[Rows, Rows, Rows]:
        begin = self._periods(times[firsts]) * self._period
        end = np.minimum(begin, END_OF_TIME_US - self._period) + self._period
        return begin, end, np.minimum(np.minimum.reduceat(times, firsts), END_OF_TIME_US - 1)

    def _hand_over(self, slots: Rows) -> Sequence[WindowContents]:
        if not self._config.accumulate:
            return super()._hand_over(slots)
        # Each is named by the multiple it was given at: later than what was promised downstream when it was open.
        return [self._history.result(slot, NO_LIMIT) for slot in slots.tolist()]

    def _note(self, contents: WindowContents) -> None:
        window = contents.window
        due = [slot for slot in self._due_slots(window.key) if self._slots.end[slot] <= window.end_us]
        if not self._config.accumulate:
            self._not_due(due)
            self._slots.free(np.array(due, np.int64))
        elif window.early:
            self._not_due(due)
            for slot in due:
                self._history.take(slot, window.early)
        else:
            self._finish(window.key)

    def oldest_end_us(self) -> int | None:
        waiting = self._slots.alive()
        if self._history:
            waiting = np.setdiff1d(waiting, np.array(list(self._history.of_key.values()), np.int64))
        ends = [int(self._slots.end[waiting].min())] if len(waiting) else []
        last = self._history.oldest_end_us(self._floor_us) if self._ended else None
        return min([*ends, last] if last is not None else ends, default=None)

    def _recall(self, slots: Rows, columns: encoding.SlotTable) -> None:
        super()._recall(slots, columns)
        for place in np.flatnonzero(columns.kept).tolist():
            self._history.of_key[columns.keys[place]] = int(slots[place])
            self._slots.open[slots[place]] = False
