"""Functions that raise `CancelledError` themselves, because what they await was cancelled: a failure like any other."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import millstream_udf as udf
from millstream_udf.answering import answer_map
from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.definition import MAP
from millstream_udf.execution import _TURN_S, open_function
from millstream_udf.groups import Cursor, FrameRows, Group, Part
from millstream_udf.reducing import ANSWER_BYTES, ReduceFunction
from millstream_udf.sources import SourceLane, frame_of
from millstream_udf.testing import OpenSink, arun, run_reduce
from millstream_udf.values import Window
from millstream_udf.wire.udf.v1 import udf_pb2

TIMEOUT_S = 60
REASON = "RuntimeError: the work was cancelled"


async def fetch() -> bytes:
    """What a function awaits: a request that a library gives up."""
    request: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    request.cancel()
    return await request


def fetch_here() -> bytes:
    """The same of a function that is not async, and runs its own loop."""
    raise asyncio.CancelledError


@udf.map
def plain(value: bytes) -> bytes:
    return fetch_here() if value == b"bad" else value


@udf.map
def lazy(value: bytes) -> Iterator[bytes]:
    return (fetch_here() if value == b"bad" else value for _ in range(1))


@udf.map(threads=2)
def threaded(value: bytes) -> bytes:
    return fetch_here() if value == b"bad" else value


@udf.map
async def waiting(value: bytes) -> bytes:
    return await fetch() if value == b"bad" else value


@udf.map
async def producing(value: bytes) -> AsyncIterator[bytes]:
    yield await fetch() if value == b"bad" else value


@udf.source_transform
async def stamping(record: udf.Record) -> udf.Message:
    return udf.Message(await fetch() if record.value == b"bad" else record.value, event_time=1)


@udf.sink
async def writing(record: udf.Record) -> None:
    if record.value == b"bad":
        await fetch()


@pytest.mark.parametrize("function", [plain, lazy, threaded, waiting, producing, stamping, writing])
async def test_the_record_has_failed(function: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        results = await arun(function, [b"a", b"bad", b"b"])
    (outcome,) = results.outcomes
    assert (outcome.index, outcome.result, outcome.reason) == (1, "error", REASON)
    if function is not writing:
        assert results.values == [b"a", b"b"]


async def test_the_traceback_shows_where_the_function_awaited_it() -> None:
    async with asyncio.timeout(TIMEOUT_S):
        (outcome,) = (await arun(waiting, [b"bad"])).outcomes
    assert "return await fetch()" in outcome.detail
    assert "millstream_udf/" not in outcome.detail


@udf.map(batch=True)
async def many(values: list[bytes]) -> list[bytes]:
    return [await fetch() for _ in values]


@udf.map(batch=True)
def many_here(values: list[bytes]) -> list[bytes]:
    return [fetch_here() for _ in values]


@udf.map(arrow=True)
async def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    await fetch()
    return batch


@udf.sink(batch=True)
async def writing_many(records: list[udf.Record]) -> None:
    await fetch()


@pytest.mark.parametrize("function", [many, many_here, columns, writing_many])
async def test_the_call_has_failed(function: Any) -> None:
    with pytest.raises(RuntimeError, match=REASON):
        async with asyncio.timeout(TIMEOUT_S):
            await arun(function, [b"a", b"b"])


def cancel_oneself() -> None:
    """As code does that takes the task it runs in for one of its own."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@udf.map
async def ending_itself(value: bytes) -> bytes:
    if value.startswith(b"bad"):
        cancel_oneself()
    if value != b"bad at the next":
        await asyncio.sleep(0)
    return value


async def test_a_record_whose_function_cancels_its_own_task_has_failed_and_no_other() -> None:
    async with asyncio.timeout(TIMEOUT_S):
        results = await arun(ending_itself, [b"a", b"bad", b"b", b"bad at the next", b"c", b"bad"])
    assert [(outcome.index, outcome.reason) for outcome in results.outcomes] == [(1, REASON), (5, REASON)]
    # It is what the function returned, whatever it did before.
    assert results.values == [b"a", b"b", b"bad at the next", b"c"]


@udf.map(concurrency=1)
async def ending_later(value: bytes) -> bytes:
    """The cancellation comes when the function has returned, in the pause at the end of a worker's turn."""
    if value == b"bad":
        cancel_soon()
        spend_the_turn()
    return value


def cancel_soon() -> None:
    """As a limit of time does that is not taken back."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)


def spend_the_turn() -> None:
    """As a function does that computes for long."""
    ends_s = time.monotonic() + 2 * _TURN_S
    while time.monotonic() < ends_s:
        pass


async def test_a_record_whose_function_cancels_its_task_too_late_keeps_its_result_and_no_other_waits_for_ever() -> None:
    values = [b"a", b"bad", b"b", b"bad"]
    async with asyncio.timeout(TIMEOUT_S):
        results = await arun(ending_later, values)
    assert (results.outcomes, results.values) == ([], values)


async def test_a_call_whose_workers_are_ended_in_the_pause_of_a_turn_is_not_answered() -> None:
    @udf.map(concurrency=1)
    async def long(value: bytes) -> bytes:
        if value == b"bad":
            asyncio.get_running_loop().call_soon(ended.set)
            spend_the_turn()
        return value

    async def end() -> None:
        await ended.wait()
        raise LookupError

    async def answered() -> None:
        async with asyncio.timeout(TIMEOUT_S), open_function(define(long, "long"), Context()) as opened:
            opened.workers.create_task(end())
            call = udf_pb2.SealedMapCall(call_id=1, frame=frame_of([udf.Record(b"bad"), udf.Record(b"a")]))
            await answer_map(opened.lane(), udf_pb2.Hello(kind=MAP), call)

    ended = asyncio.Event()
    with pytest.raises(ExceptionGroup) as caught:
        await answered()
    assert caught.group_contains(LookupError)


@udf.map(batch=True)
async def ending_many(values: list[bytes]) -> list[bytes]:
    cancel_oneself()
    await asyncio.sleep(0)
    return values


@udf.source
class EndingFeed:
    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        cancel_oneself()
        await asyncio.sleep(0)
        return udf.Batch([udf.Record(b"a", event_time=1)], position=b"1")


async def test_a_call_or_a_read_that_cancels_its_own_task_has_failed() -> None:
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(RuntimeError, match=REASON):
            await arun(ending_many, [b"a", b"b"])
        lane = SourceLane(EndingFeed, Context())
        await lane.open(udf_pb2.SourceOpen())
        batch = await lane.read(udf_pb2.SourceRead(records_max=1, timeout_us=1))
    assert batch.error.startswith(REASON)


@udf.map(batch=True)
async def exiting(values: list[bytes]) -> list[bytes]:
    sys.exit(3)


async def test_a_call_that_exits_has_failed_and_the_loop_goes_on() -> None:
    async with open_function(define(exiting, "exiting"), Context()) as opened, asyncio.timeout(TIMEOUT_S):
        call = udf_pb2.SealedMapCall(call_id=1, frame=frame_of([udf.Record(b"a")]))
        answer = await answer_map(opened.lane(), udf_pb2.Hello(kind=MAP), call)
    assert "the function called sys.exit(3)" in answer.error


class Unready:
    """A function whose `setup` or `close` awaits what was cancelled."""

    fails_in = ""

    async def setup(self, context: Context) -> None:
        if self.fails_in == "setup":
            await fetch()

    def process(self, value: bytes) -> bytes:
        return value

    def close(self) -> None:
        if self.fails_in == "close":
            fetch_here()


@pytest.mark.parametrize("method", ["setup", "close"])
async def test_a_setup_or_a_close_has_failed_and_is_named(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unready, "fails_in", method)
    with pytest.raises(RuntimeError, match=f"{method} of unready was cancelled") as caught:
        async with asyncio.timeout(TIMEOUT_S), open_function(define(Unready, "unready"), Context()):
            pass
    assert any(entry.name.startswith("fetch") for entry in caught.traceback)


async def cancel_at_the_end(context: Context) -> None:
    cancel_oneself()


async def cancel_and_wait(context: Context) -> None:
    cancel_oneself()
    await asyncio.sleep(0)


async def cancel_and_return(context: Context) -> None:
    await asyncio.sleep(0)
    cancel_oneself()


@pytest.mark.parametrize("setup", [cancel_at_the_end, cancel_and_wait, cancel_and_return])
async def test_a_setup_that_cancels_its_own_task_has_failed_and_is_named(setup: Any) -> None:
    class Ending:
        def __init__(self) -> None:
            self.setup = setup

        def process(self, value: bytes) -> bytes:
            return value

    with pytest.raises(RuntimeError, match=r"setup of ending (was cancelled|has cancelled the task that it ran in)"):
        async with asyncio.timeout(TIMEOUT_S), open_function(define(Ending, "ending"), Context()):
            pass
    # The task goes on.
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)


async def test_a_setup_that_limits_its_waits_and_one_that_is_cancelled_have_not_failed() -> None:
    begun = asyncio.Event()

    class Patient:
        async def setup(self, context: Context) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            begun.set()
            await asyncio.Event().wait()

        def process(self, value: bytes) -> bytes:
            return value

    async def opened() -> None:
        async with open_function(define(Patient, "patient"), Context()):
            pass

    opening = asyncio.create_task(opened())
    async with asyncio.timeout(TIMEOUT_S):
        await begun.wait()
        opening.cancel()
        await asyncio.wait((opening,))
    assert opening.cancelled()


async def test_a_call_that_is_cancelled_is_not_a_failure() -> None:
    """A real cancellation ends the call, which then has no answer."""
    begun = asyncio.Event()

    @udf.map(batch=True)
    async def endless(values: list[bytes]) -> list[bytes]:
        begun.set()
        await asyncio.Event().wait()
        return values

    definition = define(endless, "endless")
    async with open_function(definition, Context()) as opened, asyncio.timeout(TIMEOUT_S):
        call = udf_pb2.SealedMapCall(call_id=1, frame=frame_of([udf.Record(b"a")]))
        answering = asyncio.create_task(answer_map(opened.lane(), udf_pb2.Hello(kind=MAP), call))
        await begun.wait()
        answering.cancel()
        await asyncio.wait((answering,))
    assert answering.cancelled()


# Reduce functions


@udf.reduce
async def summed(keys: tuple[str, ...], records: AsyncIterator[udf.Record], window: udf.Window) -> bytes:
    values = [record.value async for record in records]
    return await fetch() if b"bad" in values else b"".join(values)


@udf.reduce
async def summed_lazily(
    keys: tuple[str, ...], records: AsyncIterator[udf.Record], window: udf.Window
) -> AsyncIterator[bytes]:
    async for record in records:
        yield await fetch() if record.value == b"bad" else record.value


@udf.reduce
def summed_here(keys: tuple[str, ...], records: Iterable[udf.Record], window: udf.Window) -> bytes:
    return b"".join(fetch_here() if record.value == b"bad" else record.value for record in records)


@pytest.mark.parametrize("frame_records", [1000, 1])
@pytest.mark.parametrize("function", [summed, summed_lazily, summed_here])
def test_the_group_has_failed(function: Any, frame_records: int) -> None:
    assert b"".join(run_reduce(function, [b"a", b"b"], frame_records=frame_records).values) == b"ab"
    with pytest.raises(RuntimeError, match=REASON):
        run_reduce(function, [b"a", b"bad", b"b"], frame_records=frame_records)


@udf.reduce
async def ending_group(keys: tuple[str, ...], records: AsyncIterator[udf.Record], window: udf.Window) -> bytes:
    values = [record.value async for record in records]
    if b"bad" in values:
        cancel_oneself()
    await asyncio.sleep(0)
    return b"".join(values)


def test_a_group_whose_function_cancels_its_own_task_has_failed() -> None:
    assert run_reduce(ending_group, [b"a", b"b"]).values == [b"ab"]
    with pytest.raises(RuntimeError, match=REASON):
        run_reduce(ending_group, [b"a", b"bad", b"b"])


LARGE = bytes(ANSWER_BYTES)


@udf.reduce
async def ending_behind_an_answer(
    keys: tuple[str, ...], records: AsyncIterator[udf.Record], window: udf.Window
) -> AsyncIterator[bytes]:
    yield LARGE
    async for record in records:
        if record.value == b"bad":
            cancel_oneself()
            await asyncio.sleep(0)
        yield record.value


@udf.reduce
async def ending_during_an_answer(
    keys: tuple[str, ...], records: AsyncIterator[udf.Record], window: udf.Window
) -> AsyncIterator[bytes]:
    yield b""
    async for record in records:
        if record.value == b"bad":
            cancel_soon()
            yield LARGE
        yield record.value


@pytest.mark.parametrize("reduce", [ending_behind_an_answer, ending_during_an_answer])
async def test_a_group_in_parts_has_failed_if_its_function_cancels_its_task_and_no_other(reduce: Any) -> None:
    groups = [Group(Window(start_us, start_us + 1)) for start_us in range(3)]
    parts: list[Part] = []
    for group, values in zip(groups, ([b"a", b"b"], [b"a", b"bad", b"b", b"c"], [b"c", b"d"]), strict=True):
        for index, value in enumerate(values):
            rows = FrameRows(frame_of([udf.Record(value)]))
            parts.append(Part([] if index else [group], [1], rows, unfinished=index < len(values) - 1))
    source = Parts(parts)
    function = ReduceFunction(define(reduce, "reduce"), reduce)
    failed, counts = [], dict.fromkeys(groups, 0)
    async with asyncio.timeout(TIMEOUT_S):
        async for answer in function.answers(Cursor(source), Context()):
            failed += [(answer.groups[failure.index], failure.error) for failure in answer.failures]
            for group, count in zip(answer.groups, answer.counts, strict=True):
                counts[group] += count
            # It is sent.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert failed == [(groups[1], REASON)]
    assert (counts[groups[0]], counts[groups[2]]) == (3, 3)
    assert not source.parts


class Parts:
    """A source of parts that have arrived."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = deque(parts)

    async def next(self) -> Part | None:
        await asyncio.sleep(0)
        return self.next_blocking()

    def next_blocking(self) -> Part | None:
        return self.parts.popleft() if self.parts else None


# Sources


@udf.source
class Feed:
    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        if position == b"bad":
            await fetch()

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        return udf.Batch([udf.Record(await fetch(), event_time=1)], position=b"1")

    async def committed(self, position: bytes) -> None:
        await fetch()


async def test_the_read_has_failed() -> None:
    lane = SourceLane(Feed, Context())
    await lane.open(udf_pb2.SourceOpen())
    batch = await lane.read(udf_pb2.SourceRead(records_max=1, timeout_us=1))
    assert batch.error.startswith(REASON)


async def test_the_stream_of_the_source_has_failed() -> None:
    lane = SourceLane(Feed, Context())
    with pytest.raises(RuntimeError, match="the work was cancelled"):
        await lane.open(udf_pb2.SourceOpen(position=b"bad"))
    with pytest.raises(RuntimeError, match="the work was cancelled"):
        await lane.committed(udf_pb2.SourceCommitted(position=b"1"))


# Sinks that keep positions


def sink_that_fails_in(method: str) -> type:
    """A sink of which one method awaits what was cancelled."""

    async def called(name: str) -> None:
        if name == method:
            await fetch()

    @udf.sink
    class Kept:
        async def open(self, lane: udf.SinkLane) -> bytes | None:
            await called("open")
            return None

        async def check(self, record: udf.Record) -> None:
            await called("check")

        async def write(self, record: udf.Record) -> None:
            await called("write")

        async def flush(self, position: bytes) -> None:
            await called("flush")

        async def close(self) -> None:
            await called("close")

    return Kept


def use(sink: OpenSink) -> None:
    sink.write([b"a"])
    sink.flush(b"1")


@pytest.mark.parametrize("method", ["open", "write", "flush"])
def test_the_transaction_has_failed(method: str) -> None:
    with pytest.raises(RuntimeError, match=REASON), OpenSink(sink_that_fails_in(method)) as sink:
        use(sink)


def test_the_check_has_failed() -> None:
    with OpenSink(sink_that_fails_in("check")) as sink:
        (outcome,) = sink.check([b"a"])
    assert outcome.reason == REASON


def test_a_close_that_fails_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with OpenSink(sink_that_fails_in("close")) as sink:
        use(sink)
    assert REASON in capsys.readouterr().err
