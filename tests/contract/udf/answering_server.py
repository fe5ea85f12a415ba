"""A function's server whose streams do what a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from millstream_udf.wire.udf.v1 import udf_pb2


@asynccontextmanager
async def open_server(
    directory: Path,
    method: str,
    serve: Callable[[Any], Awaitable[None]],
    description: udf_pb2.DescribeResponse | None = None,
) -> AsyncIterator[str]:
    """Its address. `serve` handles each stream of the method; `description`: None if it is not asked for one."""

    async def describe(request: bytes, context: Any) -> bytes:
        assert description is not None
        return description.SerializeToString()

    async def handle(_: Any, context: Any) -> None:
        await serve(context)

    server = grpc.aio.server()
    methods: dict[str, Any] = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        method: grpc.stream_stream_rpc_method_handler(handle),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("millstream.udf.v1.Udf", methods),))
    address = f"unix:{directory}/s"
    server.add_insecure_port(address)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
