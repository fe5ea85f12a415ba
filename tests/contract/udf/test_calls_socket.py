"""Calls over the socket beside the function's own: how it is offered, taken and left, and servers that misuse it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction, open_remote_function
from millstream.udf.sidecar import python_command
from millstream.udf.streams import MapStream
from millstream_udf import columns
from millstream_udf.calls_socket import SUFFIX, TOKEN_BYTES
from millstream_udf.message_socket import MessageSocket
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.answering_server import open_server
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of, values_of
from tests.support.errors import raises

TIMEOUT_S = 90
BYTES_MAX = 64 * 1024 * 1024
HELLO = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="p", vertex="v", lane="l", calls_socket=True)


@pytest.fixture
def command() -> list[str]:
    """Of the SDK that has such a socket."""
    return python_command(f"{HERE / 'conformance.py'}:obey")


def socket_of(sidecar: LocalFunction) -> str:
    return sidecar.address.removeprefix("unix:")


async def connect(path: str) -> MessageSocket:
    loop = asyncio.get_running_loop()
    _, socket = await loop.create_unix_connection(lambda: MessageSocket(BYTES_MAX), path)
    return socket


@asynccontextmanager
async def greeted(sidecar: LocalFunction, hello: udf_pb2.Hello) -> AsyncIterator[tuple[Any, udf_pb2.Welcome]]:
    """A stream by hand, and what it was welcomed with."""
    async with asyncio.timeout(TIMEOUT_S), grpc.aio.insecure_channel(sidecar.address) as channel:
        call: Any = channel.stream_stream("/millstream.udf.v1.Udf/Map")()
        await call.write(udf_pb2.MapRequest(hello=hello).SerializeToString())
        yield call, udf_pb2.MapResponse.FromString(await call.read()).welcome


def request(call_id: int, *values: bytes) -> bytes:
    call = udf_pb2.SealedMapCall(call_id=call_id, frame=frame_of(values).encode())
    return udf_pb2.SealedMapRequest(call=call).SerializeToString()


async def answered(socket: MessageSocket) -> dict[int, list[bytes]]:
    """All answers until the server closes the socket."""
    answers = {}
    while (data := await socket.receive()) is not None:
        answer = udf_pb2.SealedMapResponse.FromString(data).answer
        answers[answer.call_id] = columns.unpack_bytes(answer.values)
    return answers


async def test_what_is_called_is_answered_before_the_stream_ends(sidecar: LocalFunction) -> None:
    async with greeted(sidecar, HELLO) as (call, welcome):
        assert len(welcome.calls_token) == TOKEN_BYTES
        socket = await connect(socket_of(sidecar) + SUFFIX)
        await socket.send(welcome.calls_token)
        for number in range(1, 9):
            await socket.send(request(number, b"a" * number))
        socket.end()
        assert await answered(socket) == {number: [b"A" * number] for number in range(1, 9)}
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        await socket.close()


async def send_together(socket: MessageSocket, *messages: bytes) -> None:
    """They arrive at once."""
    assert socket._transport is not None
    socket._transport.write(b"".join(len(message).to_bytes(4, "little") + message for message in messages))


async def next_answer(socket: MessageSocket) -> list[bytes]:
    data = await socket.receive()
    assert data is not None
    return columns.unpack_bytes(udf_pb2.SealedMapResponse.FromString(data).answer.values)


async def begun(path: Path) -> None:
    """Returns when the function waits for `path`."""
    async with asyncio.timeout(TIMEOUT_S):
        while not Path(f"{path}.begun").exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.005)


async def test_streams_of_one_function_take_turns(sidecar: LocalFunction, tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    async with greeted(sidecar, HELLO) as (_, welcome), greeted(sidecar, HELLO) as (_, other_welcome):
        socket, other = [await connect(socket_of(sidecar) + SUFFIX) for _ in range(2)]
        await socket.send(welcome.calls_token)
        await other.send(other_welcome.calls_token)
        await other.send(request(1, b"a"))
        assert await next_answer(other) == [b"A"]
        values = [f"wait:{first}".encode(), b"between", f"wait:{last}".encode()]
        await send_together(socket, *(request(number, value) for number, value in enumerate(values, 1)))
        await begun(first)
        # Meanwhile the process answers health checks.
        await sidecar.ask(TIMEOUT_S)
        await other.send(request(2, b"b"))
        first.touch()
        assert await next_answer(other) == [b"B"]
        last.touch()
        assert [await next_answer(socket) for _ in values] == [[value.upper()] for value in values]
        await socket.close()
        await other.close()


async def test_a_client_that_offers_nothing_is_answered_over_grpc(sidecar: LocalFunction) -> None:
    plain = udf_pb2.Hello()
    plain.CopyFrom(HELLO)
    plain.calls_socket = False
    async with greeted(sidecar, plain) as (call, welcome):
        assert not welcome.calls_token
        await call.write(request(1, b"a"))
        assert columns.unpack_bytes(udf_pb2.SealedMapResponse.FromString(await call.read()).answer.values) == [b"A"]


@pytest.mark.guarantee("I10")
async def test_a_connection_without_the_token_of_a_stream_gets_nothing(sidecar: LocalFunction) -> None:
    path = socket_of(sidecar) + SUFFIX
    async with greeted(sidecar, HELLO) as (_, welcome):
        for token in (secrets.token_bytes(TOKEN_BYTES), welcome.calls_token[:-1], b""):
            stranger = await connect(path)
            await stranger.send(token)
            assert await stranger.receive() is None
            await stranger.close()
        socket = await connect(path)
        await socket.send(welcome.calls_token)
        await socket.send(request(1, b"a"))
        assert await socket.receive()
        # A token is of one connection.
        second = await connect(path)
        await second.send(welcome.calls_token)
        assert await second.receive() is None
        await second.close()
        socket.end()
        await socket.close()


async def test_the_end_of_the_stream_is_that_of_its_socket(sidecar: LocalFunction) -> None:
    async with greeted(sidecar, HELLO) as (call, welcome):
        socket = await connect(socket_of(sidecar) + SUFFIX)
        await socket.send(welcome.calls_token)
        await socket.send(request(1, b"a"))
        assert await socket.receive()
        call.cancel()
        assert await socket.receive() is None
        await socket.close()


async def test_without_a_way_to_the_socket_calls_go_over_grpc(sidecar: LocalFunction) -> None:
    Path(socket_of(sidecar) + SUFFIX).unlink()
    async with asyncio.timeout(TIMEOUT_S), sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        assert values_of(await stream.call(frame_of([b"a"]), watermark_us=0)) == [b"A"]


@pytest.mark.parametrize("transport", ["socket", "grpc"])
async def test_calls_do_not_see_each_others_context_variables(open_function: Open, transport: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), open_function(python_command(f"{HERE / 'served.py'}:seen")) as sidecar:
        if transport == "grpc":
            Path(socket_of(sidecar) + SUFFIX).unlink()
        async with sidecar.open_map(FunctionKind.MAP, NAME) as stream:
            for value in (b"a", b"b", b"c"):
                assert values_of(await stream.call(frame_of([value]), watermark_us=0)) == [b"nothing"]


async def test_no_socket_is_left_behind(open_function: Open, command: list[str]) -> None:
    async with open_function(command) as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        path = Path(socket_of(sidecar) + SUFFIX)
        assert path.is_socket()
        assert values_of(await stream.call(frame_of([b"a"]), watermark_us=0)) == [b"A"]
    assert not path.exists()


# Servers that break the protocol

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TOKEN = b"t" * TOKEN_BYTES


@asynccontextmanager
async def serving(directory: Path, talk: Talk, *, code: grpc.StatusCode | None = None) -> AsyncIterator[MapStream]:
    """A map stream to a server whose socket for calls says what `talk` does; then the stream ends with `code`."""
    ended = asyncio.Event()

    async def serve_map(context: Any) -> None:
        await context.read()
        welcome = udf_pb2.Welcome(protocol_version=1, calls_max=4, calls_token=TOKEN)
        await context.write(udf_pb2.SealedMapResponse(welcome=welcome).SerializeToString())
        await ended.wait()
        if code is not None:
            await context.abort(code, "it ends so")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(4 + TOKEN_BYTES) == TOKEN_BYTES.to_bytes(4, "little") + TOKEN
            await talk(reader, writer)
        finally:
            ended.set()
            writer.close()

    description = udf_pb2.DescribeResponse(protocol_version=1, kinds=[udf_pb2.KIND_MAP])
    calls = await asyncio.start_unix_server(accept, f"{directory}/s{SUFFIX}")
    async with open_server(directory, "Map", serve_map, description) as address:
        try:
            async with (
                asyncio.timeout(20),
                open_remote_function(address, timeout_s=10) as client,
                client.open_map(FunctionKind.MAP, NAME) as stream,
            ):
                yield stream
        finally:
            ended.set()
            calls.close()


def reply(call: udf_pb2.SealedMapCall) -> bytes:
    answer = udf_pb2.SealedMapAnswer(call_id=call.call_id, records=1, values=columns.pack_bytes([b"right"]))
    data = udf_pb2.SealedMapResponse(answer=answer).SerializeToString()
    return len(data).to_bytes(4, "little") + data


async def read_call(reader: asyncio.StreamReader) -> udf_pb2.SealedMapCall:
    size = int.from_bytes(await reader.readexactly(4), "little")
    return udf_pb2.SealedMapRequest.FromString(await reader.readexactly(size)).call


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"\xff\xff\xff\xff", codes.FUNCTION_MESSAGE_SIZE),
        ((BYTES_MAX + 1).to_bytes(4, "little"), codes.FUNCTION_MESSAGE_SIZE),
        (b"\x03\0\0\0\xff\xff\xff", codes.FUNCTION_PROTOCOL),
        (b"\0\0\0\0", codes.FUNCTION_PROTOCOL),
    ],
)
async def test_lengths_and_messages_of_a_function_are_not_trusted(tmp_path: Path, wire: bytes, code: Code) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_call(reader)
        writer.write(wire)
        await reader.read()

    with raises(code):
        async with serving(tmp_path, talk) as stream:
            await stream.call(frame_of([b"a"]), watermark_us=0)


async def test_calls_without_an_answer_are_sent_again_on_the_next_socket(tmp_path: Path) -> None:
    times = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal times
        times += 1
        first = await read_call(reader)
        if times == 1:
            # In the middle of an answer.
            writer.write(reply(first)[:-1])
            return
        writer.write(reply(first) + reply(await read_call(reader)))
        await reader.read()

    async with serving(tmp_path, talk) as stream, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(stream.call(frame_of([b"a"]), watermark_us=0)) for _ in range(2)]
        for call in calls:
            assert values_of(await call) == [b"right"]
    assert times == 2


async def test_why_the_stream_ends_is_said_by_grpc(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_call(reader)

    with raises(codes.FUNCTION_REFUSES, match="it ends so"):
        async with serving(tmp_path, talk, code=grpc.StatusCode.FAILED_PRECONDITION) as stream:
            await stream.call(frame_of([b"a"]), watermark_us=0)
