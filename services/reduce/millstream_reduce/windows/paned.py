"""Windows that all keys share, fixed and sliding, put together from panes.

A pane is the stretch of event time between two neighbouring window boundaries: one per slide where the length is a
multiple of the slide, two otherwise. All rows of a pane are in the same windows, so a row is kept once, however many
windows overlap:

    length 10, slide 4     panes  [0,2) [2,4) [4,6) [6,8) ...      window [0,10) = five panes, [4,14) = five panes
    length 4, slide 10     panes  [0,4) [4,10) [10,14) ...         rows in [4,10) are in no window

Window k begins at k x slide. Pane 2q (or q) is the first of the slide that begins at q x slide, whose last window is q.
Numbers of windows and panes are Python integers wherever they are computed with, since a boundary may lie outside of
64 bits; a window that does is cut off at START_OF_TIME_US or END_OF_TIME_US.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import numpy as np

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Location, Piece, Rows, Window, WindowContents
from millstream_reduce.windowing import Admission, Keys, Times, Windowing
from millstream_reduce.windows import encoding
from millstream_reduce.windows.config import WindowConfig
from millstream_reduce.windows.entries import Entries, Triple, closed_before
from millstream_reduce.windows.grouping import NO_ROWS, rises, run_lengths, run_starts, stable_order

_ALL = 2**64
"""Greater than the number of every window."""


class _Pane:
    """Rows of one pane."""

    __slots__ = ("pieces", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.pieces = array("q")
        """Entry, first row, rows; entry, first row, rows; ... in the order of the log."""

    def triples(self) -> Iterator[Triple]:
        return zip(self.pieces[0::3], self.pieces[1::3], self.pieces[2::3], strict=True)


class PanedWindows(Windowing):
    """Fixed and sliding windows."""

    needs_keys = False

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self._length = config.length_us
        self._slide = config.slide_us if config.kind == "sliding" else config.length_us
        self._slides, self._rest = divmod(self._length, self._slide)
        self._per_slide = 2 if self._rest else 1
        self._has_gaps = self._slides == 0
        self._reset()

    def _reset(self) -> None:
        self.closed_us = START_OF_TIME_US
        self._entries = Entries()
        self._panes: dict[int, _Pane] = {}
        self._ascending: list[int] = []
        """Numbers of the panes, a heap."""
        self._handed = self._last_closed()
        """Windows up to this one are handed over, or never had rows."""
        self._frozen: list[tuple[int, int]] = []
        """(k, n), both rising: windows up to k hold only entries before n, since they were closed, and not handed over
        yet, when entry n came."""
        self._early: dict[int, tuple[int, int]] = {}
        """Number of the last early result of a window, and the rows it had."""
        self._grown: set[int] = set()
        """Panes that got rows since the last early results, as far as one of their windows has not had its own."""
        self._open_rows = 0

    def open_rows(self) -> int:
        return self._open_rows

    def live_segments(self) -> set[int]:
        return self._entries.segments()

    # Rows in

    def sort(self, times: Times, keys: Keys | None, joined: Rows | None = None) -> Admission:
        if not len(times):
            return Admission(None, NO_ROWS)
        low, high = self._pane_of(int(times.min())), self._pane_of(int(times.max()))
        closed = self._last_closed()
        if low == high and self._is_admitted(low, closed):
            return Admission(None, NO_ROWS)
        panes = self._panes_of(times)
        late = outside = NO_ROWS
        kept: Rows | None = None
        if self._has_gaps or not self._is_admitted(low, closed):
            in_gap = (panes & 1).astype(np.bool_) if self._has_gaps else np.zeros(len(panes), np.bool_)
            too_late = self._panes_up_to(panes, closed) & ~in_gap
            late, outside = np.flatnonzero(too_late), np.flatnonzero(in_gap)
            if len(late) or len(outside):
                kept = np.flatnonzero(~(too_late | in_gap))
                panes = panes[kept]
        if len(panes) and not rises(panes):
            order = stable_order(panes)
            kept = order if kept is None else kept[order]
        return Admission(kept, late, outside)

    def add(self, times: Times, keys: Keys | None, location: Location) -> None:
        if not len(times):
            return
        low, high = self._pane_of(int(times.min())), self._pane_of(int(times.max()))
        if low == high:
            runs = [(low, 0, len(times))]
        else:
            panes = self._panes_of(times)
            firsts = run_starts(panes)
            rows = run_lengths(firsts, len(times))
            runs = list(zip(panes[firsts].tolist(), firsts.tolist(), rows.tolist(), strict=True))
        closed = self._last_closed()
        if not all(self._is_admitted(number, closed) for number, _, _ in runs):
            raise closed_before(location)
        if self._next_closed() is not None and (not self._frozen or self._frozen[-1][0] < closed):
            self._frozen.append((closed, self._entries.next_number))
        entry = self._entries.add(location, len(runs))
        for number, first, count in runs:
            pane = self._panes.get(number)
            if pane is None:
                pane = self._panes[number] = _Pane()
                heapq.heappush(self._ascending, number)
            pane.rows += count
            pane.pieces.extend((entry, first, count))
            self._grown.add(number)
        self._open_rows += len(times)

    # Windows out

    def close(self, watermark_us: int, windows_max: int | None = None) -> list[WindowContents]:
        self.closed_us = max(self.closed_us, watermark_us)
        closing: list[WindowContents] = []
        while windows_max is None or len(closing) < windows_max:
            number = self._next_closed()
            if number is None:
                break
            # Empty if the rows came after the window was closed: they belong to a later window.
            pieces = self._pieces(number)
            if pieces:
                closing.append(WindowContents(self._window(number), pieces, self._released(number)))
            self._forget(number)
            self._early.pop(number, None)
        return closing

    def closed(self, contents: Sequence[WindowContents], closed_us: int) -> None:
        self.closed_us = max(self.closed_us, closed_us)
        final = [self._number_of(one.window) for one in contents if not one.window.early]
        if final:
            self._forget(max(final))
            self._early = {number: early for number, early in self._early.items() if number > self._handed}
        for one in contents:
            if one.window.early:
                number = self._number_of(one.window)
                self._early[number] = (one.window.early, sum(pane.rows for pane in self._panes_in(number)))

    def early(self, windows_max: int | None = None, rows_min: int = 1) -> list[WindowContents]:
        results: list[WindowContents] = []
        waiting: list[int] = []
        for number, new in self._new_rows().items():
            if new < rows_min:
                waiting.append(number)
                continue
            if len(results) == windows_max:
                return results
            count, seen = self._early.get(number, (0, 0))
            results.append(WindowContents(self._window(number, count + 1), self._pieces(number)))
            self._early[number] = (count + 1, seen + new)
        self._grown = {pane for pane in self._grown if self._is_in_one_of(pane, waiting)}
        return results

    def rows_to_early(self, rows_min: int) -> int:
        return rows_min - max(self._new_rows().values(), default=0)

    def _new_rows(self) -> dict[int, int]:
        """Rows since the last early result of each open window that has any, in the order of the windows."""
        numbers: list[int] = []
        before = max(self._handed, self._last_closed())
        # A window may have many panes, and a pane be in many windows.
        for pane in sorted(self._grown):
            last = self._last_window(pane)
            numbers.extend(range(max(self._first_window(pane), before + 1), last + 1))
            before = max(before, last)
        panes = sorted(self._panes)
        rows_before = [0, *accumulate(self._panes[pane].rows for pane in panes)]
        found: dict[int, int] = {}
        for number in numbers:
            first, end = self._bounds(number)
            rows = rows_before[bisect_left(panes, end)] - rows_before[bisect_left(panes, first)]
            if new := rows - self._early.get(number, (0, 0))[1]:
                found[number] = new
        return found

    def _is_in_one_of(self, pane: int, numbers: Sequence[int]) -> bool:
        """Whether one of these windows, which rise, has the pane."""
        at = bisect_left(numbers, self._first_window(pane))
        return at < len(numbers) and numbers[at] <= self._last_window(pane)

    def oldest_end_us(self) -> int | None:
        if not self._ascending:
            return None
        begin, frozen = self._frozen_windows()
        number = frozen[0] if frozen else max(self._first_window(self._ascending[0]), begin)
        return self._window(number).end_us

    def open_windows(self) -> int:
        begin, frozen = self._frozen_windows()
        count, counted = len(frozen), begin - 1
        for pane in sorted(self._panes):
            last = self._last_window(pane)
            count += max(0, last - max(self._first_window(pane) - 1, counted))
            counted = max(counted, last)
        return count

    def _frozen_windows(self) -> tuple[int, list[int]]:
        """The windows that were closed before the newest rows came, and are not handed over; and the first one that
        holds all rows of its panes. Rarely any: the lane died, or added rows, between two calls of `close`."""
        if not self._frozen:
            return self._handed + 1, []
        begin, end = self._handed + 1, self._frozen[-1][0] + 1
        numbers = {
            number
            for pane in self._panes
            for number in range(max(self._first_window(pane), begin), min(self._last_window(pane) + 1, end))
        }
        return end, [number for number in sorted(numbers) if self._pieces(number)]

    def _next_closed(self) -> int | None:
        """The first window that is closed, not handed over, and whose panes contain rows."""
        closed = self._last_closed()
        if self._ascending:
            number = max(self._first_window(self._ascending[0]), self._handed + 1)
            if number <= closed:
                return number
        self._forget(closed)
        return None

    def _forget(self, number: int) -> None:
        """Windows up to this one are handed over: panes that only they need go."""
        if number <= self._handed:
            return
        self._handed = number
        while self._ascending and self._last_window(self._ascending[0]) <= number:
            pane_number = heapq.heappop(self._ascending)
            pane = self._panes.pop(pane_number)
            for entry in pane.pieces[0::3]:
                self._entries.drop(entry)
            self._open_rows -= pane.rows
            self._grown.discard(pane_number)
        if self._frozen:
            self._frozen = [(closed, entry) for closed, entry in self._frozen if closed > number]

    def _pieces(self, number: int) -> tuple[Piece, ...]:
        triples = chain.from_iterable(pane.triples() for pane in self._panes_in(number))
        end = next((entry for closed, entry in self._frozen if number <= closed), None)
        if end is not None:
            triples = (triple for triple in triples if triple[0] < end)  # type: ignore[assignment]
        return self._entries.pieces(triples)

    def _panes_in(self, number: int) -> list[_Pane]:
        """The panes of a window that contain rows."""
        begin, end = self._bounds(number)
        if end - begin <= len(self._panes):
            return [self._panes[pane] for pane in range(begin, end) if pane in self._panes]
        return [self._panes[pane] for pane in self._panes if begin <= pane < end]

    def _bounds(self, number: int) -> tuple[int, int]:
        """The first pane of a window, and the one after its last."""
        first = number * self._per_slide
        return first, first + self._slides * self._per_slide + (1 if self._rest else 0)

    def _released(self, number: int) -> int:
        """Rows whose last window it is."""
        begin = number * self._per_slide
        return sum(self._panes[pane].rows for pane in range(begin, begin + self._per_slide) if pane in self._panes)

    # Numbers of windows and panes

    def _last_closed(self) -> int:
        """Windows up to this one are closed."""
        if self.closed_us >= END_OF_TIME_US:
            return _ALL
        return (self.closed_us - self._config.lateness_us - self._length) // self._slide

    def _window(self, number: int, early: int = 0) -> Window:
        start = number * self._slide
        return Window(max(start, START_OF_TIME_US), min(start + self._length, END_OF_TIME_US), None, early)

    def _number_of(self, window: Window) -> int:
        start = window.start_us if window.start_us > START_OF_TIME_US else window.end_us - self._length
        return start // self._slide

    def _pane_of(self, time_us: int) -> int:
        slide, into = divmod(time_us, self._slide)
        return slide * self._per_slide + (1 if self._rest and into >= self._rest else 0)

    def _panes_of(self, times: Times) -> Rows:
        if not self._rest:
            return times // self._slide
        slides, into = np.divmod(times, self._slide)
        return slides * 2 + (into >= self._rest)

    def _first_window(self, pane: int) -> int:
        slide, second = divmod(pane, self._per_slide)
        return slide - self._slides + (0 if self._rest and not second else 1)

    def _last_window(self, pane: int) -> int:
        return pane // self._per_slide

    def _is_admitted(self, pane: int, closed: int) -> bool:
        """Whether a window of the pane is open."""
        return self._last_window(pane) > closed and not (self._has_gaps and pane % 2)

    def _panes_up_to(self, panes: Rows, number: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which panes only windows up to this one need."""
        end = (number + 1) * self._per_slide
        if end > END_OF_TIME_US:
            return np.ones(len(panes), np.bool_)
        return panes < max(end, START_OF_TIME_US)

    # Checkpoints

    def checkpoint(self) -> bytes:
        numbers = self._entries.numbers()
        index = {number: position for position, number in enumerate(numbers)}
        panes = sorted(self._panes)
        triples = [triple for pane in panes for triple in self._panes[pane].triples()]
        return encoding.encode_panes(
            self._config.identity,
            self.closed_us,
            [self._entries.location(number) for number in numbers],
            encoding.Panes(
                numbers=panes,
                pieces=[len(self._panes[pane].pieces) // 3 for pane in panes],
                triples=[(index[entry], first, rows) for entry, first, rows in triples],
                # Once everything closed is handed over, this follows from `closed_us`.
                first=max(self._handed + 1, START_OF_TIME_US) if self._handed < self._last_closed() else None,
                frozen=[(min(closed, END_OF_TIME_US), bisect_left(numbers, entry)) for closed, entry in self._frozen],
                early=[(number, *self._early[number]) for number in sorted(self._early)],
            ),
        )

    def restore(self, checkpoint: bytes) -> None:
        closed_us, locations, panes = encoding.decode_panes(checkpoint, self._config.identity)
        self._reset()
        self.closed_us = closed_us
        self._handed = self._last_closed() if panes.first is None else panes.first - 1
        pieces_of_entry = [0] * len(locations)
        triples = iter(panes.triples)
        for number, pieces in zip(panes.numbers, panes.pieces, strict=True):
            pane = self._panes[number] = _Pane()
            for _ in range(pieces):
                entry, first, rows = next(triples)
                pane.pieces.extend((entry, first, rows))
                pane.rows += rows
                pieces_of_entry[entry] += 1
            self._open_rows += pane.rows
        self._entries.restore(locations, pieces_of_entry)
        self._ascending = list(panes.numbers)
        self._frozen = list(panes.frozen)
        self._early = {number: (count, seen) for number, count, seen in panes.early}
        self._grown = set(panes.numbers)
