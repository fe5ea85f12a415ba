"""A sink that keeps positions, as one lane uses it.

    open(lane) ─► position ─┬─► check(record)      may refuse it; writes nothing
                            └─► write(record) ... flush(position)      one transaction, again and again

An instance of the user's class serves one opening of one lane. After any failure it is closed and discarded, and the
lane is opened again with another instance and a higher epoch. So records that it had not flushed cannot get into a
later transaction.

Above it: the server and the test kit. Below it: a user's class. It does not know gRPC.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from millstream_udf.answering import context_of
from millstream_udf.cancellation import result_in_task, result_of_call
from millstream_udf.context import CURRENT, Context
from millstream_udf.definition import Definition
from millstream_udf.execution import items_of
from millstream_udf.failures import FAILURES, Outcomes, error_text, failure
from millstream_udf.inputs import FrameInputs
from millstream_udf.misfits import BadOutput, Misfit
from millstream_udf.outside_loop import call_plainly
from millstream_udf.values import Fenced, RecordOutcome, SinkLane
from millstream_udf.wire.udf.v1 import udf_pb2

_Work = Callable[[Sequence[Any], Mapping[int, Misfit]], Awaitable[list[udf_pb2.Outcome]]]
"""Gets the records of a call as the class takes them, and the misfits. Returns the outcomes."""


class PositionSink:
    """One lane. All methods are called one after the other, in the function's thread."""

    def __init__(self, definition: Definition, hello: udf_pb2.Hello) -> None:
        self._definition = definition
        self._hello = hello
        self._sink: Any = None
        """The open instance; None before it is opened and after a failure."""
        # A call whose stream has ended is cancelled, and the instance is closed only after that call has ended.
        self._turn = asyncio.Lock()

    async def answer(self, request: udf_pb2.SealedSinkRequest) -> udf_pb2.SinkResponse:
        """Answer one message. The answer reports a call that fails."""
        async with self._turn:
            match request.WhichOneof("message"):
                case "open":
                    return udf_pb2.SinkResponse(opened=await self._open(request.open))
                case "check":
                    return udf_pb2.SinkResponse(answer=await self._answer(request.check, self._check))
                case "flush":
                    return udf_pb2.SinkResponse(flushed=await self._flush(request.flush))
            answer = await self._answer(request.call, self._write)
            if answer.error:
                await self._discard()
            return udf_pb2.SinkResponse(answer=answer)

    async def close(self) -> None:
        """Close the instance after the stream has ended."""
        async with self._turn:
            await self._discard()

    async def _open(self, request: udf_pb2.SinkOpen) -> udf_pb2.SinkOpened:
        """Discard the open instance, and open another."""
        await self._discard()
        context = self._enter()
        try:
            self._sink = call_plainly(self._definition.target)
            position = await result_of_call(self._sink.open, SinkLane(request.lane, request.epoch, context))
            return udf_pb2.SinkOpened(position=b"" if position is None else _checked(position))
        except Fenced as error:
            await self._discard()
            what = str(error) or "the target has a newer epoch of the lane"
            try:
                return udf_pb2.SinkOpened(fenced=what, position=_checked(error.position or b""))
            except BadOutput as wrong:
                return udf_pb2.SinkOpened(error=error_text(wrong))
        except FAILURES as error:
            await self._discard()
            return udf_pb2.SinkOpened(error=error_text(failure(error)))

    async def _answer(self, call: udf_pb2.SealedSinkCall, work: _Work) -> udf_pb2.SinkAnswer:
        """Pass the records of a call to the instance."""
        context = self._enter(call)
        answer = udf_pb2.SinkAnswer(call_id=call.call_id)
        try:
            if self._sink is None:
                raise BadOutput(_NOT_OPEN)
            inputs = FrameInputs(call.frame, call.id_prefix, call.first_index)
            answer.outcomes.extend(await work(*items_of(self._definition, inputs, context)))
        except FAILURES as error:
            answer.error = error_text(failure(error))
        return answer

    async def _check(self, items: Sequence[Any], misfits: Mapping[int, Misfit]) -> list[udf_pb2.Outcome]:
        """The outcomes of the records that are refused."""
        outcomes = Outcomes(sink=True)
        check = getattr(self._sink, "check", None)
        for index, item in enumerate(items):
            try:
                if index in misfits:
                    raise misfits[index]
                if check is not None and (result := await result_of_call(check, item)) is not None:
                    raise BadOutput(f"check returns nothing, not {type(result).__name__}; to refuse a record, raise")
            except FAILURES as error:
                outcomes.add(index, failure(error))
        return outcomes.items

    async def _write(self, items: Sequence[Any], misfits: Mapping[int, Misfit]) -> list[udf_pb2.Outcome]:
        """Add records to the transaction."""
        for misfit in misfits.values():
            raise misfit
        try:
            # One task for all of them: one for each record would take as long as a short write.
            await result_in_task(_write_all(self._sink, (items,) if self._definition.options.batch else items))
        except RecordOutcome as error:
            name = type(error).__name__
            raise BadOutput(
                f"write raised {name}: {error}. Raise {name} in check(record), which runs before write"
            ) from None
        return []

    async def _flush(self, request: udf_pb2.SinkFlush) -> udf_pb2.SinkFlushed:
        """Commit the transaction, with the position."""
        self._enter()
        if self._sink is None:
            return udf_pb2.SinkFlushed(error=_NOT_OPEN)
        try:
            _check_nothing("flush", await result_of_call(self._sink.flush, request.position))
            return udf_pb2.SinkFlushed(position=request.position)
        except Fenced as error:
            await self._discard()
            return udf_pb2.SinkFlushed(fenced=str(error) or "the target has another epoch of the lane")
        except FAILURES as error:
            await self._discard()
            return udf_pb2.SinkFlushed(error=error_text(failure(error)))

    async def _discard(self) -> None:
        """Close the instance. Records that it did not flush are discarded."""
        sink, self._sink = self._sink, None
        if (close := getattr(sink, "close", None)) is None:
            return
        try:
            await result_of_call(close)
        except FAILURES as error:
            # Records that it did not flush are discarded anyway, and the next opening fences an open transaction.
            traceback.print_exception(failure(error))

    def _enter(self, call: udf_pb2.SealedSinkCall | None = None) -> Context:
        attempt, traceparent = (0, "") if call is None else (call.attempt, call.traceparent)
        context = context_of(self._hello, attempt=attempt, traceparent=traceparent)
        CURRENT.set(context)
        return context


_NOT_OPEN = "the lane is not open: after a failure the client has to open it again"


async def _write_all(sink: Any, items: Sequence[Any]) -> None:
    for item in items:
        result = call_plainly(sink.write, item)
        _check_nothing("write", await result if inspect.isawaitable(result) else result)


def _check_nothing(method: str, result: Any) -> None:
    if result is not None:
        raise BadOutput(f"{method} returns nothing, not {type(result).__name__}; raise an exception to fail")


def _checked(position: Any) -> bytes:
    if isinstance(position, str):
        return position.encode()
    if isinstance(position, bytes | bytearray | memoryview):
        return bytes(position)
    raise BadOutput(
        f"open returns the position of the last flush that the target has, as bytes or str, or None if it has none, "
        f"not {type(position).__name__}"
    )
