"""What lanes say of themselves when the state of their vertex has moved, in ledgers and OT stores in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.compression import Compression
from millstream.ledger.memory import open_memory_broker
from millstream.ledger.rewriting import rewritten
from millstream.plan.plan import Plan, plan_of
from millstream.spec.graph import Graph
from millstream.udf.states import StateKind
from millstream.watermark.memory import OtMemory, open_memory_ot_stores
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from millstream_runner.local.moving_states import bounds_of, check_states_fit, move_states
from millstream_runner.local.stored_states import state_of
from millstream_vertex.keyed.owned import open_owned_state
from millstream_vertex.keyed.redistribution import home_of
from millstream_vertex.keyed.state import EntryChange
from millstream_vertex.settings import ledger_limits
from tests.support.ledgers import SettableClock
from tests.unit.spec.test_graph import OUT, arrow, pipeline

if TYPE_CHECKING:
    from millstream.ledger.protocol import Broker, Ledger

KEYS = [b"k%d" % number for number in range(20)]
TOTAL = state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1)


KEYED = {"source": {"generator": {"keyCount": 2}}}


def plan(partitions: int) -> Plan:
    own: dict[str, Any] = {"udf": {"python": "f.py:F", "state": {}}, "partitions": partitions}
    edges = [arrow("x>a", chain=False), arrow("a>out", chain=False)]
    return plan_of(Graph.of(pipeline({"x": KEYED, "a": own, "out": OUT}, edges)))


async def filled(broker: Broker, watermarks_us: dict[int, int], ended: tuple[int, ...] = ()) -> Ledger:
    """The ledger of two lanes that are so far and have entries, and of which some have ended."""
    ledger = await broker.ledger("a", ledger_limits(plan(2), "a"))
    for lane in plan(2).lanes_of("a"):
        bounds = bounds_of(plan(2), "a")
        opening = open_owned_state(ledger, lane, "test", bounds, compression=Compression.NONE, clock=SettableClock())
        async with opening as owned:
            mine = [key for key in KEYS if home_of(key, 2) == lane.partition]
            await owned.apply([EntryChange(key, owned.keyed.adopt(TOTAL), b"", key) for key in mine])
        async with rewritten(ledger, lane, "test") as mark:
            mark.watermark_us, mark.ended = watermarks_us[lane.partition], lane.partition in ended
            mark.sequence, mark.account.inputs, mark.account.processed = 7, 3, 3
    return ledger


async def marks(ledger: Ledger, of: Plan) -> list[mark_pb2.Mark]:
    found = [await ledger.mark(lane) for lane in of.lanes_of("a")]
    return [one.mark for one in found if one is not None]


@pytest.mark.slow
@pytest.mark.guarantee("I5", "I7")
@pytest.mark.parametrize(
    ("watermarks_us", "ended", "lowest_us", "expired_us", "all_ended"),
    [
        ({0: 100, 1: 90}, (), 90, 100, False),
        ({0: START_OF_TIME_US, 1: 90}, (), START_OF_TIME_US, 90, False),
        ({0: END_OF_TIME_US, 1: 90}, (0,), 90, 90, False),
        ({0: END_OF_TIME_US, 1: END_OF_TIME_US}, (0, 1), END_OF_TIME_US, START_OF_TIME_US, True),
    ],
)
async def test_every_lane_is_as_far_as_the_vertex_has_promised_and_what_had_expired_stays_so(
    watermarks_us: dict[int, int], ended: tuple[int, ...], lowest_us: int, expired_us: int, all_ended: bool
) -> None:
    async with open_memory_broker("p") as broker, open_memory_ot_stores(OtMemory(), "p") as stores:
        ledger = await filled(broker, watermarks_us, ended)
        ot = await stores.store("a")
        for lane in plan(2).lanes_of("a"):
            await ot.take_over(lane, 9)
            ot.publish(lane, OtEntry(epoch=9, watermark_us=watermarks_us[lane.partition]))
        now = plan(5)
        await check_states_fit(now, broker, "a", 2, "change")
        moved = await move_states(now, broker, stores, "a", 2, "change")
        assert moved == sum(home_of(key, 5) != home_of(key, 2) for key in KEYS)
        found = await marks(ledger, now)
        assert [(mark.watermark_us, mark.ended) for mark in found] == [(lowest_us, all_ended)] * 5
        assert [(mark.sequence, mark.account.inputs) for mark in found] == [(7, 3)] * 2 + [(0, 0)] * 3
        for lane in now.lanes_of("a"):
            state = await state_of(ledger, lane)
            assert state is not None
            assert state.keyed.watermark_us == max(expired_us, START_OF_TIME_US)
            assert {key for key, *_ in state.keyed.all()} == {key for key in KEYS if home_of(key, 5) == lane.partition}
        assert await ot.get_all() == {}
        # Made again, it moves nothing.
        assert await move_states(now, broker, stores, "a", 2, "change") == 0
        assert [(mark.watermark_us, mark.ended) for mark in await marks(ledger, now)] == [(lowest_us, all_ended)] * 5


@pytest.mark.guarantee("I2", "I7")
async def test_fewer_lanes_have_everything_and_count_what_the_others_did() -> None:
    async with open_memory_broker("p") as broker, open_memory_ot_stores(OtMemory(), "p") as stores:
        ledger = await filled(broker, {0: 100, 1: 90})
        now = plan(1)
        assert await move_states(now, broker, stores, "a", 2, "change") == sum(home_of(key, 2) for key in KEYS)
        (mark,) = await marks(ledger, now)
        assert [(one.vertex, one.edge, one.account.inputs) for one in mark.members] == [("a", "_all.1", 3)]
        state = await state_of(ledger, now.lanes_of("a")[0])
        assert state is not None
        assert sorted(key for key, *_ in state.keyed.all()) == sorted(KEYS)
        gone = await state_of(ledger, plan(2).lanes_of("a")[1])
        assert gone is not None
        assert list(gone.keyed.all()) == []


async def test_a_vertex_that_has_stored_nothing_has_nothing_to_move() -> None:
    async with open_memory_broker("p") as broker, open_memory_ot_stores(OtMemory(), "p") as stores:
        await check_states_fit(plan(3), broker, "a", 2, "change")
        assert await move_states(plan(3), broker, stores, "a", 2, "change") == 0
