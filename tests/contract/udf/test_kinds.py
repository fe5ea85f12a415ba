"""Streams of the other kinds, against functions in Python and Go in their own processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import Result
from millstream.udf.endings import ProcessEndedError
from millstream.udf.function import LocalFunction, open_local_function
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_udf import columns
from tests.contract.udf.conftest import HERE, NAME, frame_of, values_of
from tests.support.children import together
from tests.support.errors import raises

Serve = Callable[[str], AbstractAsyncContextManager[LocalFunction]]
Command = Callable[[str], list[str]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the functions write what they did."""
    return tmp_path / "log"


@pytest.fixture(params=["python", "go"])
def served_command(request: pytest.FixtureRequest) -> Command:
    """Of a function in `served.py`, and of the same in Go."""
    if request.param == "go":
        built: list[str] = request.getfixturevalue("go_command")
        return lambda name: [*built, name]
    return lambda name: python_command(f"{HERE / 'served.py'}:{name}")


@pytest.fixture
def serve(served_command: Command, log: Path) -> Serve:
    """Opens one of the functions."""

    @asynccontextmanager
    async def served(name: str) -> AsyncIterator[LocalFunction]:
        command = served_command(name)
        spec = SidecarSpec(command, "udf", NAME.pipeline, NAME.vertex, env={"SERVED_LOG": str(log)}, stop_timeout_s=10)
        async with asyncio.timeout(60), open_local_function(spec, log=print) as sidecar:
            yield sidecar

    return served


async def test_a_map_is_told_the_ids_of_its_records(serve: Serve) -> None:
    async with serve("named") as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        prefix = "map/in-map/0/7/"
        answer = await stream.call(frame_of([b"a", b"b"]), watermark_us=0, id_prefix=prefix, first_index=3)
        own = await stream.call(frame_of([b"a"], ids=[b"web-7"]), watermark_us=0, id_prefix=prefix)
    assert values_of(answer) == [b"map/in-map/0/7/3", b"map/in-map/0/7/4"]
    assert values_of(own) == [b"web-7"]


@pytest.mark.parametrize("name", ["write", "table"])
async def test_a_sink(serve: Serve, log: Path, name: str) -> None:
    async with serve(name) as sidecar, sidecar.open_sink(NAME) as stream:
        answer = await stream.call(frame_of([b"a", b"bad", b"c"]), id_prefix="clean/in/0/17/", first_index=5)
    (outcome,) = answer.outcomes
    assert (outcome.index, outcome.result) == (1, Result.FALLBACK)
    assert log.read_bytes() == b"clean/in/0/17/5 a\nclean/in/0/17/7 c\n"


async def test_a_source_transform(serve: Serve) -> None:
    async with serve("stamp") as sidecar, sidecar.open_map(FunctionKind.SOURCE_TRANSFORM, NAME) as stream:
        answer = await stream.call(frame_of([b"70", b"80"]), watermark_us=0)
    assert columns.unpack_times(answer.event_times_us).tolist() == [70, 80]
    assert columns.unpack_lists(answer.keys, 2) == [(b"k",), (b"k",)]


async def test_a_source_transform_is_no_map(serve: Serve) -> None:
    async with serve("stamp") as sidecar:
        with raises(codes.FUNCTION_KIND, match="the function serves source transform, but this vertex needs a map"):
            async with sidecar.open_map(FunctionKind.MAP, NAME):
                pass


async def test_a_source_is_read_to_its_end(serve: Serve, log: Path) -> None:
    values: list[bytes] = []
    errors: list[str] = []
    async with (
        serve("Numbers") as sidecar,
        sidecar.open_source(NAME, position=b"10", partition=1, partitions=4) as stream,
    ):
        ended = False
        while not ended:
            batch = await stream.read(20, 1 << 20, 1.0)
            if batch.error:
                errors.append(batch.error)
                continue
            values += batch.frame.values() if batch.frame is not None else []
            ended = batch.ended
            await stream.committed(batch.position)
    # The function lost the numbers of the read it failed; that is its own affair. What it gave came once and in order.
    assert values == [b"%d" % n for n in (*range(10, 50), *range(70, 100))]
    assert len(errors) == 1
    first, _, more = errors[0].partition("\n")
    assert first in ("OSError: the other side is away", "the other side is away")
    assert more
    assert log.read_text().split("\n") == [
        "open 10 1 4",
        "committed 30",
        "committed 50",
        "committed 90",
        "committed 100",
        "close",
        "",
    ]


async def test_a_source_that_dies_goes_on_behind_what_was_read(serve: Serve, log: Path) -> None:
    values: list[bytes] = []
    async with (
        serve("Numbers") as sidecar,
        sidecar.open_source(NAME, position=b"", partition=0, partitions=1) as stream,
    ):
        for read in range(4):
            batch = await stream.read(10, 1 << 20, 1.0)
            values += batch.frame.values() if batch.frame is not None else []
            if read == 0:
                await stream.committed(batch.position)
            if read == 1:
                pid = sidecar.statistics().pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
    # Committed up to 10, read up to 20 when it died.
    assert values == [b"%d" % n for n in range(40)]
    assert [line for line in log.read_text().splitlines() if line.startswith("open")] == ["open 0 0 1", "open 20 0 1"]


async def test_slow_calls_wait_together(serve: Serve) -> None:
    async with serve("wait") as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        assert stream.calls_max >= 500
        began = time.monotonic()
        # 40 calls of 10 records of 100 ms each: 40 s one after the other.
        calls = [stream.call(frame_of([b"100"] * 10), watermark_us=0) for _ in range(40)]
        answers = await together(*calls)
        assert time.monotonic() - began < 20
    assert all(values_of(answer) == [b"100"] * 10 for answer in answers)


async def test_a_quick_call_overtakes_a_slow_one(serve: Serve) -> None:
    order: list[bytes] = []
    async with serve("wait") as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:

        async def call(milliseconds: bytes) -> None:
            order.extend(values_of(await stream.call(frame_of([milliseconds]), watermark_us=0)))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call(b"1000"))
            tasks.create_task(call(b"1"))
    assert order == [b"1", b"1000"]


@pytest.mark.parametrize("served_command", ["python"], indirect=True)
async def test_a_function_that_asks_to_end_its_process_has_failed_on_the_record(serve: Serve, tmp_path: Path) -> None:
    once = os.fsencode(tmp_path / "once")
    async with serve("leave_politely") as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        (outcome,) = (await stream.call(frame_of([once]), watermark_us=0)).outcomes
        assert (outcome.index, outcome.result) == (0, Result.ERROR)
        assert outcome.reason == "the function called sys.exit(7): raise an exception instead"
        assert values_of(await stream.call(frame_of([once]), watermark_us=0)) == [b"second"]
        assert sidecar.statistics().restarts == 0


async def test_a_function_that_ends_its_process(serve: Serve, tmp_path: Path) -> None:
    once = os.fsencode(tmp_path / "once")
    async with serve("leave") as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        with pytest.raises(ProcessEndedError, match="its process exited with code 3"):
            await stream.call(frame_of([once]), watermark_us=0)
        assert values_of(await stream.call(frame_of([once]), watermark_us=0, alone=True)) == [b"second"]
        assert sidecar.statistics().restarts == 1
