"""Changes the mark of a lane between two runs, when no process owns the lane.

Above it: changes of a pipeline, repairs, and whatever else moves what a lane has done. Below it: the ledger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from millstream.ledger.protocol import Commit, Ledger
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2


@asynccontextmanager
async def rewritten(ledger: Ledger, lane: LaneId, owner: str) -> AsyncIterator[mark_pb2.Mark]:
    """Take the lane over, and commit what the block makes of its mark. A block that raises an error changes nothing but
    the owner."""
    stored = await ledger.take_over(lane, owner)
    mark = mark_pb2.Mark()
    mark.CopyFrom(stored.mark)
    yield mark
    mark.commit_id = uuid4().bytes
    await ledger.commit(Commit(lane, (), mark, stored.sequence, replaces=stored.mark.commit_id))
