"""A mark that knows less than what its lane has published is damage; one that knows as much, or more, is not."""

from __future__ import annotations

import pytest

from millstream import codes
from millstream.ledger.protocol import StoredMark
from millstream.record import LaneId
from millstream.wire.ledger.v1.mark_pb2 import Account, InputProgress, Mark, ReduceProgress, Written
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry
from millstream_vertex.taking_over import check_not_older
from tests.support.errors import raises

MAP = LaneId("map", "in-map", 0)
REDUCE = LaneId("sum", "window", 0)


def mark(sequence: int = 9, read: int = 80, written: int = 40, epoch: int = 3) -> StoredMark:
    totals = [Written(edge="map-out", partition=0, records=written)]
    account = Account(inputs=read)
    return StoredMark(Mark(epoch=epoch, sequence=sequence, account=account, written=totals), 12)


ENTRY = OtEntry(
    epoch=3,
    inputs=[BufferState(edge="in-map", partition=0, sequence=9, records=80)],
    outputs=[BufferState(edge="map-out", partition=0, sequence=11, records=40)],
)


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize(
    ("stored", "lacking"),
    [
        (None, r"is gone.*epoch 3; 80 processed records of in-map\.0, .*up to 0\); 40 records written to map-out\.0"),
        (mark(sequence=8), r"up to sequence 9 \(the mark has 80, up to 8\)"),
        (mark(read=79), "the mark has 79"),
        (mark(written=39), r"40 records written to map-out\.0 \(the mark has 39\)"),
        (mark(epoch=2), "epoch 3"),
    ],
)
def test_a_mark_that_knows_less_is_damage(stored: StoredMark | None, lacking: str) -> None:
    with raises(codes.LEDGER_CUT, match=rf"lane map/in-map\.0 in the ledger of vertex map .*{lacking}.*repair"):
        check_not_older(MAP, stored, ENTRY)


@pytest.mark.parametrize("stored", [mark(), mark(sequence=10, read=90, written=50, epoch=4)])
def test_one_that_knows_as_much_or_more_is_not(stored: StoredMark) -> None:
    check_not_older(MAP, stored, ENTRY)
    check_not_older(MAP, None, OtEntry())


@pytest.mark.guarantee("I10", "I15")
def test_of_a_reduce_every_input_counts() -> None:
    inputs = [InputProgress(edge=edge, sequence=5, records=50) for edge in ("a-sum", "b-sum")]
    stored = StoredMark(Mark(epoch=1, reduce=ReduceProgress(inputs=inputs)), 7)
    told = [BufferState(edge=edge, partition=0, sequence=5, records=50) for edge in ("a-sum", "b-sum")]
    check_not_older(REDUCE, stored, OtEntry(epoch=1, inputs=told))
    told[1].sequence = 6
    with raises(codes.LEDGER_CUT, match=r"records of b-sum\.0"):
        check_not_older(REDUCE, stored, OtEntry(epoch=1, inputs=told))
