"""A log whose watermark was driven away is set back: what was decided stays, and what is to come is in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.frame import Frame
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import Queue
from millstream_reduce.setting_back import closed_by, set_log_back
from millstream_reduce.windows import WindowConfig
from tests.unit.reduce.queued import TENS, Lane, contents_of, frame_of

FAR = 1_000_000
SLIDING = WindowConfig("sliding", length_us=20, slide_us=10)
LATE = WindowConfig("fixed", length_us=10, lateness_us=7)
SESSIONS = WindowConfig("session", timeout_us=10, keyed=True)


async def set_back(lane: Lane, time_us: int) -> int:
    """As the command does; up to where windows that end stay closed."""
    end_us, closed_us = closed_by(time_us, lane.config)
    lane.epoch += 1
    identity = LogIdentity("p", "sum", 0, lane.epoch, "ledger-1")
    await set_log_back(lane.directory, identity, lane.config, lane.progress, closed_us)
    lane.progress.closed_us = closed_us
    return end_us


@pytest.mark.slow
@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    ("config", "end_us", "gone", "windows"),
    [
        (TENS, 50, [44, 49], [(50, 60, [51]), (60, 70, [62])]),
        (LATE, 50, [44, 49], [(50, 60, [51]), (60, 70, [62])]),
        (SLIDING, 60, [39], [(50, 70, [51, 62]), (60, 80, [62])]),
        (SESSIONS, 55, [44, 45], [(51, 61, [51]), (62, 72, [62])]),
    ],
    ids=["fixed", "lateness", "sliding", "session"],
)
async def test_what_is_to_come_is_in_time_and_no_window_of_before_is_opened_again(
    tmp_path: Path,
    config: WindowConfig,
    end_us: int,
    gone: list[int],
    windows: list[tuple[int, int, list[int]]],
    committed: bool,
) -> None:
    lane = Lane(tmp_path, config)

    def keyed(*times: int) -> Frame:
        return frame_of(times, keys=[b"k"] * len(times))

    async with lane.opened() as queue:
        lane.append(queue, keyed(1, 12, 41, FAR))
        handed = await closing(queue, FAR)
        before = contents_of(tmp_path, handed)
        # Late now, and in the log; the mark may not know of it yet.
        assert lane.append(queue, keyed(60), watermark_us=FAR).message.late == 1
        if committed:
            await lane.acknowledge(queue)
        await queue.sync()
    assert await set_back(lane, 45) == end_us
    for opening in range(2):
        async with lane.opened() as queue:
            assert queue.pending() != []
            assert contents_of(tmp_path, queue.pending()) == before, "what was handed over stays"
            assert all(item.closed_us <= queue.closed_us for item in queue.pending())
            assert all(item.message.closed_us <= queue.closed_us for item in queue.unacknowledged())
            assert queue.close(end_us) == []
            if opening:
                appended = lane.append(queue, keyed(*gone, 51, 62), watermark_us=45)
                assert (appended.message.late, appended.message.rows) == (len(gone), 2)
                closed = contents_of(tmp_path, await closing(queue, 100))
                assert [(start, end, [int(v) for v in found]) for start, end, _, found in closed] == windows
                # The record of the far future waits for its time.
                assert queue.open_windows >= 1


async def closing(queue: Queue, watermark_us: int) -> list[wal_pb2.HandOver]:
    hand_overs = queue.close(watermark_us)
    await queue.sync()
    return hand_overs


async def test_a_log_set_back_and_a_mark_that_is_not_are_driven_away_as_before(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, FAR]))
        queue.close(FAR)
        await lane.acknowledge(queue)
    await set_back(lane, 45)
    lane.progress.closed_us = FAR
    async with lane.opened() as queue:
        assert queue.closed_us == FAR
    # Repeated, it takes effect.
    await set_back(lane, 45)
    async with lane.opened() as queue:
        assert queue.closed_us == 50
