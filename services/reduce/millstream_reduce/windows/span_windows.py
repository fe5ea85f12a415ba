"""Windows of a key that cover a span of time each: spans that overlap are one window. Sessions and periods.

The open spans of one key never overlap. Most rows come behind the key's newest span or extend it: those of a batch
are taken in by a few numpy calls, however many spans a key has. Others are looked for among the spans of their key.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from millstream.clock import END_OF_TIME_US
from millstream_reduce.values import Key, Rows, WindowContents
from millstream_reduce.windowing import Times
from millstream_reduce.windows import encoding
from millstream_reduce.windows.entries import closed_before
from millstream_reduce.windows.grouping import run_lengths, run_numbers, run_starts
from millstream_reduce.windows.keyed import NO_LIMIT, KeyedWindows, KeyRuns

_ABSENT = -1
"""The key has no open window."""


class SpanWindows(KeyedWindows):
    """Sessions and periods."""

    def _reset(self) -> None:
        super()._reset()
        self._newest: dict[Key, int] = {}
        """The open slot of a key that starts last."""
        self._several: dict[Key, list[int]] = {}
        """All open slots, by start, of a key that has more than one."""
        self._first_end = END_OF_TIME_US
        """No open slot ends before this."""
        self._settled_us = NO_LIMIT
        """Slots that ended up to here were due before."""
        self._strays: set[int] = set()
        """Slots that are due, and ended before their rows came: what is left of windows whose first rows are gone."""

    def depends_on_closing(self, times: Times) -> bool:
        # Windows that end by the limit are closed: later rows belong to none of them.
        return len(times) > 0 and int(times.min()) < self._limit_us()

    @abstractmethod
    def _spans(self, times: Times, firsts: Rows) -> tuple[Rows, Rows, Rows]:
        """Of each run: begin and end of the span that decides which open window it joins, and its first time."""

    def _take_in(self, times: Times, runs: KeyRuns, entry: int) -> None:
        low, high, start = self._spans(times, runs.firsts)
        self._first_end = min(self._first_end, int(high.min()))
        slots, names, begins = self._slots, runs.names, runs.begins
        of_keys = [names[run] for run in begins.tolist()]
        newest = np.fromiter(map(self._newest.get, of_keys, repeat(_ABSENT)), np.int64, len(of_keys))
        known = np.flatnonzero(newest != _ABSENT)
        first, found = begins[known], newest[known]
        # Of each key with an open slot: its first run starts no earlier than the newest, so it meets no other. If it
        # meets that one, the run behind it does not.
        meets = low[first] < slots.end[found]
        lasts = run_lengths(begins, len(names))[known] == 1
        before_next = low[np.minimum(first + 1, len(names) - 1)] >= slots.end[found]
        plain = (low[first] >= slots.start[found]) & (~meets | lasts | before_next)
        left = np.zeros(len(begins), np.bool_)
        left[known[~plain]] = True
        alone = np.repeat(left, run_lengths(begins, len(names)))
        fresh = ~alone
        grown, grow = first[plain & meets], found[plain & meets]
        fresh[grown] = False
        slots.start[grow] = np.minimum(slots.start[grow], start[grown])
        slots.end[grow] = np.maximum(slots.end[grow], high[grown])
        new = np.flatnonzero(fresh)
        new_names = [names[run] for run in new.tolist()]
        made = slots.make(new_names, start[new], high[new])
        self._append(new_names, made.tolist())
        taken = np.concatenate((new, grown))
        slots.attach(np.concatenate((made, grow)), entry, runs.firsts[taken], runs.counts[taken])
        for run in np.flatnonzero(alone).tolist():
            slot = self._cover(names[run], int(low[run]), int(high[run]), int(start[run]))
            slots.attach_one(slot, entry, int(runs.firsts[run]), int(runs.counts[run]))

    def _append(self, keys: Sequence[Key], made: Sequence[int]) -> None:
        """New slots, each behind all that its key has."""
        newest, several = self._newest, self._several
        for key, slot in zip(keys, made, strict=True):
            before = newest.get(key)
            newest[key] = slot
            if before is not None:
                several.setdefault(key, [before]).append(slot)

    def _cover(self, key: Key, low: int, high: int, start: int) -> int:
        """The one slot of the key that covers [low, high): made, extended or joined."""
        slots = self._slots
        listed = self._several.get(key) or self._open_slots(key)
        end = bisect_left(listed, high, key=slots.start.__getitem__)
        begin = end
        while begin and slots.end[listed[begin - 1]] > low:
            begin -= 1
        if begin == end:
            slot = int(slots.make([key], start, high)[0])
        else:
            slot = listed[begin]
            for other in listed[begin + 1 : end]:
                slots.join(slot, other)
            slots.start[slot] = min(int(slots.start[slot]), start)
            slots.end[slot] = max(int(slots.end[slot]), high)
        listed[begin:end] = [slot]
        self._list(key, listed)
        return slot

    def _list(self, key: Key, listed: list[int]) -> None:
        """Notes that the key has these open slots, by start."""
        if len(listed) > 1:
            self._several[key] = listed
        else:
            self._several.pop(key, None)
        if listed:
            self._newest[key] = listed[-1]
        else:
            self._newest.pop(key, None)

    def _unlist(self, slots: Rows) -> None:
        """These slots are no longer open."""
        for slot, key in zip(slots.tolist(), self._slots.key[slots].tolist(), strict=True):
            listed = self._several.get(key)
            if listed is None:
                del self._newest[key]
            else:
                listed.remove(slot)
                self._list(key, listed)

    def _open_slots(self, key: Key) -> list[int]:
        listed = self._several.get(key)
        if listed is not None:
            return list(listed)
        newest = self._newest.get(key)
        return [] if newest is None else [newest]

    def _settle(self) -> None:
        limit = self._limit_us()
        settled_us, self._settled_us = self._settled_us, limit
        if limit < self._first_end:
            return
        slots, used = self._slots, self._slots.used
        due = np.flatnonzero(slots.open[:used] & (slots.end[:used] <= limit))
        if len(due):
            self._strays.update(due[slots.end[due] <= settled_us].tolist())
            self._unlist(due)
            slots.open[due] = False
            if self._due:
                due = np.concatenate((np.array(list(self._due), np.int64), due))
                self._due.clear()
            self._add_due(self._in_order(due))
        ends = slots.end[:used][slots.open[:used]]
        self._first_end = int(ends.min()) if len(ends) else END_OF_TIME_US

    def _not_due(self, slots: Sequence[int]) -> None:
        super()._not_due(slots)
        self._strays.difference_update(slots)

    def replayed(self) -> None:
        slots, used = self._slots, self._slots.used
        ended = np.flatnonzero(slots.open[:used] & (slots.end[:used] <= self._limit_us()))
        strays = [*self._strays, *ended.tolist()]
        if strays:
            raise closed_before(slots.contents(np.array(strays[:1], np.int64))[0][0].location)

    def _in_order(self, slots: Rows) -> Rows:
        """By end, start and key."""
        columns = self._slots
        slots = slots[np.lexsort((columns.start[slots], columns.end[slots]))]
        same = (np.diff(columns.start[slots]) == 0) & (np.diff(columns.end[slots]) == 0)
        if self.needs_keys and same.any():
            begins = run_starts(run_numbers(np.concatenate(([0], np.cumsum(~same))))).tolist()
            keys = columns.key[slots].tolist()
            order: list[int] = []
            for begin, end in zip(begins, [*begins[1:], len(slots)], strict=True):
                order.extend(sorted(range(begin, end), key=keys.__getitem__))
            slots = slots[order]
        return slots

    def _note(self, contents: WindowContents) -> None:
        # Where the log was cut before the window's first rows, what is left of it has other bounds, inside its own.
        window = contents.window
        columns = self._slots
        due = [
            slot
            for slot in self._due_slots(window.key)
            if columns.start[slot] >= window.start_us and columns.end[slot] <= window.end_us
        ]
        still_open = [
            slot
            for slot in self._open_slots(window.key)
            if columns.start[slot] >= window.start_us and columns.end[slot] <= window.end_us
        ]
        if window.early:
            for slot in still_open:
                columns.early[slot], columns.seen[slot] = window.early, columns.rows[slot]
            return
        self._not_due(due)
        self._unlist(np.array(still_open, np.int64))
        columns.free(np.array(due + still_open, np.int64))

    def _recall(self, slots: Rows, columns: encoding.SlotTable) -> None:
        taking = np.flatnonzero(columns.kept == 0)
        taking = taking[np.argsort(columns.starts[taking], kind="stable")]
        self._append([columns.keys[place] for place in taking.tolist()], slots[taking].tolist())
        self._first_end = int(columns.ends.min(initial=END_OF_TIME_US))
