"""The small mechanisms of a lane: order, bounds, slices, ids."""

from __future__ import annotations

import asyncio

from millstream_reader.tracker import Tracker, WorkInFlight
from millstream_vertex.in_order import InOrder
from millstream_vertex.pacing import FIRST_SLICE_RECORDS, Slicer


async def test_results_come_out_in_the_order_in_which_work_began() -> None:
    ordered: InOrder[int] = InOrder()
    first, second, third = (asyncio.get_running_loop().create_future() for _ in range(3))
    for future in (first, second, third):
        ordered.add(future)
    second.set_result(2)
    waiting = asyncio.ensure_future(ordered.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    first.set_result(1)
    assert await waiting == [1, 2]
    third.set_result(3)
    ordered.close()
    assert await ordered.ready() == [3]
    assert await ordered.ready() == []


async def test_the_tracker_bounds_what_is_in_flight() -> None:
    tracker = Tracker(pieces_max=2, bytes_max=100)
    await tracker.begin(WorkInFlight(records=5, size=60))
    too_much = asyncio.ensure_future(tracker.begin(WorkInFlight(records=1, size=60)))
    await asyncio.sleep(0)
    assert not too_much.done()
    await tracker.finish(1)
    await too_much
    await tracker.begin(WorkInFlight(records=1, size=40))
    assert (len(tracker), tracker.records, tracker.size) == (2, 2, 100)
    third = asyncio.ensure_future(tracker.begin(WorkInFlight(records=1, size=0)))
    await asyncio.sleep(0)
    assert not third.done()
    await tracker.finish(2)
    await third


async def test_a_piece_larger_than_the_bound_goes_alone() -> None:
    tracker = Tracker(pieces_max=2, bytes_max=100)
    await tracker.begin(WorkInFlight(records=1, size=1000))
    assert tracker.size == 1000


def test_slices_follow_the_rate_of_the_function() -> None:
    slicer = Slicer(target_s=0.5, records_max=None)
    assert slicer.records() == FIRST_SLICE_RECORDS
    assert not slicer.learned
    slicer.answered(100, 2.0)
    assert slicer.records() == 25
    for _ in range(50):
        slicer.answered(100, 0.001)
    assert slicer.records() > 40_000
    slicer.answered(1, 1e9)
    assert slicer.records() >= 1


def test_the_users_batch_size_bounds_a_slice() -> None:
    slicer = Slicer(target_s=0.5, records_max=10)
    assert slicer.records() == 10
    slicer.answered(1_000_000, 0.1)
    assert slicer.records() == 10
