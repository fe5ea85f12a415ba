"""Calls of a function with states, by hand: what the client sends along, and what has changed of it."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from millstream.udf.sidecar import python_command
from millstream_udf.calls_socket import SUFFIX
from millstream_udf.message_socket import MessageSocket
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.conftest import HERE, Open, frame_of

TIMEOUT_S = 90
BYTES_MAX = 64 * 1024 * 1024
State = udf_pb2.State
Outcome = udf_pb2.Outcome
Command = Callable[[str], list[str]]


def python(name: str) -> list[str]:
    return python_command(f"{HERE / 'remembering_functions.py'}:{name}")


@pytest.fixture(params=["python", "go"])
def command(request: pytest.FixtureRequest) -> Command:
    """The command of a function by its name, in each language."""
    if request.param == "python":
        return python
    built: list[str] = request.getfixturevalue("go_command")
    return lambda name: [*built, name]


@asynccontextmanager
async def greeted(
    open_function: Open, command: list[str], *, over_socket: bool
) -> AsyncIterator[tuple[Any, udf_pb2.Welcome]]:
    """What to call with one request, and the welcome."""
    hello = udf_pb2.Hello(
        protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="p", vertex="v", lane="l", calls_socket=over_socket
    )
    async with (
        open_function(command) as sidecar,
        asyncio.timeout(TIMEOUT_S),
        grpc.aio.insecure_channel(sidecar.address) as channel,
    ):
        stream: Any = channel.stream_stream("/millstream.udf.v1.Udf/Map")()
        await stream.write(udf_pb2.MapRequest(hello=hello).SerializeToString())
        welcome = udf_pb2.MapResponse.FromString(await stream.read()).welcome

        async def over_stream(request: bytes) -> bytes:
            await stream.write(request)
            answer: bytes = await stream.read()
            return answer

        if not welcome.calls_token:
            # None was asked for, or the SDK has none.
            yield over_stream, welcome
            return
        path = sidecar.address.removeprefix("unix:") + SUFFIX
        _, socket = await asyncio.get_running_loop().create_unix_connection(lambda: MessageSocket(BYTES_MAX), path)
        await socket.send(welcome.calls_token)

        async def over_the_socket(request: bytes) -> bytes:
            await socket.send(request)
            answer = await socket.receive()
            assert answer is not None
            return answer

        try:
            yield over_the_socket, welcome
        finally:
            socket.abort()


def column(*items: bytes) -> frame_pb2.BytesColumn:
    offsets = [sum(map(len, items[:number])) for number in range(len(items) + 1)]
    return frame_pb2.BytesColumn(offsets=offsets, data=b"".join(items))


def items_of(column: frame_pb2.BytesColumn) -> list[bytes]:
    return [column.data[start:stop] for start, stop in zip(column.offsets, column.offsets[1:], strict=False)]


def request(
    values: list[bytes], keys: list[bytes], states: udf_pb2.StateEntries | None, *, timers: bool = False
) -> bytes:
    frame = frame_pb2.Frame.FromString(frame_of(values, keys=[[key] for key in keys]).encode())
    call = udf_pb2.MapCall(call_id=7, frame=frame, states=states, timers=timers)
    return udf_pb2.MapRequest(call=call).SerializeToString()


def declared(name: str, kind: State.Kind.ValueType, codec: str = "", item_codec: str = "") -> State:
    """A state of version 1 that goes by event time."""
    return State(
        name=name,
        kind=kind,
        codec=codec,
        item_codec=item_codec,
        version=1,
        oldest_version=1,
        clock=State.CLOCK_EVENT_TIME,
    )


@pytest.mark.parametrize("over_socket", [False, True])
async def test_entries_come_with_a_call_and_changes_with_its_answer(
    open_function: Open, command: Command, *, over_socket: bool
) -> None:
    async with greeted(open_function, command("Remember"), over_socket=over_socket) as (call, welcome):
        assert list(welcome.states) == [
            declared("total", State.KIND_VALUE, "json"),
            declared("seen", State.KIND_MAP, "json", "json"),
            declared("last", State.KIND_LIST, "bytes"),
            declared("clicks", State.KIND_COUNTER),
        ]
        entries = udf_pb2.StateEntries(
            record_keys=[0, 1, 0, 0, 2, 2],
            keys=[0, 0, 0, 2],
            states=bytes([0, 2, 2, 0]),
            items=column(b"", bytes(8), bytes(7) + b"\1", b""),
            values=column(b"41", b"x", b"y", b"9"),
        )
        values = [b"a", b"b", b"fail", b"c", b"forget", b"d"]
        answer = udf_pb2.MapResponse.FromString(
            await call(request(values, [b"k", b"m", b"k", b"k", b"n", b"n"], entries))
        ).answer
    assert (answer.call_id, answer.error) == (7, "")
    assert items_of(answer.values) == [b"42 2", b"1 2", b"0 2", b"1 4"]
    assert list(answer.parents) == [0, 1, 4, 5]
    assert [(one.index, one.result) for one in answer.outcomes] == [
        (2, Outcome.RESULT_ERROR),
        (3, Outcome.RESULT_HELD_UP),
    ]
    changes = answer.changes
    deleted = changes.deleted or bytes(len(changes.keys))
    expires = changes.expires_us or [0] * len(changes.keys)
    found = {
        (key, state, item): (None if gone else value, expires_us)
        for key, state, item, value, gone, expires_us in zip(
            changes.keys,
            changes.states,
            items_of(changes.items),
            items_of(changes.values),
            deleted,
            expires,
            strict=True,
        )
    }
    assert len(found) == len(changes.keys)
    two, four = (number.to_bytes(8, "little") for number in (2, 4))
    # The event times of `frame_of` begin at 1000.
    assert found == {
        (0, 0, b""): (b"42", 0),
        (0, 1, b'"a"'): (b'"yes"', 1_001_000),
        (0, 2, bytes(8)): (None, 0),
        (0, 2, bytes(7) + b"\2"): (b"a", 0),
        (0, 3, b""): (two, 0),
        (1, 0, b""): (b"1", 0),
        (1, 1, b'"b"'): (b'"yes"', 1_001_001),
        (1, 2, bytes(8)): (b"b", 0),
        (1, 3, b""): (two, 0),
        (2, 0, b""): (b"1", 0),
        (2, 1, b'"forget"'): (b'"yes"', 1_001_004),
        (2, 1, b'"d"'): (b'"yes"', 1_001_005),
        (2, 2, bytes(8)): (b"forget", 0),
        (2, 2, bytes(7) + b"\1"): (b"d", 0),
        (2, 3, b""): (four, 0),
    }


async def test_an_async_function(open_function: Open, command: Command) -> None:
    async with greeted(open_function, command("RememberAsync"), over_socket=True) as (call, _):
        entries = udf_pb2.StateEntries(record_keys=[0, 1] * 50)
        answer = udf_pb2.MapResponse.FromString(await call(request([b"a"] * 100, [b"k", b"m"] * 50, entries))).answer
    assert items_of(answer.values) == [b"%d" % (number // 2 + 1) for number in range(100)]
    assert items_of(answer.changes.values) == [b"50", b"50"]
    assert not answer.changes.HasField("items")


async def test_a_client_that_does_not_know_states(open_function: Open, command: Command) -> None:
    async with greeted(open_function, command("Remember"), over_socket=False) as (call, _):
        answer = udf_pb2.MapResponse.FromString(await call(request([b"a"], [b"k"], None))).answer
    assert "this Millstream does not know functions with states" in answer.error


def test_the_report_names_them(command: Command, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    environment = {**os.environ, "MILLSTREAM_UDF_CHECK": str(report)}
    subprocess.run(command("Remember"), env=environment, timeout=TIMEOUT_S, check=True)
    states = json.loads(report.read_text())["states"]
    assert [(one["name"], one["kind"]) for one in states] == [
        ("total", "value"),
        ("seen", "map"),
        ("last", "list"),
        ("clicks", "counter"),
    ]
    assert states[1] == {
        "name": "seen",
        "kind": "map",
        "codec": "json",
        "item_codec": "json",
        "version": 1,
        "clock": "event",
    }


def set_timers(changes: udf_pb2.StateChanges) -> dict[tuple[int, bytes], bytes | None]:
    """By key and name, the timers that were set or cancelled."""
    deleted = changes.deleted or bytes(len(changes.keys))
    rows = zip(changes.keys, changes.states, items_of(changes.items), items_of(changes.values), deleted, strict=True)
    return {(key, item): None if gone else value for key, state, item, value, gone in rows if state == 1}


@pytest.mark.parametrize("function", ["Timers", "TimersAsync"])
@pytest.mark.parametrize("over_socket", [False, True])
async def test_timers_are_set_by_changes_and_come_as_records(
    open_function: Open, command: Command, function: str, *, over_socket: bool
) -> None:
    await assert_sets_timers(open_function, command(function), over_socket=over_socket)


async def test_timers_of_a_function_in_threads(open_function: Open) -> None:
    await assert_sets_timers(open_function, python("TimersThreaded"), over_socket=True)


async def assert_sets_timers(open_function: Open, command: list[str], *, over_socket: bool) -> None:
    async with greeted(open_function, command, over_socket=over_socket) as (call, welcome):
        assert list(welcome.states) == [
            declared("count", State.KIND_COUNTER),
            declared("timers", State.KIND_TIMER),
        ]
        entries = udf_pb2.StateEntries(record_keys=[0, 1, 0])
        answer = udf_pb2.MapResponse.FromString(
            await call(request([b"a", b"fail", b"b"], [b"k", b"m", b"k"], entries))
        ).answer
        # The event times of `frame_of` begin at 1000: the last record of the key has 1002.
        assert set_timers(answer.changes) == {
            (0, b"event"): struct.pack("<Bqq", 1, 1007, 0),
            (0, b"clock"): struct.pack("<Bqq", 2, 7, 1002),
            (0, b"other"): None,
        }
        due = [
            b'{"timer": "again", "at_us": 900, "clock": "event"}',
            b'{"timer":"fail","at_us":7,"clock":"processing"}',
        ]
        entries = udf_pb2.StateEntries(record_keys=[0, 1])
        answer = udf_pb2.MapResponse.FromString(await call(request(due, [b"k", b"m"], entries, timers=True))).answer
    assert items_of(answer.values) == [b"again event 900 1000 ('k',) 10"]
    assert (list(answer.parents), [(one.index, one.result) for one in answer.outcomes]) == (
        [0],
        [(1, Outcome.RESULT_ERROR)],
    )
    assert set_timers(answer.changes) == {(0, b"again"): struct.pack("<Bqq", 1, 1001, 0)}


@pytest.mark.parametrize("record", [b"a", b"{}"])
async def test_a_record_that_is_no_timer_fails_its_call(open_function: Open, command: Command, record: bytes) -> None:
    async with greeted(open_function, command("Timers"), over_socket=False) as (call, _):
        entries = udf_pb2.StateEntries(record_keys=[0])
        answer = udf_pb2.MapResponse.FromString(await call(request([record], [b"k"], entries, timers=True))).answer
    assert "a record of a call of timers is none" in answer.error


async def test_a_function_without_timers_refuses_them(open_function: Open, command: Command) -> None:
    async with greeted(open_function, command("Remember"), over_socket=False) as (call, _):
        entries, due = udf_pb2.StateEntries(record_keys=[0]), b'{"timer":"a","at_us":7,"clock":"event"}'
        answer = udf_pb2.MapResponse.FromString(await call(request([due], [b"k"], entries, timers=True))).answer
    assert "the call has timers" in answer.error
