"""Arrow columns between two functions of a chain: the same records come out as with JSON between them."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream_udf as udf
from millstream import codes
from millstream.clock import SystemClock
from millstream.errors import UdfError
from millstream.limits import FRAME_RECORDS_MAX
from millstream.record import BufferId, LaneId
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.telemetry.telemetry import Telemetry
from millstream.values import Values
from millstream_reader.tracker import Tracker
from millstream_vertex.core import LaneCore
from millstream_vertex.lineage import Lineage
from millstream_vertex.mapping import MapStage
from millstream_vertex.outputs import ToBuffers
from millstream_vertex.publishing import LaneCounters
from millstream_vertex.stage import StageInput
from millstream_vertex.stages import Stages, Step
from millstream_writer.committer import Unit
from millstream_writer.routing import Route, Router, shared_route
from tests.support.errors import raises
from tests.unit.vertex.lane_rig import InProcessStream, Rig, open_rig, open_stream, records_of, stage_of

OUT, DEAD = BufferId("second-out", 0), BufferId("second-dead", 0)


def schema_of(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(fields)


ORDER = schema_of(id=pa.int64(), price=pa.float64())
PRICED = schema_of(id=pa.int64(), total=pa.float64())
VALUES = tuple(json.dumps({"id": number, "price": number / 4}).encode() for number in range(10))


@udf.map(arrow=True, schema=ORDER)
def price(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leaves one record out."""
    batch = batch.filter(pc.not_equal(batch["id"], pa.scalar(3)))
    total = pc.multiply(batch["price"], 2.0)
    return pa.RecordBatch.from_arrays([batch["id"], total, batch["parent"]], names=["id", "total", "parent"])


@udf.map(arrow=True, schema=PRICED)
def tax(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch["id"], pc.multiply(batch["total"], 0.5), batch["parent"]]
    return pa.RecordBatch.from_arrays(columns, names=["id", "tax", "parent"])


@udf.map(arrow=True, schema=PRICED)
def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 5 in batch["id"].to_pylist():
        raise ValueError("five")
    return tax(batch)


@udf.map(arrow=True, schema=schema_of(id=pa.int64(), total=pa.string()))
def of_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id", "parent"])


@dataclass
class Chain:
    """Two steps in one lane."""

    first: InProcessStream
    second: InProcessStream
    last: MapStage
    router: Router
    output: ToBuffers

    async def take(self, *values: bytes, first: MapStage | None = None) -> Unit:
        """`first`: in place of the stage of the first function."""
        stages = [first or stage_of(self.first), self.last]
        lanes = LaneId("first", "in-first", 0), LaneId("second", "first", 0)
        steps = [
            Step(lane, stage, self.router, Telemetry(), LaneCounters(), number)
            for number, (lane, stage) in enumerate(zip(lanes, stages, strict=True))
        ]
        return await Stages(steps, self.output, SystemClock()).take(records_of(*values), Lineage("1/"), 0)


@asynccontextmanager
async def open_chain(second: object, *, arrow: bool, policy: OnFailure = OnFailure.STOP) -> AsyncIterator[Chain]:
    router = Router([Route(OUT.edge, 1, None)], [Route(DEAD.edge, 1, None)])
    retries = RetryPolicy(Backoff(0.0, steps=1), policy, asked_max=0)
    async with (
        open_rig() as rig,
        open_stream(price, may_return_arrow=arrow) as one,
        open_stream(second) as two,  # type: ignore[arg-type]  # decorated
    ):
        last = stage_of(two, retries, dead_letter=True, takes_arrow=arrow)
        yield Chain(one, two, last, router, await output_of(rig, router))


async def output_of(rig: Rig, router: Router, *, takes_arrow: bool = False) -> ToBuffers:
    """The output of a lane to the buffers of a router."""
    lane = LaneId("second", "first", 0)
    committer = await rig.committer(lane, router)
    tracker = Tracker(pieces_max=1, bytes_max=1)
    store = await rig.stores.store("second")
    core = LaneCore(lane, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    return ToBuffers(core, router, takes_arrow=takes_arrow)


def values_of(stepped: Unit, buffer: BufferId = OUT) -> list[bytes]:
    return [value for place, frame in stepped.frames if place == buffer for value in frame.values()]


async def test_the_second_function_gets_columns_and_nothing_else_changes() -> None:
    found: dict[bool, Unit] = {}
    for arrow in (False, True):
        async with open_chain(tax, arrow=arrow) as chain:
            found[arrow] = await chain.take(*VALUES)
            assert (chain.first.arrow, chain.second.arrow) == ([False], [arrow])
    assert values_of(found[True]) == values_of(found[False])
    assert json.loads(values_of(found[True])[-1]) == {"id": 9, "tax": 2.25}
    for (_, frame), (_, other) in zip(found[True].frames, found[False].frames, strict=True):
        assert not frame.contents.arrow
        assert frame == replace(other, ingest_time_us=frame.ingest_time_us)
    # The bytes between the two are other ones; the records are not.
    accounts = [[found[arrow].account, *(one.account for one in found[arrow].passed)] for arrow in (True, False)]
    assert [replace(one, input_bytes=0) for one in accounts[0]] == [replace(one, input_bytes=0) for one in accounts[1]]


@pytest.mark.parametrize("second", [failing, of_texts], ids=["fails", "other types"])
async def test_dead_letters_have_the_values_as_json(second: object) -> None:
    found: dict[bool, Unit] = {}
    for arrow in (False, True):
        async with open_chain(second, arrow=arrow, policy=OnFailure.DEAD_LETTER) as chain:
            found[arrow] = await chain.take(*VALUES)
            assert chain.second.arrow == [arrow, *[False] * (len(chain.second.arrow) - 1)]
    assert values_of(found[True], DEAD) == values_of(found[False], DEAD)
    assert b'{"id":5,"total":2.5}' in values_of(found[True], DEAD)
    assert values_of(found[True]) == values_of(found[False])


async def test_records_that_do_not_fit_the_first_function_leave_the_others_in_place() -> None:
    found: dict[bool, Unit] = {}
    for arrow in (False, True):
        async with open_chain(tax, arrow=arrow) as chain:
            retries = RetryPolicy(Backoff(0.0, steps=1), OnFailure.DEAD_LETTER, asked_max=0)
            first = stage_of(chain.first, retries, dead_letter=True)
            found[arrow] = await chain.take(*VALUES[:5], b"no JSON", *VALUES[5:], first=first)
    assert values_of(found[True]) == values_of(found[False])
    assert values_of(found[True], DEAD) == [b"no JSON"]


async def test_more_outputs_than_a_frame_has() -> None:
    @udf.map(arrow=True, schema=ORDER)
    def many(batch: pa.RecordBatch) -> pa.RecordBatch:
        indexes = pa.array([0] * (FRAME_RECORDS_MAX + 1), pa.int64())
        columns = [batch["id"].take(indexes), batch["price"].take(indexes), batch["parent"].take(indexes)]
        return pa.RecordBatch.from_arrays(columns, names=["id", "total", "parent"])

    async with open_chain(tax, arrow=True) as chain, open_stream(many, may_return_arrow=True) as first:
        stepped = await chain.take(VALUES[4], first=stage_of(first))
        assert sum(chain.second.calls) == FRAME_RECORDS_MAX + 1
        assert max(chain.second.calls) <= FRAME_RECORDS_MAX
    assert set(map(bytes, values_of(stepped))) == {b'{"id":4,"tax":0.5}'}
    assert len(values_of(stepped)) == FRAME_RECORDS_MAX + 1


async def test_columns_that_cannot_be_read_break_the_protocol() -> None:
    frame = replace(records_of(b"a"), contents=Values(arrow=b"not Arrow"))
    with raises(codes.FUNCTION_PROTOCOL, match="not Arrow columns"):
        frame.with_values()
    async with open_chain(failing, arrow=True, policy=OnFailure.DEAD_LETTER) as chain:
        with pytest.raises(UdfError, match="breaks its protocol"):
            await chain.last.on_frame(StageInput(frame, 0))
        with pytest.raises(UdfError, match="breaks its protocol"):
            chain.output.take(Unit(), frame, None, Lineage(), 0)


async def test_cells_that_json_changes_are_not_stored() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [math.nan]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    frame = replace(records_of(b"a"), contents=Values(arrow=sink.getvalue().to_pybytes()))
    router = Router([Route(OUT.edge, 1, None)])
    async with open_rig() as rig:
        output = await output_of(rig, router, takes_arrow=True)
        with raises(codes.FUNCTION_PROTOCOL, match="JSON changes cells of a"):
            output.take(Unit(), frame, None, Lineage(), 0)


async def test_a_commit_holds_columns_only_for_readers_that_take_them() -> None:
    for takes_arrow in (False, True):
        router = Router([Route(OUT.edge, 2, None, takes_arrow=takes_arrow)])
        async with open_rig() as rig, open_stream(price, may_return_arrow=takes_arrow) as stream:
            output = await output_of(rig, router, takes_arrow=takes_arrow)
            step = Step(LaneId("second", "in", 0), stage_of(stream), router, Telemetry(), LaneCounters())
            stepped = await Stages([step], output, SystemClock()).take(records_of(*VALUES), Lineage("1/"), 0)
        assert [bool(frame.contents.arrow) for _, frame in stepped.frames] == [takes_arrow]
        assert json.loads(stepped.frames[0][1].values()[-1]) == {"id": 9, "total": 4.5}


@pytest.mark.parametrize(("readers", "takes_arrow"), [([True, True], True), ([True, False], False), ([], False)])
def test_all_readers_have_to_take_columns(readers: list[bool], takes_arrow: bool) -> None:
    routes = [Route(f"e{number}", 1, None, takes_arrow=takes) for number, takes in enumerate(readers)]
    assert Router(routes, [Route("dead", 1, None)]).takes_arrow == takes_arrow
    if routes:
        assert shared_route(routes).takes_arrow == takes_arrow
