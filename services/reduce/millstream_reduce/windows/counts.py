"""Global windows that give a result after every N rows of their key, and at the end of time. Pure.

Rows fill one slot per key in the order of the log; a full one is due, whatever the watermark says. A result is named by
the times of its rows, [first, last + 1): but it ends later than what was promised downstream, and later than the key's
result before it, so that no two results of a key have one name.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Key, Piece, Rows, Window, WindowContents
from millstream_reduce.windowing import Times
from millstream_reduce.windows import encoding
from millstream_reduce.windows.config import WindowConfig
from millstream_reduce.windows.entries import Triple
from millstream_reduce.windows.history import GlobalWindows
from millstream_reduce.windows.keyed import KeyRuns

_NEVER = 2**62
"""Rows that no key has: without a trigger, results come at the end of time only."""
_ABSENT = -1
_NAMED_MIN = 1024


class CountWindows(GlobalWindows):
    """Global windows of one key each, or of all rows, with a trigger that counts."""

    def __init__(self, config: WindowConfig) -> None:
        self._full = _NEVER if config.count is None else config.count
        super().__init__(config)

    def _reset(self) -> None:
        super()._reset()
        self._filling: dict[Key, int] = {}
        """The slot of each key that is not full."""
        self._named: dict[Key, int] = {}
        """End of the last result of a key, where it lies beyond the watermark."""
        self._named_max = _NAMED_MIN

    def _parts(self, times: Times, groups: Rows) -> Rows:
        return groups

    def _take_in(self, times: Times, runs: KeyRuns, entry: int) -> None:
        slots, names = self._slots, runs.names
        start = np.minimum.reduceat(times, runs.firsts)
        end = np.minimum(np.maximum.reduceat(times, runs.firsts), END_OF_TIME_US - 1) + 1
        found = np.fromiter(map(self._filling.get, names, repeat(_ABSENT)), np.int64, len(names))
        new = np.flatnonzero((found == _ABSENT) & (runs.counts < self._full))
        one = np.flatnonzero(found != _ABSENT)
        one = one[slots.rows[found[one]] + runs.counts[one] < self._full]
        grow = found[one]
        slots.start[grow] = np.minimum(slots.start[grow], start[one])
        slots.end[grow] = np.maximum(slots.end[grow], end[one])
        fresh_names = [names[run] for run in new.tolist()]
        fresh = slots.make(fresh_names, start[new], end[new])
        self._filling.update(zip(fresh_names, fresh.tolist(), strict=True))
        taken = np.concatenate((new, one))
        slots.attach(np.concatenate((fresh, grow)), entry, runs.firsts[taken], runs.counts[taken])
        left = np.ones(len(names), np.bool_)
        left[taken] = False
        for run in np.flatnonzero(left).tolist():
            triple = entry, int(runs.firsts[run]), int(runs.counts[run])
            self._fill(names[run], triple, times)

    def _fill(self, key: Key, triple: Triple, times: Times | tuple[int, int]) -> None:
        """Put a piece of one key into slots, full ones first. `times`: those of all rows of its entry, or, where they
        are not known any more, start and end of the piece."""
        entry, first, count = triple
        while count:
            slot = self._filling.get(key)
            rows = min(count, self._full if slot is None else self._full - int(self._slots.rows[slot]))
            span = times if isinstance(times, tuple) else _span_of(times[first : first + rows])
            self._put(key, (entry, first, rows), *span)
            first, count = first + rows, count - rows
            if count:
                self._slots.entries.keep(entry)

    def _put(self, key: Key, triple: Triple, start: int, end: int) -> None:
        """Puts a piece, for which there is room, into the slot of its key."""
        slots = self._slots
        slot = self._filling.get(key, _ABSENT)
        if slot == _ABSENT:
            slot = self._filling[key] = int(slots.make([key], start, end)[0])
        slots.start[slot] = min(int(slots.start[slot]), start)
        slots.end[slot] = max(int(slots.end[slot]), end)
        slots.attach_one(slot, *triple)
        if slots.rows[slot] == self._full:
            del self._filling[key]
            self._add_due(np.array([slot], np.int64))

    def _settle(self) -> None:
        # What accumulates is left for the final results, behind those that are due.
        if self._ended and self._filling and not self._config.accumulate:
            slots = np.array(list(self._filling.values()), np.int64)
            self._filling.clear()
            self._add_due(slots)

    def _hand_over(self, slots: Rows) -> list[WindowContents]:
        if self._config.accumulate:
            return [self._history.result(slot, self._floor_us) for slot in slots.tolist()]
        columns = self._slots
        named = (columns.start[slots], columns.end[slots], columns.key[slots], columns.rows[slots])
        windows = zip(columns.contents(slots), *(column.tolist() for column in named), strict=True)
        contents = [
            WindowContents(Window(start, self._name(key, end), key), pieces, rows)
            for pieces, start, end, key, rows in windows
        ]
        columns.free(slots)
        # Those of one key stay in their order, also where time has no later end to name them by.
        return sorted(contents, key=lambda one: (one.window.end_us, one.window.key or b""))

    def _hand_over_last(self, windows_max: int | None) -> list[WindowContents]:
        if self._ended:
            for slot in self._filling.values():
                self._history.take(slot, 0)
            self._filling.clear()
        return super()._hand_over_last(windows_max)

    def _name(self, key: Key, end: int) -> int:
        """The end that the next result of a key is named by."""
        named = min(max(end, self._floor_us + 1, self._named.get(key, START_OF_TIME_US) + 1), END_OF_TIME_US)
        self._remember(key, named)
        return named

    def _remember(self, key: Key, end: int) -> None:
        self._named[key] = end
        if len(self._named) > self._named_max:
            # The next result of the others ends later anyway.
            self._named = self._named_ends()
            self._named_max = max(_NAMED_MIN, 2 * len(self._named))

    def _named_ends(self) -> dict[Key, int]:
        return {key: end for key, end in self._named.items() if end > self._floor_us}

    def oldest_end_us(self) -> int | None:
        # A slot that is not due will be named by a time after what was promised downstream by then.
        waiting = self._slots.alive() if self._ended else np.array(list(self._due), np.int64)
        return max(int(self._slots.end[waiting].min()), self._floor_us + 1) if len(waiting) else None

    # Replay

    def _note(self, contents: WindowContents) -> None:
        key = contents.window.key
        if not self._config.accumulate:
            self._remember(key, contents.window.end_us)
            self._take_away(key, contents.pieces)
        elif contents.window.early:
            while self._history.rows(key) < contents.rows and (due := self._due_slots(key)):
                slot = due[0]
                self._not_due([slot])
                self._history.take(slot, contents.window.early)
        else:
            self._finish(key, self._filling.pop(key, None))

    def _take_away(self, key: Key, pieces: tuple[Piece, ...]) -> None:
        """Rows of a key that were handed over."""
        due = list(self._due_slots(key))
        if due:
            first = np.array(due[:1], np.int64)
            if self._slots.contents(first)[0] == pieces:
                self._not_due(due[:1])
                self._slots.free(first)
                return
        # The log was cut before the key's first rows: those that follow were counted from another one.
        filling = self._filling.get(key)
        slots = np.array(due if filling is None else [*due, filling], np.int64)
        if not len(slots):
            return
        entries = self._slots.entries
        left: list[tuple[Triple, tuple[int, int]]] = []
        owners, triples = self._slots.triples(slots)
        for slot, (entry, first_row, rows) in zip(slots[owners].tolist(), triples.tolist(), strict=True):
            location = entries.location(entry)
            taken = [(one.first_row, one.rows) for one in pieces if one.location == location]
            for begin, end in _without(first_row, first_row + rows, taken):
                span = int(self._slots.start[slot]), int(self._slots.end[slot])
                left.append(((entry, begin, end - begin), span))
                entries.keep(entry)
        self._not_due(due)
        self._filling.pop(key, None)
        self._slots.free(slots)
        for triple, span in left:
            self._fill(key, triple, span)

    # Checkpoints

    def _recall(self, slots: Rows, columns: encoding.SlotTable) -> None:
        self._named = dict(columns.named)
        for key, slot, kept in zip(columns.keys, slots.tolist(), columns.kept.tolist(), strict=True):
            if kept:
                self._history.of_key[key] = slot
                self._slots.open[slot] = False
            elif self._slots.rows[slot] == self._full:
                self._add_due(np.array([slot], np.int64))
            else:
                self._filling[key] = slot


def _span_of(times: Times) -> tuple[int, int]:
    return int(times.min()), min(int(times.max()), END_OF_TIME_US - 1) + 1


def _without(begin: int, end: int, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[begin, end) without the runs (first, rows)."""
    left: list[tuple[int, int]] = []
    for first, rows in sorted(taken):
        if begin < first and first < end:
            left.append((begin, first))
        begin = max(begin, min(first + rows, end)) if first < end else begin
    if begin < end:
        left.append((begin, end))
    return left
