"""One call in, one answer out: passes a call's records through a function, and reports failures in the answer.

Above it: the server and the test kit. Below it: `execution`, `inputs`, `outputs`. It does not know gRPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from millstream_udf.cancellation import result_at_once
from millstream_udf.context import Context
from millstream_udf.definition import SOURCE_TRANSFORM, Takes
from millstream_udf.execution import FunctionLane
from millstream_udf.failures import FAILURES, error_text, failure
from millstream_udf.fields import Data, field, without_large
from millstream_udf.inputs import FrameInputs
from millstream_udf.key_states import CallStates, now_us
from millstream_udf.outputs import map_answer, sink_answer
from millstream_udf.outside_loop import outside_loop
from millstream_udf.state_reads import Ask
from millstream_udf.wire.udf.v1 import udf_pb2

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Largest gRPC message in both directions; the protocol's limit."""

_CALL, _FRAME, _ANSWER = 2, 2, 2
"""Numbers of the call's field in a request, of the frame's in a call, and of the answer's in a response."""


def context_of(
    hello: udf_pb2.Hello,
    *,
    attempt: int = 0,
    watermark_us: int = -(2**63),
    traceparent: str = "",
    edge: str = "",
    **more: Any,
) -> Context:
    """The context of a call for a function. `more`: fields of `Context`."""
    return Context(
        pipeline=hello.pipeline,
        vertex=hello.vertex,
        lane=hello.lane,
        replica=hello.replica,
        version=hello.version,
        attempt=attempt,
        watermark_us=watermark_us,
        traceparent=traceparent,
        edge=edge or hello.edge,
        **more,
    )


def map_call_of(data: bytes) -> tuple[udf_pb2.SealedMapCall, Data]:
    """The call in a request; apart from it, its frame, if that is large."""
    rest, large = without_large(data, (_FRAME,), (_CALL,))
    return udf_pb2.SealedMapRequest.FromString(rest).call, large.get(_FRAME, b"")


def sink_call_of(data: bytes) -> tuple[udf_pb2.SealedSinkCall, Data]:
    """The same for a sink."""
    rest, large = without_large(data, (_FRAME,), (_CALL,))
    return udf_pb2.SealedSinkRequest.FromString(rest).call, large.get(_FRAME, b"")


async def answer_map(
    lane: FunctionLane,
    hello: udf_pb2.Hello,
    call: udf_pb2.SealedMapCall,
    frame: Data = b"",
    *,
    now_us: Callable[[], int] = now_us,
    ask: Ask | None = None,
) -> udf_pb2.SealedMapAnswer:
    """Never raises what the function raises: if a call fails as a whole, the answer has an `error`. `frame`: the frame
    of the call, if it is not in `call`. `now_us`: the clock of states that expire by it. `ask`: how to read of lazy
    states."""
    if not lane.definition.waits:
        with outside_loop():
            return result_at_once(_answer_map(lane, hello, call, frame, now_us, ask))
    return await _answer_map(lane, hello, call, frame, now_us, ask)


async def _answer_map(
    lane: FunctionLane,
    hello: udf_pb2.Hello,
    call: udf_pb2.SealedMapCall,
    frame: Data,
    now_us: Callable[[], int],
    ask: Ask | None,
) -> udf_pb2.SealedMapAnswer:
    tables = lane.tables
    context = context_of(
        hello,
        attempt=call.attempt,
        watermark_us=call.watermark_us,
        traceparent=call.traceparent,
        edge=call.edge,
        tables=tables.by_name,
    )
    try:
        if call.table:
            return udf_pb2.SealedMapAnswer(call_id=call.call_id, lacks_tables=not tables.update(call.table))
        if call.tables_version != tables.version:
            return udf_pb2.SealedMapAnswer(call_id=call.call_id, lacks_tables=True)
        inputs = FrameInputs(frame or call.frame, call.id_prefix, call.first_index)
        if lane.definition.takes is Takes.ARROW:
            return await _answer_arrow(lane, hello, call.call_id, inputs, context)
        specs = lane.definition.states
        states = CallStates(specs, call.states, inputs, now_us, call_id=call.call_id, ask=ask) if specs else None
        if call.timers and states is not None:
            results = await lane.timer_results(inputs, context, states)
        else:
            results = await lane.results(inputs, context, states)
        # Those of timers were compared with the time of their timer.
        times_allowed, encode = hello.kind == SOURCE_TRANSFORM or call.timers, lane.definition.encode
        # Outputs may be an iterator, which is users' code, also of a function whose threads have ended.
        with nullcontext() if lane.definition.is_async else outside_loop():
            answer = map_answer(call.call_id, inputs, results, times_allowed=times_allowed, encode=encode)
        if states is not None:
            answer.changes = states.changes()
        return answer
    except FAILURES as error:
        return udf_pb2.SealedMapAnswer(call_id=call.call_id, error=error_text(failure(error)))


def _answer_arrow(
    lane: FunctionLane, hello: udf_pb2.Hello, call_id: int, inputs: FrameInputs, context: Context
) -> Awaitable[udf_pb2.SealedMapAnswer]:
    # Only Arrow functions need pyarrow, which may not be installed.
    from millstream_udf.arrow import answer_arrow

    return answer_arrow(lane, hello, call_id, inputs, context)


async def answer_sink(
    lane: FunctionLane, hello: udf_pb2.Hello, call: udf_pb2.SealedSinkCall, frame: Data = b""
) -> udf_pb2.SinkAnswer:
    """The same as `answer_map`, for a sink."""
    if not lane.definition.waits:
        with outside_loop():
            return result_at_once(_answer_sink(lane, hello, call, frame))
    return await _answer_sink(lane, hello, call, frame)


async def _answer_sink(
    lane: FunctionLane, hello: udf_pb2.Hello, call: udf_pb2.SealedSinkCall, frame: Data
) -> udf_pb2.SinkAnswer:
    context = context_of(hello, attempt=call.attempt, traceparent=call.traceparent)
    try:
        inputs = FrameInputs(frame or call.frame, call.id_prefix, call.first_index)
        return sink_answer(call.call_id, await lane.results(inputs, context))
    except FAILURES as error:
        return udf_pb2.SinkAnswer(call_id=call.call_id, error=error_text(failure(error)))


def encode_map(answer: udf_pb2.SealedMapAnswer) -> list[bytes]:
    """The parts of the message to send. A message that no peer would accept is replaced by an answer with an error."""
    rest = udf_pb2.SealedMapAnswer(
        call_id=answer.call_id,
        records=answer.records,
        outcomes=answer.outcomes,
        error=answer.error,
        lacks_tables=answer.lacks_tables,
        unfinished=answer.unfinished,
    )
    parts = field(
        _ANSWER,
        rest.SerializeToString(),
        *field(3, answer.values),
        *field(4, answer.parents),
        *field(5, answer.keys),
        *field(6, answer.tags),
        *field(7, answer.headers),
        *field(8, answer.event_times_us),
        *field(11, answer.arrow),
        *field(12, answer.changes),
    )
    size = sum(map(len, parts))
    if size <= MESSAGE_BYTES_MAX:
        return parts
    error = too_much("outputs and states" if answer.changes else "outputs", size)
    return [
        udf_pb2.SealedMapResponse(
            answer=udf_pb2.SealedMapAnswer(call_id=answer.call_id, error=error)
        ).SerializeToString()
    ]


def too_much(what: str, size: int) -> str:
    """The error of an answer with so many bytes."""
    return (
        f"the {what} of one call came to {size:,} bytes; the limit is {MESSAGE_BYTES_MAX:,}. Return smaller or fewer "
        "outputs per record"
    )
