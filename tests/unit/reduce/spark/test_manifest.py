"""Every row reaches exactly one task, once for each of its windows. No Spark."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_reduce.spark.manifest import JobWindows, Manifest, RowRuns, WindowsOrigin, manifest_of
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable

Cell = tuple[str, int, int, int, int]
"""Directory, segment, offset, window, row."""

ENTRY_ROWS = 12


@st.composite
def job_windows(draw: st.DrawFn) -> JobWindows:
    """Windows whose pieces are in a few entries and overlap with those of others."""
    windows = []
    for _ in range(draw(st.integers(1, 6))):
        entries = draw(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3)), min_size=1, max_size=4, unique=True))
        pieces = []
        for segment, number in sorted(entries):
            first = draw(st.integers(0, ENTRY_ROWS - 1))
            pieces.append(Piece(segment, number * 640, 640, first, draw(st.integers(1, ENTRY_ROWS - first))))
        table = WindowTable.of([WindowContents(Window(0, 1), tuple(pieces))])
        windows.append((draw(st.sampled_from(["a", "b"])), table, WindowsOrigin()))
    return JobWindows.of(windows)


def expected(windows: JobWindows) -> Counter[Cell]:
    cells: Counter[Cell] = Counter()
    for index, (directory, contents, _) in enumerate(windows):
        for segment, offset, _, first, rows in contents.pieces:
            cells.update((directory, segment, offset, index, row) for row in range(first, first + rows))
    return cells


def cells_of(runs: RowRuns) -> list[Cell]:
    return [
        (runs.directory, runs.segment, runs.offset, window, row)
        for window, first, rows in zip(runs.windows.tolist(), runs.first_rows.tolist(), runs.rows.tolist(), strict=True)
        for row in range(first, first + rows)
    ]


def copied(manifest: Manifest) -> Manifest:
    copy: Manifest = pickle.loads(pickle.dumps(manifest))
    return copy


@settings(deadline=None)
@given(job_windows(), st.integers(1, 4), st.booleans())
def test_each_row_of_each_window_is_read_once(windows: JobWindows, tasks: int, whole: bool) -> None:
    manifest = copied(manifest_of(windows, tasks, whole_windows=whole))
    assert 1 <= manifest.tasks <= tasks
    by_task = [[cell for runs in manifest.by_entry(task) for cell in cells_of(runs)] for task in range(manifest.tasks)]
    assert Counter(cell for cells in by_task for cell in cells) == expected(windows)
    owner: dict[object, int] = {}
    for task, cells in enumerate(by_task):
        for cell in cells:
            unit = cell[3] if whole else cell[:3]
            assert owner.setdefault(unit, task) == task
    assert len(manifest.spans) == len(windows)


@settings(deadline=None)
@given(job_windows(), st.integers(1, 4))
def test_a_windows_rows_stay_in_the_order_of_arrival(windows: JobWindows, tasks: int) -> None:
    manifest = manifest_of(windows, tasks, whole_windows=True)
    for task in range(manifest.tasks):
        order: dict[int, list[Cell]] = defaultdict(list)
        for runs in manifest.by_entry(task):
            for cell in cells_of(runs):
                order[cell[3]].append(cell)
        assert all(cells == sorted(cells) for cells in order.values())


@settings(deadline=None)
@given(job_windows(), st.integers(1, 4), st.integers(1, 4000))
def test_whole_windows_are_read_together(windows: JobWindows, tasks: int, bytes_max: int) -> None:
    manifest = manifest_of(windows, tasks, whole_windows=True)
    seen: Counter[Cell] = Counter()
    done: set[int] = set()
    for task in range(manifest.tasks):
        for some in manifest.by_window(task, bytes_max):
            cells = [cell for runs in some.entries for cell in cells_of(runs)]
            now = {cell[3] for cell in cells}
            assert not now & done
            assert some.size <= bytes_max or len(now) == 1
            done |= now
            seen.update(cells)
    assert seen == expected(windows)
