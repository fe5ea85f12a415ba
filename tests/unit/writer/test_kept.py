"""What the position in a target means for a lane that may write there."""

from __future__ import annotations

import pytest

from millstream import codes
from millstream.record import Position
from millstream_connectors.shared.kept import TargetPosition, check_kept
from tests.contract.sinks.file_target import sink_owner
from tests.support.errors import raises

PACK = 7


@pytest.mark.parametrize("start", [Position(PACK), Position.within(PACK, 20)])
async def test_a_target_that_is_behind_the_mark_is_refused_also_within_a_frame(start: Position) -> None:
    owner = sink_owner(2, start=start)
    kept = TargetPosition("first", 1, "before", Position.within(PACK, 10), "")
    with raises(codes.SINK_BEHIND, "was restored from an older copy"):
        await check_kept(owner, kept, "table t", "drop it", ours=False)
    await check_kept(owner, kept._replace(position=start), "table t", "drop it", ours=False)
