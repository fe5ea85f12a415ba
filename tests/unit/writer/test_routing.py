"""Which record goes into which buffer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.frame import Frame, build_frame, partition_of
from millstream.limits import COMMIT_BYTES_MAX, COMMIT_MESSAGES_MAX, FRAME_BYTES_MAX, FRAME_RECORDS_MAX, MIB
from millstream.record import BufferId
from millstream_udf import columns
from millstream_writer.committer import Unit, batch_of, join_small
from millstream_writer.routing import FrameLimits, Route, Router, cut, tag_condition


def numbered(count: int, keys: Sequence[Sequence[bytes]] | None = None) -> Frame:
    return build_frame(
        [b"%d" % number for number in range(count)], array("q", range(count)), ingest_time_us=0, keys=keys
    )


def contents(router_frames: Sequence[tuple[BufferId, Frame]]) -> dict[BufferId, list[bytes]]:
    result: dict[BufferId, list[bytes]] = {}
    for buffer, frame in router_frames:
        result.setdefault(buffer, []).extend(frame.values())
    return result


@pytest.mark.parametrize(
    ("operator", "passing"),
    [("or", [{"a"}, {"b"}, {"a", "c"}]), ("and", [{"a", "b"}, {"a", "b", "c"}]), ("not", [set(), {"c"}])],
)
def test_conditions(operator: str, passing: list[set[str]]) -> None:
    condition = tag_condition(operator, ["a", "b"])
    assert condition is not None
    every = [set[str](), {"a"}, {"b"}, {"c"}, {"a", "b"}, {"a", "c"}, {"a", "b", "c"}]
    passed = [tags for tags in every if condition(frozenset(tag.encode() for tag in tags))]
    assert all(tags in passed for tags in passing)
    assert {operator: len(passed)} == {operator: {"or": 5, "and": 2, "not": 2}[operator]}


def test_no_values_means_always() -> None:
    assert tag_condition("or", []) is None


def test_a_frame_that_needs_no_look_is_passed_on_as_it_is() -> None:
    frame = numbered(3)
    routed = Router([Route("e", 1, None), Route("f", 1, None)]).route(frame, None)
    assert [part for _, part in routed.frames] == [frame, frame]
    assert routed.frames[0][1] is frame
    assert routed.unrouted == 0


def test_every_partition_gets_the_records_of_a_table() -> None:
    keys = [[b"%d" % number] for number in range(7)]
    router = Router([Route("table", 3, None, is_table=True), Route("e", 3, None)])
    frame = numbered(7, keys)
    found = contents(router.route(frame, None).frames)
    assert [found[BufferId("table", number)] for number in range(3)] == [frame.values()] * 3
    assert sorted(value for number in range(3) for value in found.get(BufferId("e", number), [])) == frame.values()
    assert router.copies_max == 4
    some = contents(router.route(frame, None, FrameLimits(3, 1 << 20)).frames)
    assert some[BufferId("table", 2)] == frame.values()


def test_tags_choose_edges_and_what_no_edge_wants_is_counted() -> None:
    router = Router([Route("late", 1, tag_condition("or", ["late"])), Route("odd", 1, tag_condition("or", ["odd"]))])
    routed = router.route(numbered(4), [(b"late",), (b"late", b"odd"), (), (b"odd",)])
    assert contents(routed.frames) == {BufferId("late", 0): [b"0", b"1"], BufferId("odd", 0): [b"1", b"3"]}
    assert routed.unrouted == 1


@given(st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=2), min_size=1, max_size=50), st.integers(2, 7))
def test_keys_choose_the_partition_and_order_is_kept(keys: list[list[bytes]], partitions: int) -> None:
    routed = Router([Route("e", partitions, None)]).route(numbered(len(keys), keys), None)
    expected: dict[BufferId, list[bytes]] = {}
    for number, parts in enumerate(keys):
        expected.setdefault(BufferId("e", partition_of(parts, partitions)), []).append(b"%d" % number)
    assert contents(routed.frames) == expected


def test_frames_without_keys_take_turns() -> None:
    router = Router([Route("e", 3, None)])
    buffers = [router.route(numbered(1), None).frames[0][0].partition for _ in range(6)]
    assert sorted(buffers) == [0, 0, 1, 1, 2, 2]


def test_records_without_keys_take_turns_among_records_with_keys() -> None:
    router = Router([Route("e", 3, None)])
    keyed = partition_of([b"k"], 3)
    partitions = set()
    for _ in range(3):
        found = contents(router.route(numbered(2, [[b"k"], []]), None).frames)
        assert b"0" in found[BufferId("e", keyed)]
        partitions |= {buffer.partition for buffer, values in found.items() if b"1" in values}
    assert partitions == {0, 1, 2}


def test_dead_letters_take_their_own_edges() -> None:
    router = Router([Route("e", 1, None)], dead_letter=[Route("dead", 1, None, discard_when_full=True)])
    assert router.has_dead_letter
    assert set(router.buffers) == {BufferId("e", 0), BufferId("dead", 0)}
    assert contents(router.route_dead_letter(numbered(2)).frames) == {BufferId("dead", 0): [b"0", b"1"]}
    assert router.discards_when_full(BufferId("dead", 0))
    assert not router.discards_when_full(BufferId("e", 0))


@given(st.lists(st.integers(0, FRAME_BYTES_MAX + 1), min_size=1, max_size=8))
def test_a_cut_frame_keeps_to_the_limits(sizes: list[int]) -> None:
    values = [b"x" * size for size in sizes]
    frame = build_frame(values, array("q", range(len(sizes))), ingest_time_us=0)
    parts = cut(frame)
    assert [value for part in parts for value in part.values()] == values
    assert all(part.records == 1 or part.size <= FRAME_BYTES_MAX for part in parts)


def test_a_cut_frame_keeps_to_the_number_of_records() -> None:
    parts = cut(numbered(2 * FRAME_RECORDS_MAX + 1))
    assert sum(part.records for part in parts) == 2 * FRAME_RECORDS_MAX + 1
    assert max(part.records for part in parts) <= FRAME_RECORDS_MAX


@given(st.lists(st.integers(0, 6_000), min_size=1, max_size=30), st.integers(1, 8), st.integers(8_000, 20_000))
def test_a_writer_may_have_limits_of_its_own(sizes: list[int], records: int, size: int) -> None:
    frame = build_frame([b"x" * length for length in sizes], array("q", range(len(sizes))), ingest_time_us=0)
    routed = Router([Route("e", 1, None)]).route(frame, None, FrameLimits(records, size))
    parts = [part for _, part in routed.frames]
    assert [value for part in parts for value in part.values()] == frame.values()
    assert all(part.records <= records and (part.records == 1 or part.size <= size) for part in parts)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 900)), max_size=30), st.sampled_from([512, 4096]))
def test_joining_keeps_the_order_of_each_buffer(pieces: list[tuple[int, int]], below: int) -> None:
    frames = [(BufferId("e", partition), numbered(count)) for partition, count in pieces]
    joined = join_small(frames, lambda _: below)
    assert contents(joined) == contents(frames)
    assert all(frame.records <= FRAME_RECORDS_MAX for _, frame in joined)
    assert len(joined) <= len(frames)


@pytest.mark.parametrize(
    ("route", "whole"),
    [
        (Route("e", 4, None), True),
        (Route("e", 4, None, discard_when_full=True), False),
        (Route("e", 4, None, piece=FrameLimits(1000, 1 << 20)), False),
    ],
)
def test_what_was_split_by_key_becomes_whole_frames_where_that_is_cheap(route: Route, whole: bool) -> None:
    frames = [(BufferId("e", 1), numbered(1024)) for _ in range(5)]
    sizes = [frame.records for _, frame in join_small(frames, Router([route]).joins_below)]
    assert sizes == ([4096, 1024] if whole and columns.is_compiled() else [1024] * 5)


def test_a_batch_keeps_to_the_limits_of_a_commit() -> None:
    unit = Unit(frames=[(BufferId("e", 0), numbered(1))] * 400, size=400)
    assert batch_of([unit, unit, unit]) == 2
    assert COMMIT_MESSAGES_MAX - 2 in range(800, 1200)
    large = Unit(size=COMMIT_BYTES_MAX - MIB)
    assert batch_of([large, large]) == 1
    assert batch_of([Unit(size=2 * COMMIT_BYTES_MAX)]) == 1
