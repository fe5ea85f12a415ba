"""Reads of lazy states while a call is in progress: over both kinds of streams, through kills, against the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream import codes
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction, open_remote_function
from millstream.udf.native.messages import entries_message
from millstream.udf.sidecar import python_command
from millstream.udf.states import StateEntries, StateFound, StateRead, StateReader
from millstream.udf.streams import KeyedMapStream
from millstream_udf import columns
from millstream_udf.calls_socket import SUFFIX
from millstream_udf.state_found import Found
from millstream_udf.state_reads import unpack_found
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.keyed.state import KeyedState
from tests.contract.udf.answering_server import open_server
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of, values_of
from tests.support.children import together
from tests.support.errors import raises
from tests.support.sizes import first

TIMEOUT_S = 90
ITEMS = 5000
"""More than one page, and more than one read of items."""


@asynccontextmanager
async def opened(
    open_function: Open, function: str, *, over_socket: bool
) -> AsyncIterator[tuple[LocalFunction, KeyedMapStream]]:
    command = python_command(f"{HERE / 'remembering_functions.py'}:{function}")
    async with open_function(command) as sidecar, asyncio.timeout(TIMEOUT_S):
        if not over_socket:
            Path(sidecar.address.removeprefix("unix:") + SUFFIX).unlink()
        async with sidecar.open_map(FunctionKind.MAP, NAME) as stream:
            assert isinstance(stream, KeyedMapStream)
            yield sidecar, stream


class Remembered:
    """What a vertex has, and calls of it."""

    def __init__(self, stream: KeyedMapStream) -> None:
        self._stream = stream
        self._state = KeyedState("p/v/l", size_max=1 << 30, key_size_max=1 << 20)
        self._state.loaded()
        self._state.declare(stream.states)
        self.reads: list[StateRead] = []
        self.before: Callable[[], None] = lambda: None
        """Called before each answer to a read."""

    async def call(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        distinct = list(dict.fromkeys(keys))
        record_keys = [distinct.index(key) for key in keys]
        entries = self._state.entries(distinct, record_keys, 0)
        reader = self._state.reader(distinct, 0)
        assert reader is not None
        frame = frame_of(values, keys=[[key] for key in keys])
        answer = await self._stream.keyed_call(frame, entries, reader=self._noting(reader), watermark_us=0)
        assert (answer.error, answer.outcomes) == ("", ())
        assert self._state.apply(distinct, answer.changes) is None
        return values_of(answer)

    def _noting(self, reader: StateReader) -> StateReader:
        def read(asked: StateRead) -> StateFound:
            self.reads.append(asked)
            self.before()
            return reader(asked)

        return read


@pytest.mark.parametrize(
    ("function", "over_socket"),
    first(
        4,
        [
            ("LazyAsync", False),
            ("Lazy", True),
            ("LazyThreads", True),
            ("LazyBatch", True),
            ("Lazy", False),
            ("LazyAsync", True),
        ],
    ),
)
async def test_a_function_reads_what_it_needs(open_function: Open, function: str, *, over_socket: bool) -> None:
    async with opened(open_function, function, over_socket=over_socket) as (_, stream):
        remembered = Remembered(stream)
        writes = [b"%05d=%d" % (number, number) for number in range(ITEMS)]
        assert await remembered.call([b"ada"] * ITEMS, writes) == [b"written"] * ITEMS
        assert remembered.reads == []
        values = [b"00007", b"none", b"00007=1", b"00007", b"00007"]
        assert await remembered.call([b"ada"] * 4 + [b"bob"], values) == [b"7", b"None", b"written", b"1", b"None"]
        read = [item for one in remembered.reads for item in one.items]
        assert sorted(read) == [b'"00007"', b'"00007"', b'"none"']
        total = b"%d" % (sum(range(ITEMS)) - 6)
        assert await remembered.call([b"ada", b"bob"], [b"sum", b"sum"]) == [total, b"0"]
        assert len([one for one in remembered.reads if not one.items]) > 2


@pytest.mark.guarantee("I7")
@pytest.mark.parametrize(("function", "over_socket"), [("Lazy", True), ("LazyAsync", False)])
async def test_a_process_that_is_killed_while_it_reads(
    open_function: Open, function: str, *, over_socket: bool
) -> None:
    async with opened(open_function, function, over_socket=over_socket) as (sidecar, stream):
        remembered = Remembered(stream)
        await remembered.call([b"ada"], [b"a=1"])
        killed: list[int] = []

        def kill() -> None:
            pid = sidecar.statistics().pid
            if not killed and pid is not None:
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

        remembered.before = kill
        # What it had written before is not there when the call is repeated.
        assert await remembered.call([b"ada"] * 3, [b"a=5", b"b", b"b=2"]) == [b"written", b"None", b"written"]
        assert await remembered.call([b"ada"] * 2, [b"a", b"sum"]) == [b"5", b"7"]
        assert sidecar.statistics().restarts == len(killed) == 1


@pytest.mark.parametrize(("function", "over_socket"), [("Lazy", False), ("LazyAsync", True)])
async def test_a_drain_answers_what_reads(open_function: Open, function: str, *, over_socket: bool) -> None:
    async with opened(open_function, function, over_socket=over_socket) as (sidecar, stream):
        remembered = Remembered(stream)
        await remembered.call([b"ada"], [b"a=1"])
        drained: list[int] = []

        def drain() -> None:
            pid = sidecar.statistics().pid
            if not drained and pid is not None:
                drained.append(pid)
                os.kill(pid, signal.SIGTERM)

        remembered.before = drain
        assert await remembered.call([b"ada"] * 2, [b"a", b"b"]) == [b"1", b"None"]
        # It is not sent again, so its items were read once.
        assert [list(one.items) for one in remembered.reads] == [[b'"a"'], [b'"b"']]
        assert await remembered.call([b"ada"], [b"a"]) == [b"1"]


async def test_lanes_share_the_thread_of_a_function(open_function: Open) -> None:
    async with (
        opened(open_function, "Lazy", over_socket=True) as (sidecar, one),
        sidecar.open_map(FunctionKind.MAP, NAME) as two,
    ):
        assert isinstance(two, KeyedMapStream)
        lanes = [Remembered(one), Remembered(two)]
        for number, lane in enumerate(lanes):
            await lane.call([b"ada"], [b"a=%d" % number])
        for _ in range(20):
            found = await together(*(lane.call([b"ada"] * 2, [b"a", b"sum"]) for lane in lanes))
            assert found == [[b"0", b"0"], [b"1", b"1"]]


async def test_a_stream_that_ends_while_a_function_reads_frees_its_thread(open_function: Open) -> None:
    hello = udf_pb2.Hello(
        protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="p", vertex="v", lane="l", answers_reads=True
    )
    async with (
        opened(open_function, "Lazy", over_socket=True) as (sidecar, stream),
        grpc.aio.insecure_channel(sidecar.address) as channel,
    ):
        other: Any = channel.stream_stream("/millstream.udf.v1.Udf/Map")()
        await other.write(udf_pb2.MapRequest(hello=hello).SerializeToString())
        await other.read()
        entries = StateEntries([0], [], b"", [], [], [])
        call = udf_pb2.SealedMapCall(call_id=1, frame=frame_of([b"a"]).encode(), states=entries_message(entries))
        await other.write(udf_pb2.SealedMapRequest(call=call).SerializeToString())
        asked = udf_pb2.MapResponse.FromString(await other.read()).read
        assert (asked.call_id, list(asked.items)) == (1, [b'"a"'])
        other.cancel()
        remembered = Remembered(stream)
        assert await remembered.call([b"ada"] * 2, [b"a=1", b"a"]) == [b"written", b"1"]
        assert sidecar.statistics().restarts == 0


async def test_a_client_that_answers_no_reads_is_refused(open_function: Open) -> None:
    command = python_command(f"{HERE / 'remembering_functions.py'}:Lazy")
    hello = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="p", vertex="v", lane="l")
    async with (
        open_function(command) as sidecar,
        asyncio.timeout(TIMEOUT_S),
        grpc.aio.insecure_channel(sidecar.address) as channel,
    ):
        call: Any = channel.stream_stream("/millstream.udf.v1.Udf/Map")()
        await call.write(udf_pb2.MapRequest(hello=hello).SerializeToString())
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "has lazy states, and the caller does not know these" in await call.details()


# A server that breaks the protocol.

LAZY = udf_pb2.State(name="orders", kind=udf_pb2.State.KIND_MAP, codec="json", item_codec="json", lazy=True)
TOTAL = udf_pb2.State(name="total", kind=udf_pb2.State.KIND_VALUE, codec="json")
Answers = Callable[[udf_pb2.SealedMapCall], Iterator[bytes]]


@asynccontextmanager
async def serving(
    directory: Path, answers: Answers, found: list[Any], states: Sequence[udf_pb2.State] = (LAZY, TOTAL)
) -> AsyncIterator[KeyedMapStream]:
    """A stream to a server that sends `answers`. What it is sent beside calls is added to `found`."""

    async def serve_map(context: Any) -> None:
        await context.read()
        welcome = udf_pb2.Welcome(protocol_version=1, calls_max=4, states=states)
        await context.write(udf_pb2.SealedMapResponse(welcome=welcome).SerializeToString())
        while (data := await context.read()) is not grpc.aio.EOF:
            request = udf_pb2.SealedMapRequest.FromString(data)
            if request.HasField("found"):
                found.append(unpack_found(data))
                continue
            for reply in answers(request.call):
                await context.write(reply)

    described = udf_pb2.DescribeResponse(protocol_version=1, kinds=[udf_pb2.KIND_MAP])
    async with (
        asyncio.timeout(TIMEOUT_S),
        open_server(directory, "Map", serve_map, described) as address,
        open_remote_function(address) as client,
        client.open_map(FunctionKind.MAP, NAME) as stream,
    ):
        assert isinstance(stream, KeyedMapStream)
        yield stream


def answer_of(call: udf_pb2.SealedMapCall) -> bytes:
    answer = udf_pb2.SealedMapAnswer(call_id=call.call_id, records=1, values=columns.pack_bytes([b"x"]))
    return udf_pb2.SealedMapResponse(answer=answer).SerializeToString()


def read(call_id: int, read_id: int, **fields: Any) -> bytes:
    return udf_pb2.SealedMapResponse(
        read=udf_pb2.StateRead(call_id=call_id, read_id=read_id, **fields)
    ).SerializeToString()


async def test_reads_that_cannot_be_answered_get_the_reason(tmp_path: Path) -> None:
    def answers(call: udf_pb2.SealedMapCall) -> Iterator[bytes]:
        if call.call_id == 2:
            yield read(1, 5)
        yield read(call.call_id, 1, key=1)
        yield read(call.call_id, 2, state=1)
        yield read(call.call_id, 3, state=200)
        yield read(call.call_id, 4)
        yield answer_of(call)

    found: list[tuple[int, Found | Exception]] = []
    async with serving(tmp_path, answers, found) as stream:
        remembered = Remembered(stream)
        for _ in range(2):
            assert await remembered.call([b"ada"], [b"a"]) == [b"x"]
    shown = [(number, "fine" if isinstance(one, Found) else str(one)) for number, one in found]
    expected = [
        (1, "the state cannot be read: key 1 of the call has no lazy state 0"),
        (2, "the state cannot be read: key 0 of the call has no lazy state 1"),
        (3, "the state cannot be read: key 0 of the call has no lazy state 200"),
        (4, "fine"),
    ]
    late = (5, "the state cannot be read: the call has its answer already, or nobody waits for one")
    assert shown == [*expected, late, *expected]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (read(9, 1), "it reads for call 9, which does not exist"),
        (b"\x1a\xff", "are not a message of the protocol"),
    ],
)
async def test_messages_that_are_no_reads_end_the_stream(tmp_path: Path, message: bytes, why: str) -> None:
    with raises(codes.FUNCTION_PROTOCOL, match=why):
        async with serving(tmp_path, lambda call: iter([message]), []) as stream:
            await Remembered(stream).call([b"ada"], [b"a"])


async def test_only_a_map_can_be_lazy(tmp_path: Path) -> None:
    lazy = udf_pb2.State(name="total", kind=udf_pb2.State.KIND_VALUE, lazy=True)
    with raises(codes.FUNCTION_PROTOCOL, match="state 'total' is lazy, and not a map"):
        async with serving(tmp_path, lambda call: iter([]), [], [lazy]):
            pass


async def test_a_function_without_lazy_states_reads_nothing(tmp_path: Path) -> None:
    found: list[tuple[int, Found | Exception]] = []

    def answers(call: udf_pb2.SealedMapCall) -> Iterator[bytes]:
        yield read(call.call_id, 1)
        yield answer_of(call)

    async with serving(tmp_path, answers, found, ()) as stream:
        answer = await stream.call(frame_of([b"a"]), watermark_us=0)
        assert values_of(answer) == [b"x"]
    assert [str(one) for _, one in found] == [
        "the state cannot be read: the function has said that it has no lazy states"
    ]
