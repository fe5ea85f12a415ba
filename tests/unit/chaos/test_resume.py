"""What counts as being back after a fault."""

from __future__ import annotations

from millstream.record import LaneId
from millstream.watermark.store import OtUpdate
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry
from millstream_runner.chaos.report import percentile
from millstream_runner.chaos.resume import Board

ONE, OTHER = LaneId("map", "in-map", 0), LaneId("map", "in-map", 1)


def told(
    board: Board, lane: LaneId, at_us: int, records: int, *, epoch: int = 1, results: int = 0, ended: bool = False
) -> None:
    entry = OtEntry(
        epoch=epoch,
        published_us=at_us,
        ended=ended,
        inputs=[BufferState(edge="in-map", records=records)],
        outputs=[BufferState(edge="map-out", records=results)],
    )
    board.observe(lane, OtUpdate(lane.key, entry))


def test_a_run_is_back_when_the_last_of_its_lanes_has_got_on() -> None:
    board = Board()
    for lane in (ONE, OTHER):
        told(board, lane, 10, 100)
    waiting = board.wait((ONE, OTHER), 20, since_us=20)
    told(board, ONE, 30, 101)
    assert waiting.resumed_us() is None
    assert waiting.absent() == [OTHER]
    told(board, OTHER, 40, 100)
    assert waiting.resumed_us() is None, "it has said the same again"
    told(board, OTHER, 50, 101)
    told(board, OTHER, 60, 102)
    assert waiting.resumed_us() == 50


def test_what_was_done_before_the_replacement_came_does_not_count() -> None:
    board = Board()
    told(board, ONE, 10, 100)
    waiting = board.wait((ONE,), 20, since_us=None)
    told(board, ONE, 25, 110)
    assert waiting.resumed_us() is None
    waiting.since_us = 30
    assert waiting.resumed_us() is None
    told(board, ONE, 35, 111)
    assert waiting.resumed_us() == 35


def test_a_vertex_is_back_with_a_newer_epoch_only() -> None:
    board = Board()
    told(board, ONE, 10, 100)
    waiting = board.wait((ONE,), 20, since_us=20, newer_epochs=True)
    told(board, ONE, 21, 101)
    told(board, ONE, 30, 101, epoch=2)
    assert waiting.resumed_us() is None, "a takeover is not progress"
    told(board, ONE, 40, 102, epoch=2)
    told(board, ONE, 41, 200, epoch=1)
    assert waiting.resumed_us() == 40


def test_after_a_fault_of_sparks_only_results_count() -> None:
    board = Board()
    told(board, ONE, 10, 100, results=5)
    waiting = board.wait((ONE,), 20, since_us=20, results=True)
    told(board, ONE, 30, 200, results=5)
    assert waiting.resumed_us() is None
    told(board, ONE, 40, 200, results=6)
    assert waiting.resumed_us() == 40


def test_a_lane_that_has_ended_has_nothing_to_come_back_to() -> None:
    board = Board()
    told(board, ONE, 10, 100, ended=True)
    told(board, OTHER, 10, 100)
    waiting = board.wait((ONE, OTHER), 20, since_us=20)
    told(board, OTHER, 30, 100, ended=True)
    assert waiting.resumed_us() == 30
    assert board.ended((ONE, OTHER))


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([float(number) for number in range(1, 201)], 0.99) == 198.0
