"""A log that is lost is rebuilt from the input: what the queue notes for that, and what it does at each milestone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.clock import START_OF_TIME_US
from millstream.frame import Frame
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log.inspection import inspect_log
from millstream_reduce.milestones import BETWEEN_BYTES, Milestones, is_at_or_before
from millstream_reduce.queue import Queue, QueuedFrame
from millstream_reduce.values import WindowTable
from millstream_reduce.windows import WindowConfig
from tests.unit.reduce.queued import EDGE, LIMITS, OTHER_EDGE, Lane, contents_of, frame_of

SESSIONS = WindowConfig("session", timeout_us=15)
EARLIER = frame_of([0, 5])
"""Its session, [0, 20), is closed and committed."""
BEHIND = frame_of([2, 10])
"""The first is late, the second would have joined that session."""
AFTER = frame_of([24])
CLOSED_US = 21


def position(edge: str, sequence: int) -> wal_pb2.InputPosition:
    return wal_pb2.InputPosition(edge=edge, sequence=sequence)


def kept(directory: Path, config: WindowConfig = SESSIONS) -> Lane:
    return Lane(directory / "log", config, input_is_kept=True)


async def committed_session(lane: Lane, queue: Queue) -> None:
    lane.append(queue, EARLIER)
    await lane.commit(queue, queue.close(CLOSED_US)[0])


def read_again(lane: Lane, queue: Queue, *frames: Frame) -> None:
    for frame in frames:
        lane.append(queue, frame)


@pytest.mark.guarantee("I3")
async def test_a_session_is_the_same_however_it_was_closed_before_the_log_was_lost(tmp_path: Path) -> None:
    lane = kept(tmp_path)
    async with lane.opened() as queue:
        await committed_session(lane, queue)
        appended = lane.append(queue, BEHIND)
        assert (appended.message.rows, appended.message.late, appended.message.hand_over) == (1, 1, 1)
        milestone = appended.message.milestone
        assert milestone == wal_pb2.Milestone(inputs=[position(EDGE, 1)], closed_us=CLOSED_US)
        lane.append(queue, AFTER)
        await lane.acknowledge(queue)
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        assert queue.is_behind
        read_again(lane, queue, EARLIER)
        queue.retrace(milestone)
        read_again(lane, queue, BEHIND, AFTER)
        lane.retrace(queue)
        hand_overs = queue.close(40)
        await queue.sync()
        assert [hand_over.number for hand_over in hand_overs] == [2]
        assert contents_of(lane.directory, hand_overs) == [(10, 39, 0, [b"10", b"24"])]
    assert set(inspect_log(lane.directory, verify=True).hand_overs) == {2}


@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("frame", [frame_of([10]), frame_of([2])], ids=["in-time", "late"])
async def test_records_behind_closed_windows_are_a_milestone_once(tmp_path: Path, frame: Frame) -> None:
    lane = kept(tmp_path)
    async with lane.opened() as queue:
        await committed_session(lane, queue)
        assert lane.append(queue, frame).message.HasField("milestone")
        # Nothing was closed since.
        assert not lane.append(queue, frame).message.HasField("milestone")
        queue.close(CLOSED_US + 1)
        assert not lane.append(queue, frame_of([CLOSED_US + 1])).message.HasField("milestone")
        assert lane.append(queue, frame).message.HasField("milestone")


@pytest.mark.guarantee("I3")
async def test_what_joined_an_open_session_does_so_again_however_the_edges_are_read(tmp_path: Path) -> None:
    lane = kept(tmp_path)
    lane.keep_late = True
    open_session, inside, before = frame_of([20, 30]), frame_of([18, 22]), frame_of([3, 4, 8])
    async with lane.opened() as queue:
        lane.append(queue, open_session)
        assert queue.close(40) == []
        # The session begins at 18 with the first frame: then [4, 19) meets it, and [3, 18) does not.
        first, second = QueuedFrame(OTHER_EDGE, 1, inside.size, inside), QueuedFrame(EDGE, 2, before.size, before)
        appended = queue.append([first, second], 0)
        assert [frame.values() for frame in appended.late_frames] == [[b"3"]]
        joined = [
            wal_pb2.Joined(edge=OTHER_EDGE, sequence=1, rows=[0, 1]),
            wal_pb2.Joined(edge=EDGE, sequence=2, rows=[1, 2]),
        ]
        milestone = wal_pb2.Milestone(inputs=[position(EDGE, 1)], closed_us=40, joined=joined)
        assert appended.message.milestone == milestone
        # Nothing was closed since, but the order of the edges matters again.
        again = queue.append([QueuedFrame(EDGE, 3, before.size, before)], 0)
        assert again.message.milestone == wal_pb2.Milestone(
            inputs=[position(EDGE, 2), position(OTHER_EDGE, 1)],
            closed_us=40,
            joined=[wal_pb2.Joined(edge=EDGE, sequence=3, rows=[0, 1, 2])],
        )
        await lane.acknowledge(queue)
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        queue.recall([milestone, again.message.milestone])
        lane.append(queue, open_session)
        queue.retrace(milestone)
        appended = queue.append([second, first], 0)
        assert [frame.values() for frame in appended.late_frames] == [[b"3"]]
        queue.append([QueuedFrame(EDGE, 3, before.size, before)], 0)
        lane.retrace(queue)
        hand_overs = queue.close(60)
        await queue.sync()
        ((start, end, _, found),) = contents_of(lane.directory, hand_overs)
        assert (start, end) == (3, 45)
        assert sorted(found) == sorted([b"20", b"30", b"18", b"22", b"4", b"8", b"3", b"4", b"8"])


@pytest.mark.parametrize(
    "config",
    [WindowConfig("fixed", length_us=10), WindowConfig("sliding", length_us=10, slide_us=5), WindowConfig("global")],
    ids=lambda config: config.kind,
)
async def test_where_the_time_of_a_record_says_its_window_no_milestone_is_needed(
    tmp_path: Path, config: WindowConfig
) -> None:
    lane = kept(tmp_path, config)
    async with lane.opened() as queue:
        read_again(lane, queue, EARLIER)
        queue.close(CLOSED_US)
        assert not lane.append(queue, BEHIND).message.HasField("milestone")


async def test_a_queue_whose_input_is_not_kept_notes_none(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "log", replace(SESSIONS))
    async with lane.opened() as queue:
        await committed_session(lane, queue)
        assert not lane.append(queue, BEHIND).message.HasField("milestone")
        assert not queue.early()[0].HasField("milestone")


@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("torn", [1, 2])
async def test_a_log_that_is_lost_on_the_way_or_old_goes_on_where_it_is(tmp_path: Path, torn: int) -> None:
    lane = kept(tmp_path)
    async with lane.opened() as queue:
        await committed_session(lane, queue)
        milestone = lane.append(queue, BEHIND).message.milestone
        lane.append(queue, AFTER)
        await lane.acknowledge(queue)
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        read_again(lane, queue, EARLIER)
        if torn == 2:
            queue.retrace(milestone)
        await queue.sync()
    async with lane.opened() as queue:
        assert queue.is_behind
        assert queue.positions() == {EDGE: 1}
        # It may have been done before the end: once more changes nothing.
        queue.retrace(milestone)
        read_again(lane, queue, BEHIND, AFTER)
        lane.retrace(queue)
        hand_overs = queue.close(40)
        await queue.sync()
        assert contents_of(lane.directory, hand_overs) == [(10, 39, 0, [b"10", b"24"])]


@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("done", [False, True], ids=["before-the-last-step", "behind-it"])
async def test_a_log_that_has_everything_again_and_is_torn_before_the_last_step_does_that_too(
    tmp_path: Path, done: bool
) -> None:
    lane = kept(tmp_path)
    async with lane.opened() as queue:
        await committed_session(lane, queue)
        read_again(lane, queue, AFTER)
        await lane.acknowledge(queue)
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        read_again(lane, queue, EARLIER, AFTER)
        await queue.sync()
        lane.retrace(queue)
        if done:
            await queue.sync()
    async with lane.opened() as queue:
        assert queue.is_behind is not done
        if not done:
            lane.retrace(queue)
        # The session of the first records is committed.
        hand_overs = queue.close(40)
        await queue.sync()
        assert [hand_over.number for hand_over in hand_overs] == [2]
        assert contents_of(lane.directory, hand_overs) == [(24, 39, 0, [b"24"])]


def early_numbers(hand_overs: Sequence[wal_pb2.HandOver]) -> list[tuple[int, int]]:
    return [(one.window.start_us, one.window.early) for item in hand_overs for one in WindowTable.of_hand_over(item)]


@pytest.mark.guarantee("I3")
async def test_early_results_are_numbered_on_after_the_log_was_lost(tmp_path: Path) -> None:
    lane = kept(tmp_path, WindowConfig("fixed", length_us=10))
    lane.limits = replace(LIMITS, hand_over_windows_max=1)
    frames = [frame_of([1, 12]), frame_of([13])]
    async with lane.opened() as queue:
        read_again(lane, queue, frames[0])
        hand_overs = queue.early()
        assert early_numbers(hand_overs) == [(0, 1), (10, 1)]
        # Between the two, the loss of the log would be refused.
        assert [hand_over.more for hand_over in hand_overs] == [True, False]
        milestone = hand_overs[0].milestone
        assert milestone == wal_pb2.Milestone(
            inputs=[position(EDGE, 1)], closed_us=queue.closed_us, early=True, early_rows=1
        )
        assert not hand_overs[1].HasField("milestone")
        for hand_over in hand_overs:
            await lane.commit(queue, hand_over)
        read_again(lane, queue, frames[1])
        await lane.acknowledge(queue)
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        read_again(lane, queue, frames[0])
        queue.retrace(milestone)
        read_again(lane, queue, frames[1])
        lane.retrace(queue)
        hand_overs = queue.early()
        assert early_numbers(hand_overs) == [(10, 2)]
        assert hand_overs[0].number == 3


@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("window", [WindowConfig("fixed", length_us=10), WindowConfig("session", timeout_us=5)])
async def test_early_results_by_count_are_those_of_the_same_windows_after_the_log_was_lost(
    tmp_path: Path, window: WindowConfig
) -> None:
    lane = kept(tmp_path, window)
    frames = [frame_of([1, 2, 11]), frame_of([3, 12])]
    async with lane.opened() as queue:
        read_again(lane, queue, frames[0])
        assert early_numbers(queue.early(3)) == []
        read_again(lane, queue, frames[1])
        (first,) = queue.early(3)
        assert early_numbers([first]) == [(WindowTable.of_hand_over(first)[0].window.start_us, 1)]
        await lane.commit(queue, first)
        await lane.acknowledge(queue)
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        for frame in frames:
            read_again(lane, queue, frame)
        queue.retrace(first.milestone)
        lane.retrace(queue)
        # The other window has two, and its next one makes them three.
        assert queue.rows_to_early(3) == 1
        read_again(lane, queue, frame_of([13]))
        (second,) = queue.early(3)
        again, before = WindowTable.of_hand_over(second), WindowTable.of_hand_over(first)
        assert [(one.window.early, one.rows) for one in again] == [(1, 3)]
        assert again[0].window.start_us != before[0].window.start_us
        assert second.number == 2


async def test_the_bound_of_the_log_does_not_hold_up_what_is_read_again(tmp_path: Path) -> None:
    lane = kept(tmp_path, WindowConfig("fixed", length_us=10))
    lane.limits = replace(LIMITS, log_bytes_max=16 * 1024)
    bulk = [frame_of([10 * n], values=[b"x" * 2000]) for n in range(9)]
    async with lane.opened() as queue:
        for n, frame in enumerate(bulk):
            read_again(lane, queue, frame)
            await lane.commit(queue, queue.close(10 * n + 10)[0])
    shutil.rmtree(lane.directory)
    async with lane.opened() as queue:
        for frame in bulk:
            assert await queue.room(0.0)
            read_again(lane, queue, frame)
            await queue.sync()
        assert queue.statistics().log.bytes > lane.limits.log_bytes_max
        lane.retrace(queue)
        # What was committed takes no room any more.
        assert await queue.room(10.0)
        assert queue.statistics().log.bytes < lane.limits.log_bytes_max


def test_much_input_is_a_milestone_as_long_as_windows_close() -> None:
    milestones = Milestones()
    assert milestones.before({EDGE: 1}, START_OF_TIME_US, BETWEEN_BYTES, depends=False) is None
    noted = milestones.before({EDGE: 2, OTHER_EDGE: 7}, 10, 1, depends=False)
    assert noted == wal_pb2.Milestone(inputs=[position(EDGE, 2), position(OTHER_EDGE, 7)], closed_us=10)
    assert milestones.before({EDGE: 3}, 20, BETWEEN_BYTES - 1, depends=False) is None
    assert milestones.before({EDGE: 4}, 20, 1, depends=False) is not None
    assert milestones.before({EDGE: 5}, 20, BETWEEN_BYTES, depends=True) is None


def test_a_milestone_is_reached_when_every_edge_is() -> None:
    milestone = wal_pb2.Milestone(inputs=[position(EDGE, 2), position(OTHER_EDGE, 7)])
    assert is_at_or_before(milestone, {EDGE: 2, OTHER_EDGE: 8})
    assert not is_at_or_before(milestone, {EDGE: 3})
    assert is_at_or_before(wal_pb2.Milestone(), {})
