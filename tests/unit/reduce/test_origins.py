"""Where the records of a hand-over come from: their traces, and when they entered the pipeline."""

from __future__ import annotations

from millstream.limits import SPAN_LINKS_MAX
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.origins import ENTRIES_MAX, WINDOWS_MAX, HandOverOrigin, Origins
from millstream_reduce.values import Location, Piece, Window, WindowContents, WindowTable

NOW_US = 1_000_000


def window(*entries: tuple[int, int]) -> WindowContents:
    """With a piece in each of these entries: segment, offset."""
    return WindowContents(Window(0, 1), tuple(Piece(segment, offset, 64, 0, 1) for segment, offset in entries))


def hand_over(*windows: WindowContents) -> wal_pb2.HandOver:
    return wal_pb2.HandOver(table=WindowTable.of(windows).message())


def test_a_window_is_as_new_as_its_newest_record_and_a_hand_over_as_old_as_its_oldest_window() -> None:
    origins = Origins()
    for segment, offset, ingest_us in ((1, 64, 10), (1, 128, 20), (2, 64, 30), (2, 128, 40)):
        origins.note(Location(segment, offset, 64), ingest_us, "")
    assert origins.of(hand_over(window((1, 64), (2, 64))), NOW_US) == HandOverOrigin(30, ())
    # The rows of a window are in any order.
    assert origins.of(hand_over(window((2, 64), (1, 64))), NOW_US) == HandOverOrigin(30, ())
    assert origins.of(hand_over(window((2, 128)), window((1, 64), (1, 128))), NOW_US) == HandOverOrigin(20, ())


def test_where_nothing_is_known_records_have_entered_now() -> None:
    origins = Origins()
    assert origins.of(hand_over(window((1, 64))), NOW_US) == HandOverOrigin(NOW_US, ())
    assert origins.of(hand_over(), NOW_US) == HandOverOrigin(NOW_US, ())
    origins.note(Location(1, 64, 64), 10, "a")
    origins.note(Location(2, 64, 64), 20, "b")
    origins.keep([2])
    assert origins.of(hand_over(window((1, 64))), NOW_US) == HandOverOrigin(NOW_US, ())
    assert origins.of(hand_over(window((2, 64))), NOW_US) == HandOverOrigin(20, ("b",))


def test_of_many_entries_only_some_are_noted_and_an_entry_between_is_taken_for_the_one_before() -> None:
    origins = Origins()
    for number in range(10_000):
        origins.note(Location(1, 64 * number, 64), number, "")
    (notes,) = origins._segments.values()
    assert ENTRIES_MAX // 2 <= len(notes.offsets) <= ENTRIES_MAX
    for number in (0, 1, 4999, 9999):
        ingest_us = origins.of(hand_over(window((1, 64 * number))), NOW_US).ingest_time_us
        assert number - 10_000 * 4 // ENTRIES_MAX <= ingest_us <= number


def test_traces_are_different_ones_of_the_windows_alone_and_bounded() -> None:
    origins = Origins()
    for number in range(100):
        origins.note(Location(number // 10, 64 * (number % 10), 64), 0, f"trace {number // 2}")
    of_two = origins.of(hand_over(window((0, 0), (0, 64)), window((0, 128))), NOW_US)
    assert of_two.traceparents == ("trace 0", "trace 1")
    assert of_two.first_traceparent == "trace 0"
    everything = window(*((number // 10, 64 * (number % 10)) for number in range(100)))
    assert len(origins.of(hand_over(everything), NOW_US).traceparents) == SPAN_LINKS_MAX
    assert origins.of(hand_over(window((77, 0))), NOW_US).first_traceparent == ""


def test_of_many_windows_some_are_looked_at_all_over_the_hand_over() -> None:
    origins = Origins()
    for number in range(4):
        origins.note(Location(number, 0, 64), 10 + number, f"trace {number}")
    many = [window((number * 4 // (4 * WINDOWS_MAX), 0)) for number in range(4 * WINDOWS_MAX)]
    assert origins.of(hand_over(*many), NOW_US) == HandOverOrigin(10, tuple(f"trace {number}" for number in range(4)))
