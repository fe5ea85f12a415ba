"""Outputs that a function sends while it makes them, over both transports."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import UdfError
from millstream.udf.answers import MapAnswer, Result
from millstream.udf.endings import ProcessEndedError
from millstream.udf.pieces import PiecesLostError
from millstream.udf.sidecar import python_command
from millstream.udf.streams import StreamedMapStream
from millstream_udf.calls_socket import SUFFIX
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of, parents_of, values_of
from tests.contract.udf.streamed import LARGE

TIMEOUT_S = 90


@asynccontextmanager
async def streaming(open_function: Open, name: str, transport: str = "socket") -> AsyncIterator[StreamedMapStream]:
    """A stream to a function of this suite."""
    command = python_command(f"{HERE / 'streamed.py'}:{name}")
    async with asyncio.timeout(TIMEOUT_S), open_function(command) as sidecar:
        if transport == "grpc":
            Path(sidecar.address.removeprefix("unix:") + SUFFIX).unlink()
        async with sidecar.open_streamed_map(NAME) as stream:
            yield stream


@pytest.mark.parametrize(
    ("name", "transport"),
    [("waiting", "socket"), ("waiting", "grpc"), ("waiting_async", "socket"), ("waiting_in_threads", "grpc")],
)
async def test_outputs_come_before_the_function_has_made_the_last(
    open_function: Open, tmp_path: Path, name: str, transport: str
) -> None:
    file, parts = tmp_path / "go on", list[MapAnswer]()

    async def take(part: MapAnswer) -> None:
        parts.append(part)
        file.touch()

    async with streaming(open_function, name, transport) as stream:
        last = await stream.streamed_call(frame_of([os.fsencode(file)] * 2), take, watermark_us=0)
        # The same as one answer.
        again = await stream.call(frame_of([os.fsencode(file)] * 2), watermark_us=0)
    assert values_of(parts[0])[:2] == [b"first", LARGE]
    for answer in ((*parts, last), (*again.before, again)):
        assert [value for part in answer for value in values_of(part)] == [b"first", LARGE, b"last"] * 2
        assert [parent for part in answer for parent in parents_of(part)] == [0, 0, 0, 1, 1, 1]
        assert [part.unfinished for part in answer] == [True] * (len(answer) - 1) + [False]


async def test_an_input_that_fails_has_an_outcome_after_its_outputs(open_function: Open) -> None:
    async with streaming(open_function, "failing") as stream:
        answer = await stream.call(frame_of([b"a", b"fail", b"b"]), watermark_us=0)
    parts = (*answer.before, answer)
    assert [(one.index, one.result) for part in parts for one in part.outcomes] == [(1, Result.ERROR)]
    made = [(parent, value) for part in parts for parent, value in zip(parents_of(part), values_of(part), strict=True)]
    assert [value for parent, value in made if parent != 1] == [b"a", LARGE, b"a", b"b", LARGE, b"b"]


async def test_more_than_a_call_may_return_is_an_error(open_function: Open) -> None:
    taken = 0

    async def take(part: MapAnswer) -> None:
        nonlocal taken
        taken += part.records

    async with streaming(open_function, "endless") as stream:
        answer = await stream.streamed_call(frame_of([b"a"]), take, watermark_us=0)
        # The function goes on with the next call.
        again = await stream.streamed_call(frame_of([b"a"]), take, watermark_us=0)
    assert "the limit is 67,108,864" in answer.error
    assert answer.error == again.error
    assert taken in range(120, 129)


async def test_a_process_that_ends_in_the_middle_is_reported(open_function: Open) -> None:
    parts: list[MapAnswer] = []

    async def take(part: MapAnswer) -> None:
        parts.append(part)

    async with streaming(open_function, "failing") as stream:
        with pytest.raises(ProcessEndedError):
            await stream.streamed_call(frame_of([b"a", b"exit"]), take, watermark_us=0)
        answer = await stream.call(frame_of([b"b"]), watermark_us=0)
    assert parts
    assert [value for part in (*answer.before, answer) for value in values_of(part)] == [b"b", LARGE, b"b"]


async def test_an_answer_whose_process_is_killed_in_the_middle_is_lost(open_function: Open, tmp_path: Path) -> None:
    file = tmp_path / "go on"
    command = python_command(f"{HERE / 'streamed.py'}:waiting")
    async with asyncio.timeout(TIMEOUT_S), open_function(command) as sidecar:

        async def kill(part: MapAnswer) -> None:
            pid = sidecar.statistics().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        async with sidecar.open_streamed_map(NAME) as stream:
            # The parts that came do not count, so it is the caller who begins again.
            with pytest.raises(PiecesLostError):
                await stream.streamed_call(frame_of([os.fsencode(file)]), kill, watermark_us=0)
            file.touch()
            answer = await stream.call(frame_of([os.fsencode(file)]), watermark_us=0)
    assert [value for part in (*answer.before, answer) for value in values_of(part)] == [b"first", LARGE, b"last"]


async def test_the_function_waits_for_the_receiver(open_function: Open) -> None:
    taking, go_on, taken = asyncio.Event(), asyncio.Event(), 0

    async def take(part: MapAnswer) -> None:
        nonlocal taken
        taken += 1
        taking.set()
        await go_on.wait()

    async with streaming(open_function, "endless") as stream, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(stream.streamed_call(frame_of([b"a"]), take, watermark_us=0))
        await taking.wait()
        other = tasks.create_task(stream.call(frame_of([b"b"]), watermark_us=0))
        assert taken == 1
        call.cancel()
        # A caller that is gone holds no other one up.
        assert "the limit is" in (await other).error


async def test_functions_that_cannot_are_refused(open_function: Open) -> None:
    with pytest.raises(UdfError, match="`streaming: true`, and together processes whole batches"):
        async with streaming(open_function, "together"):
            pass


async def test_functions_of_other_sdks_are_refused(open_function: Open, go_command: list[str]) -> None:
    with pytest.raises(UdfError, match="its SDK does not know streaming") as raised:
        async with open_function(go_command) as sidecar, sidecar.open_streamed_map(NAME):
            pass
    assert raised.value.code is codes.FUNCTION_VERSION
