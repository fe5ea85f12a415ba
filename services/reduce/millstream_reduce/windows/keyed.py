"""The common part of sessions and global windows: windows that belong to one key, or to all rows if there are no keys.

    add ─► open slots, by key ─► due: closed, fixed, in the order in which they go ─► handed over

A slot that is due accepts no more rows, so its contents are those that it had when the watermark closed it, however
late it is handed over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Key, Location, Rows, WindowContents
from millstream_reduce.windowing import Admission, Keys, Times, Windowing
from millstream_reduce.windows import encoding
from millstream_reduce.windows.config import WindowConfig
from millstream_reduce.windows.entries import closed_before
from millstream_reduce.windows.grouping import NO_ROWS, rises, run_lengths, run_numbers, run_starts, stable_order
from millstream_reduce.windows.slots import Slots

NO_LIMIT = START_OF_TIME_US - 1
"""Before every time."""


class KeyRuns:
    """Rows of one entry by (key, part): what goes into one window. Columns, in the order of the rows."""

    __slots__ = ("begins", "counts", "firsts", "names")

    def __init__(self, times: Times, keys: Keys | None, labels: Rows) -> None:
        self.firsts = run_starts(labels)
        self.counts = run_lengths(self.firsts, len(times))
        if keys is None:
            self.names: list[Key] = [None] * len(self.firsts)
            self.begins: Rows = np.zeros(1, np.int64)
            """The first run of each key."""
            return
        codes = keys.codes[self.firsts]
        self.names = list(map(keys.values.__getitem__, codes.tolist()))
        self.begins = run_starts(codes)


class KeyedWindows(Windowing):
    """Windows of one key each. Subclasses say how rows are cut into windows and which windows are due."""

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self.needs_keys = config.needs_keys
        self._reset()

    def _reset(self) -> None:
        self.closed_us = START_OF_TIME_US
        self._floor_us = NO_LIMIT
        """The watermark minus the lateness, until the end of time is reached: what was published downstream."""
        self._slots = Slots()
        self._due: dict[int, None] = {}
        """Slots that are closed and not handed over, in the order in which they go."""
        self._due_of: dict[Key, list[int]] | None = None
        """The same by key, while a log is replayed."""

    def open_rows(self) -> int:
        return self._slots.open_rows

    def live_segments(self) -> set[int]:
        return self._slots.entries.segments()

    def open_windows(self) -> int:
        return len(self._slots)

    # Rows in

    def sort(self, times: Times, keys: Keys | None, joined: Rows | None = None) -> Admission:
        if not len(times):
            return Admission(None, NO_ROWS)
        kept: Rows | None = None
        late = NO_ROWS
        until = self._late_until()
        if int(times.min()) <= until:
            too_late = times <= until
            joined = self._joining(times, keys, too_late) if joined is None else joined[too_late[joined]]
            too_late[joined] = False
            late, kept = np.flatnonzero(too_late), np.flatnonzero(~too_late)
            times = times[kept]
        else:
            joined = NO_ROWS
        if not len(times):
            return Admission(kept, late)
        groups = self._groups(keys, len(late) + len(times))
        if kept is not None:
            groups = groups[kept]
        order: Rows | None = None
        if not rises(groups):
            order = stable_order(groups)
            times, groups = times[order], groups[order]
        labels = self._parts(times, groups)
        if not rises(labels):
            again = stable_order(labels)
            order = again if order is None else order[again]
        if kept is None or order is None:
            return Admission(order if kept is None else kept, late, joined=joined)
        return Admission(kept[order], late, joined=joined)

    def add(self, times: Times, keys: Keys | None, location: Location) -> None:
        if not len(times):
            return
        self._check_open(times, location)
        groups = run_numbers(self._groups(keys, len(times)))
        runs = KeyRuns(times, keys if self.needs_keys else None, self._parts(times, groups))
        self._take_in(times, runs, self._slots.entries.add(location, len(runs.firsts)))

    def _check_open(self, times: Times, location: Location) -> None:
        if int(times.min()) <= self._late_until():
            raise closed_before(location)

    def _groups(self, keys: Keys | None, rows: int) -> Rows:
        if not self.needs_keys:
            return np.zeros(rows, np.int64)
        if keys is None:
            raise ValueError("windows of keys were given rows without keys")
        return keys.codes.astype(np.int64)

    # Windows out

    def close(self, watermark_us: int, windows_max: int | None = None) -> Sequence[WindowContents]:
        self._advance(watermark_us)
        slots = list(islice(self._due, windows_max))
        for slot in slots:
            del self._due[slot]
        if not self._due:
            # Otherwise, a dictionary that was large stays large.
            self._due = {}
        self._due_of = None
        contents: Sequence[WindowContents] = self._hand_over(np.array(slots, np.int64)) if slots else []
        if not self._due and (windows_max is None or len(contents) < windows_max):
            last = self._hand_over_last(None if windows_max is None else windows_max - len(contents))
            contents = [*contents, *last] if last else contents
        return contents

    def closed(self, contents: Sequence[WindowContents], closed_us: int) -> None:
        self._advance(closed_us)
        for one in contents:
            self._note(one)

    def oldest_end_us(self) -> int | None:
        return int(self._slots.end[: self._slots.used].min()) if len(self._slots) else None

    def _advance(self, watermark_us: int) -> None:
        self.closed_us = max(self.closed_us, watermark_us)
        if not self._ended:
            self._floor_us = self.closed_us - self._config.lateness_us
        self._settle()

    @property
    def _ended(self) -> bool:
        return self.closed_us >= END_OF_TIME_US

    def _limit_us(self) -> int:
        """Windows that end at or before this are closed."""
        return END_OF_TIME_US if self._ended else max(self.closed_us - self._config.lateness_us, START_OF_TIME_US)

    def _hand_over(self, slots: Rows) -> Sequence[WindowContents]:
        """Contents of slots that were due; they become free."""
        contents = self._slots.table(slots, keyed=self.needs_keys)
        self._slots.free(slots)
        return contents

    def _hand_over_last(self, windows_max: int | None) -> list[WindowContents]:
        """The rest, after everything due was handed over and time has ended."""
        return []

    def _add_due(self, slots: Rows) -> None:
        """Slots that are closed now, in the order in which they go."""
        self._slots.open[slots] = False
        self._due.update(dict.fromkeys(slots.tolist()))
        self._due_of = None

    def _due_slots(self, key: Key) -> list[int]:
        """Slots of a key that are due, in their order."""
        if self._due_of is None:
            self._due_of = {}
            slots = list(self._due)
            for slot, name in zip(slots, self._slots.key[slots].tolist(), strict=True):
                self._due_of.setdefault(name, []).append(slot)
        return self._due_of.get(key, [])

    def _not_due(self, slots: Sequence[int]) -> None:
        """Slots of one key are no longer due."""
        for slot in list(slots):
            del self._due[slot]
            if self._due_of is not None:
                self._due_of[self._slots.key[slot]].remove(slot)

    @abstractmethod
    def _late_until(self) -> int:
        """Rows at or before this time are late, unless they join a window that is open."""

    def _joining(self, times: Times, keys: Keys | None, too_late: npt.NDArray[np.bool_]) -> Rows:
        """Those that do, of the rows that are `too_late` by themselves."""
        return NO_ROWS

    @abstractmethod
    def _parts(self, times: Times, groups: Rows) -> Rows:
        """Which rows go into one window, as far as these rows can tell: a number for each, rising with group and time.
        `groups` rises, and is one number for one key."""

    @abstractmethod
    def _take_in(self, times: Times, runs: KeyRuns, entry: int) -> None:
        """Add the runs of an entry to the slots."""

    @abstractmethod
    def _settle(self) -> None:
        """Make due what the watermark has closed."""

    @abstractmethod
    def _note(self, contents: WindowContents) -> None:
        """These contents were handed over at this point of the log."""

    # Checkpoints

    def checkpoint(self) -> bytes:
        slots = self._slots
        alive = self._alive_in_order()
        owners, triples = slots.triples(alive) if len(alive) else (NO_ROWS, np.empty((0, 3), np.int64))
        numbers = slots.entries.numbers()
        # Entries are counted from the first one that is still needed.
        triples[:, 0] = np.searchsorted(np.array(numbers, np.int64), triples[:, 0])
        columns = encoding.SlotTable(
            starts=slots.start[alive],
            ends=slots.end[alive],
            early=slots.early[alive].astype(np.int64),
            seen=slots.seen[alive],
            kept=self._kept(alive),
            pieces=np.bincount(owners, minlength=len(alive)),
            keys=slots.key[alive].tolist(),
            triples=triples,
            floor_us=max(self._floor_us, START_OF_TIME_US),
            named=self._named_ends(),
        )
        locations = [slots.entries.location(number) for number in numbers]
        return encoding.encode_slots(self._config.identity, self.closed_us, locations, columns)

    def restore(self, checkpoint: bytes) -> None:
        closed_us, locations, columns = encoding.decode_slots(checkpoint, self._config.identity)
        self._reset()
        self.closed_us, self._floor_us = closed_us, columns.floor_us
        slots = self._slots.make(columns.keys, columns.starts, columns.ends)
        self._slots.early[slots], self._slots.seen[slots] = columns.early, columns.seen
        self._slots.entries.restore(locations, np.bincount(columns.triples[:, 0], minlength=len(locations)).tolist())
        self._attach_all(slots, columns)
        self._recall(slots, columns)
        self._settle()

    def _attach_all(self, slots: Rows, columns: encoding.SlotTable) -> None:
        """Attaches the pieces of the slots, by the place that they have in their slot."""
        triples = columns.triples
        begins = np.cumsum(columns.pieces) - columns.pieces
        for place in range(int(columns.pieces.max(initial=0))):
            have = np.flatnonzero(columns.pieces > place)
            entry, first, count = triples[begins[have] + place].T
            self._slots.attach(slots[have], entry, first, count)

    def _alive_in_order(self) -> Rows:
        """Slots that are not free; those that are due first, in their order."""
        due = np.array(list(self._due), np.int64)
        alive = self._slots.alive()
        return np.concatenate((due, np.setdiff1d(alive, due))) if len(due) else alive

    def _kept(self, slots: Rows) -> Rows:
        """1 for slots that hold what earlier results were over."""
        return np.zeros(len(slots), np.int64)

    def _named_ends(self) -> dict[Key, int]:
        return {}

    @abstractmethod
    def _recall(self, slots: Rows, columns: encoding.SlotTable) -> None:
        """Find the slots of a checkpoint again by their keys."""
