"""Records keep their ids and their places, whichever part of a frame is handed over."""

from __future__ import annotations

from millstream.record import Position
from millstream_writer.sink import exact_end, exact_position
from tests.unit.writer.sink_frames import sink_frame


def test_ids_are_made_of_place_and_do_not_depend_on_the_slice() -> None:
    values = [b"a", b"b", b"c", b"d"]
    whole = sink_frame(values, 7)
    tail = sink_frame(values[2:], 7, first_index=2)
    assert whole.record_ids() == [f"out/in/0/7/{index}" for index in range(4)]
    assert tail.record_ids() == whole.record_ids()[2:]


def test_ids_of_the_source_win() -> None:
    assert sink_frame([b"a", b"b"], 7, ids=["x", "y"]).record_ids() == ["x", "y"]


def test_some_records_keep_their_ids_and_indexes_however_often_some_are_taken() -> None:
    taken = sink_frame([b"a", b"b", b"c", b"d", b"e"], 7, first_index=10).take([1, 3, 4]).take([0, 2])
    assert taken.frame.values() == [b"b", b"e"]
    assert taken.record_ids() == ["out/in/0/7/11", "out/in/0/7/14"]
    assert list(taken.indexes()) == [11, 14]
    assert taken.first_index == 11


def test_taking_everything_changes_nothing() -> None:
    item = sink_frame([b"a", b"b"], 7)
    assert item.take([0, 1]) is item


def test_positions_in_a_frame_compare_whatever_the_frame_before_was() -> None:
    item = sink_frame([b"a", b"b", b"c"], 7)
    # A lane that came from frame 3 is at (3, 2) inside frame 7; one whose mark says 6 is at (6, 2).
    assert exact_end([item], Position(3, 2)) == exact_end([item], Position(6, 2)) == exact_position(item, 2)
    assert exact_end([item], Position(7, 0)) == Position(7, 0)
    assert exact_position(item, 3) < exact_end([item], Position(7, 0))
    assert Position(5, 0) < exact_position(item, 0) < exact_position(item, 1)
