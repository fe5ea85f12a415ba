"""Marks of a new owner. Pure; the same in every implementation of the ledger."""

from __future__ import annotations

from millstream.clock import START_OF_TIME_US
from millstream.ledger.protocol import StoredMark
from millstream.wire.ledger.v1 import mark_pb2


def taken_over(stored: StoredMark | None, owner: str, commit_id: bytes) -> mark_pb2.Mark:
    """The same position under the next epoch; for a lane without a mark, its very first, which promises nothing yet."""
    mark = mark_pb2.Mark(watermark_us=START_OF_TIME_US)
    if stored is not None:
        mark.CopyFrom(stored.mark)
    mark.epoch += 1
    mark.owner = owner
    mark.commit_id = commit_id
    return mark
