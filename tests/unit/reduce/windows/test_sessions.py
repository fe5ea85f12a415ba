"""Sessions, case by case."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from millstream import codes
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import Location, Window, WindowContents
from millstream_reduce.windowing import Keys
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.support.errors import raises
from tests.support.sizes import sized
from tests.unit.reduce.windows.rows import Table, location

KEYED = WindowConfig("session", timeout_us=10, keyed=True)
SHARED = WindowConfig("session", timeout_us=10)


def test_a_session_reaches_from_its_first_row_to_the_timeout_after_its_last() -> None:
    table = Table(KEYED)
    table.add((3, "a"), (9, "a"), (12, "a"), (0, "b"))
    assert table.close(9) == {}
    assert table.close(22) == {(0, 10, "b"): [(0, "b")], (3, 22, "a"): [(3, "a"), (9, "a"), (12, "a")]}


def test_sessions_that_only_touch_are_two() -> None:
    table = Table(SHARED)
    table.add(0, 10)
    table.add(20)
    table.add(29)
    assert table.close(END_OF_TIME_US) == {(0, 10, ""): [0], (10, 20, ""): [10], (20, 39, ""): [20, 29]}


def test_the_same_rows_are_the_same_sessions_wherever_batches_end() -> None:
    rows = [(0, "a"), (10, "a"), (19, "a"), (5, "b"), (40, "a"), (14, "b"), (30, "b")]
    expected = {(0, 10, "a"): 1, (10, 29, "a"): 2, (5, 24, "b"): 2, (30, 40, "b"): 1, (40, 50, "a"): 1}
    for size in range(1, len(rows) + 1):
        table = Table(KEYED)
        for begin in range(0, len(rows), size):
            table.add(*rows[begin : begin + size])
        assert {name: len(held) for name, held in table.close(END_OF_TIME_US).items()} == expected


def test_a_row_between_two_sessions_joins_them_and_pieces_stay_in_the_order_of_the_log() -> None:
    table = Table(SHARED)
    table.add(0)
    table.add(15)
    table.add(1)
    table.add(16)
    assert table.windowing.open_windows() == 2
    table.add(8)
    assert table.windowing.open_windows() == 1
    assert table.close(END_OF_TIME_US) == {(0, 26, ""): [0, 15, 1, 16, 8]}


def test_one_batch_joins_any_number_of_sessions_of_a_key() -> None:
    table = Table(KEYED)
    table.add(*((time, "a") for time in range(0, 200, 20)))
    assert table.windowing.open_windows() == 10
    table.add(*((time, "a") for time in range(-5, 200, 5)))
    assert table.windowing.open_windows() == 1
    assert list(table.close(END_OF_TIME_US)) == [(-5, 205, "a")]
    assert table.windowing.open_windows() == 0


def test_rows_of_a_session_are_stored_in_the_order_of_arrival() -> None:
    table = Table(KEYED)
    # 8 comes last and makes one session of the three: without it, 0 and 15 would be two.
    order = table.sort((50, "a"), (0, "b"), (15, "a"), (0, "a"), (8, "a")).order
    assert order is not None
    assert order.tolist() == [2, 3, 4, 0, 1]
    table.add((50, "a"), (0, "b"), (15, "a"), (0, "a"), (8, "a"))
    assert table.close(END_OF_TIME_US) == {
        (0, 10, "b"): [(0, "b")],
        (0, 25, "a"): [(15, "a"), (0, "a"), (8, "a")],
        (50, 60, "a"): [(50, "a")],
    }


@pytest.mark.guarantee("I3")
def test_a_row_inside_an_open_session_belongs_to_it_whatever_its_own_gap_says() -> None:
    table = Table(KEYED)
    table.add((0, "a"), (9, "a"), (18, "a"))
    assert table.close(20) == {}
    # [5, 15) and [10, 20) have ended, the session [0, 28) around them has not.
    assert table.add((5, "a"), (10, "a"), (11, "a"), (5, "b"), (10, "b"), (11, "b")) == [(5, "b"), (10, "b")]
    assert table.close(28) == {
        (11, 21, "b"): [(11, "b")],
        (0, 28, "a"): [(0, "a"), (9, "a"), (18, "a"), (5, "a"), (10, "a"), (11, "a")],
    }


def test_a_row_that_only_touches_an_open_session_and_has_ended_is_late() -> None:
    table = Table(SHARED)
    table.add(20, 25)
    assert table.close(30) == {}
    # [10, 20) ends where [20, 35) begins; [11, 21) brings its start forward, and then [1, 11) ends at that start.
    assert table.add(10, 11, 1, 2, 12) == [10, 1]
    assert table.close(35) == {(2, 35, ""): [20, 25, 11, 2, 12]}


def test_rows_are_judged_in_the_order_in_which_they_come() -> None:
    # [9, 19) meets [12, 22), which is not there yet when it comes first.
    for arrived, late in (((9, 12), [9]), ((12, 9), [])):
        together, apart = Table(SHARED), Table(SHARED)
        for table in (together, apart):
            assert table.close(20) == {}
        assert together.add(*arrived) == late
        assert [row for time in arrived for row in apart.add(time)] == late
        assert together.close(22).keys() == apart.close(22).keys() == {(12 if late else 9, 22, "")}


def test_a_row_is_late_with_the_end_of_the_session_it_would_be_in() -> None:
    for lateness in (0, 7):
        table = Table(WindowConfig("session", timeout_us=10, lateness_us=lateness))
        table.add(0, 9)
        assert table.close(18 + lateness) == {}
        assert table.add(1) == []
        assert table.close(19 + lateness) == {(0, 19, ""): [0, 9, 1]}
        assert table.add(1, 9) == [1, 9]
        # What begins behind it is a session of its own, and takes in what it meets.
        assert table.add(10, 8) == []


def test_what_was_decided_about_rows_is_not_decided_again() -> None:
    table = Table(SHARED)
    table.add(18)
    assert table.close(20) == {}
    times = np.array([9, 10, 11, 12], np.int64)
    assert table.windowing.sort(times, None).joined.tolist() == [0, 1]
    placed = table.windowing.sort(times, None, joined=np.array([1], np.int64))
    assert (placed.late.tolist(), placed.joined.tolist()) == ([0], [1])


def test_a_row_in_time_never_reopens_a_closed_session() -> None:
    table = Table(SHARED)
    table.add(0)
    assert table.close(10) == {(0, 10, ""): [0]}
    assert table.add(5) == []
    assert table.close(END_OF_TIME_US) == {(5, 15, ""): [5]}


@pytest.mark.guarantee("I3")
def test_a_closed_session_takes_nothing_in_while_it_waits_to_be_handed_over() -> None:
    table = Table(KEYED)
    table.add((0, "a"), (1, "b"), (40, "a"))
    assert table.close(12, 1) == {(0, 10, "a"): [(0, "a")]}
    table.add((3, "b"), (33, "a"))
    assert table.windowing.oldest_end_us() == 11
    assert table.close(12) == {(1, 11, "b"): [(1, "b")]}
    assert table.close(60) == {(3, 13, "b"): [(3, "b")], (33, 50, "a"): [(40, "a"), (33, "a")]}


def test_lateness_keeps_sessions_open_to_rows_that_belong_to_them() -> None:
    table = Table(WindowConfig("session", timeout_us=10, lateness_us=5, keyed=True))
    table.add((0, "a"))
    assert table.close(14) == {}
    assert table.add((-1, "a"), (-1, "b"), (0, "b")) == [(-1, "b")]
    assert table.close(15) == {(-1, 10, "a"): [(0, "a"), (-1, "a")], (0, 10, "b"): [(0, "b")]}


def test_keys_are_any_bytes_and_not_cut_at_zeros() -> None:
    names = ["", "\0", "a", "a\0", "a\0\0", "a\x1fb"]
    table = Table(KEYED)
    table.add(*((place, name) for place, name in enumerate(names)))
    table.windowing.restore(table.windowing.checkpoint())
    table.add(*((place, name) for place, name in enumerate(names)))
    contents = table.windowing.close(END_OF_TIME_US)
    assert [(one.window.key, one.rows) for one in contents] == [(name.encode(), 2) for name in names]


def test_sessions_at_the_ends_of_time() -> None:
    table = Table(SHARED)
    table.add(START_OF_TIME_US, START_OF_TIME_US + 9, END_OF_TIME_US - 9, END_OF_TIME_US)
    table.add(END_OF_TIME_US)
    assert table.windowing.open_windows() == 2
    assert table.close(END_OF_TIME_US - 1) == {
        (START_OF_TIME_US, START_OF_TIME_US + 19, ""): [START_OF_TIME_US, START_OF_TIME_US + 9]
    }
    last = table.close(END_OF_TIME_US)
    assert last == {(END_OF_TIME_US - 9, END_OF_TIME_US, ""): [END_OF_TIME_US - 9, END_OF_TIME_US, END_OF_TIME_US]}


def test_early_results_of_sessions_go_on_counting_when_they_merge() -> None:
    table = Table(SHARED)
    table.add(0, 15)
    assert table.early() == {(0, 10, 1): [0], (15, 25, 1): [15]}
    table.add(16)
    assert table.early() == {(15, 26, 2): [15, 16]}
    table.add(8)
    assert table.early() == {(0, 26, 3): [0, 15, 16, 8]}
    assert table.early() == {}
    assert [one.released for one in table.windowing.close(26)] == [4]


def test_sessions_that_join_have_the_new_rows_of_both() -> None:
    table = Table(SHARED)
    table.add(0, 1, 18, 19)
    assert table.early(4) == {}
    table.add(10)
    assert table.early(4) == {(0, 29, 1): [0, 1, 18, 19, 10]}
    table.add(2, 3)
    assert table.early(4) == {}
    assert table.early(2) == {(0, 29, 2): [0, 1, 18, 19, 10, 2, 3]}


def test_windows_that_close_at_once_go_by_end_start_and_key() -> None:
    table = Table(KEYED)
    table.add((5, "c"), (5, "a"), (5, "b"), (0, "d"), (5, "d"), (4, "e"))
    windows = [one.window for one in table.windowing.close(END_OF_TIME_US)]
    assert [(one.end_us, one.start_us, one.key) for one in windows] == [
        (14, 4, b"e"),
        (15, 0, b"d"),
        (15, 5, b"a"),
        (15, 5, b"b"),
        (15, 5, b"c"),
    ]


def test_what_the_log_lost_with_its_first_segments_is_not_missed() -> None:
    table = Table(SHARED)
    table.add(8)
    table.add(0, 16, 40)
    contents = table.windowing.close(26)
    assert table.read(contents) == {(0, 26, ""): [8, 0, 16]}
    replayed = make_windowing(SHARED)
    # The entry with 8 is gone: 0 and 16 alone are two sessions.
    replayed.add(np.array([0, 16, 40], np.int64), None, location(1))
    replayed.closed(contents, 26)
    assert replayed.open_rows() == 1
    assert table.read(replayed.close(END_OF_TIME_US)) == {(40, 50, ""): [40]}


def test_rows_of_closed_sessions_in_a_log_are_refused_and_named_unless_a_hand_over_has_them() -> None:
    window = Window(0, 30, None)
    for closed_us in (None, 20, 40):
        table = Table(SHARED)
        table.close(20)
        table.windowing.add(np.array([10, 40], np.int64), None, location(0))
        if closed_us is not None:
            table.windowing.closed((), closed_us)
        with raises(codes.SEGMENT_MISPLACED, match="entry at 64 of segment 1 holds records whose windows were closed"):
            table.windowing.replayed()
        table.windowing.closed([WindowContents(window, (), 0)], 40)
        table.windowing.replayed()
        assert [one.window for one in table.windowing.close(50)] == [Window(40, 50, None)]


def test_rows_without_keys_are_refused_where_sessions_belong_to_keys() -> None:
    with pytest.raises(ValueError, match="rows without keys"):
        make_windowing(KEYED).add(np.array([10], np.int64), None, location(0))


def test_one_key_with_everything() -> None:
    windowing = make_windowing(KEYED)
    rows = 1000
    for entry in range(300):
        times = np.arange(entry * rows, (entry + 1) * rows, dtype=np.int64)
        keys = Keys(np.zeros(rows, np.int32), [b"all"])
        assert windowing.sort(times, keys).order is None
        windowing.add(times, keys, Location(entry // 100, entry * 64, 64))
    assert windowing.open_windows() == 1
    (contents,) = windowing.close(END_OF_TIME_US)
    assert contents.rows == contents.released == 300_000
    assert len(contents.pieces) == 300


@pytest.mark.slow
def test_many_open_sessions_take_little_memory_and_give_it_back_to_later_ones() -> None:
    sessions, rows = 20_000, 2000
    windowing = make_windowing(WindowConfig("session", timeout_us=10**6, keyed=True))

    def fill(begin_us: int) -> None:
        for first in range(0, sessions, rows):
            keys = Keys(np.arange(rows, dtype=np.int32), [b"key-%08d" % (first + row) for row in range(rows)])
            times = np.full(rows, begin_us, np.int64)
            windowing.add(times, keys, Location(first // 4000, first * 64, 64))

    tracemalloc.start()
    try:
        fill(0)
        assert windowing.open_windows() == sessions
        filled, _ = tracemalloc.get_traced_memory()
        assert filled < 300 * sessions, "a million sessions fit into 300 MB"
        while windowing.close(10**7, 2000):
            pass
        fill(10**7)
        again, _ = tracemalloc.get_traced_memory()
        assert again < 1.1 * filled
    finally:
        tracemalloc.stop()


@pytest.mark.sweep
@pytest.mark.slow
def test_very_many_keys() -> None:
    total, rows = sized(200_000, 1_000_000), 4000
    windowing = make_windowing(WindowConfig("session", timeout_us=10, keyed=True))
    for first in range(0, total, rows):
        keys = Keys(np.arange(rows, dtype=np.int32), [b"key-%08d" % (first + row) for row in range(rows)])
        windowing.add(np.full(rows, 5, np.int64), keys, Location(1, first, 64))
    assert (windowing.open_windows(), windowing.open_rows()) == (total, total)
    closed: list[bytes | None] = []
    while contents := windowing.close(15, 10_000):
        assert all(sum(piece.rows for piece in one.pieces) == 1 for one in contents)
        closed += [one.window.key for one in contents]
    assert closed == [b"key-%08d" % key for key in range(total)]
    assert (windowing.open_windows(), windowing.live_segments()) == (0, set())
