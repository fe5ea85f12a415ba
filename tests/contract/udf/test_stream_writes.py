"""What a function says at the end of a stream reaches the other side, whatever that is writing at this moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream.udf.calls import WireEndedError
from millstream.udf.native.wire import GrpcWire, open_wire

TIMES = 400
FIRST_TIMES = 100


async def _serve(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        if request == b"open":
            await context.abort(grpc.StatusCode.ABORTED, "it failed")
        yield request


async def _reason(wire: GrpcWire) -> str:
    try:
        await wire.send(b"read")
        await wire.receive()
    except WireEndedError as ended:
        return ended.failure
    return "it has not ended"


def _handler(serve: Callable[..., Any]) -> Any:
    handler: Any = grpc.stream_stream_rpc_method_handler(serve)
    return grpc.method_handlers_generic_handler("tests.Service", {"Stream": handler})


@asynccontextmanager
async def _channel(tmp_path: Path, serve: Callable[..., AsyncIterator[bytes]]) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handler(serve),))
    address = f"unix:{tmp_path / 'socket'}"
    server.add_insecure_port(address)
    await server.start()
    async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel:
        yield channel
    await server.stop(0)


async def test_a_write_that_meets_the_end_of_the_stream_loses_no_reason(tmp_path: Path) -> None:
    reasons: Counter[str] = Counter()
    async with _channel(tmp_path, _serve) as channel:
        for number in range(TIMES):
            async with open_wire(channel, "/tests.Service/Stream", "here") as wire:
                await wire.send(b"hello")
                assert await wire.receive() == b"hello"
                await wire.send(b"open")
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                reasons[await _reason(wire)] += 1
    assert reasons == {"it failed": TIMES}


async def _hold_up(wire: GrpcWire, ended: Event) -> None:
    """Hold up this thread once the metadata is sent, until the server has ended the stream: before the first
    message."""
    await wire._call._metadata_sent.wait()
    assert ended.wait(10)
    ended.clear()


async def test_a_first_write_that_meets_the_end_of_the_stream_loses_no_reason(tmp_path: Path) -> None:
    ended = Event()

    def refuse(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.add_callback(ended.set)
        context.abort(grpc.StatusCode.ABORTED, "it failed")
        yield b""

    address = f"unix:{tmp_path / 'socket'}"
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((_handler(refuse),))
    server.add_insecure_port(address)
    server.start()
    reasons: Counter[str] = Counter()
    async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
        for _ in range(FIRST_TIMES):
            async with open_wire(channel, "/tests.Service/Stream", "here") as wire:
                tasks.create_task(_hold_up(wire, ended))
                await asyncio.sleep(0)
                reasons[await _reason(wire)] += 1
    server.stop(0).wait()
    assert reasons == {"it failed": FIRST_TIMES}


async def test_a_write_without_a_connection_waits_for_one(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel:
        async with open_wire(channel, "/tests.Service/Stream", "here") as wire:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await wire.send(b"hello")
        # The method of another call that does not wait.
        wire = GrpcWire(channel.stream_stream("/tests.Service/Stream")(), "here")
        with pytest.raises(WireEndedError, match="UNAVAILABLE"):
            await wire.send(b"hello")
