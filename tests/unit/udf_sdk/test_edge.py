"""Functions know by which edge a record came, in every form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf import columns
from millstream_udf.answering import answer_map
from millstream_udf.defining import define
from millstream_udf.execution import open_function
from millstream_udf.sources import frame_of
from millstream_udf.testing import run
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.support.children import together

EDGE = "customers"


@udf.map
def plain(record: udf.Record) -> bytes:
    return record.edge.encode()


@udf.map
def values(value: bytes, context: udf.Context) -> bytes:
    return context.edge.encode()


@udf.map(threads=2)
def in_threads(record: udf.Record) -> bytes:
    return record.edge.encode()


@udf.map
async def waiting(record: udf.Record) -> bytes:
    await asyncio.sleep(0)
    return record.edge.encode()


@udf.map(batch=True)
def batch(records: list[udf.Record]) -> list[bytes]:
    return [record.edge.encode() for record in records]


@udf.map
class Remembering:
    edges = udf.list_state(str)

    def process(self, record: udf.Record) -> bytes:
        self.edges.append(record.edge)
        return record.edge.encode()


@pytest.mark.parametrize("function", [plain, values, in_threads, waiting, batch, Remembering])
def test_each_form_of_a_function_gets_it(function: Callable[..., Any]) -> None:
    assert run(function, [b"a", b"b"], edge=EDGE).values == [EDGE.encode()] * 2
    # Where nobody says it, there is none.
    assert run(function, [b"a"]).values == [b""]


def test_a_sink_gets_it() -> None:
    got: list[str] = []

    @udf.sink
    def keep(record: udf.Record) -> None:
        got.append(record.edge)

    run(keep, [b"a"], edge=EDGE)
    assert got == [EDGE]


def test_what_is_remembered_is_shared_by_the_edges() -> None:
    first = run(Remembering, [udf.Record(b"x", keys=("ada",))], edge="left")
    second = run(Remembering, [udf.Record(b"y", keys=("ada",))], edge="right", states=first.states)
    assert second.states is not None
    assert second.states["ada"]["edges"] == ["left", "right"]


async def test_calls_of_one_stream_may_come_by_different_edges_at_the_same_time() -> None:
    """Each record keeps the edge of its own call, whichever call runs in between."""
    both = asyncio.Barrier(2)

    @udf.map
    async def meeting(record: udf.Record) -> bytes:
        await both.wait()
        return record.edge.encode()

    definition = define(meeting, "meeting")
    async with open_function(definition, udf.Context()) as function:
        lane, hello = function.lane(), udf_pb2.Hello(kind=udf_pb2.KIND_MAP, edge="other")
        calls = [
            udf_pb2.SealedMapCall(call_id=number, frame=frame_of([udf.Record(b"x")]), edge=edge)
            for number, edge in enumerate(["left", ""])
        ]
        answers = await together(*(answer_map(lane, hello, call) for call in calls))
    assert [columns.unpack_bytes(answer.values) for answer in answers] == [[b"left"], [b"other"]]


def test_outside_a_call_a_record_has_none() -> None:
    assert udf.Record(b"x").edge == ""
