"""A stream over gRPC, as the calls and reads of functions see it.

Above it: the streams of the native protocol. Below it: gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from millstream.errors import UdfError
from millstream.udf.calls import WireEndedError
from millstream.udf.native.service import FATAL

_RawCall = Any
"""grpc.aio.StreamStreamCall of bytes; its stubs are generic where the class is not."""
_RawMessage = Any
"""Bytes, or `grpc.aio.EOF`."""


class GrpcWire:
    """See `Wire`. Made by `open_wire`."""

    def __init__(self, call: _RawCall, where: str) -> None:
        self._call = call
        self._where = where

    async def send(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            self._ended(error.code(), error.details())
        except asyncio.InvalidStateError as error:
            # A write on a stream that has just ended.
            raise WireEndedError(str(error)) from error

    async def receive(self) -> bytes:
        try:
            data: _RawMessage = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._ended(error.code(), error.details())
        except asyncio.InvalidStateError as error:
            raise WireEndedError(str(error)) from error
        if data is grpc.aio.EOF:
            self._ended(await self._call.code(), await self._call.details())
        message: bytes = data
        return message

    async def half_close(self) -> None:
        try:
            await self._call.done_writing()
        except grpc.aio.AioRpcError as error:
            self._ended(error.code(), error.details())
        except asyncio.InvalidStateError as error:
            raise WireEndedError(str(error)) from error

    def _ended(self, code: grpc.StatusCode, details: str | None) -> NoReturn:
        if code in FATAL:
            error_code, what = FATAL[code]
            raise UdfError(error_code, f"{self._where}: {what}: {details or code.name}")
        raise WireEndedError(f"{code.name}: {details or 'the function closed it'}")


@asynccontextmanager
async def open_wire(channel: grpc.aio.Channel, method: str, where: str) -> AsyncIterator[GrpcWire]:
    """A stream of the method; waits for the server."""
    call: _RawCall = channel.stream_stream(method)(wait_for_ready=True)
    try:
        yield GrpcWire(call, where)
    finally:
        call.cancel()
