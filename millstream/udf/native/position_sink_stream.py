"""The stream of a sink that keeps positions: one message, one answer.

Above it: `client.py`. Below it: `wire.py`. When the stream ends, the current transaction is lost, so no call is
repeated here: the lane opens another stream, asks the target for its position, and writes the missing records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc.aio

from millstream import codes
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.plurals import counted
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import SinkAnswer
from millstream.udf.calls import Wire, WireEndedError, broken, understood
from millstream.udf.endings import Ending, LostCall
from millstream.udf.lives import Lives
from millstream.udf.native.messages import (
    calls_allowed,
    decoded,
    hello_of,
    request_of,
    shown_position,
    sink_answer_of,
)
from millstream.udf.native.service import SERVICE
from millstream.udf.native.wire import open_wire
from millstream.udf.protocol import StreamName
from millstream.udf.settings import NO_SETTINGS, FunctionSettings
from millstream.udf.streams import SinkFencedError, SinkFunctionError, StreamLostError
from millstream_udf.wire.udf.v1 import udf_pb2

_CALL, _CHECK = 2, 4
"""Numbers of the fields in a request."""


class NativePositionSinkStream:
    """See `PositionSinkStream`. Made by `open_position_sink_stream`."""

    def __init__(self, wire: Wire, where: str, lives: Lives) -> None:
        self._wire = wire
        self._where = where
        self._lives = lives
        self._life = 0
        """The process behind the stream."""
        self._is_alone = False
        self._calls = 0
        self.checks = False

    async def begin(self, name: StreamName, settings: FunctionSettings = NO_SETTINGS) -> None:
        """Sends the hello, and reads the welcome."""
        hello = hello_of(FunctionKind.SINK, name, keeps_positions=True, settings=settings)
        response = await self._ask(udf_pb2.SinkRequest(hello=hello).SerializeToString(), "welcome")
        calls_allowed(response.welcome, self._where)
        if not response.welcome.keeps_positions:
            raise UdfError(
                codes.FUNCTION_POSITIONS,
                f"{self._where}: the function kept positions when the pipeline started, and now it does not: it was "
                "changed. Start the pipeline again",
            )
        self.checks = response.welcome.checks
        self._life = self._lives.number

    @asynccontextmanager
    async def alone(self, records: int) -> AsyncIterator[None]:
        """In the block, the function has no other calls than those of this stream, with so many records."""
        async with self._lives.alone(records):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False

    def cause(self, lost: LostCall) -> Ending | None:
        """The end of the process that had a call of an earlier stream, if the call may be the cause."""
        return self._lives.cause(lost)

    async def open(self, lane: str, epoch: int) -> bytes:
        """Takes over the lane."""
        request = udf_pb2.SinkRequest(open=udf_pb2.SinkOpen(lane=lane, epoch=epoch))
        opened = (await self._ask(request.SerializeToString(), "opened")).opened
        _raise(opened)
        return opened.position

    async def check(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> SinkAnswer:
        """Returns which of these records the sink refuses."""
        call = self._call(id_prefix, first_index, attempt, traceparent)
        return await self._answer(call, frame, "check", _CHECK)

    async def write(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> None:
        """Adds records to the transaction."""
        call = self._call(id_prefix, first_index, attempt, traceparent)
        if (await self._answer(call, frame, "write", _CALL)).outcomes:
            raise broken(
                self._where, "it refused records in `call`; a sink that keeps positions refuses them in `check`"
            )

    async def flush(self, position: bytes) -> None:
        """Commits the transaction and the position together."""
        request = udf_pb2.SinkRequest(flush=udf_pb2.SinkFlush(position=position))
        flushed = (await self._ask(request.SerializeToString(), "flushed")).flushed
        _raise(flushed)
        if flushed.position != position:
            raise broken(
                self._where,
                f"it was to store the position {shown_position(position)}, and answered that it has "
                f"{shown_position(flushed.position)}",
            )

    def _call(self, id_prefix: str, first_index: int, attempt: int, traceparent: str) -> udf_pb2.SealedSinkCall:
        self._calls += 1
        return udf_pb2.SealedSinkCall(
            call_id=self._calls,
            id_prefix=id_prefix,
            first_index=first_index,
            attempt=attempt,
            traceparent=traceparent,
        )

    async def _answer(self, call: udf_pb2.SealedSinkCall, frame: Frame, method: str, number: int) -> SinkAnswer:
        """The answer to a call with records."""
        first = f" (from {call.id_prefix}{call.first_index})" if call.id_prefix else ""
        what = f"a {method} of {counted(frame.records, 'record')} of {self._where}{first}"
        answer = (await self._ask(request_of(call, frame, number), "answer", what)).answer
        if answer.call_id != call.call_id:
            raise broken(self._where, f"it answered call {answer.call_id} instead of call {call.call_id}")
        try:
            fit = sink_answer_of(answer, frame.records)
        except ValueError as error:
            raise broken(
                self._where, f"its answer to call {call.call_id} ({frame.records} records) does not fit: {error}"
            ) from error
        if fit.error:
            raise SinkFunctionError(fit.error)
        return fit

    async def _ask(self, message: bytes, expected: str, what: str = "") -> udf_pb2.SinkResponse:
        what = what or f"a call of {self._where}, whose answer is `{expected}`"
        async with self._lives.in_flight(what) if self._is_alone else self._lives.turn(what):
            try:
                await self._wire.send(message)
                data = await self._wire.receive()
            except WireEndedError as ended:
                alone = self._is_alone and self._lives.is_cause_alone(self._life)
                raise StreamLostError(str(ended), LostCall(self._life, alone, ended.broke)) from ended
        response = understood(self._where, partial(decoded, udf_pb2.SinkResponse), data)
        if response.WhichOneof("message") != expected:
            raise broken(self._where, f"it sent `{response.WhichOneof('message')}`, where `{expected}` was due")
        return response


def _raise(answer: udf_pb2.SinkOpened | udf_pb2.SinkFlushed) -> None:
    if answer.fenced:
        raise SinkFencedError(answer.fenced, answer.position)
    if answer.error:
        raise SinkFunctionError(answer.error)


@asynccontextmanager
async def open_position_sink_stream(
    channel: grpc.aio.Channel, name: StreamName, lives: Lives, settings: FunctionSettings = NO_SETTINGS
) -> AsyncIterator[NativePositionSinkStream]:
    """Opens a stream. Waits until the function has welcomed it."""
    async with open_wire(channel, f"{SERVICE}/Sink", name.where) as wire:
        stream = NativePositionSinkStream(wire, name.where, lives)
        await stream.begin(name, settings)
        yield stream
