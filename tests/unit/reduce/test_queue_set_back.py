"""A queue whose lane's ledger was set back."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import codes
from millstream.wire.ledger.v1 import mark_pb2
from tests.support.errors import raises
from tests.unit.reduce.queued import Lane, frame_of


@pytest.mark.guarantee("I10")
async def test_a_mark_older_than_what_the_log_has_freed_is_refused(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "log")
    before = mark_pb2.ReduceProgress()
    async with lane.opened() as queue:
        for start in range(0, 60, 10):
            lane.append(queue, frame_of([start + 1] * 400))
            await lane.commit(queue, queue.close(start + 10)[0])
            if not start:
                before.CopyFrom(lane.progress)
    lane.progress.CopyFrom(before)
    with raises(codes.LEDGER_CUT, match=r"hand-overs 2 to 6 were committed.*up to number 1 were.*set back"):
        async with lane.opened():
            pass
