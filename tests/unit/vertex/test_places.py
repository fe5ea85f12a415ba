"""A lane refuses a pipeline that has its edges elsewhere than its mark."""

from __future__ import annotations

import pytest

from millstream import codes
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex.taking_over import check_places
from millstream_writer.committer import Member
from tests.support.errors import raises

LANE = LaneId("a", "in-a", 0)
B = Member("b", "a-b", frozenset({"b-out"}))


@pytest.mark.parametrize(
    ("mark", "members", "buffers", "said"),
    [
        (mark_pb2.Mark(written=[mark_pb2.Written(edge="a-b", frames=2)]), [B], {"in-a", "b-out"}, "chain: false"),
        (mark_pb2.Mark(members=[mark_pb2.Member(vertex="b", edge="a-b")]), [], {"in-a", "a-b", "b-out"}, "chain: true"),
    ],
)
def test_an_edge_that_moved_is_refused(
    mark: mark_pb2.Mark, members: list[Member], buffers: set[str], said: str
) -> None:
    with raises(codes.DATA_OF_ANOTHER_PIPELINE, match=f"lane a/in-a.0: edge a-b .*{said}"):
        check_places(LANE, mark, members, buffers)


def test_what_is_where_it_was_and_what_left_under_another_name_are_not() -> None:
    chained = mark_pb2.Mark(
        members=[mark_pb2.Member(vertex="b", edge="a-b"), mark_pb2.Member(vertex="former", edge="a-former")],
        written=[mark_pb2.Written(edge="a-b", records=5), mark_pb2.Written(edge="b-out", frames=1)],
    )
    check_places(LANE, chained, [B], {"in-a", "b-out"})
    check_places(LANE, mark_pb2.Mark(written=[mark_pb2.Written(edge="a-b", frames=2)]), [], {"in-a", "a-b"})
