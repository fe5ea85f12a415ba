"""Reduce streams that break the protocol: each side says what the other did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream import codes
from millstream.udf.native import reduce_stream
from millstream.udf.native.reduce_client import reduce_over_grpc
from millstream.udf.native.reduce_parts import check_reduce_answer
from millstream.wire.reduce.v1 import engine_pb2
from millstream_udf import columns
from millstream_udf.groups import FrameRows, Group, Part
from millstream_udf.reducing import Answer
from millstream_udf.values import Window
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.answering_server import open_server
from tests.contract.udf.conftest import Open, frame_of
from tests.contract.udf.misfits import bytes_column, headers_column, list_column
from tests.support.errors import raises

WELCOME = udf_pb2.SealedReduceResponse(welcome=udf_pb2.Welcome(protocol_version=1, calls_max=1)).SerializeToString()
GROUPS = [Group(Window(0, 10), (key,)) for key in ("a", "b")]
PART = Part(GROUPS, [1, 1], FrameRows(frame_of([b"1", b"2"]).encode()))

Serve = Callable[[Any], Any]


def answer(counts: list[int], values: list[bytes], *, unfinished: bool = False) -> bytes:
    message = udf_pb2.SealedReduceAnswer(counts=counts, values=columns.pack_bytes(values), unfinished=unfinished)
    return udf_pb2.SealedReduceResponse(answer=message).SerializeToString()


@asynccontextmanager
async def serving(directory: Path, serve: Serve) -> AsyncIterator[engine_pb2.UdfProgram]:
    """A server whose reduce streams are handled by `serve`."""
    async with open_server(directory, "Reduce", serve) as address, asyncio.timeout(30):
        yield engine_pb2.UdfProgram(address=address, pipeline="p", vertex="v")


async def answers(program: engine_pb2.UdfProgram) -> list[Answer]:
    return await asyncio.to_thread(lambda: list(reduce_over_grpc(program, [PART])))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer([1, 1, 1], [b"a", b"b", b"c"]), "contains 3 groups, but 2 are unanswered"),
        (answer([], []), "contains no group"),
        (WELCOME, "contains no group"),
        (b"\xff\xff", "returned an answer that does not fit"),
    ],
)
async def test_an_answer_that_does_not_fit(tmp_path: Path, reply: bytes, message: str) -> None:
    async def serve(context: Any) -> None:
        await context.read()
        await context.write(WELCOME)
        await context.read()
        await context.write(reply)
        await context.read()

    async with serving(tmp_path, serve) as program:
        with raises(codes.FUNCTION_PROTOCOL, match=f"^p/v: the function at unix:.*{message}"):
            await answers(program)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": b""}, "values: a column has -1 items for 2 records"),
        ({"values": bytes_column([0, 9, 2], b"ab")}, "values: offsets fall at place 2"),
        ({"keys": columns.pack_lists([[b"\xff"], [b"a"]])}, "keys: a text is not UTF-8"),
        ({"tags": list_column([0, 2, 1], [b"a"])}, "tags: offsets fall"),
        ({"headers": headers_column([0, 1, 9], 2)}, "headers: offsets do not begin at 0 and end at 2"),
        ({"counts": [2**32 - 1, 1]}, "4,294,967,296 results; at most 500,000"),
    ],
)
def test_columns_that_do_not_fit(fields: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"counts": [1, 1], "values": columns.pack_bytes([b"a", b"b"])}
    check_reduce_answer(udf_pb2.SealedReduceAnswer(**sound))
    with pytest.raises(ValueError, match=message):
        check_reduce_answer(udf_pb2.SealedReduceAnswer(**(sound | fields)))


async def test_columns_that_do_not_fit_are_the_failure_of_their_groups(tmp_path: Path) -> None:
    message = "values: offsets fall at place 2"

    async def serve(context: Any) -> None:
        await context.read()
        await context.write(WELCOME)
        await context.read()
        bad = udf_pb2.SealedReduceAnswer(counts=[1, 1], values=bytes_column([0, 9, 2], b"ab"))
        await context.write(udf_pb2.SealedReduceResponse(answer=bad).SerializeToString())
        await context.read()

    async with serving(tmp_path, serve) as program:
        (got,) = await answers(program)
    assert (got.groups, got.counts, got.results) == (GROUPS, [0, 0], [])
    assert [failure.index for failure in got.failures] == [0, 1]
    assert all(message in failure.error and "p/v: the function at unix:" in failure.error for failure in got.failures)


async def test_no_welcome(tmp_path: Path) -> None:
    async def serve(context: Any) -> None:
        await context.write(answer([1], [b"a"]))
        await context.read()

    async with serving(tmp_path, serve) as program:
        with raises(codes.FUNCTION_PROTOCOL, match="its first message is not a Welcome"):
            await answers(program)


async def test_a_message_that_is_too_large(tmp_path: Path) -> None:
    async def serve(context: Any) -> None:
        await context.read()
        await context.write(WELCOME)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")

    async with serving(tmp_path, serve) as program:
        with raises(codes.FUNCTION_MESSAGE_SIZE, match="a message was larger than the protocol allows: too much"):
            await answers(program)


async def test_streams_that_end_before_their_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_stream, "CONNECT_TIMEOUT_S", 0.5)
    streams = 0

    async def serve(context: Any) -> None:
        nonlocal streams
        streams += 1

    async with serving(tmp_path, serve) as program:
        with raises(codes.FUNCTION_UNREACHABLE, match=r"has not opened a stream for 0.5 s \(the stream ended early\)"):
            await answers(program)
    assert streams > 1


async def test_results_of_half_a_group_come_again_whole(tmp_path: Path) -> None:
    """The stream ends behind some results of a group: these are forgotten, and it is reduced again."""
    streams = 0
    seen: list[list[str]] = []

    async def serve(context: Any) -> None:
        nonlocal streams
        streams += 1
        await context.read()
        await context.write(WELCOME)
        while (data := await context.read()) is not grpc.aio.EOF:
            part = udf_pb2.ReduceRequest.FromString(data).part
            seen.append([group.keys[0] for group in part.groups])
            if streams == 1:
                await context.write(answer([1, 1], [b"whole", b"half"], unfinished=True))
                return
            await context.write(answer([2], [b"again", b"and whole"]))

    async with serving(tmp_path, serve) as program:
        got = await answers(program)
    assert [(one.groups, one.results) for one in got] == [
        ([GROUPS[0]], [b"whole"]),
        ([GROUPS[1]], [b"again", b"and whole"]),
    ]
    assert seen == [["a", "b"], ["b"]]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (udf_pb2.SealedReducePart(counts=[1], frame=frame_of([b"1"]).encode()), "count"),
        (udf_pb2.SealedReducePart(groups=[udf_pb2.Group()], counts=[2], frame=frame_of([b"1"]).encode()), "count"),
        (udf_pb2.SealedReducePart(), "count"),
    ],
)
async def test_a_part_that_does_not_fit(
    reduce_command: list[str], open_function: Open, part: udf_pb2.SealedReducePart, message: str
) -> None:
    hello = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_REDUCE, pipeline="p", vertex="v")
    async with open_function(reduce_command) as sidecar, grpc.aio.insecure_channel(sidecar.address) as channel:
        method: Any = channel.stream_stream("/millstream.udf.v1.Udf/Reduce")
        stream = method()
        await stream.write(udf_pb2.SealedReduceRequest(hello=hello).SerializeToString())
        await stream.read()
        await stream.write(udf_pb2.SealedReduceRequest(part=part).SerializeToString())
        async with asyncio.timeout(20):
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert message in await stream.details()


async def test_a_stream_without_hello(reduce_command: list[str], open_function: Open) -> None:
    async with open_function(reduce_command) as sidecar, grpc.aio.insecure_channel(sidecar.address) as channel:
        method: Any = channel.stream_stream("/millstream.udf.v1.Udf/Reduce")
        stream = method()
        await stream.write(udf_pb2.SealedReduceRequest(part=udf_pb2.SealedReducePart()).SerializeToString())
        async with asyncio.timeout(20):
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "the first message of a stream must be Hello" in await stream.details()
