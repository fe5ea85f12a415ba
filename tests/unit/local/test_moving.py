"""What moves from mark to mark between two runs, in ledgers and OT stores in memory."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.account import account_of, consumed
from millstream.buffers.placed import placed
from millstream.ledger.memory import open_memory_broker
from millstream.ledger.protocol import Commit, LedgerLimits
from millstream.plan.plan import Plan, plan_of
from millstream.record import LaneId
from millstream.spec.graph import Graph
from millstream.watermark.memory import OtMemory, open_memory_ot_stores
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.moving import count_in_first, gather, separate, take_in
from tests.unit.spec.test_graph import IN, MAP, OUT, arrow, pipeline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millstream.buffers.technology import InterStepBuffer
    from millstream.ledger.protocol import Broker, Ledger
    from millstream.watermark.store import OtStores

LANES = LaneId("a", "x-a", 0), LaneId("a", "y-a", 0)
NEW = LaneId("b", "a-b", 0)

JOIN: dict[str, Any] = {"x": IN, "y": IN, "a": MAP, "b": MAP, "c": MAP, "out": OUT}


def joined(*, apart: bool) -> Plan:
    """Two sources, and a chain of maps behind their join, which ends or does not end at `b`."""
    edges = [arrow("x>a"), arrow("y>a"), arrow("a>b", chain=not apart), arrow("b>c", chain=True), arrow("c>out")]
    return plan_of(Graph.of(pipeline(JOIN, edges)), {"b": "a"} if apart else {})


def mark(records: int) -> mark_pb2.Mark:
    """A mark of a lane of the chain that has had so many records."""
    account = mark_pb2.Account(inputs=records, input_bytes=10 * records, processed=records, outputs=records)
    members = [mark_pb2.Member(vertex=one, edge=edge, account=account) for one, edge in (("b", "a-b"), ("c", "b-c"))]
    written = [mark_pb2.Written(edge=edge, records=records, bytes=10 * records) for edge in ("a-b", "b-c")]
    written.append(mark_pb2.Written(edge="c-out", frames=3, records=records, bytes=10 * records))
    continued = mark_pb2.Continued(sequence=records)
    return mark_pb2.Mark(account=account, members=members, written=written, watermark_us=records, continued=continued)


async def store(ledger: Ledger, lane: LaneId, what: mark_pb2.Mark) -> None:
    stored = await ledger.take_over(lane, "test")
    what.epoch, what.commit_id = stored.mark.epoch, b"test"
    await ledger.commit(Commit(lane, (), what, stored.sequence, replaces=stored.mark.commit_id))


async def of(ledger: Ledger, lane: LaneId) -> mark_pb2.Mark:
    stored = await ledger.mark(lane)
    assert stored is not None
    return stored.mark


def totals(what: mark_pb2.Mark) -> dict[str, tuple[int, int, int]]:
    return {one.edge: (one.frames, one.records, one.bytes) for one in what.written}


@dataclass
class Kept:
    """What a technology opens, as far as it is needed here."""

    broker: Broker
    stores: OtStores
    repairs: Any = None

    def trouble(self) -> None:
        return None


@asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[InterStepBuffer]:
    async with open_memory_broker("p") as broker, open_memory_ot_stores(OtMemory(), "p") as stores:
        yield placed(Kept(broker, stores), plan)


async def filled(kept: InterStepBuffer) -> Ledger:
    """The ledger of the chain, whose lanes have had 5 and 7 records."""
    ledger = await kept.broker.ledger("a", LedgerLimits(frames_per_buffer_max=10))
    for lane, records in zip(LANES, (5, 7), strict=True):
        await store(ledger, lane, mark(records))
    return ledger


async def test_lanes_of_a_join_leave_to_the_next_vertex_what_all_of_them_did_for_it() -> None:
    plan, noted = joined(apart=True), list[set[str]]()
    async with opened(plan) as kept:
        ledger = await filled(kept)
        await separate(plan, kept.broker, kept.stores, "change", lambda done: noted.append(set(done)), divided=())
        new = await of(ledger, NEW)
        assert noted == [{"b"}]
        assert (new.account.inputs, [(one.vertex, one.account.inputs) for one in new.members]) == (12, [("c", 12)])
        # Its frames are numbered from 1, and its watermark is that of both.
        assert totals(new) == {"b-c": (0, 12, 120), "c-out": (0, 12, 120)}
        assert (new.watermark_us, new.sequence, list(new.read), new.continued.sequence) == (5, 0, [], 7)
        for lane, records in zip(LANES, (5, 7), strict=True):
            left = await of(ledger, lane)
            assert (left.account.inputs, list(left.members)) == (records, [])
            assert totals(left) == {"a-b": (0, records, 10 * records)}
        # It is done.
        await separate(plan, kept.broker, kept.stores, "change", lambda done: noted.append(set(done)), divided=())
        assert await of(ledger, NEW) == new


async def test_what_was_noted_is_not_divided_again() -> None:
    plan = joined(apart=True)
    async with opened(plan) as kept:
        ledger = await filled(kept)
        second = await of(ledger, LANES[1])
        await separate(plan, kept.broker, kept.stores, "change", lambda done: None, divided=())
        # A process that was killed after it had shortened only one of two marks.
        await store(ledger, LANES[1], second)
        new = await of(ledger, NEW)
        await separate(plan, kept.broker, kept.stores, "change", lambda done: None, divided=["b"])
        assert await of(ledger, NEW) == new
        assert not (await of(ledger, LANES[1])).members


async def test_a_chain_that_stays_as_it_is_keeps_its_marks() -> None:
    plan = joined(apart=False)
    async with opened(plan) as kept:
        ledger = await filled(kept)
        before = [await of(ledger, lane) for lane in LANES]
        await separate(plan, kept.broker, kept.stores, "change", lambda done: None, divided=())
        assert [await of(ledger, lane) for lane in LANES] == before
        assert await ledger.mark(NEW) is None


async def test_lanes_of_a_removed_edge_leave_their_account_once() -> None:
    plan = joined(apart=False)
    async with opened(plan) as kept:
        ledger = await filled(kept)
        await store(ledger, LaneId("a", "z-a", 0), mark(11))
        for _ in range(2):
            await take_in(plan, kept.broker, {"z-a": "a", "z-gone": "gone"}, "change")
            now = await of(ledger, LANES[0])
            assert now.account.inputs == 5
            assert [account_of(vertex, LANES[0], now).inputs for vertex in ("a", "b", "c")] == [16, 16, 16]
            assert totals(now) == {"a-b": (0, 16, 160), "b-c": (0, 16, 160), "c-out": (3, 16, 160)}
            assert (await of(ledger, LANES[1])).account.inputs == 7
        # The next file, after an interruption, has only the other edge: what was taken in before comes with its lane.
        only = [arrow("y>a", chain=False), arrow("a>b", chain=True), arrow("b>c", chain=True), arrow("c>out")]
        vertices = {name: step for name, step in JOIN.items() if name != "x"}
        for _ in range(2):
            await take_in(plan_of(Graph.of(pipeline(vertices, only))), kept.broker, {"z-a": "a", "x-a": "a"}, "change")
            now = await of(ledger, LANES[1])
            assert [account_of(vertex, LANES[1], now).inputs for vertex in ("a", "b", "c")] == [23, 23, 23]
            assert totals(now)["c-out"] == (3, 23, 230)


def in_partitions(partitions: int) -> Plan:
    """A chain of two maps in so many lanes."""
    own = {**MAP, "partitions": partitions}
    vertices: dict[str, Any] = {"x": IN, "a": own, "b": own, "out": OUT}
    edges = [arrow("x>a", chain=False), arrow("a>b", chain=True), arrow("b>out")]
    return plan_of(Graph.of(pipeline(vertices, edges)))


async def test_what_lanes_have_done_is_counted_once_whether_their_vertex_has_them_or_not() -> None:
    async with opened(in_partitions(3)) as kept:
        ledger = await kept.broker.ledger("a", LedgerLimits(frames_per_buffer_max=10))
        for lane in in_partitions(3).lanes_of("a"):
            records = 5 + lane.partition
            account = mark_pb2.Account(inputs=records, processed=records, outputs=records)
            what = mark_pb2.Mark(account=account, watermark_us=records)
            what.members.add(vertex="b", edge="a-b", account=account)
            what.written.add(edge="a-b", partition=lane.partition, records=records)
            what.written.add(edge="b-out", frames=3, records=records)
            what.written.add(edge="_state-a", partition=lane.partition, frames=4, records=4)
            await store(ledger, lane, what)
        former = 3
        for partitions in (1, 2, 1, 3, 2):
            plan = in_partitions(partitions)
            for _ in range(2):
                # As after an interruption.
                await count_in_first(plan, ledger, "a", former, "change")
                marks = {lane: await of(ledger, lane) for lane in plan.lanes_of("a")}
                for vertex in ("a", "b"):
                    assert sum(account_of(vertex, lane, mark).inputs for lane, mark in marks.items()) == 5 + 6 + 7
                assert sum(totals(mark)["b-out"][1] for mark in marks.values()) == 5 + 6 + 7
                for lane, mark in marks.items():
                    # What is read from a buffer, or passes over an edge of the chain, is counted where it is written.
                    inside = [one for one in mark.written if one.edge == "a-b"]
                    assert {one.partition for one in inside} == {lane.partition}
                    assert sum(one.records for one in inside) == account_of("b", lane, mark).inputs
                    assert mark.account.inputs == 5 + lane.partition
                    assert (totals(mark)["b-out"][0], totals(mark)["_state-a"][0]) == (3, 4)
            former = partitions


async def test_another_vertex_may_leave_where_an_earlier_change_was_interrupted() -> None:
    all_apart = [arrow("x>a"), arrow("y>a"), arrow("a>b"), arrow("b>c"), arrow("c>out")]
    plan = joined(apart=True)
    further = plan_of(Graph.of(pipeline(JOIN, all_apart, chain=False)), {"b": "a", "c": "a"})
    async with opened(further) as kept:
        ledger = await filled(kept)
        second = await of(ledger, LANES[1])
        await separate(plan, kept.broker, kept.stores, "change", lambda done: None, divided=())
        # Killed after it had shortened only one of two marks; the next file separates `c`, too.
        await store(ledger, LANES[1], second)
        await separate(further, kept.broker, kept.stores, "change", lambda done: None, divided=["b"])
        b, c = await of(ledger, NEW), await of(ledger, LaneId("c", "b-c", 0))
        assert (b.account.inputs, list(b.members), totals(b)) == (12, [], {"b-c": (0, 12, 120)})
        assert (c.account.inputs, totals(c)) == (12, {"c-out": (0, 12, 120)})
        assert not (await of(ledger, LANES[1])).members


REMEMBERS = {"udf": {"python": "f.py:f", "state": {}}}


async def test_a_map_that_remembers_now_goes_on_where_the_lanes_of_its_edges_were() -> None:
    edges = [arrow("x>a"), arrow("y>a"), arrow("a>b", chain=True), arrow("b>c", chain=True), arrow("c>out")]
    plan = plan_of(Graph.of(pipeline({**JOIN, "a": REMEMBERS}, edges)))
    (lane,) = plan.lanes_of("a")
    async with opened(plan) as kept:
        ledger = await filled(kept)
        with_places = mark(7)
        with_places.sequence, with_places.record_index = 40, 3
        with_places.read.add(lane="source.0", sequence=41, number=9)
        with_places.accepted.add(edge="y-a", records=2, bytes=20)
        await store(ledger, LANES[1], with_places)
        for _ in range(2):
            await gather(plan, kept.broker, {"a": ["x-a", "y-a"], "gone": ["x-gone"]}, "change")
            now = await of(ledger, lane)
            assert {one.buffer.edge: (one.records, tuple(one.position)) for one in consumed(lane, now)} == {
                "x-a": (5, (0, 0)), "y-a": (9, (40, 3)), "a-b": (12, (0, 0)), "b-c": (12, (0, 0))
            }  # fmt: skip
            assert [done.read[0].number for done in now.inputs if done.read] == [9]
            assert [account_of(vertex, lane, now).inputs for vertex in ("a", "b", "c")] == [12, 12, 12]
            # Its frames are numbered from 1, and its watermark is that of all.
            assert totals(now) == {"a-b": (0, 12, 120), "b-c": (0, 12, 120), "c-out": (0, 12, 120)}
            assert (now.watermark_us, now.continued.sequence) == (5, 7)


async def test_a_map_that_leaves_its_chain_to_remember_reads_its_edge_from_the_beginning() -> None:
    edges = [arrow("x>a", chain=False), arrow("y>a", chain=False), arrow("a>b"), arrow("b>c"), arrow("c>out")]
    plan = plan_of(Graph.of(pipeline({**JOIN, "b": REMEMBERS}, edges, chain=True)), {"b": "a"})
    (lane,) = plan.lanes_of("b")
    async with opened(plan) as kept:
        ledger = await filled(kept)
        await separate(plan, kept.broker, kept.stores, "change", lambda done: None, divided=())
        now = await of(ledger, lane)
        found = {one.buffer.edge: (one.records, one.bytes, one.position.sequence) for one in consumed(lane, now)}
        assert found == {"a-b": (12, 120, 0), "b-c": (12, 12 * 10, 0)}
