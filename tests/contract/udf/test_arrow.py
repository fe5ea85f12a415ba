"""Arrow columns in place of values, between functions in their own processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.frame import Frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer
from millstream.udf.function import LocalFunction, open_remote_function
from millstream.udf.sidecar import python_command
from millstream.values import Values
from millstream_udf import arrow_values, columns
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.answering_server import open_server
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of

FRAME = frame_of([b'{"number":%d}' % number for number in range(3)])
TYPED = replace(FRAME, contents=Values(arrow=arrow_values.packed(pa.RecordBatch.from_pydict({"number": [1, 1, 1]}))))


@asynccontextmanager
async def served(open_function: Open, name: str) -> AsyncIterator[LocalFunction]:
    async with open_function(python_command(f"{HERE / 'arrow_functions.py'}:{name}")) as function:
        yield function


async def answer(function: LocalFunction, frame: Frame = FRAME, *, may_return_arrow: bool = False) -> MapAnswer:
    async with function.open_map(FunctionKind.MAP, NAME, may_return_arrow=may_return_arrow) as stream:
        return await stream.call(frame, watermark_us=0)


async def test_columns_go_from_one_function_to_another(open_function: Open) -> None:
    async with served(open_function, "twice") as function:
        first = await answer(function, may_return_arrow=True)
        assert (first.values, first.error) == (b"", "")
        assert arrow_values.as_json(first.arrow, 3) == [b'{"number":0}', b'{"number":2}', b'{"number":4}']
        async with function.open_map(FunctionKind.MAP, NAME) as stream:
            assert stream.takes_arrow
            second = await stream.call(replace(FRAME, contents=Values(arrow=first.arrow)), watermark_us=0)
    assert columns.unpack_bytes(second.values) == [b'{"number":0}', b'{"number":4}', b'{"number":8}']


async def test_a_function_without_a_schema_gets_values(open_function: Open) -> None:
    async with (
        served(open_function, "values") as function,
        function.open_map(FunctionKind.MAP, NAME) as stream,
    ):
        assert not stream.takes_arrow
        answered = await stream.call(TYPED, watermark_us=0)
    assert columns.unpack_bytes(answered.values) == [b'{"number":1}'] * 3


async def test_a_function_that_replaces_another_gets_what_it_takes(tmp_path: Path) -> None:
    frames: list[frame_pb2.SealedFrame] = []

    async def serve_map(context: Any) -> None:
        await context.read()
        welcome = udf_pb2.Welcome(protocol_version=1, calls_max=1, takes_arrow=not frames)
        await context.write(udf_pb2.SealedMapResponse(welcome=welcome).SerializeToString())
        call = udf_pb2.SealedMapRequest.FromString(await context.read()).call
        frames.append(frame_pb2.SealedFrame.FromString(call.frame))
        if len(frames) > 1:
            # The first one ends without an answer.
            same = udf_pb2.SealedMapAnswer(call_id=call.call_id, records=3, values=frames[-1].values)
            await context.write(udf_pb2.SealedMapResponse(answer=same).SerializeToString())
            await context.read()

    description = udf_pb2.DescribeResponse(protocol_version=1, kinds=[udf_pb2.KIND_MAP])
    async with (
        open_server(tmp_path, "Map", serve_map, description) as address,
        asyncio.timeout(60),
        open_remote_function(address, timeout_s=10) as function,
        function.open_map(FunctionKind.MAP, NAME) as stream,
    ):
        answered = await stream.call(TYPED, watermark_us=0)
    assert columns.unpack_bytes(answered.values) == [b'{"number":1}'] * 3
    assert [(bool(one.values), bool(one.arrow)) for one in frames] == [(False, True), (True, False)]


async def test_what_is_not_columns_fails_the_call(open_function: Open) -> None:
    async with served(open_function, "twice") as function:
        failed = await answer(function, replace(FRAME, contents=Values(arrow=b"not Arrow")))
    assert "the values are not Arrow columns" in failed.error
