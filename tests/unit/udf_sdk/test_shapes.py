"""How a function is taken: by its parameters, decorators and flavour."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.definition import Flavour, Takes, with_concurrency
from millstream_udf.testing import Outcome, run


def plain(value): ...  # type: ignore[no-untyped-def]  # as users write it
def plain_context(value, context): ...  # type: ignore[no-untyped-def]  # as users write it
def plain_record(record: udf.Record) -> None: ...
def plain_default(value: bytes, factor: int = 2) -> None: ...
def plain_many(*values: bytes) -> None: ...


@udf.map
def decorated(record): ...  # type: ignore[no-untyped-def]  # as users write it


@udf.map
def decorated_bytes(data: bytes, context: udf.Context) -> None: ...


@udf.map
def decorated_value(value): ...  # type: ignore[no-untyped-def]  # as users write it


@udf.map(batch=True)
def batched(records: list[udf.Record]) -> list[bytes]:
    return []


@udf.map(batch=True)
async def batched_values(items: Sequence[bytes], context: udf.Context) -> list[bytes]:
    return []


@pytest.mark.parametrize(
    ("function", "takes", "wants_context"),
    [
        (plain, Takes.VALUE, False),
        (plain_context, Takes.VALUE, True),
        (plain_record, Takes.RECORD, False),
        (plain_default, Takes.VALUE, False),
        (plain_many, Takes.VALUE, False),
        (bytes.upper, Takes.VALUE, False),
        (decorated, Takes.RECORD, False),
        (decorated_bytes, Takes.VALUE, True),
        (decorated_value, Takes.VALUE, False),
        (batched, Takes.RECORDS, False),
        (batched_values, Takes.VALUES, True),
    ],
)
def test_parameters_decide(function: Any, takes: Takes, wants_context: bool) -> None:
    definition = define(function, "f")
    assert (definition.takes, definition.wants_context) == (takes, wants_context)


def test_a_decorated_function_is_still_itself() -> None:
    assert decorated.__name__ == "decorated"
    assert callable(decorated)


class Callable:
    async def __call__(self, value: bytes) -> bytes:
        return value.upper()


def test_an_object_that_can_be_called() -> None:
    assert define(Callable(), "f").flavour is Flavour.ASYNC
    assert run(Callable(), [b"a"]).values == [b"A"]


def _keyword(value: bytes, *, factor: int) -> None: ...
@udf.map
def _three(a: bytes, b: udf.Context, c: int) -> None: ...
def _none() -> None: ...


class NoProcess:
    pass


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (_keyword, "a keyword-only argument factor"),
        (_three, "takes 3 arguments"),
        (_none, "takes 0 arguments"),
        (7, "is not a function but int"),
        (NoProcess, "needs a method process"),
    ],
)
def test_what_is_no_function(target: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        define(target, "f")


def test_options_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="batch or arrow, not both"):
        udf.map(batch=True, arrow=True)(lambda records: records)
    with pytest.raises(TypeError, match="concurrency must be at least 1"):
        udf.map(concurrency=0)(lambda record: record)
    with pytest.raises(TypeError, match="is not async: use threads=n"):
        define(udf.map(concurrency=5)(lambda record: record), "f")

    async def coroutine(value: bytes) -> bytes:
        return value

    with pytest.raises(TypeError, match="is async: use concurrency=n"):
        define(udf.map(threads=5)(coroutine), "f")


def test_what_the_pipeline_says_of_concurrency_goes_before_the_decorator() -> None:
    async def waits(value: bytes) -> bytes:
        return value

    def blocks(value: bytes) -> bytes:
        return value

    assert with_concurrency(define(waits, "f"), "7").concurrency == 7
    assert with_concurrency(define(udf.map(threads=2)(blocks), "f"), "7").options.threads == 7
    for told in (None, "", "1"):
        assert with_concurrency(define(decorated, "f"), told).concurrency == 1
    with pytest.raises(TypeError, match=r"`concurrency: 7`, but f is not async.* one record at a time.*\(threads=7 in"):
        with_concurrency(define(decorated, "f"), "7")
    with pytest.raises(TypeError, match="one batch at a time"):
        with_concurrency(define(udf.map(batch=True)(lambda records: records), "f"), "7")
    for told in ("many", "0", "-3"):
        with pytest.raises(TypeError, match="must be a whole number of at least 1"):
            with_concurrency(define(waits, "f"), told)


def test_a_context_tells_where_a_call_comes_from() -> None:
    seen: list[udf.Context] = []

    def process(value: bytes, context: udf.Context) -> bytes:
        seen.append(context)
        with context.span("work"):
            context.logger.info("seen")
        return value

    run(process, [b"a", b"b"], attempt=2, watermark_us=1_000_000)
    assert len(seen) == 2
    assert seen[0].attempt == 2
    assert seen[0].watermark is not None
    assert seen[0].watermark.timestamp() == 1
    assert seen[0].lane == "in-process.0"


def test_a_watermark_may_not_be_a_time() -> None:
    assert udf.Context().watermark is None


@pytest.mark.parametrize("is_async", [False, True])
def test_a_class_has_a_life(is_async: bool) -> None:
    life: list[str] = []

    class Sync:
        def setup(self, context: udf.Context) -> None:
            life.append("setup")

        def process(self, value: bytes) -> bytes:
            life.append("process")
            return value

        def close(self) -> None:
            life.append("close")

    class Async:
        async def setup(self, context: udf.Context) -> None:
            life.append("setup")

        async def process(self, value: bytes) -> bytes:
            life.append("process")
            return value

        async def close(self) -> None:
            life.append("close")

    assert run(Async if is_async else Sync, [b"a", b"b"]).values == [b"a", b"b"]
    assert life == ["setup", "process", "process", "close"]


def test_batches() -> None:
    @udf.map(batch=True)
    def process(values: list[bytes]) -> list[Any]:
        return [udf.Drop("odd") if len(value) % 2 else [value, value] for value in values]

    results = run(process, [b"ab", b"c", b""])
    assert results.values == [b"ab", b"ab", b"", b""]
    assert list(results.parents) == [0, 0, 2, 2]
    assert results.outcomes == [Outcome(1, "drop", "odd")]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([b"a"], "2 records came in, 1 results came back"),
        (None, "2 records came in, NoneType came back"),
        (b"ab", "2 records came in, bytes came back"),
    ],
)
def test_a_batch_that_does_not_fit(output: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(udf.map(batch=True)(lambda records: output), [b"a", b"b"])


def test_a_batch_that_fails_fails_as_a_whole() -> None:
    @udf.map(batch=True)
    def process(records: list[udf.Record]) -> list[bytes]:
        raise ValueError("broken")

    with pytest.raises(RuntimeError, match=r"ValueError: broken\nTraceback"):
        run(process, [b"a", b"b"])


def test_async_records_wait_together_and_stay_in_order() -> None:
    waiting = 0
    most = 0
    together = asyncio.Event()

    @udf.map(concurrency=10)
    async def process(value: bytes) -> bytes:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        if waiting == 10:
            together.set()
        await together.wait()
        waiting -= 1
        return value

    values = [b"%d" % n for n in range(100)]
    assert run(process, values).values == values
    assert most == 10


def test_threads_wait_together_and_stay_in_order() -> None:
    together = threading.Barrier(4, timeout=10)

    @udf.map(threads=4)
    def process(value: bytes, context: udf.Context) -> bytes:
        together.wait()
        if value == b"2":
            raise udf.Drop("two")
        return value

    results = run(process, [b"%d" % n for n in range(8)])
    assert results.values == [b"0", b"1", b"3", b"4", b"5", b"6", b"7"]
    assert results.outcomes == [Outcome(2, "drop", "two")]


def test_functions_that_are_not_async_run_in_one_thread() -> None:
    threads: set[int] = set()

    def process(value: bytes) -> bytes:
        threads.add(threading.get_ident())
        return value

    run(process, [b"a"] * 100)
    assert len(threads) == 1
