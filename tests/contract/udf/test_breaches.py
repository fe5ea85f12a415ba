"""Servers that break the protocol: what does not fit a call is a failure of the function, the rest ends the stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream import codes, limits
from millstream.errors import UdfError
from millstream.extract import YEAR_1_US, YEAR_10000_US
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer
from millstream.udf.function import open_remote_function
from millstream.udf.native.messages import map_answer_of
from millstream.udf.streams import MapStream
from millstream_udf import columns
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.answering_server import open_server
from tests.contract.udf.conftest import NAME, frame_of
from tests.contract.udf.misfits import bytes_column, headers_column, list_column
from tests.support.children import together
from tests.support.errors import raises

Answers = Callable[[udf_pb2.SealedMapCall], Iterator[bytes]]
WELCOME = udf_pb2.Welcome(protocol_version=1, calls_max=4)


def answer(call: udf_pb2.SealedMapCall, **changes: Any) -> bytes:
    """A right answer of one output per input (two of them), changed."""
    fields: dict[str, Any] = {"call_id": call.call_id, "records": 2, "values": columns.pack_bytes([b"a", b"b"])}
    return udf_pb2.SealedMapResponse(answer=udf_pb2.SealedMapAnswer(**(fields | changes))).SerializeToString()


@asynccontextmanager
async def serving(
    directory: Path,
    answers: Answers,
    *,
    welcome: bytes | None = None,
    description: udf_pb2.DescribeResponse | None = None,
    greet: Callable[[Any], Awaitable[None]] | None = None,
) -> AsyncIterator[MapStream]:
    """A map stream to a server that answers each call with whatever `answers` gives."""
    described = description or udf_pb2.DescribeResponse(protocol_version=1, kinds=[udf_pb2.KIND_MAP])

    async def serve_map(context: Any) -> None:
        if greet is not None:
            await greet(context)
        await context.read()
        await context.write(welcome or udf_pb2.SealedMapResponse(welcome=WELCOME).SerializeToString())
        while (data := await context.read()) is not grpc.aio.EOF:
            for reply in answers(udf_pb2.SealedMapRequest.FromString(data).call):
                await context.write(reply)

    async with (
        open_server(directory, "Map", serve_map, described) as address,
        asyncio.timeout(20),
        open_remote_function(address, timeout_s=10) as client,
        client.open_map(FunctionKind.MAP, NAME) as stream,
    ):
        yield stream


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"records": 3}, "values: a column has 2 items for 3 records"),
        ({"records": 1, "values": columns.pack_bytes([b"a"])}, "1 outputs for 2 inputs, but no column parents"),
        ({"parents": columns.pack_offsets([1, 0])}, "parents are not in ascending order"),
        ({"parents": columns.pack_offsets([0, 2])}, "came from input 2 of 2"),
        ({"parents": columns.pack_offsets([0])}, "2 outputs, but 1 parents"),
        ({"parents": b"abc"}, "2 outputs, but 0.75 parents"),
        ({"values": b"\xff\xff"}, "values: not a column"),
        ({"arrow": b"a"}, "Arrow columns in place of values, which were not asked for"),
        ({"values": bytes_column([0, 9, 2], b"ab")}, "values: offsets fall at place 2"),
        ({"values": bytes_column([0, 2**31, 2], b"ab")}, "values: offsets fall at place 2"),
        ({"values": bytes_column([0, 1, 3], b"ab")}, "values: offsets do not begin at 0 and end at 2"),
        ({"values": bytes_column([1, 1, 2], b"ab")}, "values: offsets do not begin at 0 and end at 2"),
        ({"records": 500_001, "parents": b""}, "500,001 outputs; at most 500,000 are allowed per call"),
        ({"keys": columns.pack_lists([[b"a"]])}, "keys: a list column has 1 entries for 2 records"),
        ({"keys": columns.pack_lists([[b"\xff"], [b"a"]])}, "keys: a text is not UTF-8"),
        ({"keys": columns.pack_lists([[b"\xc3"], [b"\xbc"]])}, "keys: .* begins in the middle of a character"),
        ({"keys": list_column([0, 2, 1], [b"a"])}, "keys: offsets fall"),
        ({"keys": list_column([0, 1, 5], [b"a"])}, "keys: offsets do not begin at 0 and end at 1"),
        ({"tags": columns.pack_lists([[b"a"], [b"b"], [b"c"]])}, "tags: a list column has 3 entries"),
        ({"tags": columns.pack_lists([[b"\xff"], [b"a"]])}, "tags: a text is not UTF-8"),
        ({"headers": columns.pack_headers([{"a": b"b"}])}, "headers: a list column has 1 entries"),
        ({"headers": headers_column([0, 3, 2], 2)}, "headers: offsets fall"),
        ({"headers": headers_column([0, 1, 9], 2)}, "headers: offsets do not begin at 0 and end at 2"),
        ({"headers": b"\x12\x01\xff"}, "headers: not a column"),
        ({"event_times_us": columns.pack_times([1, 2])}, "sets event times, which only a source transform can"),
        (
            {"outcomes": [udf_pb2.Outcome(index=0, result=udf_pb2.Outcome.RESULT_FALLBACK)]},
            "the result fallback, which is not allowed",
        ),
        ({"outcomes": [udf_pb2.Outcome(index=2, result=udf_pb2.Outcome.RESULT_DROP)]}, "input 2 of 2"),
        ({"outcomes": [udf_pb2.Outcome(index=1, result=udf_pb2.Outcome.RESULT_DROP)]}, "both an outcome and an output"),
        ({"outcomes": [udf_pb2.Outcome(index=0)]}, "has no result"),
        (
            {
                "records": 0,
                "values": b"",
                "outcomes": [udf_pb2.Outcome(index=1, result=udf_pb2.Outcome.RESULT_DROP)] * 2,
            },
            "two outcomes are for input 1",
        ),
    ],
)
def test_an_answer_that_does_not_fit(changes: dict[str, Any], message: str) -> None:
    sound = answer(udf_pb2.SealedMapCall())
    map_answer_of(udf_pb2.SealedMapResponse.FromString(sound).answer, 2)
    with pytest.raises(ValueError, match=message):
        map_answer_of(udf_pb2.SealedMapResponse.FromString(answer(udf_pb2.SealedMapCall(), **changes)).answer, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": bytes_column([0, 9, 2], b"ab")}, "values: offsets fall at place 2"),
        ({"headers": b"\x12\x01\xff"}, "headers: not a column"),
    ],
)
async def test_an_answer_that_does_not_fit_is_a_failure_of_the_function(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], message: str
) -> None:
    async def called(stream: MapStream) -> MapAnswer:
        return await stream.call(frame_of([b"a", b"b"]), watermark_us=0, id_prefix="clean/in/0/7/", first_index=3)

    def first_is_wrong(call: udf_pb2.SealedMapCall) -> Iterator[bytes]:
        yield answer(call, **(changes if call.call_id == 1 else {}))

    async with serving(tmp_path, first_is_wrong) as stream:
        refused, after = await called(stream), await called(stream)
    assert re.search(message, refused.error)
    assert "answer to call 1 (2 records, of which the first is clean/in/0/7/3) does not fit" in refused.error
    assert (refused.records, refused.values) == (0, b""), "nothing of it is left"
    assert columns.unpack_bytes(after.values) == [b"a", b"b"]
    assert "flights/clean/in-clean.0: its answer to call 1 " in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call_id": 77}, "answered call 77, which does not exist"),
        ({"call_id": 0}, "answered call 0, which does not exist"),
        # Two MiB of them, which would take sixty.
        ({"reason": b"\x4a\x00" * limits.MIB}, "more fields than this message can have"),
    ],
)
async def test_an_answer_that_belongs_to_no_call(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    def wrong(call: udf_pb2.SealedMapCall) -> Iterator[bytes]:
        outcomes = changes.get("reason")
        if outcomes:
            length = len(outcomes)
            prefix = bytearray(b"\x12")
            while length:
                prefix.append(length & 0x7F | (0x80 if length > 0x7F else 0))
                length >>= 7
            yield bytes(prefix) + outcomes
        else:
            yield answer(call, **changes)

    async with serving(tmp_path, wrong) as stream:
        with raises(codes.FUNCTION_PROTOCOL, match=message) as error:
            await stream.call(frame_of([b"a", b"b"]), watermark_us=0)
        assert "flights/clean/in-clean.0" in str(error.value)


@pytest.mark.parametrize("time_us", [-(2**63), YEAR_1_US - 1, YEAR_10000_US, 2**63 - 1])
def test_an_event_time_that_no_calendar_has(time_us: int) -> None:
    sound = udf_pb2.SealedMapAnswer(records=1, values=columns.pack_bytes([b"a"]))
    sound.event_times_us = columns.pack_times([YEAR_10000_US - 1])
    map_answer_of(sound, 1, times_allowed=True)
    sound.event_times_us = columns.pack_times([time_us])
    with pytest.raises(ValueError, match=r"record 0, -?[0-9]+ us, is not in the years 1 to 9999"):
        map_answer_of(sound, 1, times_allowed=True)


@pytest.mark.guarantee("I10")
def test_outputs_are_bounded_as_the_spec_says() -> None:
    sound = udf_pb2.SealedMapAnswer(
        records=9, values=columns.pack_bytes([b""] * 9), parents=columns.pack_offsets([0] * 9)
    )
    map_answer_of(sound, 1, outputs_max=9)
    with pytest.raises(ValueError, match="9 outputs; at most 8"):
        map_answer_of(sound, 1, outputs_max=8)
    sound.keys = columns.pack_lists([[b"k"] * 5] * 9)
    with pytest.raises(ValueError, match="45 items; at most 36"):
        map_answer_of(sound, 1, outputs_max=9)


async def test_an_answer_twice(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda call: iter([answer(call), answer(call)])) as stream:
        await stream.call(frame_of([b"a", b"b"]), watermark_us=0)
        # The second answer may come before or after the next call is made.
        calls = [stream.call(frame_of([b"a", b"b"]), watermark_us=0) for _ in range(3)]
        errors = [one for one in await asyncio.gather(*calls, return_exceptions=True) if isinstance(one, UdfError)]
    assert errors
    for error in errors:
        assert error.code is codes.FUNCTION_PROTOCOL
        assert "answered call 1 twice" in str(error)


async def test_every_waiting_call_hears_of_a_breach(tmp_path: Path) -> None:
    def third_is_wrong(call: udf_pb2.SealedMapCall) -> Iterator[bytes]:
        if call.call_id == 3:
            yield b"\xff"

    async with serving(tmp_path, third_is_wrong) as stream:
        calls = [stream.call(frame_of([b"a", b"b"]), watermark_us=0) for _ in range(10)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
    assert len(errors) == 10
    assert all(isinstance(error, UdfError) and error.code is codes.FUNCTION_PROTOCOL for error in errors)


@pytest.mark.parametrize(
    ("welcome", "message"),
    [
        (
            udf_pb2.Welcome(protocol_version=2, calls_max=1),
            "uses version 2 of the protocol, but this Mill.* version 1",
        ),
        (udf_pb2.Welcome(protocol_version=1), "does not allow any calls"),
    ],
)
async def test_a_welcome_that_does_not_fit(tmp_path: Path, welcome: udf_pb2.Welcome, message: str) -> None:
    data = udf_pb2.SealedMapResponse(welcome=welcome).SerializeToString()
    with pytest.raises(UdfError, match=message):
        async with serving(tmp_path, lambda call: iter(()), welcome=data):
            pass


async def test_no_welcome(tmp_path: Path) -> None:
    data = udf_pb2.SealedMapResponse(answer=udf_pb2.SealedMapAnswer()).SerializeToString()
    with raises(codes.FUNCTION_PROTOCOL, match="first message is not Welcome"):
        async with serving(tmp_path, lambda call: iter(()), welcome=data):
            pass


async def test_an_older_protocol(tmp_path: Path) -> None:
    old = udf_pb2.DescribeResponse(protocol_version=0, language="cobol", sdk_version="0.0.1")
    with raises(codes.FUNCTION_VERSION, match=r"version 0 .* install a newer SDK \(cobol, 0\.0\.1\)"):
        async with serving(tmp_path, lambda call: iter(()), description=old):
            pass


async def test_a_server_that_refuses(tmp_path: Path) -> None:
    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "I only serve on Mondays")

    with raises(codes.FUNCTION_KIND, match="does not serve this kind: I only serve on Mondays"):
        async with serving(tmp_path, lambda call: iter(()), greet=refuse):
            pass


async def test_calls_in_flight_are_bounded_and_in_order(tmp_path: Path) -> None:
    held: list[udf_pb2.SealedMapCall] = []
    most = 0

    def in_fours(call: udf_pb2.SealedMapCall) -> Iterator[bytes]:
        nonlocal most
        held.append(call)
        most = max(most, len(held))
        if len(held) == WELCOME.calls_max:
            # In any order.
            for one in reversed(held):
                yield answer(one, values=columns.pack_bytes([b"%d" % one.call_id] * 2))
            held.clear()

    async with serving(tmp_path, in_fours) as stream:
        assert stream.calls_max == 4
        answers = await together(*(stream.call(frame_of([b"a", b"b"]), watermark_us=0) for _ in range(40)))
    assert most == 4
    assert [columns.unpack_bytes(one.values)[0] for one in answers] == [b"%d" % n for n in range(1, 41)]


async def test_a_call_that_was_given_up_is_not_missed(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda call: iter([answer(call)])) as stream:
        async with asyncio.TaskGroup() as tasks:
            given_up = tasks.create_task(stream.call(frame_of([b"a", b"b"]), watermark_us=0))
            await asyncio.sleep(0)
            given_up.cancel()
        assert given_up.cancelled()
        assert (await stream.call(frame_of([b"a", b"b"]), watermark_us=0)).records == 2


async def test_nobody_there(tmp_path: Path) -> None:
    with raises(codes.FUNCTION_NOT_STARTED, match=r"no function answered at unix:.* within 0\.2 s"):
        async with open_remote_function(f"unix:{tmp_path}/nobody", timeout_s=0.2):
            pass
