"""A lane around a windowing: writes what the queue would write to its log, dies, and reads it back.

Every step runs on the windowing and on the naive model, and both must agree on everything that can be seen.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millstream.clock import END_OF_TIME_US
from millstream_reduce.values import Location, Piece, Window, WindowContents
from millstream_reduce.windowing import Keys, Windowing
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.unit.reduce.windows.naive import Naive, NaiveCounts, NaiveGlobal, Result, Row, make_naive

Arrived = tuple[int, bytes]
"""Time and key of a row."""

ENTRIES_PER_SEGMENT = 3
ENTRY_BYTES = 64


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry with rows."""

    closed_us: int
    rows: tuple[Row, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class HandedOver:
    """An entry with windows; without any, what the lane's mark says about the watermark."""

    closed_us: int
    contents: tuple[WindowContents, ...]


def keys_of(rows: Sequence[bytes]) -> Keys:
    values = sorted(set(rows), key=rows.index)
    return Keys(np.array([values.index(row) for row in rows], np.int32), values)


def times_of(times: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(times, np.int64)


class Lane:
    """A windowing, the log it would have written, and the model."""

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self.windowing = make_windowing(config)
        self.naive = make_naive(config)
        self.log: list[Appended | HandedOver] = []
        self.states: list[Naive] = [copy.deepcopy(self.naive)]
        """The model before the log's first entry, and after each."""
        self.checkpoints: dict[int, bytes] = {}
        """By the number of entries before them."""
        self.results: list[Result] = []
        """Everything that was handed over and is in the log."""
        self.admitted = 0
        """Rows."""
        self.none_before: dict[int, int] = {}
        """By number of new rows: how many rows must be admitted until a window can have so many."""
        self.exact_names = True
        """Names follow from times that the log still holds."""

    # What a lane does

    def append(self, arrived: Sequence[Arrived]) -> None:
        times = times_of([time for time, _ in arrived])
        keys = keys_of([key for _, key in arrived]) if self.windowing.needs_keys else None
        placed = self.windowing.sort(times, keys)
        order = list(range(len(arrived))) if placed.order is None else placed.order.tolist()
        place = sum(len(entry.rows) for entry in self.log if isinstance(entry, Appended))
        names = [key if self.windowing.needs_keys else None for _, key in arrived]
        stored = {row: Row(place + index, arrived[row][0], names[row]) for index, row in enumerate(order)}
        verdicts = []
        for row, (time, _) in enumerate(arrived):
            verdicts.append(self.naive.verdict(time, names[row]))
            if verdicts[-1] == "admitted":
                self.naive.add(stored[row])
        self.admitted += len(order)
        for rows_min, admitted in self.none_before.items():
            assert self.admitted >= admitted or not self.naive.grown(rows_min)
        assert sorted(order) == [row for row, verdict in enumerate(verdicts) if verdict == "admitted"]
        assert placed.late.tolist() == [row for row, verdict in enumerate(verdicts) if verdict == "late"]
        assert placed.outside.tolist() == [row for row, verdict in enumerate(verdicts) if verdict == "outside"]
        if not order:
            return
        rows = tuple(stored.values())
        segment, inside = divmod(len(self.log), ENTRIES_PER_SEGMENT)
        entry = Appended(self.windowing.closed_us, rows, Location(segment, (inside + 1) * ENTRY_BYTES, ENTRY_BYTES))
        self._add(self.windowing, entry)
        self._write(entry)

    def close(self, watermark_us: int, windows_max: int | None = None) -> int:
        """Returns how many windows it was."""
        contents = self.windowing.close(watermark_us, windows_max)
        self.naive.advance(watermark_us)
        assert windows_max is None or len(contents) <= windows_max
        assert self.windowing.closed_us == self.naive.closed_us
        if not contents:
            self._expect_nothing_due(windows_max)
            self._write(HandedOver(self.naive.closed_us, ()))
            return 0
        # One call may become several entries, and the lane may die between them.
        for part in (contents[: len(contents) // 2], contents[len(contents) // 2 :]):
            if part:
                self._hand_over(part)
                self._write(HandedOver(self.naive.closed_us, tuple(part)))
        return len(contents)

    def close_all(self, watermark_us: int) -> None:
        """As a lane does: until nothing comes any more."""
        while self.close(watermark_us, 3):
            pass

    def early(self, windows_max: int | None = None, rows_min: int = 1) -> None:
        found = list(self.windowing.early(windows_max, rows_min))
        if windows_max is not None:
            while more := self.windowing.early(windows_max, rows_min):
                assert len(more) <= windows_max
                found += more
        assert [self.result(one) for one in found] == self.naive.early(rows_min)
        rows = self.windowing.rows_to_early(rows_min)
        assert rows >= 1
        self.none_before[rows_min] = self.admitted + rows
        if found:
            self._write(HandedOver(self.naive.closed_us, tuple(found)))

    def checkpoint(self) -> None:
        self.checkpoints[len(self.log)] = self.windowing.checkpoint()

    # Death

    def die(self, lost: int, *, from_checkpoint: bool, cut: bool) -> None:
        """Lose the last entries, and read the others back: from the last checkpoint, from the beginning, or from the
        first entry that is still needed."""
        kept = max(0, len(self.log) - lost)
        self.naive = copy.deepcopy(self.states[kept])
        del self.log[kept:], self.states[kept + 1 :]
        self.checkpoints = {place: state for place, state in self.checkpoints.items() if place <= kept}
        self.results = [self.result(one) for one in self._handed_over() if not one.window.early]
        self.windowing = make_windowing(self.config)
        self.none_before.clear()
        begin = 0
        if from_checkpoint and self.checkpoints:
            begin = max(self.checkpoints)
            self.windowing.restore(self.checkpoints[begin])
        elif cut:
            begin = self._first_needed()
            self.windowing.closed((), self.states[begin].closed_us)
            self.exact_names = False
        for entry in self.log[begin:]:
            self.windowing.closed((), entry.closed_us)
            if isinstance(entry, Appended):
                self._add(self.windowing, entry)
            else:
                self.windowing.closed(entry.contents, entry.closed_us)
        self.windowing.replayed()
        assert self.windowing.closed_us == self.naive.closed_us

    def _first_needed(self) -> int:
        needed = self.naive.needed()
        for place, entry in enumerate(self.log):
            if isinstance(entry, Appended) and needed.intersection(row.place for row in entry.rows):
                return place // ENTRIES_PER_SEGMENT * ENTRIES_PER_SEGMENT
        return len(self.log)

    # What must agree

    def check(self) -> None:
        needed = self.naive.needed()
        entries = [entry for entry in self.log if isinstance(entry, Appended)]
        segments = {entry.location.segment for entry in entries if needed.intersection(row.place for row in entry.rows)}
        assert self.windowing.live_segments() == segments
        assert self.windowing.open_rows() == len(needed)
        if isinstance(self.naive, NaiveGlobal) and self.naive.ended and self.config.accumulate:
            # What a key had before its last result and what came after it become one window once the last ones go.
            assert self.naive.open_keys() <= self.windowing.open_windows() <= self.naive.open_windows()
        else:
            assert self.windowing.open_windows() == self.naive.open_windows()
        oldest = self.windowing.oldest_end_us()
        if isinstance(self.naive, NaiveGlobal):
            assert oldest is None or self.naive.ready_keys() or not isinstance(self.naive, NaiveCounts)
        else:
            assert oldest == self.naive.oldest_end_us()

    def result(self, contents: WindowContents) -> Result:
        """The contents, by the rows of the log."""
        places: list[int] = []
        for piece in contents.pieces:
            rows = self._rows_of(piece.location)
            assert 0 <= piece.first_row < piece.first_row + piece.rows <= len(rows)
            places += [row.place for row in rows[piece.first_row : piece.first_row + piece.rows]]
        assert places == sorted(places), "pieces are in the order of the log"
        assert contents.rows == len(set(places))
        assert not any(_follows(*pair) for pair in zip(contents.pieces, contents.pieces[1:], strict=False))
        return Result(contents.window, tuple(places), contents.released)

    def _rows_of(self, location: Location) -> tuple[Row, ...]:
        return next(entry.rows for entry in self.log if isinstance(entry, Appended) and entry.location == location)

    def _handed_over(self) -> list[WindowContents]:
        return [one for entry in self.log if isinstance(entry, HandedOver) for one in entry.contents]

    def _hand_over(self, contents: Sequence[WindowContents]) -> None:
        found = [self.result(one) for one in contents]
        self.results += [one for one in found if not one.window.early]
        if not isinstance(self.naive, NaiveGlobal):
            assert found == self.naive.ready()[: len(found)]
            self.naive.hand_over(found)
            return
        for one in found:
            expected = self.naive.next_of(one.window.key)
            assert expected is not None
            if isinstance(self.naive, NaiveCounts) and not self.exact_names:
                window = one.window
                assert window.start_us <= expected.window.start_us
                assert window.end_us >= expected.window.end_us or not self.config.accumulate
                expected = Result(
                    Window(window.start_us, window.end_us, window.key, expected.window.early),
                    expected.rows,
                    expected.released,
                )
                self.naive.last_end[window.key] = max(self.naive.last_end.get(window.key, 0), window.end_us)
            assert one == expected

    def _expect_nothing_due(self, windows_max: int | None) -> None:
        if windows_max == 0:
            return
        if isinstance(self.naive, NaiveGlobal):
            assert not self.naive.ready_keys()
        else:
            assert not self.naive.ready()

    def _add(self, windowing: Windowing, entry: Appended) -> None:
        keys = keys_of([row.key or b"" for row in entry.rows]) if windowing.needs_keys else None
        windowing.add(times_of([row.time for row in entry.rows]), keys, entry.location)

    def _write(self, entry: Appended | HandedOver) -> None:
        self.log.append(entry)
        self.states.append(copy.deepcopy(self.naive))

    def end(self) -> None:
        """Time ends: everything is handed over, every row released once."""
        self.close_all(END_OF_TIME_US)
        self.check()
        assert not self.windowing.live_segments()
        assert self.windowing.open_rows() == self.windowing.open_windows() == 0
        assert self.windowing.oldest_end_us() is None
        rows = [row.place for entry in self.log if isinstance(entry, Appended) for row in entry.rows]
        assert sum(one.released for one in self._handed_over()) == len(rows)
        assert {place for one in self.results for place in one.rows} == set(rows)
        names = [one.window for one in self.results if one.window.end_us < END_OF_TIME_US]
        assert len(set(names)) == len(names) or not self.exact_names
        assert not any(one.released for one in self._handed_over() if one.window.early)


def _follows(one: Piece, other: Piece) -> bool:
    return one.location == other.location and one.first_row + one.rows == other.first_row
