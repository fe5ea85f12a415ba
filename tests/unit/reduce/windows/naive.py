"""Windows the slow way: a list of rows per window, one row at a time. What the real ones are compared with.

Written from what windows mean, not from how the real ones keep them: it knows no panes, pieces, columns or chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Window
from millstream_reduce.windows import WindowConfig

Key = bytes | None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the log."""

    place: int
    """In the log."""
    time: int
    key: Key


@dataclass(frozen=True, slots=True)
class Result:
    """Contents of a window."""

    window: Window
    rows: tuple[int, ...]
    """Places, ascending."""
    released: int = 0


@dataclass(slots=True)
class Open:
    """A window that is not handed over."""

    start: int
    end: int
    key: Key
    rows: list[Row] = field(default_factory=list)
    early: int = 0
    seen: int = 0

    def places(self) -> tuple[int, ...]:
        return tuple(sorted(row.place for row in self.rows))

    def named(self, early: int = 0) -> Window:
        return Window(max(self.start, START_OF_TIME_US), min(self.end, END_OF_TIME_US), self.key, early)


class Naive(ABC):
    """The open windows of one lane."""

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self.closed_us = START_OF_TIME_US
        self.floor_us = START_OF_TIME_US - 1
        self.open: list[Open] = []

    @property
    def ended(self) -> bool:
        return self.closed_us >= END_OF_TIME_US

    def is_closed(self, end: int) -> bool:
        return self.ended or end + self.config.lateness_us <= self.closed_us

    def advance(self, watermark_us: int) -> None:
        self.closed_us = max(self.closed_us, watermark_us)
        if not self.ended:
            self.floor_us = max(self.floor_us, self.closed_us - self.config.lateness_us)

    @abstractmethod
    def verdict(self, time: int, key: Key) -> Literal["admitted", "late", "outside"]: ...

    @abstractmethod
    def add(self, row: Row) -> None: ...

    def due(self) -> list[Open]:
        """Closed windows with rows, in the order in which they go."""
        due = [one for one in self.open if one.rows and self.is_closed(one.end)]
        return sorted(due, key=lambda one: (one.end, one.start, one.key or b""))

    def ready(self) -> list[Result]:
        """What is to be handed over. A row is released by the last window that needs it."""
        results = []
        left = [one for one in self.open if one.rows]
        for one in self.due():
            left.remove(one)
            others = {row.place for other in left for row in other.rows}
            released = sum(place not in others for place in one.places())
            results.append(Result(one.named(), one.places(), released))
        return results

    def hand_over(self, results: Sequence[Result]) -> None:
        """These, the first of `ready`, are handed over."""
        for one in self.due()[: len(results)]:
            self.open.remove(one)

    def grown(self, rows_min: int) -> list[Open]:
        """Windows that take rows in, with so many since their last early result."""
        return [one for one in self.open if not self.is_closed(one.end) and len(one.rows) - one.seen >= rows_min]

    def early(self, rows_min: int = 1) -> list[Result]:
        """Early results of these windows."""
        results = []
        for one in sorted(self.grown(rows_min), key=lambda one: (one.end, one.start, one.key or b"")):
            one.early += 1
            one.seen = len(one.rows)
            results.append(Result(one.named(one.early), one.places()))
        return results

    def needed(self) -> set[int]:
        """Places of the rows that a window still needs."""
        return {row.place for one in self.open for row in one.rows}

    def open_windows(self) -> int:
        return sum(bool(one.rows) for one in self.open)

    def oldest_end_us(self) -> int | None:
        return min((min(one.end, END_OF_TIME_US) for one in self.open if one.rows), default=None)


class NaiveShared(Naive):
    """Fixed and sliding windows."""

    def _windows_of(self, time: int) -> list[tuple[int, int]]:
        length = self.config.length_us
        slide = self.config.slide_us if self.config.kind == "sliding" else length
        start = time - time % slide
        windows = []
        while start + length > time:
            windows.append((start, start + length))
            start -= slide
        return windows

    def verdict(self, time: int, key: Key) -> Literal["admitted", "late", "outside"]:
        windows = self._windows_of(time)
        if not windows:
            return "outside"
        return "late" if all(self.is_closed(end) for _, end in windows) else "admitted"

    def add(self, row: Row) -> None:
        for start, end in self._windows_of(row.time):
            if self.is_closed(end):
                continue
            found = [one for one in self.open if (one.start, one.end) == (start, end)]
            if not found:
                found = [Open(start, end, None)]
                self.open += found
            found[0].rows.append(row)


class NaiveSessions(Naive):
    """Sessions."""

    def verdict(self, time: int, key: Key) -> Literal["admitted", "late", "outside"]:
        session, _ = self._merged(Row(-1, time, key))
        return "late" if self.is_closed(session.end) else "admitted"

    def add(self, row: Row) -> None:
        session, parts = self._merged(row)
        for one in parts:
            self.open.remove(one)
        self.open.append(session)

    def _merged(self, row: Row) -> tuple[Open, list[Open]]:
        """The session that the row would be in, and those open ones that it is made of."""
        start = min(row.time, END_OF_TIME_US - 1)
        session = Open(start, min(start + self.config.timeout_us, END_OF_TIME_US), row.key, [row])
        parts = []
        for one in self.open:
            meets = one.key == row.key and one.start < session.end and session.start < one.end
            if meets and not self.is_closed(one.end):
                parts.append(one)
        for one in parts:
            session.start, session.end = min(session.start, one.start), max(session.end, one.end)
            session.rows += one.rows
            session.early, session.seen = max(session.early, one.early), session.seen + one.seen
        return session, parts


class NaiveGlobal(Naive):
    """Global windows: `open` holds what no result was over yet, `kept` what results so far were over."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config)
        self.kept: dict[Key, Open] = {}
        self.last_end: dict[Key, int] = {}

    def verdict(self, time: int, key: Key) -> Literal["admitted", "late", "outside"]:
        return "late" if self.ended else "admitted"

    def grown(self, rows_min: int) -> list[Open]:
        return []

    def needed(self) -> set[int]:
        return super().needed() | {row.place for one in self.kept.values() for row in one.rows}

    def open_windows(self) -> int:
        return super().open_windows() + len(self.kept)

    def open_keys(self) -> int:
        return len({one.key for one in self.open} | self.kept.keys())

    def _end(self, end: int) -> int:
        return min(max(end, self.floor_us + 1), END_OF_TIME_US)

    def next_of(self, key: Key) -> Result | None:
        """The next result of a key; it is handed over at once."""
        due = [one for one in self.due() if one.key == key]
        if not due:
            return self._last_of(key)
        one = due[0]
        self.open.remove(one)
        if not self.config.accumulate:
            end = self.name_end(one)
            self.last_end[key] = end
            return Result(Window(one.start, end, key), one.places(), len(one.rows))
        kept = self.kept.setdefault(key, Open(one.start, one.end, key))
        self._keep(kept, one)
        kept.early += 1
        return Result(Window(kept.start, self.early_end(kept), key, kept.early), kept.places())

    def _last_of(self, key: Key) -> Result | None:
        if not self.ended or not self.config.accumulate:
            return None
        rest = [one for one in self.open if one.key == key]
        kept = self.kept.pop(key, None)
        for one in rest:
            self.open.remove(one)
            kept = kept or Open(one.start, one.end, key)
            self._keep(kept, one)
        if kept is None:
            return None
        return Result(Window(kept.start, self._end(kept.end), key), kept.places(), len(kept.rows))

    def _keep(self, kept: Open, one: Open) -> None:
        kept.start, kept.end = min(kept.start, one.start), max(kept.end, one.end)
        kept.rows += one.rows

    def name_end(self, one: Open) -> int:
        return one.end

    def early_end(self, kept: Open) -> int:
        return kept.end

    def ready_keys(self) -> list[Key]:
        """Keys that have a result to hand over."""
        keys = {one.key for one in self.due()}
        if self.ended and self.config.accumulate:
            keys |= {one.key for one in self.open} | set(self.kept)
        return sorted(keys, key=lambda key: key or b"")


class NaivePeriods(NaiveGlobal):
    """Global windows with results at multiples of a period."""

    def add(self, row: Row) -> None:
        period = self.config.every_us or 0
        # The first multiple after the time at which the result was not given yet, and whose period 64 bits can express.
        time = min(row.time, END_OF_TIME_US - 1)
        begin = max(time, self.closed_us - self.config.lateness_us)
        end = (begin // period + 1) * period
        while end - period < START_OF_TIME_US:
            end += period
        end = min(end, END_OF_TIME_US)
        found = [one for one in self.open if (one.key, one.end) == (row.key, end)]
        if not found:
            found = [Open(time, end, row.key)]
            self.open += found
        found[0].start = min(found[0].start, time)
        found[0].rows.append(row)


class NaiveCounts(NaiveGlobal):
    """Global windows with results after so many rows."""

    def add(self, row: Row) -> None:
        filling = [one for one in self.open if one.key == row.key and not self._is_full(one)]
        if not filling:
            filling = [Open(row.time, row.time + 1, row.key)]
            self.open += filling
        filling[0].start = min(filling[0].start, row.time)
        filling[0].end = max(filling[0].end, min(row.time, END_OF_TIME_US - 1) + 1)
        filling[0].end = min(filling[0].end, END_OF_TIME_US)
        filling[0].rows.append(row)

    def _is_full(self, one: Open) -> bool:
        return self.config.count is not None and len(one.rows) >= self.config.count

    def due(self) -> list[Open]:
        """In the order in which they were filled."""
        is_last = self.ended and not self.config.accumulate
        return [one for one in self.open if self._is_full(one) or is_last]

    def early_end(self, kept: Open) -> int:
        return self._end(kept.end)

    def name_end(self, one: Open) -> int:
        return min(max(self._end(one.end), self.last_end.get(one.key, START_OF_TIME_US) + 1), END_OF_TIME_US)


def make_naive(config: WindowConfig) -> Naive:
    if config.kind == "session":
        return NaiveSessions(config)
    if config.kind == "global":
        return NaiveCounts(config) if config.every_us is None else NaivePeriods(config)
    return NaiveShared(config)
