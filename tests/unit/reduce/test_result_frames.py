"""Frames of results: the headers that say of which window each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.dead_letter import time_text
from millstream.extract import YEAR_1_US, YEAR_10000_US
from millstream_reduce.batches import HEADERS
from millstream_reduce.lane.units import WINDOW_EARLY, WINDOW_END, WINDOW_START, _frame_of
from millstream_reduce.values import Window, WindowContents, WindowTable

SPANS = [
    (YEAR_1_US, YEAR_1_US + 1),
    (-1, 0),
    (1_357_000_000_123_456, 1_357_000_000_123_457),
    (1_357_000_000_000_000, YEAR_10000_US - 1),
]


def rows_of(windows: Sequence[int], headers: Sequence[dict[str, bytes] | None] | None = None) -> pa.Table:
    """A result for each of these windows, by number."""
    count = len(windows)
    own: Any = [list(item.items()) if item is not None else None for item in headers or [None] * count]
    columns: dict[str, Any] = {
        "window": pa.array(windows, pa.int32()),
        "value": pa.array([b"%d" % index for index in range(count)], pa.binary()),
        "keys": pa.array([[f"k{index}"] for index in range(count)], pa.list_(pa.string())),
        "headers": pa.array(own, HEADERS),
        "tags": pa.nulls(count, pa.list_(pa.string())),
    }
    return pa.table(columns)


@pytest.mark.parametrize(
    "odd", [None, (START_OF_TIME_US, 5, 0), (5, END_OF_TIME_US, 0), (5, YEAR_10000_US, 0), (5, 6, 3)]
)
@pytest.mark.parametrize("own", [None, {"mine": b"1", WINDOW_START: b"not mine"}])
def test_each_result_has_the_bounds_of_its_window(
    odd: tuple[int, int, int] | None, own: dict[str, bytes] | None
) -> None:
    """Whether all are made at once, or one needs more than that."""
    spans = [(start, end, 0) for start, end in SPANS] + ([odd] if odd is not None else [])
    windows = WindowTable.of(WindowContents(Window(start, end, None, early), ()) for start, end, early in spans)
    places = [index for index in range(len(spans)) for _ in range(1 + index % 2)]
    given = [own if row == 1 else None for row in range(len(places))] if own is not None else None
    frame, tags = _frame_of(windows, rows_of(places, given), 7)
    frame.check()
    assert tags is None
    assert list(frame.event_times_us()) == [spans[place][1] - 1 for place in places]
    assert frame.values() == [b"%d" % row for row in range(len(places))]
    assert frame.keys() == [(b"k%d" % row,) for row in range(len(places))]
    for row, (place, headers) in enumerate(zip(places, frame.headers(), strict=True)):
        start, end, early = spans[place]
        wanted = {WINDOW_START: time_text(start).encode(), WINDOW_END: time_text(end).encode()}
        if early:
            wanted[WINDOW_EARLY] = b"%d" % early
        assert headers == {**(given[row] or {} if given is not None else {}), **wanted}
