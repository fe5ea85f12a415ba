"""A stream of the native protocol, with the interface for calls and reads of functions. It uses gRPC; calls use a
separate socket if the function has one.

Above it: the streams of the native protocol. Below it: gRPC, and `millstream_udf.message_socket`.
`millstream_udf.calls_socket` describes how the two share the work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from millstream.errors import UdfError
from millstream.limits import GRPC_MESSAGE_BYTES_MAX
from millstream.stream_writes import StreamEndedError, write
from millstream.udf.calls import Wire, WireEndedError
from millstream.udf.native.service import fatal_error
from millstream_udf.calls_socket import SUFFIX
from millstream_udf.message_socket import MessageSocket
from millstream_udf.wire.udf.v1 import udf_pb2

_RawCall = Any
"""grpc.aio.StreamStreamCall of bytes; the stubs are generic, but the class is not."""
_RawMessage = Any
"""Bytes, or `grpc.aio.EOF`."""
_CONNECT_TIMEOUT_S = 5.0
_STATUS_TIMEOUT_S = 1.0
"""How long after the end of its socket the status of a stream may arrive."""


class GrpcWire:
    """See `Wire`. Made by `open_wire`."""

    def __init__(self, call: _RawCall, where: str) -> None:
        self._call = call
        self._where = where

    async def send(self, message: bytes) -> None:
        try:
            await write(self._call, message)
        except StreamEndedError:
            await self.end()

    async def receive(self) -> bytes:
        try:
            data: _RawMessage = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _end(self._where, error.code(), error.details()) from error
        except asyncio.InvalidStateError:
            await self.end()
        if data is grpc.aio.EOF:
            await self.end()
        return bytes(data)

    async def end(self) -> NoReturn:
        """Waits for the end of the stream, and raises its error."""
        raise _end(self._where, await self._call.code(), await self._call.details())

    async def half_close(self) -> None:
        try:
            await self._call.done_writing()
        except grpc.aio.AioRpcError as error:
            raise _end(self._where, error.code(), error.details()) from error
        except asyncio.InvalidStateError:
            await self.end()


class CallsWire:
    """See `Wire`: messages after the function's welcome go over a socket, if the welcome names one. Made by
    `open_calls_wire`."""

    def __init__(self, stream: GrpcWire, path: str, where: str) -> None:
        self._stream = stream
        self._path = path
        self._where = where
        self._welcomed = False
        self._socket: MessageSocket | None = None

    async def send(self, message: bytes) -> None:
        if self._socket is None:
            await self._stream.send(message)
            return
        if len(message) > GRPC_MESSAGE_BYTES_MAX:
            raise _end(self._where, grpc.StatusCode.RESOURCE_EXHAUSTED, f"a call of {len(message):,} bytes")
        try:
            await self._socket.send(message)
        except ConnectionError as error:
            raise WireEndedError(str(error)) from error

    def send_at_once(self, message: bytes) -> bool:
        return (
            self._socket is not None and len(message) <= GRPC_MESSAGE_BYTES_MAX and self._socket.send_at_once(message)
        )

    async def receive(self) -> bytes:
        if self._socket is not None:
            return await self._receive_from(self._socket)
        message = await self._stream.receive()
        if not self._welcomed:
            self._welcomed = True
            if token := _token_in(message):
                await self._connect(token)
        return message

    async def half_close(self) -> None:
        if self._socket is None:
            await self._stream.half_close()
        else:
            self._socket.end()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    async def _connect(self, token: bytes) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, socket = await asyncio.get_running_loop().create_unix_connection(
                    lambda: MessageSocket(GRPC_MESSAGE_BYTES_MAX), self._path
                )
        except OSError as error:
            # A timeout is an `OSError`, too.
            raise WireEndedError(f"no connection to {self._path}: {error}") from error
        self._socket = socket
        await self.send(token)

    async def _receive_from(self, socket: MessageSocket) -> bytes:
        if (message := await socket.receive()) is not None:
            return message
        if socket.failed:
            raise _end(self._where, grpc.StatusCode.RESOURCE_EXHAUSTED, socket.failed)
        # The function closes the socket when its stream ends, and the status of the stream gives the reason. A process
        # that has died may send no status, so the wait is short.
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                await self._stream.end()
        except TimeoutError:
            raise WireEndedError("the function closed the socket of its calls") from None


def _end(where: str, code: grpc.StatusCode, details: str | None) -> UdfError | WireEndedError:
    """The error for the end of a stream."""
    if (fatal := fatal_error(code, details, where)) is not None:
        return fatal
    failure = (details or code.name) if code is grpc.StatusCode.ABORTED else ""
    return WireEndedError(
        f"{code.name}: {details or 'the function closed it'}",
        broke=code is not grpc.StatusCode.OK,
        failure=failure,
    )


def _token_in(welcome: bytes) -> bytes:
    """The token in a first message, which is checked elsewhere."""
    try:
        # Welcome has the same number in every response.
        return udf_pb2.SealedMapResponse.FromString(welcome).welcome.calls_token
    except DecodeError:
        return b""


@asynccontextmanager
async def open_wire(channel: grpc.aio.Channel, method: str, where: str) -> AsyncIterator[GrpcWire]:
    """A stream of a method. Waits for the server."""
    call: _RawCall = channel.stream_stream(method)(wait_for_ready=True)
    try:
        yield GrpcWire(call, where)
    finally:
        call.cancel()


def calls_socket_of(target: str) -> str:
    """Path of the socket for calls next to the socket of `target`; empty if there is none. Remote functions do not have
    one, and containers may share only the function's socket."""
    scheme, _, path = target.partition(":")
    beside = path + SUFFIX
    return beside if scheme == "unix" and os.path.exists(beside) else ""


@asynccontextmanager
async def open_calls_wire(channel: grpc.aio.Channel, method: str, where: str, path: str) -> AsyncIterator[Wire]:
    """A stream of calls. It uses the socket at `path` if the function supports that; without a socket, `path` is
    empty."""
    async with open_wire(channel, method, where) as stream:
        wire = CallsWire(stream, path, where)
        try:
            yield wire
        finally:
            wire.abort()
