"""Global windows with their triggers, case by case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from millstream import codes
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.values import WindowContents
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.support.errors import raises
from tests.unit.reduce.windows.rows import Table, location


def counting(count: int | None, *, accumulate: bool = False, keyed: bool = False, lateness_us: int = 0) -> WindowConfig:
    return WindowConfig("global", count=count, accumulate=accumulate, keyed=keyed, lateness_us=lateness_us)


def every(every_us: int, *, accumulate: bool = False, keyed: bool = False, lateness_us: int = 0) -> WindowConfig:
    return WindowConfig("global", every_us=every_us, accumulate=accumulate, keyed=keyed, lateness_us=lateness_us)


def told(table: Table, contents: Sequence[WindowContents]) -> list[tuple[int, int, int, list[object], int]]:
    """Start, end, number, rows and released rows of each result."""
    return [
        (one.window.start_us, one.window.end_us, one.window.early, list(table.rows(one)), one.released)
        for one in contents
    ]


def test_a_count_gives_results_whatever_the_watermark_says() -> None:
    table = Table(counting(3))
    table.add(7, 5)
    assert table.windowing.oldest_end_us() is None
    table.add(6, 100, 101, 102, 103)
    assert table.windowing.oldest_end_us() == 8
    assert table.close(START_OF_TIME_US) == {(5, 8, ""): [7, 5, 6], (100, 103, ""): [100, 101, 102]}
    assert table.close(10**9) == {}
    assert table.close(END_OF_TIME_US) == {(103, 10**9 + 1, ""): [103]}


def test_a_count_is_that_of_each_key() -> None:
    table = Table(counting(2, keyed=True))
    table.add((1, "a"), (2, "b"), (3, "a"), (4, "c"))
    assert table.close(0) == {(1, 4, "a"): [(1, "a"), (3, "a")]}
    table.add((5, "c"), (6, "b"))
    assert table.close(0) == {(4, 6, "c"): [(4, "c"), (5, "c")], (2, 7, "b"): [(2, "b"), (6, "b")]}


def test_one_batch_may_give_a_key_many_results() -> None:
    table = Table(counting(2))
    table.add(*range(0, 70, 10))
    assert told(table, table.windowing.close(0)) == [
        (0, 11, 0, [0, 10], 2),
        (20, 31, 0, [20, 30], 2),
        (40, 51, 0, [40, 50], 2),
    ]
    assert told(table, table.windowing.close(END_OF_TIME_US)) == [(60, 61, 0, [60], 1)]


@pytest.mark.guarantee("I3")
def test_no_two_results_of_a_key_have_one_name_however_equal_their_times() -> None:
    table = Table(counting(1))
    table.add(5, 5)
    table.add(5)
    names = [one.window for one in table.windowing.close(0)]
    for _ in range(3):
        table.windowing.restore(table.windowing.checkpoint())
        table.add(5)
        names += [one.window for one in table.windowing.close(4)]
    assert [(name.start_us, name.end_us) for name in names] == [(5, 6 + place) for place in range(6)]


def test_a_result_of_old_rows_is_no_older_than_the_watermark_was() -> None:
    table = Table(counting(2, lateness_us=10))
    table.close(1000)
    table.add(3, 4)
    # 990 was promised downstream: what ends at 991 has the time 990, and is not late there.
    assert table.close(1000) == {(3, 991, ""): [3, 4]}


def test_a_count_that_accumulates_numbers_its_results_and_ends_with_one_over_everything() -> None:
    table = Table(counting(2, accumulate=True))
    table.add(1, 2, 3)
    assert told(table, table.windowing.close(0)) == [(1, 3, 1, [1, 2], 0)]
    table.add(4, 5)
    assert told(table, table.windowing.close(0)) == [(1, 5, 2, [1, 2, 3, 4], 0)]
    assert table.windowing.open_rows() == 5
    assert told(table, table.windowing.close(END_OF_TIME_US)) == [(1, 6, 0, [1, 2, 3, 4, 5], 5)]
    assert table.windowing.open_rows() == 0
    assert table.windowing.live_segments() == set()


def test_the_final_result_comes_also_when_an_early_one_held_as_much() -> None:
    for config in (counting(2, accumulate=True), every(10, accumulate=True)):
        table = Table(config)
        table.add(1, 2)
        assert [one[2:] for one in told(table, table.windowing.close(10))] == [(1, [1, 2], 0)]
        assert [one[2:] for one in told(table, table.windowing.close(END_OF_TIME_US))] == [(0, [1, 2], 2)]


def test_without_a_trigger_there_is_one_result_at_the_end() -> None:
    table = Table(counting(None, keyed=True))
    table.add((5, "a"), (3, "b"))
    table.add((1, "a"))
    assert table.close(10**15) == {}
    assert table.close(END_OF_TIME_US) == {
        (1, 10**15 + 1, "a"): [(5, "a"), (1, "a")],
        (3, 10**15 + 1, "b"): [(3, "b")],
    }


def test_a_period_gives_results_at_its_multiples() -> None:
    table = Table(every(10, keyed=True))
    table.add((3, "a"), (12, "a"), (9, "a"), (10, "b"))
    assert table.windowing.oldest_end_us() == 10
    assert table.close(10) == {(3, 10, "a"): [(3, "a"), (9, "a")]}
    assert table.close(END_OF_TIME_US) == {(10, 20, "b"): [(10, "b")], (12, 20, "a"): [(12, "a")]}


def test_a_row_behind_the_watermark_is_in_the_next_result_of_a_period() -> None:
    table = Table(every(10))
    table.close(25)
    assert table.add(-40, 21) == []
    assert table.close(30) == {(-40, 30, ""): [-40, 21]}
    assert table.add(31, 5) == []
    assert table.close(40) == {(5, 40, ""): [31, 5]}


def test_lateness_delays_the_results_of_a_period() -> None:
    table = Table(every(10, lateness_us=3))
    table.add(5)
    assert table.close(12) == {}
    table.add(6)
    assert table.close(13) == {(5, 10, ""): [5, 6]}


def test_a_period_that_accumulates_counts_each_row_into_all_later_results() -> None:
    table = Table(every(10, accumulate=True))
    table.add(5, 15)
    assert told(table, table.windowing.close(10)) == [(5, 10, 1, [5], 0)]
    table.add(3, 25)
    assert told(table, table.windowing.close(1000)) == [(3, 20, 2, [5, 15, 3], 0), (3, 30, 3, [5, 15, 3, 25], 0)]
    assert table.windowing.oldest_end_us() is None
    assert told(table, table.windowing.close(END_OF_TIME_US)) == [(3, 1001, 0, [5, 15, 3, 25], 4)]


def test_final_results_come_in_portions_too() -> None:
    for config in (counting(5, accumulate=True, keyed=True), every(10, accumulate=True, keyed=True)):
        table = Table(config)
        table.add(*((place, name) for place, name in enumerate("abcdefg")))
        held = {}
        while portion := table.close(END_OF_TIME_US, 2):
            assert len(portion) <= 2
            held.update(portion)
            table.windowing.restore(table.windowing.checkpoint())
        assert sum(len(rows) for rows in held.values()) == 7
        assert table.windowing.open_rows() == 0


def test_nothing_is_late_for_a_global_window_before_time_has_ended() -> None:
    for config in (counting(2), every(10)):
        table = Table(config)
        table.close(END_OF_TIME_US - 1)
        assert table.add(START_OF_TIME_US, 0) == []
        table.close(END_OF_TIME_US)
        assert table.add(5, END_OF_TIME_US) == [5, END_OF_TIME_US]
        with raises(codes.SEGMENT_MISPLACED):
            table.windowing.add(np.array([5], np.int64), None, location(0))


@pytest.mark.guarantee("I3")
def test_rows_are_counted_on_from_where_a_hand_over_stopped_though_the_log_lost_the_first_ones() -> None:
    table = Table(counting(4))
    table.add(1, 2)
    table.add(3, 4, 5, 6, 7)
    contents = table.windowing.close(0)
    assert told(table, contents) == [(1, 5, 0, [1, 2, 3, 4], 4)]
    replayed = Table(counting(4))
    replayed.entries = table.entries
    # The first entry is gone: the first four rows that are left are not those that were handed over.
    replayed.add_entry(1)
    replayed.windowing.closed(contents, 0)
    assert replayed.windowing.open_rows() == 3
    assert replayed.close(0) == {}
    replayed.add(8)
    assert list(replayed.close(0).values()) == [[5, 6, 7, 8]]


def test_early_results_are_for_other_kinds() -> None:
    for config in (counting(2), every(10)):
        table = Table(config)
        table.add(1)
        assert table.early() == {}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"kind": "fixed"}, "length_us of fixed windows is 0"),
        ({"kind": "sliding", "length_us": 5}, "slide_us of sliding windows is 0"),
        ({"kind": "session", "timeout_us": 2**62}, "timeout_us of session windows is"),
        ({"kind": "global", "every_us": 0}, "every_us of global windows is 0"),
        ({"kind": "global", "count": 0}, "one trigger"),
        ({"kind": "global", "count": 1, "every_us": 5}, "one trigger"),
        ({"kind": "fixed", "length_us": 5, "lateness_us": -1}, "lateness_us is -1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        make_windowing(WindowConfig(**settings))  # type: ignore[arg-type]
