"""Edges that leave the copies that they share: which have to, when they may, and what their readers rely on then."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from millstream import codes
from millstream.frame import build_frame
from millstream.ledger.memory import open_memory_broker
from millstream.ledger.protocol import Broker, Commit, FrameWrite, Ledger, LedgerLimits
from millstream.ledger.sharing import Sharing
from millstream.ledger.witness import from_messages, given_up_of
from millstream.plan.plan import Plan, plan_of
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex.settings import ledger_limits
from millstream_vertex.shared_copies import checked, leave, leaving, read_now
from tests.support.errors import raises

ODD = {"conditions": {"tags": {"values": ["odd"]}}}
LIMITS = LedgerLimits(frames_per_buffer_max=1000)


def plan_with(partitions: dict[str, int], **more: dict[str, Any]) -> Plan:
    """A source, and sinks with so many partitions; `more`: what the edge into one of them has."""
    vertices: list[dict[str, Any]] = [{"name": "in", "source": {"generator": {}}}]
    vertices += [{"name": name, "partitions": count, "sink": {"log": {}}} for name, count in partitions.items()]
    edges = [{"from": "in", "to": name, **more.get(name, {})} for name in partitions]
    document = {
        "apiVersion": "millstream.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "p"},
        "spec": {"vertices": vertices, "edges": edges},
    }
    return plan_of(Graph.of(Pipeline.model_validate(document)))


BEFORE = plan_with({"a": 1, "b": 1, "c": 1})
SHARING = Sharing.of({"_in-1": ("in-a", "in-b", "in-c")})
WRITER = LaneId("in", "source", 0)


@pytest.mark.parametrize(
    ("now", "edges"),
    [
        (BEFORE, []),
        (plan_with({"a": 1, "b": 1, "c": 1, "d": 1}), []),
        (plan_with({"b": 1}), []),
        (plan_with({"a": 2, "b": 2, "c": 2}), []),
        (plan_with({"a": 1, "b": 1, "c": 1}, b=ODD), ["in-b"]),
        (plan_with({"a": 1, "b": 1, "c": 1}, b=ODD, c=ODD), ["in-a"]),
        (plan_with({"a": 1, "b": 2}), ["in-b"]),
        (plan_with({"a": 1, "b": 1, "c": 1}, a={"onFull": "discardLatest"}, b=ODD), ["in-b", "in-c"]),
    ],
)
def test_of_edges_that_are_divided_most_stay(now: Plan, edges: Sequence[str]) -> None:
    assert leaving(now, "in", SHARING) == edges


def test_a_worker_refuses_edges_that_have_to_leave() -> None:
    assert checked(plan_with({"a": 1, "c": 1, "d": 1}), "in", SHARING, "p/in").stores.keys() == {"in-a", "in-c"}
    with raises(codes.DATA_OF_ANOTHER_PIPELINE, match=r"edge in-b are stored together with those of in-a, in-c"):
        checked(plan_with({"a": 1, "b": 1, "c": 1}, b=ODD), "in", SHARING, "p/in")


async def open_ledger(broker: Broker) -> Ledger:
    ledger = await broker.ledger("in", ledger_limits(BEFORE, "in"))
    assert ledger.sharing == SHARING
    return ledger


async def write(ledger: Ledger, edges: Sequence[str], values: Sequence[bytes]) -> int:
    """A commit of the source, one frame for each value; the sequence of the last one."""
    stored = await ledger.take_over(WRITER, "writer")
    mark = mark_pb2.Mark()
    mark.CopyFrom(stored.mark)
    mark.commit_id = uuid4().bytes
    for edge in edges:
        total = next((one for one in mark.written if one.edge == edge), None) or mark.written.add(edge=edge)
        total.frames += len(values)
        total.records += len(values)
    frames = [build_frame([value], array("q", [1]), ingest_time_us=0).encode() for value in values]
    writes = [FrameWrite(BufferId(edges[0], 0), data) for data in frames]
    return (await ledger.commit(Commit(WRITER, writes, mark, stored.sequence))).frame_sequences[-1]


async def read_up_to(broker: Broker, ledger: Ledger, vertex: str, sequence: int) -> None:
    """The reader of a sink's lane commits that it has read so far."""
    own, lane = await broker.ledger(vertex, LIMITS), LaneId(vertex, f"in-{vertex}", 0)
    stored = await own.take_over(lane, "reader")
    mark = mark_pb2.Mark()
    mark.CopyFrom(stored.mark)
    mark.commit_id = uuid4().bytes
    mark.sequence = sequence
    (frame,) = await ledger.peek(BufferId(lane.input, 0), sequence - 1, 1)
    assert frame.witness is not None
    mark.read.add(**frame.witness._asdict())
    await own.commit(Commit(lane, (), mark, stored.sequence))


async def read_on(broker: Broker, ledger: Ledger, vertex: str, frames: int) -> list[int]:
    """Numbers of the next frames that the reader of a sink's lane gets, checked as it checks them."""
    own, lane = await broker.ledger(vertex, LIMITS), LaneId(vertex, f"in-{vertex}", 0)
    stored = await own.mark(lane)
    assert stored is not None
    witnesses, given_up = from_messages(stored.mark.read), given_up_of(stored.mark, lane.input)
    numbers: list[int] = []
    async with (
        asyncio.timeout(10),
        ledger.read(BufferId(lane.input, 0), stored.mark.sequence, witnesses, given_up) as arriving,
    ):
        async for frame in arriving:
            assert frame.witness is not None
            numbers.append(frame.witness.number)
            if len(numbers) == frames:
                break
    return numbers


@pytest.mark.guarantee("I1", "I15")
async def test_an_edge_leaves_and_its_reader_goes_on_behind_what_it_has_read() -> None:
    async with open_memory_broker("p") as broker:
        ledger = await open_ledger(broker)
        last = await write(ledger, ("in-a", "in-b", "in-c"), [b"1", b"2", b"3"])
        for vertex in "ab":
            await read_up_to(broker, ledger, vertex, last)
        await leave(BEFORE, "in", ["in-b"], broker.existing_ledger)
        assert ledger.sharing == SHARING.without(["in-b"])
        # What the reader has read last goes with the copy, which it does not read any more.
        await write(ledger, ("in-a", "in-c"), [b"4"])
        await write(ledger, ("in-b",), [b"4", b"5"])
        await ledger.trim({BufferId("in-a", 0): last})
        assert await read_on(broker, ledger, "b", 2) == [4, 5]
        with raises(codes.LEDGER_CUT):
            await read_on(broker, ledger, "a", 1)


@pytest.mark.guarantee("I1")
async def test_an_edge_in_which_records_wait_does_not_leave() -> None:
    async with open_memory_broker("p") as broker:
        ledger = await open_ledger(broker)
        last = await write(ledger, ("in-a", "in-b", "in-c"), [b"1", b"2"])
        await read_up_to(broker, ledger, "b", last)
        marks = await (await broker.ledger("b", LIMITS)).mark(LaneId("b", "in-b", 0))
        await write(ledger, ("in-a", "in-b", "in-c"), [b"3"])
        with raises(codes.CHANGED_WHERE_DATA_WAITS, match="edge in-b"):
            await leave(BEFORE, "in", ["in-b"], broker.existing_ledger)
        assert ledger.sharing == SHARING
        assert await (await broker.ledger("b", LIMITS)).mark(LaneId("b", "in-b", 0)) == marks


@pytest.mark.guarantee("I1")
async def test_an_edge_for_which_a_commit_is_prepared_does_not_leave() -> None:
    # Its frames are stored when the delivery that they were prepared with is found to be made.
    async with open_memory_broker("p") as broker:
        ledger = await open_ledger(broker)
        stored = await ledger.take_over(WRITER, "writer")
        mark = mark_pb2.Mark()
        mark.CopyFrom(stored.mark)
        mark.commit_id = uuid4().bytes
        mark.prepared.frames.add(edge="in-a", partition=0, data=b"a frame")
        await ledger.commit(Commit(WRITER, (), mark, stored.sequence))
        with raises(codes.CHANGED_WHERE_DATA_WAITS):
            await leave(BEFORE, "in", ["in-b"], broker.existing_ledger)
        assert ledger.sharing == SHARING


@pytest.mark.guarantee("I1")
async def test_an_owner_from_before_cannot_write_to_the_copy_once_an_edge_has_left() -> None:
    async with open_memory_broker("p") as broker:
        ledger = await open_ledger(broker)
        stored = await ledger.take_over(WRITER, "stale")
        await leave(BEFORE, "in", ["in-b"], broker.existing_ledger)
        mark = mark_pb2.Mark()
        mark.CopyFrom(stored.mark)
        mark.commit_id = uuid4().bytes
        with raises(codes.LANE_TAKEN_OVER):
            await ledger.commit(Commit(WRITER, [FrameWrite(BufferId("in-a", 0), b"x")], mark, stored.sequence))
        assert read_now(plan_with({"b": 1}), "in", ledger.sharing) == Sharing()
