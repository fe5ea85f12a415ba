"""The stream of a source: what it gets when it is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from millstream.udf.function import open_remote_function
from millstream.udf.streams import SourceStream
from millstream_udf import columns
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.answering_server import open_server
from tests.contract.udf.conftest import NAME, frame_of
from tests.contract.udf.misfits import bytes_column

WELCOME = udf_pb2.SourceResponse(welcome=udf_pb2.Welcome(protocol_version=1, calls_max=1)).SerializeToString()


def batch(values: bytes, position: bytes) -> bytes:
    response = udf_pb2.SourceResponse(batch=udf_pb2.SourceBatch(position=position))
    response.batch.frame.ParseFromString(frame_of([b"a", b"b"]).encode())
    response.batch.frame.values.ParseFromString(values)
    return response.SerializeToString()


@asynccontextmanager
async def serving(directory: Path, serve: Callable[[Any], Any]) -> AsyncIterator[SourceStream]:
    description = udf_pb2.DescribeResponse(protocol_version=1, kinds=[udf_pb2.KIND_SOURCE])
    async with (
        open_server(directory, "Source", serve, description) as address,
        asyncio.timeout(40),
        open_remote_function(address, timeout_s=30) as client,
        client.open_source(NAME, position=b"", partition=0, partitions=1) as stream,
    ):
        yield stream


async def test_a_commit_does_not_come_before_the_source_knows_where_to_go_on(tmp_path: Path) -> None:
    streams = 0
    opened_again, may_welcome = asyncio.Event(), asyncio.Event()
    second: list[str | None] = []

    async def serve(context: Any) -> None:
        nonlocal streams
        streams += 1
        await context.read()
        if streams == 2:
            opened_again.set()
            await may_welcome.wait()
        await context.write(WELCOME)
        second.append(udf_pb2.SourceRequest.FromString(await context.read()).WhichOneof("message"))
        await context.read()
        if streams == 2:
            await context.write(batch(columns.pack_bytes([b"a", b"b"]), b"2"))
            await context.read()

    async with serving(tmp_path, serve) as stream, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(stream.read(10, 1000, 1.0))
        await opened_again.wait()
        await stream.committed(b"0")
        may_welcome.set()
        assert (await reading).position == b"2"
    assert second == ["open", "open"]


async def test_after_a_batch_that_does_not_fit_it_goes_on_where_it_stood(tmp_path: Path) -> None:
    positions: list[bytes] = []

    async def serve(context: Any) -> None:
        await context.read()
        await context.write(WELCOME)
        positions.append(udf_pb2.SourceRequest.FromString(await context.read()).open.position)
        number = len(positions)
        while (data := await context.read()) is not grpc.aio.EOF:
            assert udf_pb2.SourceRequest.FromString(data).HasField("read")
            bad = bytes_column([0, 9, 2], b"ab")
            await context.write(batch(columns.pack_bytes([b"a", b"b"]) if number != 1 else bad, b"%d" % number))
            number = 1

    async with serving(tmp_path, serve) as stream:
        errors = [(await stream.read(10, 1000, 1.0)).error for _ in range(4)]
        small = await stream.read(1, 1000, 1.0)
    # Each stream but the first gives one batch that fits, and then one that does not.
    assert positions == [b"", b"", b"2"]
    assert ["offsets fall at place 2" in error for error in errors] == [True, False, True, False]
    assert "it has 2 records, but at most 1 were requested" in small.error
