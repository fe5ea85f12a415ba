"""Late records in a lane's queue: what nothing but the log holds stays there until the mark counts it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.reduce.queued import LIMITS, Lane, frame_of


@pytest.mark.guarantee("I1")
async def test_late_records_are_kept_until_the_mark_tells_of_them(tmp_path: Path) -> None:
    """No window needs them, and the log is the only place they are in."""
    lane = Lane(tmp_path, limits=replace(LIMITS, segment_bytes=1024), keep_late=True)
    late = frame_of(range(9), values=[b"late" * 50] * 9)
    async with lane.opened() as queue:
        queue.close(10)
        appended = lane.append(queue, late, watermark_us=10)
        assert (appended.message.rows, appended.message.late) == (0, 9)
        for begin in range(10, 200, 10):
            lane.append(queue, frame_of([begin], values=[b"x" * 600]), watermark_us=begin)
            queue.close(begin + 10)
        # The results are committed before the lane comes to report the late records.
        await queue.sync()
        lane.progress.hand_over = queue.pending()[-1].number
        await queue.committed(lane.progress)
    async with lane.opened() as queue:
        first = queue.unacknowledged()[0]
        assert [frame.values() for frame in first.late_frames] == [late.values()]
