"""The stream of a user-defined source: one read at a time. After a break, it is reopened at its last position.

Above it: `client.py`. Below it: `wire.py`. Batches from before a break are still in this process, so the stream
continues after the last batch that was read, not after the last one that was committed.

Opening and acknowledging have no answers. A function that fails there ends the stream, so the read that waits for it
has failed. What was not certainly acknowledged is acknowledged again on the next stream, before anything is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio

from millstream import codes
from millstream.errors import UdfError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import ReadBatch
from millstream.udf.calls import HALF_CLOSE_TIMEOUT_S, Wire, WireEndedError
from millstream.udf.endings import LostCall
from millstream.udf.lives import Lives
from millstream.udf.native.messages import batch_of, calls_allowed, decoded, hello_of, shown_position
from millstream.udf.native.service import SERVICE
from millstream.udf.native.wire import open_wire
from millstream.udf.protocol import StreamName
from millstream.udf.settings import NO_SETTINGS, FunctionSettings
from millstream.udf.suspects import Suspects, outcome_of
from millstream_udf.wire.udf.v1 import udf_pb2

_log = logging.getLogger(__name__)

_READ = (0,)
"""The read of a stream, for `Suspects`: only one is in flight."""


class NativeSourceStream:
    """See `SourceStream`. Made by `open_source_stream`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        name: StreamName,
        opening: udf_pb2.SourceOpen,
        lives: Lives,
        settings: FunctionSettings = NO_SETTINGS,
    ) -> None:
        self._channel = channel
        self._lives = lives
        self._life = 0
        """The process behind the open stream."""
        self._lost: LostCall | None = None
        """The last read, if its stream has ended."""
        self._suspects = Suspects()
        self._failure = ""
        """What the function failed with before the first read, which reports it."""
        self._name = name
        self._settings = settings
        self._opening = opening
        self._wire: Wire | None = None
        self.is_away = False
        """Whether a read is waiting for a new stream, because the last one has ended."""
        self._open = AsyncExitStack()
        """Closes the open stream."""
        self._unacknowledged: bytes | None = None
        """The last committed position, until a read that was sent after it is answered."""
        # Only one write to a stream may be in progress, and `committed` may be called while `read` waits.
        self._writing = asyncio.Lock()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> ReadBatch:
        """Reads the next batch, on as many streams as that takes."""
        request = udf_pb2.SourceRead(
            records_max=records_max, bytes_max=bytes_max, timeout_us=max(0, round(timeout_s * 1_000_000))
        )
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        while True:
            try:
                wire = await self.open()
                if (failed := self._failed()) is not None:
                    return failed
                response = await self._ask(wire, udf_pb2.SourceRequest(read=request))
            except WireEndedError as ended:
                self.is_away = True
                if self._lost is not None:
                    self._lost.broke = ended.broke
                await self.drop()
                if ended.failure:
                    self._lost = None
                    return ReadBatch(error=ended.failure)
                _log.log(
                    # As in `calls.py`.
                    logging.INFO if pauses.none_yet else logging.WARNING,
                    "%s: the stream to the source ended (%s); it is reopened in %.1f s",
                    self._name.where,
                    ended,
                    pauses.next_s,
                )
                await pauses.wait()
                continue
            self.is_away, self._lost = False, None
            self._suspects.answered(_READ)
            if response.WhichOneof("message") != "batch":
                raise self._broken("it answered a read with something other than a batch")
            try:
                batch = batch_of(response.batch, records_max)
            except ValueError as error:
                # The next read repeats this one: no part of this batch was used.
                await self.drop()
                return ReadBatch(error=f"it breaks its protocol: its batch does not fit: {error}")
            if not batch.error:
                self._opening.position = batch.position
            return batch

    async def _ask(self, wire: Wire, request: udf_pb2.SourceRequest) -> udf_pb2.SourceResponse:
        """The answer to a read. If a read may have ended the process, no other is in flight meanwhile."""
        alone = self._suspects.must_be_alone(_READ)
        what = f"a read of {self._name.where} after position {shown_position(self._opening.position)}"
        async with self._lives.alone(1, what) if alone else self._lives.turn(what):
            if self._life != self._lives.number:
                raise WireEndedError("its process was replaced")
            self._lost = LostCall(self._life, alone and self._lives.is_cause_alone(self._life))
            before = self._unacknowledged
            await self._send(wire, request)
            response = await self._receive(wire)
            if self._unacknowledged is before:
                # The function takes one message after the other.
                self._unacknowledged = None
            return response

    def _failed(self) -> ReadBatch | None:
        """A failure before the first read; or that of the last read, if that certainly ended its process."""
        lost, self._lost = self._lost, None
        failure, self._failure = self._failure, ""
        if failure:
            return ReadBatch(error=failure)
        if lost is None or (ending := self._lives.cause(lost)) is None:
            return None
        if self._suspects.ended(_READ, alone=lost.alone):
            return None
        outcome = outcome_of(ending)
        error = f"{outcome.reason}\n{outcome.detail}" if outcome.detail else outcome.reason
        return ReadBatch(error=error, attempts=outcome.attempts)

    async def committed(self, position: bytes) -> None:
        """Reports a committed position to the source: now, or when the stream is open again."""
        self._unacknowledged = position
        if self._wire is None:
            return
        try:
            await self._acknowledge(self._wire, position)
        except WireEndedError:
            # `read` gets the same error, and reopens the stream.
            return

    async def _acknowledge(self, wire: Wire, position: bytes) -> None:
        await self._send(wire, udf_pb2.SourceRequest(committed=udf_pb2.SourceCommitted(position=position)))

    async def begin(self) -> None:
        """Opens the stream if the function is there. The first read tries again, and reports why this one failed."""
        try:
            await self.open()
        except WireEndedError as ended:
            await self.drop()
            self._failure = ended.failure

    async def open(self) -> Wire:
        """The open stream; a new one after a break. Raises `UdfError` if the two sides are incompatible."""
        if self._wire is not None:
            return self._wire
        async with AsyncExitStack() as stack:
            wire = await stack.enter_async_context(open_wire(self._channel, f"{SERVICE}/Source", self._name.where))
            await self._begin(wire)
            self._life = self._lives.number
            # Not earlier: `committed` must not be sent before the source knows where to continue.
            self._wire, self._open = wire, stack.pop_all()
            return wire

    async def _begin(self, wire: Wire) -> None:
        hello = hello_of(FunctionKind.SOURCE, self._name, settings=self._settings)
        await self._send(wire, udf_pb2.SourceRequest(hello=hello))
        response = await self._receive(wire)
        if response.WhichOneof("message") != "welcome":
            raise self._broken("its first message is not Welcome")
        calls_allowed(response.welcome, self._name.where)
        await self._send(wire, udf_pb2.SourceRequest(open=self._opening))
        sent: bytes | None = None
        while self._unacknowledged is not sent:
            # It may advance meanwhile.
            sent = self._unacknowledged
            await self._acknowledge(wire, sent or b"")

    async def finish(self) -> None:
        """Half-closes the stream, and waits briefly for the source to close it."""
        if self._wire is None:
            return
        try:
            async with asyncio.timeout(HALF_CLOSE_TIMEOUT_S):
                await self._wire.half_close()
                while True:
                    await self._wire.receive()
        except (TimeoutError, WireEndedError, UdfError):
            return

    async def drop(self) -> None:
        """Gives up the stream."""
        self._wire = None
        await self._open.aclose()

    async def _send(self, wire: Wire, request: udf_pb2.SourceRequest) -> None:
        async with self._writing:
            await wire.send(request.SerializeToString())

    async def _receive(self, wire: Wire) -> udf_pb2.SourceResponse:
        data = await wire.receive()
        try:
            return decoded(udf_pb2.SourceResponse, data)
        except ValueError as error:
            raise self._broken(f"it sent {len(data)} bytes that are not a message of the protocol: {error}") from error

    def _broken(self, what: str) -> UdfError:
        return UdfError(codes.FUNCTION_PROTOCOL, f"{self._name.where}: the source function breaks its protocol: {what}")


@asynccontextmanager
async def open_source_stream(
    channel: grpc.aio.Channel,
    name: StreamName,
    opening: udf_pb2.SourceOpen,
    lives: Lives,
    settings: FunctionSettings = NO_SETTINGS,
) -> AsyncIterator[NativeSourceStream]:
    """A source stream. It is open, or opens at the first read if the function is being restarted."""
    stream = NativeSourceStream(channel, name, opening, lives, settings)
    try:
        await stream.begin()
        yield stream
        await stream.finish()
    finally:
        await stream.drop()
