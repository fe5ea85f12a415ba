"""A lane's queue: what is admitted, what is handed over, what a restart finds, what keeps it within its bounds."""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from millstream import codes
from millstream.errors import FencedError
from millstream.frame import Frame
from millstream.values import Values
from millstream_reduce.log.entries import segment_name, whole_entries
from millstream_reduce.log.segments import segment_numbers
from millstream_reduce.origins import HandOverOrigin
from millstream_reduce.queue import QueueLimits
from millstream_reduce.values import WindowTable
from millstream_reduce.windows import WindowConfig
from millstream_udf import arrow_values
from tests.support.errors import raises
from tests.unit.reduce.queued import EDGE, LIMITS, OTHER_EDGE, Lane, contents_of, frame_of

WAIT_S = 60


def values(*times: int) -> list[bytes]:
    return [b"%d" % time for time in times]


async def test_windows_hold_exactly_the_records_before_the_watermark_passed(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        first = lane.append(queue, frame_of([1, 12, 3]), frame_of([25, 4]), watermark_us=0)
        assert (first.message.rows, first.message.late, first.message.late_admitted, first.records) == (5, 0, 0, 5)
        assert queue.close(9) == []
        lane.append(queue, frame_of([11, 5]), watermark_us=9)
        hand_overs = queue.close(20)
        late = lane.append(queue, frame_of([6, 21, 13]), watermark_us=20)
        assert (late.message.rows, late.message.late, late.message.late_admitted) == (1, 2, 0)
        await queue.sync()
        assert contents_of(tmp_path, hand_overs) == [
            (0, 10, 0, values(1, 3, 4, 5)),
            (10, 20, 0, values(12, 11)),
        ]
        assert [(item.number, item.closed_us) for item in hand_overs] == [(1, 20)]
        assert WindowTable.of_hand_over(hand_overs[0]).released.tolist() == [4, 2]
        assert queue.oldest_end_us() == 30


async def test_records_older_than_the_watermark_are_counted_where_lateness_admits_them(tmp_path: Path) -> None:
    lane = Lane(tmp_path, WindowConfig("fixed", length_us=10, lateness_us=15))
    async with lane.opened() as queue:
        queue.close(20)
        appended = lane.append(queue, frame_of([1, 12, 30]), watermark_us=20)
        assert (appended.message.rows, appended.message.late_admitted, appended.message.late) == (3, 2, 0)
        queue.close(26)
        assert lane.append(queue, frame_of([1]), watermark_us=26).message.late == 1


async def test_late_records_are_kept_as_frames_where_they_are_wanted(tmp_path: Path) -> None:
    lane = Lane(tmp_path, keep_late=True)
    late = frame_of([11, 2, 3], keys=[b"a", b"b", b"c"])
    async with lane.opened() as queue:
        queue.close(10)
        appended = lane.append(queue, frame_of([12, 13]), late, frame_of([1]), watermark_us=10)
        assert (appended.message.rows, appended.message.late) == (3, 3)
        assert [frame.values() for frame in appended.late_frames] == [values(2, 3), values(1)]
        assert appended.late_frames[0].keys() == [(b"b",), (b"c",)]
        all_late = lane.append(queue, frame_of([4, 5]), watermark_us=10)
        assert (all_late.message.rows, all_late.message.late) == (0, 2)
        await queue.sync()
    async with lane.opened() as queue:
        assert queue.unacknowledged() == [appended, all_late]
        await lane.acknowledge(queue)
        assert queue.unacknowledged() == []
    async with lane.opened() as queue:
        assert queue.unacknowledged() == []
        assert contents_of(tmp_path, queue.close(20)) == [(10, 20, 0, values(12, 13, 11))]


def as_columns(frame: Frame) -> Frame:
    """The same records with their times as Arrow columns in place of values."""
    rows = pa.RecordBatch.from_pydict({"at": list(frame.event_times_us())})
    return replace(frame, contents=Values(arrow=arrow_values.packed(rows)))


@pytest.mark.guarantee("I3")
async def test_columns_are_kept_as_such(tmp_path: Path) -> None:
    def objects(*times: int) -> list[bytes]:
        return [b'{"at":%d}' % time for time in times]

    lane = Lane(tmp_path, keep_late=True)
    async with lane.opened() as queue:
        queue.close(10)
        lane.append(queue, as_columns(frame_of([11, 25])), as_columns(frame_of([12])), watermark_us=10)
        # Frames of both forms in one entry, and late ones among the columns.
        mixed = lane.append(queue, frame_of([13]), as_columns(frame_of([2, 14, 3])), watermark_us=10)
        assert [frame.values() for frame in mixed.late_frames] == [objects(2, 3)]
        await queue.sync()
    async with lane.opened() as queue:
        assert queue.unacknowledged()[1] == mixed
        hand_overs = queue.close(30)
        assert contents_of(tmp_path, hand_overs) == [
            (10, 20, 0, [*objects(11, 12), *values(13), *objects(14)]),
            (20, 30, 0, objects(25)),
        ]
    bodies = [
        entry.message().append for entry in whole_entries(memoryview(next(tmp_path.glob("*.wal")).read_bytes()), 0)
    ]
    assert [bool(append.value_fields) for append in bodies if append.rows] == [True, False]


async def test_records_between_windows_are_counted_apart(tmp_path: Path) -> None:
    lane = Lane(tmp_path, WindowConfig("sliding", length_us=4, slide_us=10))
    async with lane.opened() as queue:
        appended = lane.append(queue, frame_of([1, 5, 12, 18, 19]))
        assert (appended.message.rows, appended.message.outside, appended.message.late) == (2, 3, 0)
        await queue.sync()
    async with lane.opened() as queue:
        assert queue.unacknowledged() == [appended]


@pytest.mark.guarantee("I3")
async def test_a_restart_finds_hand_overs_with_the_very_same_contents(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12, 3]))
        first = queue.close(10)
        lane.append(queue, frame_of([14, 15]), watermark_us=10)
        second = queue.close(20)
        await queue.sync()
        contents = contents_of(tmp_path, [*first, *second])
    async with lane.opened() as queue:
        assert queue.pending() == [*first, *second]
        # Admissible or not: what comes now is not in a window that was handed over.
        assert lane.append(queue, frame_of([2, 13, 21]), watermark_us=20).message.late == 2
        assert queue.close(20) == []
        assert contents_of(tmp_path, queue.pending()) == contents
        await lane.commit(queue, first[0])
        assert queue.pending() == second
        await queue.sync()
    async with lane.opened() as queue:
        assert queue.pending() == second
        assert [item.number for item in queue.close(30)] == [3]


async def test_a_window_is_handed_over_again_only_when_its_hand_over_was_not_durable(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 2]))
        await queue.sync()
        assert len(queue.close(10)) == 1
    async with lane.opened() as queue:
        assert queue.pending() == []
        # The mark does not know that the windows were closed either, so this one is not late.
        assert lane.append(queue, frame_of([3]), watermark_us=10).message.late == 0
        hand_overs = queue.close(10)
        await queue.sync()
        assert contents_of(tmp_path, hand_overs) == [(0, 10, 0, values(1, 2, 3))]


async def test_windows_that_are_closed_stay_closed_though_nothing_was_handed_over(tmp_path: Path) -> None:
    """By the mark, or by an entry of the log that was written since."""
    for way in ("mark", "entry"):
        lane = Lane(tmp_path / way)
        async with lane.opened() as queue:
            assert queue.close(50) == []
            if way == "entry":
                lane.append(queue, frame_of([61]))
                await queue.sync()
            else:
                await lane.acknowledge(queue)
        async with lane.opened() as queue:
            assert queue.closed_us == 50
            assert lane.append(queue, frame_of([45])).message.late == 1


async def test_early_results_are_numbered_on_over_a_restart(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12]))
        first = queue.early()
        assert queue.early() == []
        lane.append(queue, frame_of([2]))
        second = queue.early()
        await queue.sync()
        assert contents_of(tmp_path, [*first, *second]) == [
            (0, 10, 1, values(1)),
            (10, 20, 1, values(12)),
            (0, 10, 2, values(1, 2)),
        ]
    async with lane.opened() as queue:
        assert queue.pending() == [*first, *second]
        lane.append(queue, frame_of([3]))
        third, last = queue.early(), queue.close(10)
        await queue.sync()
        assert contents_of(tmp_path, [*third, *last]) == [(0, 10, 3, values(1, 2, 3)), (0, 10, 0, values(1, 2, 3))]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (replace(LIMITS, hand_over_windows_max=4), [4, 4, 2]),
        (replace(LIMITS, hand_over_pieces_max=6), [3, 3, 3, 1]),
        (replace(LIMITS, hand_over_bytes_max=1), [1] * 10),
        (LIMITS, [10]),
    ],
)
async def test_hand_overs_are_bounded(tmp_path: Path, limits: QueueLimits, sizes: list[int]) -> None:
    lane = Lane(tmp_path, limits=limits)
    async with lane.opened() as queue:
        times = range(0, 100, 10)
        lane.append(queue, frame_of(times))
        lane.append(queue, frame_of(times))
        hand_overs = queue.close(100)
        assert [hand_over.table.count for hand_over in hand_overs] == sizes
        assert [hand_over.number for hand_over in hand_overs] == list(range(1, len(sizes) + 1))
        starts = [one.window.start_us for item in hand_overs for one in WindowTable.of_hand_over(item)]
        assert starts == list(times)


async def test_hand_overs_of_one_close_of_which_only_some_became_durable(tmp_path: Path) -> None:
    """The last ones were torn off: their windows are handed over again, with what was in them."""
    lane = Lane(tmp_path, limits=replace(LIMITS, hand_over_windows_max=1))
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 11, 21]))
        hand_overs = queue.close(30)
        await queue.sync()
        contents = contents_of(tmp_path, hand_overs)
    path = tmp_path / segment_name(segment_numbers(tmp_path)[-1])
    path.write_bytes(path.read_bytes()[:-64])
    async with lane.opened() as queue:
        assert queue.pending() == hand_overs[:2]
        assert lane.append(queue, frame_of([22, 31])).message.late == 1
        again = queue.close(30)
        await queue.sync()
        assert contents_of(tmp_path, [*hand_overs[:2], *again]) == contents
        assert [item.number for item in again] == [3]


async def test_several_edges_are_told_apart(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1]), frame_of([2, 3]))
        appended = lane.append(queue, frame_of([4]), edge=OTHER_EDGE)
        assert [(item.edge, item.sequence, item.records) for item in appended.message.inputs] == [(OTHER_EDGE, 1, 1)]
        assert queue.positions() == {EDGE: 2, OTHER_EDGE: 1}
        await queue.sync()
    lane.progress.inputs.add(edge=EDGE, sequence=2)
    async with lane.opened() as queue:
        assert queue.positions() == {EDGE: 2, OTHER_EDGE: 1}
        assert queue.unacknowledged() == [appended]


@pytest.mark.guarantee("I1", "I10")
@pytest.mark.parametrize("loss", ["all", "the end", "the inputs of an edge", "a hand-over"])
async def test_a_log_that_lost_what_the_mark_counts_on_is_refused(tmp_path: Path, loss: str) -> None:
    lane = Lane(tmp_path / "log")
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12]))
        lane.append(queue, frame_of([13]))
        hand_over = queue.close(10)[0]
        await lane.commit(queue, hand_over)
    newest = tmp_path / "log" / segment_name(segment_numbers(tmp_path / "log")[-1])
    match loss:
        case "all":
            shutil.rmtree(tmp_path / "log")
            expected = "the log is empty.*a-sum up to stream sequence 2 .the log has it up to 0"
        case "the end":
            newest.write_bytes(newest.read_bytes()[:-400])
            expected = "a-sum up to stream sequence 2 .the log has it up to 1"
        case "the inputs of an edge":
            lane.progress.inputs.add(edge=OTHER_EDGE, sequence=3)
            expected = "b-sum up to stream sequence 3"
        case _:
            lane.progress.hand_over = 2
            expected = "windows handed over up to number 2 .the log knows 1"
    with raises(codes.LOG_BEHIND_LEDGER, match=expected):
        async with lane.opened():
            pass


async def test_a_log_that_is_gone_is_no_damage_where_the_input_is_kept(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "log", input_is_kept=True)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12]))
        await lane.commit(queue, queue.close(10)[0])
        assert queue.releasable().get(EDGE, 0) == 0
    shutil.rmtree(tmp_path / "log")
    async with lane.opened() as queue:
        assert queue.positions() == {}
        assert queue.is_behind
        # The input is read again: what is committed is handed over no more, what was open is there again.
        lane.append(queue, frame_of([1, 12]))
        lane.retrace(queue)
        assert [hand_over.number for hand_over in queue.close(20)] == [2]


@pytest.mark.guarantee("I3")
async def test_an_old_log_does_not_hand_over_what_is_committed_where_the_input_is_kept(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "log", input_is_kept=True)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12, 23]))
        await lane.acknowledge(queue)
    shutil.copytree(tmp_path / "log", tmp_path / "old")
    async with lane.opened() as queue:
        lane.append(queue, frame_of([2, 14, 24]))
        await lane.commit(queue, queue.close(20)[0])
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "old").rename(tmp_path / "log")
    async with lane.opened() as queue:
        assert queue.positions() == {EDGE: 1}
        assert queue.pending() == []
        lane.append(queue, frame_of([2, 14, 24]))
        lane.retrace(queue)
        hand_overs = queue.close(30)
        await queue.sync()
        assert [hand_over.number for hand_over in hand_overs] == [2]
        assert contents_of(tmp_path / "log", hand_overs) == [(20, 30, 0, values(23, 24))]


@pytest.mark.guarantee("I3", "I10")
async def test_a_log_lost_between_hand_overs_that_closed_together_is_refused(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "log", input_is_kept=True, limits=replace(LIMITS, hand_over_windows_max=1))
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12]))
        first, _ = queue.close(20)
        lane.progress.closing = True
        await lane.commit(queue, first)
    async with lane.opened() as queue:
        assert [hand_over.number for hand_over in queue.pending()] == [2]
    shutil.rmtree(tmp_path / "log")
    with raises(codes.LOG_BEHIND_LEDGER):
        async with lane.opened():
            pass


async def test_input_is_needed_until_its_windows_are_committed(tmp_path: Path) -> None:
    lane = Lane(tmp_path, limits=replace(LIMITS, segment_bytes=1024))
    async with lane.opened() as queue:
        for second in range(40):
            lane.append(queue, frame_of([second * 10 + 1]))
        await lane.acknowledge(queue)
        assert queue.releasable().get(EDGE, 0) == 0
        (first,) = queue.close(200)
        (second_half,) = queue.close(400)
        await lane.commit(queue, first)
        released = queue.releasable()[EDGE]
        assert 12 <= released <= 20
        await lane.commit(queue, second_half)
        assert queue.releasable() == {EDGE: 40}


def bulky(begin: int, records: int = 20) -> Frame:
    return frame_of(range(begin, begin + records), values=[b"x" * 200] * records)


@pytest.mark.slow
async def test_the_log_stays_within_its_bounds_and_goes_on_when_windows_are_committed(tmp_path: Path) -> None:
    lane = Lane(tmp_path, WindowConfig("fixed", length_us=100), replace(LIMITS, log_bytes_max=32 * 1024))
    async with lane.opened() as queue, asyncio.timeout(WAIT_S):
        for window in range(20):
            for part in range(5):
                await queue.room()
                lane.append(queue, bulky(100 * window + 20 * part))
            for hand_over in queue.close(100 * window + 100):
                await lane.commit(queue, hand_over)
            files = sum(path.stat().st_size for path in tmp_path.glob("*.wal"))
            assert files <= 32 * 1024 + 4096 + 8192
        assert queue.statistics().full == ""
    assert sum(path.stat().st_size for path in tmp_path.glob("*.wal")) < 1024


async def test_a_log_that_is_full_of_open_windows_says_which(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lane = Lane(tmp_path, WindowConfig("fixed", length_us=10**6), replace(LIMITS, log_bytes_max=16 * 1024))
    with caplog.at_level(logging.WARNING):
        async with lane.opened() as queue:
            begin = 0
            while queue.statistics().log.bytes < 16 * 1024:
                lane.append(queue, bulky(begin))
                begin += 20
            room = asyncio.ensure_future(queue.room(WAIT_S))
            async with asyncio.timeout(WAIT_S):
                # It syncs first, which takes as long as the disk does.
                while "is full" not in caplog.text:  # noqa: ASYNC110  # a log has no event for it
                    await asyncio.sleep(0)
            full = queue.statistics().full
            assert f"1 open windows hold {begin} records. The first ends at 1970-01-01T00:00:01Z" in full
            assert full in caplog.text
            hand_overs = queue.close(10**6)
            assert "1 windows that were handed over are not committed yet" in queue.statistics().full
            assert not room.done()
            await lane.commit(queue, hand_overs[0])
            assert await room
            assert queue.statistics().full == ""


@pytest.mark.slow
async def test_one_open_window_does_not_hold_the_segments_of_all_others(tmp_path: Path) -> None:
    """Also in a log of so few segments that a checkpoint would not be worth it otherwise."""
    lane = Lane(tmp_path, WindowConfig("session", timeout_us=50, keyed=True), replace(LIMITS, log_bytes_max=16 * 1024))
    async with lane.opened() as queue:
        lane.append(queue, frame_of([10**6], keys=[b"far ahead"]))
        for begin in range(0, 10_000, 100):
            while not await queue.room(0):
                for hand_over in [*queue.close(begin), *queue.pending()]:
                    if hand_over.number > lane.progress.hand_over:
                        await lane.commit(queue, hand_over)
                assert await queue.room(WAIT_S)
            lane.append(queue, frame_of([begin] * 10, keys=[b"k"] * 10, values=[b"x" * 200] * 10))
            await lane.acknowledge(queue)
        assert segment_numbers(tmp_path)[0] == 1
    async with lane.opened() as queue:
        windows = [window for item in queue.close(2 * 10**6) for window in WindowTable.of_hand_over(item)]
        assert (windows[-1].window.start_us, windows[-1].rows) == (10**6, 1)


async def test_a_waiting_lane_hears_of_room(tmp_path: Path) -> None:
    lane = Lane(tmp_path, limits=replace(LIMITS, log_bytes_max=16 * 1024))
    async with lane.opened() as queue, asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        while queue.statistics().log.bytes < 16 * 1024:
            lane.append(queue, bulky(0))
        room = tasks.create_task(queue.room())
        (hand_over,) = queue.close(20)
        await lane.commit(queue, hand_over)
        await room


async def test_bytes_in_memory_are_bounded(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue, asyncio.timeout(WAIT_S):
        for begin in range(100):
            await queue.room()
            assert queue.statistics().log.unsynced_bytes < LIMITS.unsynced_bytes_max
            if queue.statistics().log.bytes > LIMITS.log_bytes_max // 2:
                break
            lane.append(queue, bulky(20 * begin))


async def test_results_are_kept_until_their_hand_over_is_committed(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 12]))
        (hand_over,) = queue.close(10)
        await lane.acknowledge(queue)
        assert await queue.read_result(1) is None
        await queue.write_result(1, b"old")
        await queue.write_result(1, b"results" * 1000)
        lane.progress.result_records = 500
    async with lane.opened() as queue:
        assert await queue.read_result(1) == b"results" * 1000
        lane.progress.result_records = 0
        await lane.commit(queue, hand_over)
        assert not list(tmp_path.glob("*.result"))
    async with lane.opened() as queue:
        assert await queue.read_result(1) is None


@pytest.mark.guarantee("I10")
async def test_results_that_are_gone_or_damaged_are_named(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1]))
        queue.close(10)
        await lane.acknowledge(queue)
        await queue.write_result(1, b"results" * 100)
    lane.progress.result_records = 5
    (path,) = tmp_path.glob("*.result")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"?" + whole[101:])
    with raises(codes.RESULTS_LOST, match=f"{path.name}.*checksum.*hand-over 1 were committed in part"):
        async with lane.opened():
            pass
    path.unlink()
    with raises(codes.RESULTS_LOST, match="5 results of hand-over 1 are committed, and the others"):
        async with lane.opened():
            pass


async def test_results_of_hand_overs_that_were_committed_are_removed_at_the_opening(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1]))
        (hand_over,) = queue.close(10)
        await queue.write_result(1, b"results")
        await lane.acknowledge(queue)
    lane.progress.hand_over = hand_over.number
    async with lane.opened():
        assert not list(tmp_path.glob("*.result"))


async def test_the_trace_of_the_records_leads_to_their_hand_over(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    traced = frame_of([2]).traced("00-aa-bb-01")
    async with lane.opened() as queue:
        assert lane.append(queue, frame_of([1]), traced).message.traceparent == "00-aa-bb-01"
        await queue.sync()
    async with lane.opened() as queue:
        (hand_over,) = queue.close(10)
        assert queue.origin_of(hand_over, 1000) == HandOverOrigin(7, ("00-aa-bb-01",))


async def test_an_owner_that_was_replaced_is_told_so(tmp_path: Path) -> None:
    old, new = Lane(tmp_path), Lane(tmp_path, epoch=1)
    async with old.opened() as first:
        old.append(first, frame_of([1]))
        await first.sync()
        async with new.opened() as second:
            old.append(first, frame_of([2]))
            with pytest.raises(FencedError):
                await first.sync()
            new.append(second, frame_of([3]))
            (hand_over,) = second.close(10)
            await second.sync()
            assert contents_of(tmp_path, [hand_over]) == [(0, 10, 0, values(1, 3))]


async def test_statistics_tell_what_is_open_and_what_waits(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 2, 12, 23]))
        queue.close(10)
        found = queue.statistics()
        assert (found.open_windows, found.open_rows, found.oldest_end_us) == (2, 2, 20)
        assert (found.pending_hand_overs, found.pending_rows) == (1, 2)
        assert (found.last_hand_over, found.full) == (1, "")
        assert found.log_bytes_max == LIMITS.log_bytes_max


def test_a_log_must_hold_a_few_segments() -> None:
    with pytest.raises(ValueError, match="fewer than 4 segments"):
        QueueLimits(log_bytes_max=3 * 4096, segment_bytes=4096)
