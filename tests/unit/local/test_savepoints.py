"""Savepoints of pipelines in ledgers in memory: what is copied, what other lanes get of it, and what is refused."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.compression import Compression
from millstream.durable import listen
from millstream.errors import DamageError, UserError
from millstream.frame import build_frame
from millstream.ledger.memory import open_memory_broker
from millstream.ledger.protocol import Commit, FrameWrite
from millstream.ledger.rewriting import rewritten
from millstream.plan import resolved
from millstream.plan.plan import Plan, plan_of
from millstream.plan.shape import shape_of
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.udf.states import StateKind
from millstream.watermark.memory import OtMemory, open_memory_ot_stores
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.directory import DataDirectory, write_json, write_text
from millstream_runner.local.moving_states import bounds_of
from millstream_runner.local.savepoints.files import Savepoint, find_savepoint, named, savepoint_written
from millstream_runner.local.savepoints.fitting import fit
from millstream_runner.local.savepoints.lanes import SavedLane, SavedLanes, SavedTarget
from millstream_runner.local.savepoints.restoring import restore_lanes
from millstream_runner.local.savepoints.taking import copy_lanes
from millstream_runner.local.stored_states import state_of
from millstream_runner.local.view import PipelineView
from millstream_vertex.keyed.owned import open_owned_state
from millstream_vertex.keyed.redistribution import home_of
from millstream_vertex.keyed.state import EntryChange
from millstream_vertex.settings import ledger_limits
from tests.support.ledgers import SettableClock
from tests.unit.spec.test_graph import arrow, pipeline

if TYPE_CHECKING:
    from millstream.ledger.protocol import Broker

KEYS = [b"k%d" % number for number in range(20)]
KEYED: dict[str, Any] = {"source": {"generator": {"keyCount": 2}}}
OUT: dict[str, Any] = {"sink": {"sql": {"url": "sqlite:///o.db", "table": "t", "columns": [{"name": "a"}]}}}
STATES = [
    state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1, version=1, oldest_version=1),
    state_pb2.StoredState(name="seen", kind=StateKind.MAP, codec="json", item_codec="json", clock=1, version=3),
]
IN, TARGET = LaneId("x", "source", 0), LaneId("out", "a-out", 0)
DIGESTS = bytes(range(32))


def stateful(partitions: int = 2, **more: Any) -> dict[str, Any]:
    return {"udf": {"python": "f.py:F", "state": more}, "partitions": partitions}


def plan(vertices: dict[str, dict[str, Any]] | None = None, *, chain: bool = False, **changes: Any) -> Plan:
    written = vertices or {"x": KEYED, "a": stateful(changes.get("partitions", 2)), "out": OUT}
    if chain:
        written["out"] = {**OUT, "partitions": written["a"]["partitions"]}
    names = list(written)
    edges = [arrow("x>a", chain=False)] + [arrow(f"a>{name}", chain=chain) for name in names[2:]]
    return plan_of(Graph.of(pipeline(written, edges)))


async def fill(broker: Broker, of: Plan) -> None:
    """What a run would have left: lanes that are so far, with entries and ids, and nothing that waits."""
    source = await broker.ledger("x", ledger_limits(of, "x"))
    stored = await source.take_over(IN, "test")
    mark = mark_pb2.Mark(epoch=1, position=b"77", watermark_us=500, numbered=9, commit_id=uuid4().bytes)
    await source.commit(Commit(IN, (), mark, stored.sequence, DIGESTS, 900.0, stored.mark.commit_id))
    ledger = await broker.ledger("a", ledger_limits(of, "a"))
    for lane in of.lanes_of("a"):
        opening = open_owned_state(
            ledger, lane, "test", bounds_of(of, "a"), compression=Compression.NONE, clock=SettableClock()
        )
        async with opening as owned:
            mine = [key for key in KEYS if home_of(key, len(of.lanes_of("a"))) == lane.partition]
            # The second lane has them under other numbers.
            numbers = {state.name: owned.keyed.adopt(state) for state in STATES[:: 1 - 2 * lane.partition]}
            await owned.apply([EntryChange(key, numbers["total"], b"", key) for key in mine])
            await owned.apply([EntryChange(key, numbers["seen"], b"i", key) for key in mine])
        async with rewritten(ledger, lane, "test") as mark:
            mark.watermark_us, mark.epoch = 100 - 10 * lane.partition, 4
            mark.inputs.add(edge="x-a", sequence=30 + lane.partition)
            states = state_pb2.KeyedState.FromString(mark.states["a"])
            states.fired_event_us, states.set_again = 80 + lane.partition, 2
            mark.states["a"] = states.SerializeToString()
    sink = await broker.ledger("out", ledger_limits(of, "out"))
    async with rewritten(sink, TARGET, "test") as mark:
        mark.watermark_us, mark.sequence, mark.target = 90, 12, 5


async def taken(broker: Broker, of: Plan, root: Path, name: str = "s") -> Savepoint:
    directory = DataDirectory(root)
    root.mkdir(exist_ok=True)
    write_text(directory.pipeline, resolved.dump(of, root))
    write_json(directory.shape, shape_of(of))
    async with open_memory_ot_stores(OtMemory(), "p") as stores:
        await copy_lanes(directory, of, PipelineView(of, broker, stores), name, directory.savepoints)
    savepoint = find_savepoint(name, [directory.savepoints])
    savepoint.verify()
    return savepoint


async def restored(savepoint: Savepoint, now: Plan, broker: Broker) -> None:
    saved = savepoint.lanes()
    found = fit(saved, savepoint.shape(), now, shape_of(now), ())
    assert not found.refused
    await restore_lanes(now, broker, savepoint, saved, found)


async def mark_of(broker: Broker, lane: LaneId) -> mark_pb2.Mark:
    ledger = await broker.existing_ledger(lane.vertex)
    assert ledger is not None
    stored = await ledger.mark(lane)
    assert stored is not None
    return stored.mark


@pytest.mark.slow
@pytest.mark.guarantee("I5", "I7", "I12")
@pytest.mark.parametrize("partitions", [2, 5, 1])
async def test_every_lane_goes_on_with_what_it_had_in_any_number_of_partitions(tmp_path: Path, partitions: int) -> None:
    now = plan(partitions=partitions)
    async with open_memory_broker("p") as broker, open_memory_broker("p") as other:
        await fill(broker, plan())
        savepoint = await taken(broker, plan(), tmp_path / "a")
        assert savepoint.facts["entries"] == 2 * len(KEYS)
        await restored(savepoint, now, other)
        mark = await mark_of(other, IN)
        assert (mark.position, mark.watermark_us, mark.numbered, mark.epoch) == (b"77", 500, 9, 4)
        ledger = await other.existing_ledger("x")
        assert ledger is not None
        assert b"".join([one.digests async for one in ledger.ids(IN)]) == DIGESTS
        ledger = await other.existing_ledger("a")
        assert ledger is not None
        for lane in now.lanes_of("a"):
            mark = await mark_of(other, lane)
            same = partitions == 2
            assert mark.watermark_us == (100 - 10 * lane.partition if same else 90)
            assert mark.continued.sequence == (30 + lane.partition if same else 31)
            assert (mark.ended, mark.account.inputs, mark.epoch) == (False, 0, 4)
            state = await state_of(ledger, lane)
            assert state is not None
            assert state.keyed.watermark_us == (START_OF_TIME_US if same else 100)
            states = state_pb2.KeyedState.FromString(mark.states["a"])
            assert (states.fired_event_us, states.set_again) == (80 + lane.partition if same else 81, 2)
            mine = [key for key in KEYS if home_of(key, partitions) == lane.partition]
            found = {(one.key[0].encode(), one.state.name, one.item): one.value for one in state.entries()}
            wanted = {(key, "total", b""): key for key in mine} | {(key, "seen", b"i"): key for key in mine}
            assert found == wanted
            assert [one.version for one in state.keyed.stored if one.name == "seen"] == [3]
        # A savepoint of that has the same.
        again = await taken(other, now, tmp_path / "b")
        assert again.facts["entries"] == 2 * len(KEYS)
        assert again.lanes().by_id[IN].position == b"77"


@pytest.mark.guarantee("I1")
async def test_a_sink_goes_on_where_its_target_is_also_when_it_joins_or_leaves_a_chain(tmp_path: Path) -> None:
    async with open_memory_broker("p") as broker, open_memory_broker("p") as chained, open_memory_broker("p") as apart:
        await fill(broker, plan())
        run = (await broker.ledger("out", ledger_limits(plan(), "out"))).ledger_id
        await restored(await taken(broker, plan(), tmp_path / "a"), plan(chain=True), chained)
        mark = await mark_of(chained, plan(chain=True).lanes_of("a")[0])
        assert (mark.continued.run, mark.delivered, mark.target, mark.continued.sequence) == (run, 12, 5, 30)
        # A new lane of the sink is one of the same run.
        mark = await mark_of(chained, plan(chain=True).lanes_of("a")[1])
        assert (mark.continued.run, mark.delivered, mark.target) == (run, 0, 0)
        ledger = await chained.ledger("a", ledger_limits(plan(), "a"))
        async with rewritten(ledger, LaneId("a", "_all", 0), "test") as mark:
            mark.delivered, mark.delivery = 15, "d"
        await restored(await taken(chained, plan(chain=True), tmp_path / "b"), plan(), apart)
        mark = await mark_of(apart, TARGET)
        # In its own ledger it begins at 0, which its target knows as 15.
        assert (mark.continued.run, mark.continued.sequence, mark.sequence, mark.target) == (run, 15, 0, 5)


def prepared(mark: mark_pb2.Mark) -> None:
    mark.prepared.mark.delivered = 3


def undelivered(mark: mark_pb2.Mark) -> None:
    mark.undelivered_records = 2


def windows(mark: mark_pb2.Mark) -> None:
    mark.account.inputs = mark.account.open = 7


def part(mark: mark_pb2.Mark) -> None:
    mark.inputs[0].record_index = 3


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (prepared, "was killed during a delivery"),
        (undelivered, "2 records to deliver"),
        (windows, "open windows of lane a/_all.0 contain 7 records"),
        (part, "only a part of a frame"),
    ],
)
async def test_a_pipeline_that_is_not_at_rest_has_no_savepoint(
    tmp_path: Path, change: Callable[[mark_pb2.Mark], None], said: str
) -> None:
    async with open_memory_broker("p") as broker:
        await fill(broker, plan())
        ledger = await broker.ledger("a", ledger_limits(plan(), "a"))
        async with rewritten(ledger, plan().lanes_of("a")[0], "test") as mark:
            change(mark)
        with pytest.raises(UserError, match=said):
            await taken(broker, plan(), tmp_path / "a")
        assert named(tmp_path / "a" / "savepoints") == []


@pytest.mark.guarantee("I1")
async def test_records_that_wait_are_counted(tmp_path: Path) -> None:
    async with open_memory_broker("p") as broker:
        await fill(broker, plan())
        async with rewritten(await broker.ledger("a", ledger_limits(plan(), "a")), LaneId("a", "_all", 0), "t") as mark:
            del mark.inputs[:]
        ledger = await broker.ledger("x", ledger_limits(plan(), "x"))
        stored = await ledger.take_over(IN, "test")
        mark = mark_pb2.Mark()
        mark.CopyFrom(stored.mark)
        mark.commit_id = uuid4().bytes
        mark.written.add(edge="x-a", partition=0, frames=1, records=2, bytes=9)
        frame = build_frame([b"1", b"2"], array("q", [1, 2]), ingest_time_us=1).encode()
        writes = [FrameWrite(BufferId("x-a", 0), frame)]
        await ledger.commit(Commit(IN, writes, mark, stored.sequence, replaces=stored.mark.commit_id))
        with pytest.raises(UserError, match="2 records wait on edge x-a"):
            await taken(broker, plan(), tmp_path / "a")


def lane(vertex: str, partition: int = 0, *, ended: bool = False, entries: int = 0, **more: Any) -> SavedLane:
    inputs = {"x": "source", "a": "_all", "out": "a-out"}
    states = state_pb2.KeyedState(states=STATES, slots=1024) if entries else None
    found = LaneId(vertex, inputs[vertex], partition)
    options = {"epoch": 3, "watermark_us": 7, "sequence": 5, **more}
    return SavedLane(lane=found, stages=[vertex], ended=ended, entries=entries, states=states, **options)


SAVED = [lane("x"), lane("a", entries=3), lane("a", 1, entries=2), lane("out")]
ENDED = [lane("x", ended=True), lane("a", ended=True), lane("out", ended=True)]


@pytest.mark.guarantee("I7")
@pytest.mark.parametrize(
    ("vertices", "saved", "said"),
    [
        ({"x": KEYED, "a": stateful(7), "out": OUT}, SAVED, ""),
        ({"x": KEYED, "a": stateful(2, store="disk"), "out": {"sink": {"log": {}}}}, SAVED, ""),
        ({"x": KEYED, "a": stateful(), "out": OUT, "more": OUT}, SAVED, ""),
        ({"x": {**KEYED, "partitions": 2}, "a": stateful(), "out": OUT}, SAVED, "vertex x was a source of generator"),
        ({"x": {"source": {"http": {}}}, "a": stateful(), "out": OUT}, SAVED, "vertex x was a source of generator"),
        ({"x": KEYED, "a": stateful(2, scope="lane"), "out": OUT}, SAVED, "a state for each key, and now has one for"),
        ({"x": KEYED, "a": {"udf": {"python": "f.py:F"}}, "out": OUT}, SAVED, "vertex a remembers something, and now"),
        ({"x": KEYED, "a": OUT}, SAVED, "vertex a was a"),
        ({"x": KEYED, "a": stateful(), "out": OUT}, ENDED, ""),
        (
            {"x": KEYED, "a": stateful(), "out": OUT},
            ENDED[1:],
            "vertex a had read everything .* x passes on, which is new",
        ),
        ({"x": KEYED, "a": stateful(), "out": OUT}, [SAVED[0], *ENDED[1:]], "vertex x passes on, which has not ended"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    vertices: dict[str, dict[str, Any]], saved: list[SavedLane], said: str
) -> None:
    now = plan(vertices)
    refused = fit(SavedLanes(saved), shape_of(plan()), now, shape_of(now), ()).refused
    assert bool(refused) is bool(said)
    if said:
        with pytest.raises(AssertionError, match=said):
            raise AssertionError("; ".join(refused))


@pytest.mark.guarantee("I7")
def test_what_a_removed_vertex_remembers_is_given_up_by_name() -> None:
    now = plan_of(Graph.of(pipeline({"y": KEYED, "out": OUT}, [arrow("y>out", chain=False)])))
    refused = fit(SavedLanes(SAVED), shape_of(plan()), now, shape_of(now), ()).refused
    assert [text.partition(":")[0] for text in refused] == [
        "vertex x was removed, and its position with it",
        "vertex a was removed, and remembers 5 entries",
    ]
    assert not fit(SavedLanes(SAVED), shape_of(plan()), now, shape_of(now), ("x", "a")).refused
    other = {**shape_of(now), "pipeline": "q"}
    assert "of pipeline p, and this one is called q" in fit(SavedLanes([]), shape_of(plan()), now, other, ()).refused[0]


def test_states_of_one_name_in_two_lanes_are_the_same_state() -> None:
    odd = state_pb2.KeyedState(slots=1024, states=[state_pb2.StoredState(name="total", kind=StateKind.LIST)])
    saved = [lane("a", entries=1), replace(lane("a", 1, entries=1), states=odd)]
    refused = fit(SavedLanes(saved), shape_of(plan()), plan(), shape_of(plan()), ()).refused
    assert refused == ["vertex a: the states `total` of two of its lanes differ"]


def test_a_lane_is_the_same_after_it_was_a_line() -> None:
    ahead = mark_pb2.Ahead(records=3, digest=b"\x00\xff")
    target = SavedTarget(TARGET, "run", 4, 2**64 - 1, "name")
    full = lane("a", entries=2, position=b"\xff", ahead=ahead, numbered=1, closed_us=-5, target=target, ids="i")
    ended = lane("x", watermark_us=END_OF_TIME_US, ended=True)
    for one in (full, ended):
        assert SavedLane.from_line(one.as_line()) == one
    right = full.as_line()
    for line in ("{}", "[]", "1", right.replace('"epoch"', '"other"'), right.replace("slots", "slits")):
        with pytest.raises(ValueError, match="lane"):
            SavedLane.from_line(line)


def write(parent: Path, name: str = "s") -> None:
    with savepoint_written(parent, name, parent) as writer:
        with writer.file("state/0.steps") as file:
            file.write_step(b"abc")
        writer.text("lanes.jsonl", "")
        writer.facts |= {"name": name, "pipeline": "p", "created_us": 1, "entries": 0}


@pytest.mark.guarantee("I8", "I10")
def test_whoever_is_killed_leaves_a_whole_savepoint_or_none(tmp_path: Path) -> None:
    parent = tmp_path / "savepoints"
    copies: list[Path] = []

    def copy(point: str, _: str) -> None:
        # What is on the disk now is what is there after a kill.
        if parent.exists():
            copies.append(tmp_path / f"{len(copies)}-{point}")
            shutil.copytree(parent, copies[-1])

    listen(copy)
    try:
        write(parent)
    finally:
        listen(None)
    found = [len(named(path)) for path in copies]
    assert found == sorted(found)
    assert {*found} == {0, 1}
    for path in copies:
        for name in named(path):
            find_savepoint(name, [path]).verify()
            with pytest.raises(UserError, match="exists already"):
                write(path)
        if not named(path):
            # In the same data directory, what was left is removed.
            with savepoint_written(path, "t", parent) as writer:
                writer.facts |= {"name": "t", "pipeline": "p", "created_us": 1, "entries": 0}
            assert [one.name for one in path.iterdir()] == ["t"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".a", "-a", "a b", "x" * 101, "\u00e9"])
def test_a_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a savepoint"):
        write(tmp_path, name)
    assert not list(tmp_path.iterdir())


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: flipped(path / "state" / "0.steps"), "its contents are not what was written"),
        (lambda path: (path / "state" / "0.steps").write_bytes(b"abc"), "it has 3 bytes instead of 7"),
        (lambda path: (path / "lanes.jsonl").unlink(), "it is missing"),
        (lambda path: (path / "manifest.json").write_text("{}"), "it is not a manifest"),
        (lambda path: (path / "manifest.json").write_text("{"), "it is not a manifest"),
        (lambda path: (path / "manifest.json").write_text(json.dumps({"format": 2})), "has format 2, and this version"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    write(tmp_path)
    damage(tmp_path / "s")
    with pytest.raises((DamageError, UserError), match=said):
        find_savepoint("s", [tmp_path]).verify()


def test_one_is_found_by_name_or_path_and_otherwise_those_that_there_are_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    assert find_savepoint("s", [tmp_path]).path == tmp_path / "s"
    assert find_savepoint(str(tmp_path / "s"), []).pipeline == "p"
    with pytest.raises(UserError, match="there are: s"):
        find_savepoint("t", [tmp_path])
