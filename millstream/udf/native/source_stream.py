"""The stream of a user-defined source: one read at a time, opened again where it stood when it breaks.

Above it: `client.py`. Below it: gRPC. What was read before a break is still in this process, so the stream goes on
behind the last batch that was read, not behind the last that was committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from millstream.errors import UdfError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.udf.calls import HALF_CLOSE_TIMEOUT_S, PROTOCOL_VERSION, RawCall, raise_fatal
from millstream.udf.checks import check_parts, check_source_batch
from millstream.udf.protocol import StreamName
from millstream_udf.wire.udf.v1 import udf_pb2

_log = logging.getLogger(__name__)

_BATCH = (2,)
"""Number of the batch's field in a response."""


class _Break(Exception):
    """The stream has ended and can be opened again."""


class GrpcSourceStream:
    """See `SourceStream`. Made by `open_source_stream`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        method: str,
        name: StreamName,
        hello: udf_pb2.Hello,
        opening: udf_pb2.SourceOpen,
    ) -> None:
        self._channel = channel
        self._method = method
        self._where = f"{name.pipeline}/{name.vertex}/{name.lane}"
        self._hello = hello
        self._opening = opening
        self._stream: RawCall | None = None
        # Writes of a stream come one after the other, and `committed` may be called while `read` waits.
        self._writing = asyncio.Lock()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> udf_pb2.SourceBatch:
        """The next batch, over as many streams as it takes."""
        request = udf_pb2.SourceRead(
            records_max=records_max, bytes_max=bytes_max, timeout_us=max(0, round(timeout_s * 1_000_000))
        )
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        while True:
            try:
                stream = await self.open()
                await self._write(stream, udf_pb2.SourceRequest(read=request))
                batch = self._batch(await self._receive(stream))
            except _Break as error:
                self.drop()
                _log.warning(
                    "%s: the stream to the source ended (%s); it is opened again in %.1f s",
                    self._where,
                    error,
                    pauses.next_s,
                )
                await pauses.wait()
                continue
            try:
                check_source_batch(batch, records_max)
            except ValueError as error:
                # Read again from where it stood: nothing of this batch was used.
                self.drop()
                return udf_pb2.SourceBatch(error=f"it breaks its protocol: its batch does not fit: {error}")
            if not batch.error:
                self._opening.position = batch.position
            return batch

    async def committed(self, position: bytes) -> None:
        """Tell the source. When it cannot be told, a later commit will: positions only go forward."""
        if self._stream is None:
            return
        try:
            await self._write(self._stream, udf_pb2.SourceRequest(committed=udf_pb2.SourceCommitted(position=position)))
        except _Break:
            # `read` finds the same, and opens the stream again.
            return

    async def open(self) -> RawCall:
        """The open stream; a new one after a break. Raises `UdfError` when the two sides do not fit."""
        if self._stream is not None:
            return self._stream
        stream: RawCall = self._channel.stream_stream(self._method)(wait_for_ready=True)
        try:
            await self._begin(stream)
        except BaseException:
            stream.cancel()
            raise
        # Only now: `committed` must not come before the source has been told where to go on.
        self._stream = stream
        return stream

    async def _begin(self, stream: RawCall) -> None:
        await self._write(stream, udf_pb2.SourceRequest(hello=self._hello))
        response = await self._receive(stream)
        if response.WhichOneof("message") != "welcome":
            raise self._broken("its first message is not Welcome")
        if response.welcome.protocol_version != PROTOCOL_VERSION:
            raise self._broken(
                f"it speaks version {response.welcome.protocol_version} of the protocol, and this Millstream version "
                f"{PROTOCOL_VERSION}; install a version of the SDK that goes with it"
            )
        await self._write(stream, udf_pb2.SourceRequest(open=self._opening))

    async def finish(self) -> None:
        """Half-close, and wait a moment for the source to close."""
        if self._stream is None:
            return
        try:
            async with asyncio.timeout(HALF_CLOSE_TIMEOUT_S):
                await self._stream.done_writing()
                while await self._stream.read() is not grpc.aio.EOF:
                    pass
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    def drop(self) -> None:
        """Give the stream up."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def _write(self, stream: RawCall, request: udf_pb2.SourceRequest) -> None:
        try:
            async with self._writing:
                await stream.write(request.SerializeToString())
        except grpc.aio.AioRpcError as error:
            raise_fatal(self._where, error.code(), error.details())
            raise _Break(f"{error.code().name}: {error.details()}") from error
        except asyncio.InvalidStateError as error:
            raise _Break(str(error)) from error

    async def _receive(self, stream: RawCall) -> udf_pb2.SourceResponse:
        try:
            data = await stream.read()
            if data is grpc.aio.EOF:
                raise_fatal(self._where, await stream.code(), await stream.details())
                raise _Break(await stream.details() or "the source closed it")
        except grpc.aio.AioRpcError as error:
            raise_fatal(self._where, error.code(), error.details())
            raise _Break(f"{error.code().name}: {error.details()}") from error
        try:
            check_parts(data, _BATCH)
            return udf_pb2.SourceResponse.FromString(data)
        except (DecodeError, ValueError) as error:
            raise self._broken(f"it sent {len(data)} bytes that are no message of the protocol: {error}") from error

    def _batch(self, response: udf_pb2.SourceResponse) -> udf_pb2.SourceBatch:
        if response.WhichOneof("message") != "batch":
            raise self._broken("it answered a read with something else than a batch")
        return response.batch

    def _broken(self, what: str) -> UdfError:
        return UdfError(f"{self._where}: the source function breaks its protocol: {what}")


@asynccontextmanager
async def open_source_stream(
    channel: grpc.aio.Channel, method: str, name: StreamName, hello: udf_pb2.Hello, opening: udf_pb2.SourceOpen
) -> AsyncIterator[GrpcSourceStream]:
    """A source stream that is open, or will be at the first read when the function is just being restarted."""
    stream = GrpcSourceStream(channel, method, name, hello, opening)
    try:
        try:
            await stream.open()
        except _Break:
            stream.drop()
        yield stream
        await stream.finish()
    finally:
        stream.drop()
