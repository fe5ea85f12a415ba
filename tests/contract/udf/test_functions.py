"""What any sidecar has to do, in whatever language: one suite over real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from millstream import codes
from millstream.errors import UdfError
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer, Result
from millstream.udf.endings import ProcessEndedError
from millstream.udf.function import LocalFunction
from millstream.udf.sidecar import python_command
from millstream.udf.streams import MapStream
from millstream_udf import columns
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.contract.udf.conftest import NAME, Open, frame_of, parents_of, values_of
from tests.support.children import started, together
from tests.support.errors import raises

TIMEOUT_S = 90


async def call(stream: MapStream, *values: bytes) -> MapAnswer:
    async with asyncio.timeout(TIMEOUT_S):
        return await stream.call(frame_of(values), watermark_us=0)


async def test_one_output_each(stream: MapStream) -> None:
    answer = await call(stream, b"a", b"", b"c")
    assert values_of(answer) == [b"A", b"", b"C"]
    assert parents_of(answer) == [0, 1, 2]
    assert not answer.outcomes
    # What nothing was set in is left out: both sides would only handle it.
    assert not any((answer.parents, answer.keys, answer.tags, answer.headers, answer.event_times_us))


async def test_none_one_and_many_outputs(stream: MapStream) -> None:
    answer = await call(stream, b"none", b"split:a,b,c", b"x", b"none")
    assert values_of(answer) == [b"a", b"b", b"c", b"X"]
    assert parents_of(answer) == [1, 1, 1, 2]


async def test_all_filtered(stream: MapStream) -> None:
    answer = await call(stream, b"none", b"none")
    assert answer.records == 0
    assert not answer.outcomes


async def test_keys_tags_and_headers(stream: MapStream) -> None:
    frame = frame_of([b"dress:x", b"y"], keys=[[b"old"], [b"old", b"two"]], headers=[{"a": b"1"}, {"b": b"2"}])
    answer = await stream.call(frame, watermark_us=0)
    assert values_of(answer) == [b"x", b"Y"]
    assert columns.unpack_lists(answer.keys, 2) == [(b"new", b"key"), (b"old", b"two")]
    assert columns.unpack_lists(answer.tags, 2) == [(b"late", b"red"), ()]
    assert columns.unpack_headers(answer.headers, 2) == [{"colour": b"red"}, {"b": b"2"}]


async def test_outcomes_leave_neighbours_alone(stream: MapStream) -> None:
    answer = await call(stream, b"a", b"fail:why", b"b", b"retry", b"dead:poison", b"drop:unwanted", b"c")
    assert values_of(answer) == [b"A", b"B", b"C"]
    assert parents_of(answer) == [0, 2, 6]
    kinds = {outcome.index: outcome for outcome in answer.outcomes}
    assert sorted(kinds) == [1, 3, 4, 5]
    assert kinds[1].result == Result.ERROR
    assert "failed: why" in kinds[1].reason
    assert kinds[3].result == Result.RETRY
    assert kinds[3].delay_us == 250_000
    assert (kinds[4].result, kinds[4].reason) == (Result.DEAD_LETTER, "poison")
    assert (kinds[5].result, kinds[5].reason) == (Result.DROP, "unwanted")


async def test_a_reason_is_one_line(stream: MapStream) -> None:
    answer = await call(stream, b"lines", b"panic:why")
    lines, panic = answer.outcomes
    assert "\n" not in lines.reason + panic.reason
    assert "what happened" in lines.reason
    assert "main.go:7" in lines.detail
    assert "panicked: why" in panic.reason
    # The stack.
    assert "obey" in panic.detail


async def test_a_client_of_another_version(sidecar: LocalFunction) -> None:
    hello = udf_pb2.Hello(protocol_version=2, kind=udf_pb2.KIND_MAP, pipeline="flights", vertex="clean")
    async with asyncio.timeout(TIMEOUT_S), grpc.aio.insecure_channel(sidecar.address) as channel:
        raw: Any = channel.stream_stream("/millstream.udf.v1.Udf/Map")()
        await raw.write(udf_pb2.MapRequest(hello=hello).SerializeToString())
        assert await raw.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "uses version 1 of the protocol, but the calling Millstream uses version 2" in await raw.details()


def test_another_start_without_a_socket_cannot_help(command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MILLSTREAM_UDF_SOCKET"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "MILLSTREAM_UDF_SOCKET is not set" in ended.stderr


async def test_the_socket_of_a_killed_process_is_taken_over(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(os.fspath(path))
    async with (
        asyncio.timeout(TIMEOUT_S),
        started(*command, env={**os.environ, "MILLSTREAM_UDF_SOCKET": str(path)}) as process,
    ):
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            describe: Any = channel.unary_unary("/millstream.udf.v1.Udf/Describe")
            described = udf_pb2.DescribeResponse.FromString(await describe(b"", wait_for_ready=True))
        assert described.kinds == [udf_pb2.KIND_MAP]
        process.terminate()
        assert await process.wait() == 0


async def test_answers_belong_to_their_calls(stream: MapStream) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        answers = await together(
            *(stream.call(frame_of([b"%d" % n] * (1 + n % 7)), watermark_us=0) for n in range(200))
        )
    assert [values_of(answer) for answer in answers] == [[b"%d" % n] * (1 + n % 7) for n in range(200)]


async def test_lanes_share_a_process(sidecar: LocalFunction) -> None:
    async with (
        sidecar.open_map(FunctionKind.MAP, NAME) as one,
        sidecar.open_map(FunctionKind.MAP, NAME) as two,
    ):
        answers = await together(call(one, b"a"), call(two, b"b"))
    assert [values_of(answer) for answer in answers] == [[b"A"], [b"B"]]


async def test_a_large_frame_goes_through(stream: MapStream) -> None:
    values = [b"v" * 1000] * 4096
    assert values_of(await call(stream, *values)) == [b"V" * 1000] * 4096


async def test_a_crash_in_the_middle_is_answered_once(
    stream: MapStream, sidecar: LocalFunction, tmp_path: Path
) -> None:
    crash = b"exit:" + os.fsencode(tmp_path / "crashed")
    ended: list[ProcessEndedError] = []

    async def insist(value: bytes) -> MapAnswer:
        """As lanes do: a call that may have ended the process is repeated, alone."""
        try:
            return await call(stream, value)
        except ProcessEndedError as error:
            ended.append(error)
            return await stream.call(frame_of([value]), watermark_us=0, alone=True)

    async with asyncio.timeout(TIMEOUT_S):
        answers = await together(*(insist(value) for value in (b"a", crash, b"b", b"c")))
    # The call was in flight with others, so it was not certain which was the cause.
    assert {(error.ending.why, error.alone) for error in ended} == {("exited with code 9", False)}
    assert [values_of(answer) for answer in answers] == [[b"A"], [crash.upper()], [b"B"], [b"C"]]
    assert sidecar.statistics().restarts == 1


async def test_killed_under_load(stream: MapStream, sidecar: LocalFunction) -> None:
    answered: list[list[bytes]] = []
    halfway = asyncio.Event()

    async def one(number: int) -> None:
        answer = await stream.call(frame_of([b"%d" % number] * 100), watermark_us=0)
        answered.append(values_of(answer))
        if len(answered) == 100:
            halfway.set()

    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        for number in range(400):
            tasks.create_task(one(number))
        await halfway.wait()
        pid = sidecar.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert sorted(answered) == sorted([b"%d" % number] * 100 for number in range(400))
    assert sidecar.statistics().restarts == 1


async def test_drain_answers_what_is_held(stream: MapStream, sidecar: LocalFunction, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with asyncio.TaskGroup() as tasks:
        held = tasks.create_task(call(stream, b"wait:" + os.fsencode(gate)))
        async with asyncio.timeout(TIMEOUT_S):
            while not gate.with_suffix(".begun").exists():  # noqa: ASYNC110 - another process makes the file
                await asyncio.sleep(0.005)
        pid = sidecar.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        gate.touch()
    # Not sent again: a second time it would have failed.
    assert values_of(held.result()) == [b"WAIT:" + os.fsencode(gate).upper()]
    # It did end, and the next one serves.
    assert values_of(await call(stream, b"after")) == [b"AFTER"]


async def test_an_answer_that_is_too_large_is_told(stream: MapStream) -> None:
    # A server may say so itself, or be cut off by gRPC.
    try:
        told = (await call(stream, b"large")).error
    except UdfError as error:
        told = str(error)
    assert "larger than" in told or "the limit is 67,108,864" in told


async def test_a_kind_it_does_not_serve(sidecar: LocalFunction) -> None:
    with raises(codes.FUNCTION_KIND, match=r"flights/clean: the function serves map.*needs a sink"):
        async with sidecar.open_sink(NAME):
            pass


async def test_output_lines_are_passed_on(open_function: Open, lines: list[tuple[str, str]], tmp_path: Path) -> None:
    script = tmp_path / "talks.py"
    script.write_text(
        "import sys\n"
        "def process(value):\n"
        "    print('out', value.decode())\n"
        "    print('err', value.decode(), file=sys.stderr)\n"
        "    return value\n"
    )
    async with (
        open_function(python_command(f"{script}:process")) as sidecar,
        sidecar.open_map(FunctionKind.MAP, NAME) as stream,
    ):
        await call(stream, b"x")
    assert ("stdout", "out x") in lines
    assert ("stderr", "err x") in lines
