"""Functions that are not async are called as if there were no event loop; async ones, and their classes, on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf import testing
from millstream_udf.answering import answer_map
from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.definition import MAP
from millstream_udf.groups import decode_part
from millstream_udf.outside_loop import outside_loop, stepped_outside
from millstream_udf.reducing import load
from millstream_udf.sources import SourceLane, frame_of
from millstream_udf.testing import run_reduce
from millstream_udf.thread import open_thread
from millstream_udf.wire.udf.v1 import udf_pb2


async def fetch(text: str) -> str:
    await asyncio.sleep(0)
    assert asyncio.current_task() is not None
    return text


def fetched(text: str) -> str:
    """What libraries do that offer both: they refuse where a loop runs."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    with pytest.raises(RuntimeError):
        asyncio.current_task()
    return asyncio.run(fetch(text))


def mapping(value: bytes) -> str:
    return fetched("m")


def generating(value: bytes) -> Iterator[str]:
    yield fetched("g")
    yield fetched("h")


def lazy(value: bytes) -> Iterable[str]:
    return (fetched(text) for text in "lm")


@udf.map(threads=2)
def threaded(value: bytes) -> Iterable[str]:
    return (fetched(text) for text in "t")


@udf.map(batch=True)
def batched(values: list[bytes]) -> list[str]:
    return [fetched("b") for _ in values]


class Stateful:
    def __init__(self) -> None:
        self.begun = fetched("i")

    def setup(self, context: udf.Context) -> None:
        self.begun += fetched("s")

    def process(self, value: bytes) -> str:
        return self.begun + fetched("p")

    def close(self) -> None:
        fetched("c")


@pytest.mark.parametrize(
    ("function", "expected"),
    [(mapping, "m"), (generating, "gh"), (lazy, "lm"), (threaded, "t"), (batched, "b"), (Stateful, "isp")],
)
def test_a_map_may_run_a_loop(function: Any, expected: str) -> None:
    assert b"".join(testing.run(function, ["a"]).values) == expected.encode()


async def test_also_where_a_test_runs_one() -> None:
    assert (await testing.arun(Stateful, ["a"])).values == [b"isp"]
    assert asyncio.current_task() is not None


class Writer:
    """A sink that keeps positions."""

    def __init__(self) -> None:
        fetched("i")

    def open(self, lane: udf.SinkLane) -> None:
        fetched("o")

    def check(self, record: udf.Record[bytes]) -> None:
        fetched("k")

    def write(self, record: udf.Record[bytes]) -> None:
        fetched("w")

    def flush(self, position: bytes) -> None:
        fetched("f")

    def close(self) -> None:
        fetched("c")


def writing(value: bytes) -> None:
    fetched("w")


@pytest.mark.parametrize("sink", [udf.sink(writing), udf.sink(Writer)])
def test_a_sink_may_run_a_loop(sink: Any) -> None:
    assert testing.run(sink, ["a", "b"], kind="sink").outcomes == []


@udf.reduce
def reducing(keys: tuple[str, ...], records: Iterable[udf.Record[bytes]], window: udf.Window) -> Iterator[str]:
    yield fetched(str(sum(1 for _ in records)))


@udf.reduce
class Summing:
    def __init__(self) -> None:
        self.count = len(fetched(""))

    def add(self, record: udf.Record[bytes]) -> None:
        self.count += len(fetched("1"))

    def result(self) -> str:
        return fetched(str(self.count))


@pytest.mark.parametrize("function", [reducing, Summing])
@pytest.mark.parametrize("frame_records", [2, 100])
def test_a_reduce_may_run_a_loop(function: Any, frame_records: int) -> None:
    assert run_reduce(function, ["a"] * 5, frame_records=frame_records).values == [b"5"]


def test_a_reduce_in_a_process_of_spark_may_run_a_loop() -> None:
    window = udf_pb2.SealedReducePart(
        groups=[udf_pb2.Group(start_us=0, end_us=1)], counts=[1], frame=frame_of([udf.Record(b"a")])
    )
    (answer,) = load(f"{__name__}:reducing")([decode_part(window, continues=False)])
    assert answer.results == [b"1"]


def idiom(value: bytes) -> str:
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()
    return fetched("x")


async def test_nothing_of_the_loop_is_found_in_the_thread_of_a_function() -> None:
    call = udf_pb2.SealedMapCall(call_id=1, frame=frame_of([udf.Record(b"a")] * 2))
    async with asyncio.timeout(60), open_thread(define(idiom, "idiom"), Context()) as thread:
        lane = thread.function.lane()
        for run in (thread.run, thread.run_through):
            answer = await run(answer_map(lane, udf_pb2.Hello(kind=MAP), call))
            assert (answer.records, list(answer.outcomes)) == (2, [])


class Connected:
    """What plain methods of an async function create belongs to the loop on which it works."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def setup(self, context: udf.Context) -> None:
        self.task = self.loop.create_task(fetch("x"))

    async def process(self, value: bytes) -> str:
        assert self.loop is asyncio.get_running_loop()
        return await self.task

    def close(self) -> None:
        assert self.loop is asyncio.get_running_loop()


class ConnectedFeed:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def open(self, position: bytes, partition: int, partitions: int) -> None:
        assert self.loop is asyncio.get_running_loop()

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        assert self.loop is asyncio.get_running_loop()
        return udf.Batch([], position=b"1", ended=True)


async def test_classes_with_an_async_method_stay_on_the_loop() -> None:
    assert (await testing.arun(Connected, ["a"])).values == [b"x"]
    lane = SourceLane(ConnectedFeed, Context())
    await lane.open(udf_pb2.SourceOpen())
    assert not (await lane.read(udf_pb2.SourceRead(records_max=1, timeout_us=1))).error


async def test_a_loop_that_users_code_leaves_running_is_there_at_the_next_call() -> None:
    """Playwright's loop runs in a coroutine of its own, which other code leaves in the middle."""
    theirs = asyncio.new_event_loop()
    ours, task = asyncio.get_running_loop(), asyncio.current_task()
    try:
        with outside_loop():
            asyncio._set_running_loop(theirs)
        for _ in range(2):
            assert (asyncio.get_running_loop(), asyncio.current_task()) == (ours, task)
            with outside_loop():
                assert asyncio.get_running_loop() is theirs
                with outside_loop():
                    assert asyncio.get_running_loop() is theirs
        with outside_loop():
            asyncio._set_running_loop(None)
        with outside_loop(), pytest.raises(RuntimeError):
            asyncio.get_running_loop()
    finally:
        theirs.close()


async def test_an_exception_leads_back_to_the_loop() -> None:
    def failing() -> Iterator[int]:
        yield 1
        fetched("x")
        raise LookupError

    steps = stepped_outside(failing())
    assert next(steps) == 1
    with pytest.raises(LookupError):
        next(steps)
    await asyncio.sleep(0)
