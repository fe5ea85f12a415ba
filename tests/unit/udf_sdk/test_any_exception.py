"""Users' functions that raise exceptions of any class, such as a panic of a library in Rust: each is the failure of its
record, call or read, and of no other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import millstream_udf as udf
from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.failures import Gone, failure
from millstream_udf.sources import SourceLane
from millstream_udf.testing import OpenSink, arun, read_source, run, run_reduce
from millstream_udf.thread import open_thread
from millstream_udf.wire.udf.v1 import udf_pb2


class Panic(BaseException):
    """As pyo3's PanicException."""


RAISED: dict[bytes, Callable[[], BaseException]] = {
    b"panic": lambda: Panic("from Rust"),
    b"interrupt": lambda: KeyboardInterrupt("by the function"),
    b"generator": lambda: GeneratorExit("by the function"),
    b"group": lambda: BaseExceptionGroup("some", [Panic("from Rust")]),
    b"exit": lambda: SystemExit(3),
    b"own": lambda: ValueError("by the function"),
}
VALUES = [b"a", *RAISED, b"b"]


def raise_for(value: bytes) -> bytes:
    if value in RAISED:
        raise RAISED[value]()
    return value


@udf.map
def plain(value: bytes) -> bytes:
    return raise_for(value)


@udf.map
def lazy(value: bytes) -> Iterator[bytes]:
    yield raise_for(value)


@udf.map
def generated(value: bytes) -> Iterable[bytes]:
    return (raise_for(value) for _ in range(1))


@udf.map(threads=2)
def threaded(value: bytes) -> bytes:
    return raise_for(value)


@udf.map
async def waiting(value: bytes) -> bytes:
    await asyncio.sleep(0)
    return raise_for(value)


@udf.map
async def producing(value: bytes) -> AsyncIterator[bytes]:
    yield raise_for(value)


@udf.source_transform
def stamping(record: udf.Record) -> udf.Message:
    return udf.Message(raise_for(record.value), event_time=1)


@udf.sink
def writing(record: udf.Record) -> None:
    raise_for(record.value)


@udf.sink
async def writing_async(record: udf.Record) -> None:
    raise_for(record.value)


@udf.sink
class Table:
    """Keeps positions."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        return None

    def check(self, record: udf.Record) -> None:
        raise_for(record.value)

    def write(self, record: udf.Record) -> None: ...

    def flush(self, position: bytes) -> None: ...


OF_RECORDS = [plain, lazy, generated, threaded, waiting, producing, stamping, writing, writing_async, Table]


@pytest.mark.parametrize("function", OF_RECORDS, ids=lambda function: function.__name__)
def test_only_the_record_has_failed(function: Any) -> None:
    results = run(function, VALUES)
    assert [VALUES[outcome.index] for outcome in results.outcomes] == list(RAISED)
    for outcome in results.outcomes:
        assert outcome.result == "error"
        assert outcome.reason
        assert "raise_for" in outcome.detail
    if function in OF_RECORDS[:7]:
        assert results.values == [b"a", b"b"]


@udf.map(decode=raise_for)
def decoding(value: Any) -> Any:
    return value


def test_only_the_record_that_is_not_decoded_is_refused() -> None:
    results = run(decoding, VALUES)
    assert [VALUES[outcome.index] for outcome in results.outcomes] == list(RAISED)
    assert {outcome.result for outcome in results.outcomes} == {"dead letter"}
    assert results.values == [b"a", b"b"]


@udf.map(encode=lambda value: raise_for(value["of"]))
def encoding(value: bytes) -> dict[str, bytes]:
    return {"of": value}


def test_only_the_record_whose_output_is_not_encoded_has_failed() -> None:
    results = run(encoding, VALUES)
    assert [VALUES[outcome.index] for outcome in results.outcomes] == list(RAISED)
    assert results.values == [b"a", b"b"]


@udf.map(batch=True)
def many(values: list[bytes]) -> list[bytes]:
    return list(map(raise_for, values))


@udf.map(batch=True)
async def many_async(values: list[bytes]) -> list[bytes]:
    return [raise_for(value) for value in values]


@udf.map(arrow=True)
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise_for(batch["value"][0].as_py())
    return batch


@udf.sink(batch=True)
def writing_many(records: list[udf.Record]) -> None:
    raise_for(records[0].value)


@udf.reduce
def folding(records: Iterable[bytes]) -> bytes:
    return raise_for(next(iter(records)))


@udf.reduce
async def folding_async(records: AsyncIterator[bytes]) -> bytes:
    return raise_for(await anext(aiter(records)))


@pytest.mark.parametrize("value", RAISED)
async def test_a_whole_call_is_answered(value: bytes) -> None:
    for function in (many, many_async, columns, writing_many):
        with pytest.raises(RuntimeError, match=r"by the function|from Rust|some|sys\.exit"):
            await arun(function, [value])


@pytest.mark.parametrize("value", RAISED)
@pytest.mark.parametrize("function", [folding, folding_async], ids=lambda function: function.__name__)
@pytest.mark.parametrize("frame_records", [1, 1000])
def test_only_the_group_has_failed(function: Any, value: bytes, frame_records: int) -> None:
    with pytest.raises(RuntimeError, match=r"by the function|from Rust|some|sys\.exit"):
        run_reduce(function, [value, b"more"], frame_records=frame_records)


class Failing:
    """Fails wherever it is called."""

    value = b""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        return None

    def write(self, record: udf.Record) -> None:
        raise_for(self.value)

    def flush(self, position: bytes) -> None:
        raise_for(self.value)

    def close(self) -> None:
        raise_for(self.value)


@pytest.mark.parametrize("value", RAISED)
def test_a_write_and_a_flush_are_answered(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "value", value)
    with OpenSink(Failing) as sink, pytest.raises(RuntimeError, match="raise_for"):
        sink.write([b"a"])
    with OpenSink(Failing) as sink, pytest.raises(RuntimeError, match="raise_for"):
        sink.flush(b"1")


class Feed:
    value = b""

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        raise_for(self.value)
        raise AssertionError


@pytest.mark.parametrize("value", RAISED)
async def test_a_read_is_answered(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feed, "value", value)
    lane = SourceLane(Feed, Context())
    await lane.open(udf_pb2.SourceOpen())
    batch = await lane.read(udf_pb2.SourceRead(records_max=1, timeout_us=1))
    assert "in read" in batch.error


def test_the_test_kit_reports_a_read_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feed, "value", b"panic")
    with pytest.raises(RuntimeError, match="from Rust"):
        read_source(udf.source(Feed))


@udf.map
async def starting_tasks(value: bytes) -> bytes:
    """Awaits a task of its own: asyncio leaves the loop with some exceptions of tasks."""

    async def work() -> bytes:
        return raise_for(value)

    return await asyncio.get_running_loop().create_task(work())


async def test_the_thread_of_a_function_goes_on_when_one_of_its_tasks_ends_the_loop() -> None:
    async with asyncio.timeout(60), open_thread(define(starting_tasks, "starting"), Context()) as thread:
        lane = thread.function.lane()

        async def failed(value: bytes) -> BaseException:
            (result,) = await lane._concurrently([value], Context())
            assert isinstance(result, BaseException)
            return result

        assert isinstance(await thread.run(failed(b"exit")), SystemExit)
        assert isinstance(await thread.run(failed(b"interrupt")), KeyboardInterrupt)
        with pytest.raises(Panic):
            await thread.run(raising(Panic("in open")))
        assert not thread.ended.done()


async def raising(error: BaseException) -> None:
    raise error


def test_what_is_not_the_failure_of_a_function_is_raised_again() -> None:
    with pytest.raises(Gone):
        failure(Gone("the stream has ended"))


@udf.map
def interrupted(value: bytes) -> bytes:
    for _ in range(2):
        # asyncio cancels the task at the first one, and raises at the second.
        signal.raise_signal(signal.SIGINT)
    return value


def test_ctrl_c_ends_the_test_kit() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, [b"a", b"b"])
