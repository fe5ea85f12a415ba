"""Fixed and sliding windows, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from millstream import codes
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Piece
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.support.errors import raises
from tests.unit.reduce.windows.rows import Table, location

TENS = WindowConfig("fixed", length_us=10)


def sliding(length_us: int, slide_us: int, lateness_us: int = 0) -> WindowConfig:
    return WindowConfig("sliding", length_us=length_us, slide_us=slide_us, lateness_us=lateness_us)


def test_a_row_on_a_boundary_is_in_the_window_that_begins_there() -> None:
    table = Table(TENS)
    assert table.add(0, 9, 10, 19, 20) == []
    assert table.close(10) == {(0, 10, ""): [0, 9]}
    # Nothing older than the watermark will follow; what is exactly as old may.
    assert table.add(10, 9) == [9]
    assert table.close(20) == {(10, 20, ""): [10, 19, 10]}
    assert table.close(29) == {}
    assert table.close(30) == {(20, 30, ""): [20]}


def test_times_before_the_epoch_are_in_windows_that_begin_before_them() -> None:
    table = Table(TENS)
    table.add(-1, -10, -11, 0)
    assert table.close(0) == {(-20, -10, ""): [-11], (-10, 0, ""): [-1, -10]}


@pytest.mark.parametrize("config", [TENS, sliding(10, 4), sliding(10, 1), sliding(4, 10), sliding(1, 1)])
def test_the_windows_at_the_ends_of_time_are_cut_off_there(config: WindowConfig) -> None:
    table = Table(config)
    rows = [START_OF_TIME_US, START_OF_TIME_US + 40, -3, 0, END_OF_TIME_US - 40, END_OF_TIME_US]
    placed = table.sort(*rows)
    assert not len(placed.late)
    inside = [row for place, row in enumerate(rows) if place not in placed.outside.tolist()]
    table.add(*rows)
    before = table.close(END_OF_TIME_US - 1)
    assert all(START_OF_TIME_US <= start <= end < END_OF_TIME_US for start, end, _ in before)
    last = table.close(END_OF_TIME_US)
    assert {row for held in (before | last).values() for row in held} == set(inside)
    assert all(end == END_OF_TIME_US for _, end, _ in last)
    assert table.windowing.open_rows() == 0
    # Once time has ended, everything is late.
    assert table.sort(*inside).late.tolist() == list(range(len(inside)))


def test_a_far_future_row_holds_its_window_and_nothing_else() -> None:
    table = Table(sliding(10, 3))
    table.add(5, 4_000_000_000_000_000_000)
    assert len(table.close(10**18)) == 3
    assert table.windowing.open_windows() == 3
    assert table.windowing.open_rows() == 1


def test_rows_of_one_pane_are_stored_as_they_came() -> None:
    table = Table(TENS)
    assert table.sort(3, 1, 2).order is None
    assert table.sort(3, 12, 11, 25).order is None
    order = table.sort(12, 3, 11, 1).order
    assert order is not None
    assert order.tolist() == [1, 3, 0, 2]


def test_a_row_is_kept_once_however_many_windows_it_is_in() -> None:
    table = Table(sliding(1000, 1))
    table.add(5000)
    contents = table.windowing.close(END_OF_TIME_US)
    assert len(contents) == 1000
    assert [one.released for one in contents] == [0] * 999 + [1]
    assert {one.pieces for one in contents} == {(Piece(*location(0), 0, 1),)}


def test_the_panes_of_a_window_that_follow_each_other_in_an_entry_are_one_piece() -> None:
    table = Table(sliding(10, 4))
    table.add(*range(24))
    assert [one.pieces for one in table.windowing.close(10)] == [
        (Piece(*location(0), 0, 2),),
        (Piece(*location(0), 0, 6),),
        (Piece(*location(0), 0, 10),),
    ]


def test_a_length_that_is_no_multiple_of_the_slide_makes_two_panes_a_slide() -> None:
    table = Table(sliding(1_000_003, 1000))
    table.add(*range(0, 5000, 7))
    # Not one for each common divisor of length and slide, which is a single microsecond here.
    checkpoint = table.windowing.checkpoint()
    table.windowing.restore(checkpoint)
    assert len(checkpoint) < 500
    assert len(table.close(1_003_003)) == 1004


def test_rows_between_windows_are_outside_and_never_late() -> None:
    table = Table(sliding(4, 10, lateness_us=1))
    placed = table.sort(3, 4, 9, 10, 13, 14)
    assert placed.outside.tolist() == [1, 2, 5]
    assert placed.order is not None
    assert placed.order.tolist() == [0, 3, 4]
    table.add(3, 10)
    assert table.close(15) == {(0, 4, ""): [3], (10, 14, ""): [10]}
    placed = table.sort(3, 4, 9, 10, 13, 14, 20)
    assert placed.late.tolist() == [0, 3, 4]
    assert placed.outside.tolist() == [1, 2, 5]


def test_lateness_keeps_a_window_open_after_its_end() -> None:
    table = Table(WindowConfig("fixed", length_us=10, lateness_us=5))
    table.add(1)
    assert table.close(14) == {}
    assert table.add(2) == []
    assert table.close(15) == {(0, 10, ""): [1, 2]}
    assert table.add(3, 10) == [3]
    assert table.windowing.closed_us == 15


def test_a_late_row_is_in_those_of_its_windows_that_are_open() -> None:
    table = Table(sliding(10, 5))
    table.add(7)
    assert table.close(10) == {(0, 10, ""): [7]}
    assert table.add(8, 4) == [4]
    assert table.close(15) == {(5, 15, ""): [7, 8]}


def test_a_watermark_that_falls_changes_nothing() -> None:
    table = Table(TENS)
    table.add(5, 15)
    table.close(10)
    assert table.close(-100) == {}
    assert table.windowing.closed_us == 10
    assert table.add(5) == [5]


def test_windows_without_rows_are_not_handed_over_however_far_the_watermark_jumps() -> None:
    table = Table(WindowConfig("fixed", length_us=1))
    table.add(0)
    assert table.close(10**17) == {(0, 1, ""): [0]}
    table.add(10**17 + 5)
    assert table.close(END_OF_TIME_US) == {(10**17 + 5, 10**17 + 6, ""): [10**17 + 5]}


@pytest.mark.guarantee("I3")
def test_what_is_closed_keeps_its_contents_while_it_waits_to_be_handed_over() -> None:
    table = Table(sliding(10, 5))
    table.add(3, 7)
    assert table.close(15, 1) == {(-5, 5, ""): [3]}
    assert table.add(12, 8, 9) == [8, 9]
    assert table.windowing.open_windows() == 3
    assert table.windowing.oldest_end_us() == 10
    assert table.close(15, 1) == {(0, 10, ""): [3, 7]}
    assert table.close(20) == {(5, 15, ""): [7], (10, 20, ""): [12]}


@pytest.mark.guarantee("I3")
def test_rows_that_come_late_are_not_in_a_window_that_was_closed_when_it_was_empty() -> None:
    table = Table(sliding(10, 5))
    table.close(10)
    assert table.add(7) == []
    replayed = make_windowing(table.config)
    # The log holds no entry for a window without rows; the entry of the row says up to where windows were closed.
    replayed.closed((), 10)
    replayed.add(np.array([7], np.int64), None, location(0))
    for windowing in (table.windowing, replayed):
        assert table.read(windowing.close(END_OF_TIME_US)) == {(5, 15, ""): [7]}


def test_early_results_are_numbered_and_come_only_of_windows_that_have_new_rows() -> None:
    table = Table(TENS)
    table.add(1, 11)
    assert table.early() == {(0, 10, 1): [1], (10, 20, 1): [11]}
    assert table.early() == {}
    table.add(2)
    assert table.early() == {(0, 10, 2): [1, 2]}
    contents = table.windowing.close(10)
    assert [(one.window.early, one.rows, one.released) for one in contents] == [(0, 2, 2)]
    table.add(12)
    assert table.early() == {(10, 20, 2): [11, 12]}


def test_early_results_may_wait_for_so_many_rows_of_each_window() -> None:
    table = Table(TENS)
    table.add(1, 2, 11)
    assert table.early(3) == {}
    assert table.windowing.rows_to_early(3) == 1
    table.add(12, 21)
    assert table.early(3) == {}
    table.add(3)
    assert table.early(3) == {(0, 10, 1): [1, 2, 3]}
    # What the others have is not forgotten, nor in what a checkpoint says.
    assert table.windowing.rows_to_early(3) == 1
    table.windowing.restore(table.windowing.checkpoint())
    assert table.windowing.rows_to_early(3) == 1
    table.add(4, 5, 13)
    assert table.early(3) == {(10, 20, 1): [11, 12, 13]}
    assert table.early() == {(0, 10, 2): [1, 2, 3, 4, 5], (20, 30, 1): [21]}
    assert table.windowing.rows_to_early(3) == 3


def test_rows_in_many_windows_are_counted_for_each() -> None:
    table = Table(sliding(10, 5))
    table.add(4, 7, 8)
    assert table.early(3) == {(0, 10, 1): [4, 7, 8]}
    assert table.windowing.rows_to_early(3) == 1
    table.add(12)
    assert table.early(3) == {(5, 15, 1): [7, 8, 12]}
    # Only what every window has had is forgotten.
    assert table.early() == {(-5, 5, 1): [4], (10, 20, 1): [12]}
    assert table.early() == {}


def test_early_results_are_numbered_on_after_a_replay_and_not_repeated() -> None:
    table = Table(TENS)
    table.add(1, 11)
    contents = table.windowing.early()
    replayed = Table(TENS)
    replayed.entries = table.entries
    replayed.add_entry(0)
    replayed.windowing.closed(contents[:1], START_OF_TIME_US)
    # The second one was not in the log when the lane died.
    assert replayed.early() == {(10, 20, 1): [11]}
    replayed.add(2)
    assert replayed.early() == {(0, 10, 2): [1, 2]}


def test_rows_of_closed_windows_are_refused_and_named() -> None:
    table = Table(TENS)
    table.close(10)
    with raises(codes.SEGMENT_MISPLACED, match="entry at 64 of segment 1 holds records whose windows were closed"):
        table.windowing.add(np.array([15, 5], np.int64), None, location(0))


def test_segments_are_needed_until_their_last_window_is_handed_over() -> None:
    table = Table(sliding(20, 10))
    table.add(5)
    for _ in range(10):
        table.add(15)
    assert table.windowing.live_segments() == {1, 2}
    table.close(20)
    assert table.windowing.live_segments() == {1, 2}
    assert table.windowing.open_rows() == 10
    table.close(30)
    assert table.windowing.live_segments() == set()


def test_an_entry_without_rows_changes_nothing() -> None:
    for config in (TENS, WindowConfig("session", timeout_us=5), WindowConfig("global", count=2)):
        table = Table(config)
        table.add()
        assert table.windowing.live_segments() == set()
        assert table.windowing.oldest_end_us() is None
        assert table.close(END_OF_TIME_US) == {}
