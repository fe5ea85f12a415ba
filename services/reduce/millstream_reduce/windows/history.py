"""Global windows, which never close before time ends, and the rows that results so far were over. No I/O.

The results of one that accumulates are numbered as early ones, since each is superseded by the next. When time ends,
one final result per key is over everything, and only then are its rows released.
"""

from __future__ import annotations

import numpy as np

from millstream.clock import END_OF_TIME_US
from millstream_reduce.values import Key, Rows, Window, WindowContents
from millstream_reduce.windows.keyed import NO_LIMIT, KeyedWindows
from millstream_reduce.windows.slots import Slots


class History:
    """The rows covered so far by the results of an accumulating global window, by key: one slot per key, which takes
    over the slots that became due."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.of_key: dict[Key, int] = {}
        self._last: list[Key] | None = None
        """Keys without their final result, the next one last; None: time has not ended."""

    def __len__(self) -> int:
        return len(self.of_key)

    def rows(self, key: Key) -> int:
        slot = self.of_key.get(key)
        return 0 if slot is None else int(self._slots.rows[slot])

    def take(self, slot: int, early: int | None = None) -> int:
        """The slot's rows are part of it from now on, for the key's next result, or for this one; returns its slot."""
        slots = self._slots
        key: Key = slots.key[slot]
        mine = self.of_key.setdefault(key, slot)
        number = int(slots.early[mine]) + 1 if early is None else early
        if mine == slot:
            slots.open[slot] = False
        else:
            slots.join(mine, slot)
        slots.early[mine] = number
        return mine

    def result(self, slot: int, floor_us: int) -> WindowContents:
        """The next early result: over everything so far and this slot, which was due."""
        mine = self.take(slot)
        return self._contents(mine, floor_us, int(self._slots.early[mine]), 0)

    def last(self, count: int | None, floor_us: int) -> list[WindowContents]:
        """So many of the final results, by end, start and key."""
        if self._last is None:
            ends = {key: self._end(slot, floor_us) for key, slot in self.of_key.items()}
            starts = self._slots.start
            by_time = sorted(self.of_key, key=lambda key: (ends[key], int(starts[self.of_key[key]]), key or b""))
            self._last = by_time[::-1]
        results: list[WindowContents] = []
        while self._last and len(results) != count:
            key = self._last.pop()
            # A replay may have handed it over meanwhile.
            slot = self.of_key.pop(key, None)
            if slot is not None:
                results.append(self._contents(slot, floor_us, 0, int(self._slots.rows[slot])))
                self._slots.free(np.array([slot], np.int64))
        return results

    def oldest_end_us(self, floor_us: int) -> int | None:
        """The end of the final result that comes first."""
        return min((self._end(slot, floor_us) for slot in self.of_key.values()), default=None)

    def _end(self, slot: int, floor_us: int) -> int:
        # A result is not older than what was promised downstream.
        return min(max(int(self._slots.end[slot]), floor_us + 1), END_OF_TIME_US)

    def _contents(self, slot: int, floor_us: int, early: int, released: int) -> WindowContents:
        window = Window(int(self._slots.start[slot]), self._end(slot, floor_us), self._slots.key[slot], early)
        return WindowContents(window, self._slots.contents(np.array([slot], np.int64))[0], released)


class GlobalWindows(KeyedWindows):
    """Global windows of one key each, or of all rows. Subclasses say when they give a result."""

    def _reset(self) -> None:
        super()._reset()
        self._history = History(self._slots)

    def _late_until(self) -> int:
        return END_OF_TIME_US if self._ended else NO_LIMIT

    def _hand_over_last(self, windows_max: int | None) -> list[WindowContents]:
        return self._history.last(windows_max, self._floor_us) if self._ended else []

    def _finish(self, key: Key, filling: int | None = None) -> None:
        """The final result of a key was handed over. `filling`: a slot of it that was not due."""
        slots = list(self._due_slots(key))
        self._not_due(slots)
        others = (filling, self._history.of_key.pop(key, None))
        self._slots.free(np.array([*slots, *(slot for slot in others if slot is not None)], np.int64))

    def _kept(self, slots: Rows) -> Rows:
        return np.isin(slots, list(self._history.of_key.values())).astype(np.int64)
