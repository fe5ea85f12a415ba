"""What a function says at the end of a stream reaches the other side, whatever that is writing at this moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from millstream.udf.calls import WireEndedError
from millstream.udf.native.wire import GrpcWire, open_wire

TIMES = 400


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


async def test_a_write_that_meets_the_end_of_the_stream_loses_no_reason(tmp_path: Path) -> None:
    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(_serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Service", {"Stream": handler}),))
    address = f"unix:{tmp_path / 'socket'}"
    server.add_insecure_port(address)
    await server.start()
    reasons: Counter[str] = Counter()
    async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel:
        for number in range(TIMES):
            async with open_wire(channel, "/tests.Service/Stream", "here") as wire:
                await wire.send(b"hello")
                assert await wire.receive() == b"hello"
                await wire.send(b"open")
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                reasons[await _reason(wire)] += 1
    await server.stop(0)
    assert reasons == {"it failed": TIMES}
