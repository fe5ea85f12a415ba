"""Servers of sinks that keep positions, which break the protocol: the lane stops, and the message says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream.udf.function import open_remote_function
from millstream_connectors.opening_sinks import open_sink
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_writer.sink import SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.udf.answering_server import open_server
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

Answer = Callable[[udf_pb2.SealedSinkRequest], udf_pb2.SinkResponse]


def answer(request: udf_pb2.SealedSinkRequest) -> udf_pb2.SinkResponse:
    """The right ones, of a target that has nothing."""
    match request.WhichOneof("message"):
        case "hello":
            welcome = udf_pb2.Welcome(protocol_version=1, calls_max=1, keeps_positions=True, checks=True)
            return udf_pb2.SinkResponse(welcome=welcome)
        case "open":
            return udf_pb2.SinkResponse(opened=udf_pb2.SinkOpened())
        case "flush":
            return udf_pb2.SinkResponse(flushed=udf_pb2.SinkFlushed(position=request.flush.position))
        case "check":
            return udf_pb2.SinkResponse(answer=udf_pb2.SinkAnswer(call_id=request.check.call_id))
    return udf_pb2.SinkResponse(answer=udf_pb2.SinkAnswer(call_id=request.call.call_id))


@asynccontextmanager
async def lane(directory: Path, answers: Answer) -> AsyncIterator[SinkLane]:
    """A lane whose function answers so."""

    async def serve(context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(answers(udf_pb2.SealedSinkRequest.FromString(data)).SerializeToString())

    description = udf_pb2.DescribeResponse(protocol_version=1, kinds=[udf_pb2.KIND_SINK], keeps_positions=True)
    async with (
        open_server(directory, "Sink", serve, description) as address,
        asyncio.timeout(40),
        open_remote_function(address, timeout_s=30) as client,
    ):
        spec = FallbackSink.model_validate({"udsink": {"address": address}})
        async with open_sink(spec, replace(sink_owner(1), client=client)) as opened:
            yield opened


async def written(directory: Path, answers: Answer) -> None:
    """What a lane does that gets these answers."""
    async with lane(directory, answers) as opened:
        await opened.write([sink_frame([value_of(1), value_of(2)], 1)], Position(1))
        assert opened.durable == Position(1)


def changed(to: str, response: udf_pb2.SinkResponse) -> Answer:
    """Answers so to messages of a kind."""
    return lambda request: response if request.WhichOneof("message") == to else answer(request)


def outcome(call_id: int, index: int) -> udf_pb2.SinkResponse:
    found = udf_pb2.Outcome(index=index, result=udf_pb2.Outcome.RESULT_DROP, reason="no")
    return udf_pb2.SinkResponse(answer=udf_pb2.SinkAnswer(call_id=call_id, outcomes=[found]))


async def test_the_right_answers_are_taken(tmp_path: Path) -> None:
    await written(tmp_path, answer)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(
    ("answers", "code", "message"),
    [
        (
            changed("flush", udf_pb2.SinkResponse(flushed=udf_pb2.SinkFlushed(position=b"another"))),
            codes.FUNCTION_PROTOCOL,
            "was to store the position .*, and answered that it has 'another'",
        ),
        (
            changed("flush", udf_pb2.SinkResponse(flushed=udf_pb2.SinkFlushed())),
            codes.FUNCTION_PROTOCOL,
            "answered that it has ''",
        ),
        (
            changed("open", udf_pb2.SinkResponse(opened=udf_pb2.SinkOpened(position=b"12"))),
            codes.FUNCTION_PROTOCOL,
            "opened lane p/out.in-out.0 at a position that Millstream never gave it",
        ),
        (
            changed("open", udf_pb2.SinkResponse(flushed=udf_pb2.SinkFlushed())),
            codes.FUNCTION_PROTOCOL,
            "it sent `flushed`, where `opened` was due",
        ),
        (changed("check", outcome(1, 2)), codes.FUNCTION_PROTOCOL, "outcome is for input 2 of 2"),
        (changed("check", outcome(7, 0)), codes.FUNCTION_PROTOCOL, "answered call 7 instead of call 1"),
        (changed("call", outcome(2, 0)), codes.FUNCTION_PROTOCOL, "refused records in `call`"),
        (
            changed("hello", udf_pb2.SinkResponse(welcome=udf_pb2.Welcome(protocol_version=1, calls_max=1))),
            codes.FUNCTION_POSITIONS,
            "kept positions when the pipeline started, and now it does not",
        ),
        (
            changed("open", udf_pb2.SinkResponse(opened=udf_pb2.SinkOpened(fenced="newer"))),
            codes.OUTPUT_TAKEN_OVER,
            "another owner writes lane",
        ),
    ],
)
async def test_an_answer_that_does_not_fit_stops_the_lane(
    tmp_path: Path, answers: Answer, code: Code, message: str
) -> None:
    with raises(code, message):
        await written(tmp_path, answers)


async def test_a_stream_that_is_lost_after_the_flush_is_settled_by_the_position(tmp_path: Path) -> None:
    """The transaction is in the target, and its answer never came."""
    stored, epochs, records = b"", list[int](), list[int]()

    def losing(request: udf_pb2.SealedSinkRequest) -> udf_pb2.SinkResponse:
        nonlocal stored
        match request.WhichOneof("message"):
            case "open":
                epochs.append(request.open.epoch)
                return udf_pb2.SinkResponse(opened=udf_pb2.SinkOpened(position=stored))
            case "call":
                records.append(request.call.call_id)
            case "flush":
                is_first, stored = not stored, request.flush.position
                if is_first:
                    raise ConnectionError("the answer is lost")
        return answer(request)

    await written(tmp_path, losing)
    assert epochs == [(1 << 20) + 1, (1 << 20) + 2]
    assert len(records) == 1
