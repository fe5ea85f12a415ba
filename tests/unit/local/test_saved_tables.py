"""Savepoints of vertices with tables: every lane of the pipeline that begins with one has the whole table, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream import codes
from millstream.compression import Compression
from millstream.ledger.memory import open_memory_broker
from millstream.ledger.rewriting import rewritten
from millstream.plan.plan import Plan, plan_of
from millstream.plan.shape import shape_of
from millstream.record import LaneId
from millstream.spec.graph import Graph
from millstream.spec.loading import LoadedPipeline, load
from millstream.udf.states import DeclaredState, StateKind
from millstream.watermark.memory import OtMemory, open_memory_ot_stores
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.moving_states import bounds_of, check_states_fit, move_states
from millstream_runner.local.savepoints.fitting import fit
from millstream_runner.local.savepoints.lanes import SavedLane, SavedLanes
from millstream_runner.local.savepoints.restoring import plan_restore
from millstream_runner.local.stored_states import state_of
from millstream_vertex.keyed.keys import table_key_of
from millstream_vertex.keyed.owned import open_owned_state
from millstream_vertex.keyed.redistribution import home_of
from millstream_vertex.keyed.state import EntryChange, KeyedState
from millstream_vertex.keyed.tables import Tables
from millstream_vertex.settings import ledger_limits
from tests.support.errors import raises
from tests.support.ledgers import SettableClock
from tests.unit.local.test_savepoints import KEYED, KEYS, OUT, restored, taken
from tests.unit.spec.test_graph import arrow, pipeline

if TYPE_CHECKING:
    from millstream.ledger.protocol import Broker

TOTAL = DeclaredState("total", StateKind.VALUE, "json")
FORMER = state_pb2.StoredState(name="table former of former-a", kind=StateKind.TABLE, clock=1)
RECORDS = 9
"""Of the table; more than it has entries, because some replaced others."""
RATES = {b"eur": b"1.5", b"gbp": b"1.25", b"k1": b"a key of records", b"": b"no part"}
EDGE = "rates-a"


def plan(partitions: int, state: dict[str, Any] | None, tables: dict[str, Any] | None = None) -> Plan:
    """`tables`: by default, the table `rates`."""
    own: dict[str, Any] = {"python": "f.py:F"}
    if tables or tables is None:
        own["tables"] = tables or {"rates": {}}
    if state is not None:
        own["state"] = state
    vertices = {"x": KEYED, "rates": KEYED, "a": {"udf": own, "partitions": partitions}, "out": OUT}
    return plan_of(Graph.of(pipeline(vertices, [arrow("x>a"), arrow("rates>a"), arrow("a>out", chain=False)])))


async def fill(broker: Broker, of: Plan) -> None:
    """What a run would have left: every lane has the table, and entries of its own keys."""
    ledger = await broker.ledger("a", ledger_limits(of, "a"))
    for lane in of.lanes_of("a"):
        opening = open_owned_state(
            ledger, lane, "test", bounds_of(of, "a"), compression=Compression.NONE, clock=SettableClock()
        )
        async with opening as owned:
            # The lanes have their states under different numbers.
            if lane.partition:
                owned.keyed.adopt(FORMER)
            opened(of, owned.keyed)
            number = next(n for n, one in enumerate(owned.keyed.stored) if one.name == f"table rates of {EDGE}")
            owned.keyed.stored[number].records = RECORDS
            await owned.apply([EntryChange(table_key_of([key]), number, b"", value) for key, value in RATES.items()])
            await owned.apply([EntryChange(key, number - 1, b"", key) for key in own_keys(of, lane)])
        async with rewritten(ledger, lane, "test") as mark:
            mark.watermark_us = 100
            mark.inputs.add(edge="x-a", sequence=30)
            mark.inputs.add(edge=EDGE, sequence=7)


def opened(of: Plan, keyed: KeyedState) -> Tables:
    """The tables of a lane, as the worker opens them."""
    tables = Tables("a", keyed, list(of.tables.values()))
    keyed.declare([*([TOTAL] if remembers(of) else []), *tables.declared()])
    tables.open()
    return tables


def remembers(of: Plan) -> bool:
    return bool(of.vertex("a").definition.has_state(of.vertex("a").settings))


def own_keys(of: Plan, lane: LaneId) -> list[bytes]:
    """The keys of the records of a lane."""
    return [key for key in KEYS if remembers(of) and home_of(key, len(of.lanes_of("a"))) == lane.partition]


async def check(broker: Broker, now: Plan) -> None:
    """Each lane gives its function the whole table, and has the entries of its keys."""
    ledger = await broker.existing_ledger("a")
    assert ledger is not None
    for lane in now.lanes_of("a"):
        state = await state_of(ledger, lane)
        assert state is not None
        entries = [(key, item, stored.value) for key, _, item, stored in state.keyed.all()]
        rates = [(table_key_of([key]), b"", value) for key, value in RATES.items()]
        assert sorted(entries) == sorted([*rates, *((key, b"", key) for key in own_keys(now, lane))])
        tables = opened(now, state.keyed)
        (update,) = tables.updates()
        assert dict(zip(update.keys, update.values, strict=True)) == {(key,): value for key, value in RATES.items()}
        # Other records do not wait for it again.
        assert tables.records_of(EDGE) == RECORDS


STATES = [None, {}, {"store": "disk"}]


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (2, 2)])
async def test_every_lane_has_the_whole_table(
    tmp_path: Path, state: dict[str, Any] | None, before: int, after: int
) -> None:
    of, now = plan(before, state), plan(after, state)
    async with open_memory_broker("p") as broker, open_memory_broker("p") as other:
        await fill(broker, of)
        savepoint = await taken(broker, of, tmp_path / "a")
        await restored(savepoint, now, other)
        await check(other, now)
        # A savepoint of that has the same.
        again = await taken(other, now, tmp_path / "b")
        assert again.facts["entries"] == after * len(RATES) + (0 if state is None else len(KEYS))


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
async def test_every_lane_has_the_whole_table_after_a_change_of_partitions(
    state: dict[str, Any] | None, tmp_path: Path, before: int, after: int
) -> None:
    now = plan(after, state)
    async with open_memory_broker("p") as broker, open_memory_ot_stores(OtMemory(), "p") as stores:
        await fill(broker, plan(before, state))
        await check_states_fit(now, broker, "a", before, "change", stores=tmp_path)
        await move_states(now, broker, stores, "a", before, "change", stores=tmp_path)
        await check(broker, now)


def declared(directory: Path, max_bytes: str) -> LoadedPipeline:
    (directory / "f.py").write_text("def process(value: bytes) -> bytes: return value\n", encoding="utf-8")
    source = "source: {generator: {keyCount: 2}}"
    file = directory / "p.yaml"
    file.write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"    - {{name: x, {source}}}\n    - {{name: rates, {source}}}\n    - name: a\n      partitions: 5\n"
        f"      udf: {{python: 'f.py:process', tables: {{rates: {{maxBytes: {max_bytes}}}}}}}\n"
        "    - {name: out, sink: {log: {}}}\n  edges:\n"
        "    - {from: x, to: a}\n    - {from: rates, to: a}\n    - {from: a, to: out, chain: false}\n",
        encoding="utf-8",
    )
    return load(file)


@pytest.mark.guarantee("I7")
async def test_a_vertex_with_tables_alone_has_no_states_to_compare_and_its_own_bound(tmp_path: Path) -> None:
    async with open_memory_broker("p") as broker:
        await fill(broker, plan(2, None))
        savepoint = await taken(broker, plan(2, None), tmp_path / "a")
    # As large as the table of one of the lanes that it may come from.
    size = sum(entries.size for entries in savepoint.entries(savepoint.lanes().lanes[0]))
    loaded = declared(tmp_path, str(size))
    restore = await plan_restore(DataDirectory(tmp_path / "b"), loaded, str(savepoint.path), ())
    assert len(restore.fit.marks) == 5
    with raises(codes.SAVEPOINT_NOT_USED, match=r"at most 100 are allowed \(`maxBytes` of its tables\)"):
        await plan_restore(DataDirectory(tmp_path / "b"), declared(tmp_path, "100"), str(savepoint.path), ())


@pytest.mark.guarantee("I7")
@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (plan(2, {}), plan(2, {}, {}), "edge rates-a went into table rates and now go to a as they are"),
        (plan(2, {}, {}), plan(2, {}), "edge rates-a went to a as they are and now go into table rates"),
        (plan(2, None), plan(2, {}, {}), "edge rates-a went into table rates"),
        (plan(2, {"scope": "lane"}), plan(5, {"scope": "lane"}), "a state for each lane, and had 2 partitions"),
        (plan(2, None), plan(5, {}), None),
        (plan(2, {}), plan(2, {}), None),
    ],
)
def test_a_table_stays_one(before: Plan, now: Plan, said: str | None) -> None:
    states = state_pb2.KeyedState(slots=1024, states=[FORMER])
    saved = [
        SavedLane(lane, before.graph.chain(lane.vertex), 1, 5, ended=False, sequence=3, states=states, entries=2)
        for lane in before.lanes_of("a")
    ]
    refused = fit(SavedLanes(saved), shape_of(before), now, shape_of(now), ()).refused
    assert [said in one for one in refused] == [True] if said else not refused
