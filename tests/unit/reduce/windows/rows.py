"""Few rows by hand: put into a windowing, and read out of contents again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream_reduce.values import Location, WindowContents
from millstream_reduce.windowing import Admission, Keys, Windowing
from millstream_reduce.windows import WindowConfig, make_windowing

Arrived = int | tuple[int, str]
"""Time, or time and key."""


class Table:
    """A windowing, and the rows it was given: each named by its time, or its key and time."""

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self.windowing: Windowing = make_windowing(config)
        self.entries: list[list[Arrived]] = []

    def sort(self, *arrived: Arrived) -> Admission:
        times, keys = _columns(arrived)
        return self.windowing.sort(times, keys)

    def add(self, *arrived: Arrived) -> list[Arrived]:
        """Returns the rows that are late."""
        placed = self.sort(*arrived)
        order = range(len(arrived)) if placed.order is None else placed.order.tolist()
        rows = [arrived[row] for row in order]
        self.entries.append(rows)
        self.add_entry(len(self.entries) - 1)
        return [arrived[row] for row in placed.late.tolist()]

    def add_entry(self, number: int) -> None:
        """Rows that were added before, again: a replay."""
        times, keys = _columns(self.entries[number])
        self.windowing.add(times, keys, location(number))

    def close(self, watermark_us: int, windows_max: int | None = None) -> dict[tuple[int, int, str], list[Arrived]]:
        return self.read(self.windowing.close(watermark_us, windows_max))

    def early(self, rows_min: int = 1) -> dict[tuple[int, int, int], list[Arrived]]:
        contents = self.windowing.early(rows_min=rows_min)
        return {(one.window.start_us, one.window.end_us, one.window.early): self.rows(one) for one in contents}

    def read(self, contents: Sequence[WindowContents]) -> dict[tuple[int, int, str], list[Arrived]]:
        """Start, end and key of each window, and its rows in the order of its pieces."""
        windows = {}
        for one in contents:
            key = (one.window.key or b"").decode()
            windows[one.window.start_us, one.window.end_us, key] = self.rows(one)
        assert len(windows) == len(contents)
        return windows

    def rows(self, contents: WindowContents) -> list[Arrived]:
        rows: list[Arrived] = []
        for piece in contents.pieces:
            entry = self.entries[piece.offset // 64 - 1]
            rows += entry[piece.first_row : piece.first_row + piece.rows]
        return rows


def location(number: int) -> Location:
    """Where the entry lies: ten to a segment."""
    return Location(1 + number // 10, 64 + number * 64, 64)


def _columns(arrived: Sequence[Arrived]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Keys]:
    times = np.array([row if isinstance(row, int) else row[0] for row in arrived], np.int64)
    names = ["" if isinstance(row, int) else row[1] for row in arrived]
    values = sorted(set(names), key=names.index)
    return times, Keys(np.array([values.index(name) for name in names], np.int32), [name.encode() for name in values])
