"""Records of a key run one after another, whatever the form of the function; others run at the same time."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.testing import run

KEYS = "abcab" * 4
RECORDS = [udf.Record(b"%d" % number, keys=(key,)) for number, key in enumerate(KEYS)]
COUNTS = [b"%d" % (KEYS[: number + 1].count(key)) for number, key in enumerate(KEYS)]
FAILS = 3
"""The record that fails: of key a, the second one."""
HELD_UP = [number for number, key in enumerate(KEYS) if key == "a" and number > FAILS]


class _Counting:
    total = udf.value(int, default=0)
    seen = udf.map_state(str, int)


def _fails(value: bytes) -> None:
    if value == b"%d" % FAILS:
        raise OSError("away")


@udf.map
class Plain(_Counting):
    def process(self, value: bytes) -> str:
        before = self.total
        self.total = before + 1
        self.seen[value.decode()] = 1
        return str(self.total)


@udf.map
class FailingPlain(Plain):
    def process(self, value: bytes) -> str:
        result = super().process(value)
        _fails(value)
        return result


@udf.map
class Async(_Counting):
    async def process(self, value: bytes) -> str:
        before = self.total
        await asyncio.sleep(0)
        await asyncio.to_thread(self.add, before)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.note(value))
        return str(self.total)

    def add(self, before: int) -> None:
        self.total = before + 1

    async def note(self, value: bytes) -> None:
        await asyncio.sleep(0)
        self.seen[value.decode()] = 1


@udf.map
class FailingAsync(Async):
    async def process(self, value: bytes) -> str:
        result = await super().process(value)
        _fails(value)
        return result


@udf.map
class AsyncGenerator(_Counting):
    async def process(self, value: bytes) -> AsyncIterator[str]:
        before = self.total
        await asyncio.sleep(0)
        self.total = before + 1
        self.seen[value.decode()] = 1
        yield str(self.total)


@udf.map
class FailingAsyncGenerator(AsyncGenerator):
    async def process(self, value: bytes) -> AsyncIterator[str]:
        async for output in super().process(value):
            yield output
        _fails(value)


@udf.map(threads=4)
class Threads(Plain):
    pass


@udf.map(threads=4)
class FailingThreads(FailingPlain):
    pass


@udf.map(batch=True)
class Batch(_Counting):
    def process(self, values: list[bytes], states: Sequence[Any]) -> list[str]:
        results = []
        for value, state in zip(values, states, strict=True):
            state.total += 1
            state.seen[value.decode()] = 1
            results.append(str(state.total))
        return results


@udf.map(batch=True)
class AsyncBatch(Batch):
    async def process(self, values: list[bytes], states: Sequence[Any]) -> list[str]:  # type: ignore[override]  # meant
        await asyncio.sleep(0)
        return super().process(values, states)


FORMS = [Plain, Async, AsyncGenerator, Threads, Batch, AsyncBatch]


@pytest.mark.parametrize("function", FORMS)
def test_every_form_counts_each_key_in_order(function: Any) -> None:
    results = run(function, RECORDS)
    assert results.values == COUNTS
    assert results.states is not None
    for key in "abc":
        assert results.states[key]["total"] == KEYS.count(key)
        assert results.states[key]["seen"] == {str(n): 1 for n, one in enumerate(KEYS) if one == key}


@pytest.mark.parametrize("function", [FailingPlain, FailingAsync, FailingAsyncGenerator, FailingThreads])
def test_every_form_holds_up_the_key_of_a_failed_record(function: Any) -> None:
    results = run(function, RECORDS)
    assert {(one.index, one.result) for one in results.outcomes} == {
        (FAILS, "error"),
        *((number, "held up") for number in HELD_UP),
    }
    assert results.states is not None
    assert results.states["a"] == {"total": 1, "seen": {"0": 1}}
    assert results.states["b"]["total"] == KEYS.count("b")


def test_other_keys_do_not_wait() -> None:
    arrived: list[bytes] = []

    @udf.map
    class Waiting:
        total = udf.value(int, default=0)

        def setup(self, context: udf.Context) -> None:
            self.all_there = asyncio.Event()

        async def process(self, value: bytes) -> str:
            self.total += 1
            arrived.append(value)
            if len(arrived) == 3:
                self.all_there.set()
            await self.all_there.wait()
            return str(self.total)

    # The first records of three keys wait for each other, and the second one of a key for the first.
    records = [udf.Record(b"%d" % number, keys=(key,)) for number, key in enumerate("aabbcc")]
    results = run(Waiting, records)
    assert results.values == [b"1", b"2"] * 3
    assert arrived[:3] == [b"0", b"2", b"4"]


def test_concurrency_is_a_limit() -> None:
    running: list[int] = []

    @udf.map(concurrency=2)
    class Limited:
        total = udf.value(int, default=0)
        now = 0

        async def process(self, value: bytes) -> None:
            self.now += 1
            running.append(self.now)
            await asyncio.sleep(0)
            self.total += 1
            self.now -= 1

    results = run(Limited, RECORDS)
    assert max(running) == 2
    assert results.states is not None
    assert results.states["a"]["total"] == KEYS.count("a")


def test_a_record_that_cancels_its_task_holds_its_key_up() -> None:
    @udf.map
    class Cancelling:
        total = udf.value(int, default=0)

        async def process(self, value: bytes) -> str:
            self.total += 1
            if value == b"cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            return str(self.total)

    values = [b"one", b"cancel", b"three"]
    results = run(Cancelling, [udf.Record(value, keys=(key,)) for key in "ab" for value in values])
    assert results.values == [b"1", b"1"]
    assert [one.result for one in results.outcomes] == ["error", "held up"] * 2


def test_tasks_and_threads_that_outlive_their_record() -> None:
    problems: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []

    @udf.map
    class Leaving:
        total = udf.value(int, default=0)

        async def process(self, value: bytes) -> str:
            if value == b"leave":
                self.left = asyncio.Event()
                tasks.append(asyncio.create_task(self.later()))
                return "left"
            self.left.set()
            await asyncio.wait(tasks)
            return str(self.total)

        async def later(self) -> None:
            await self.left.wait()
            try:
                self.total = 7
            except RuntimeError as error:
                problems.append(error)

    assert run(Leaving, [b"leave", b"wait"]).values == [b"left", b"0"]
    (problem,) = problems
    assert "state total can only be used while a record is processed" in str(problem)


def test_a_thread_of_the_users_own() -> None:
    @udf.map
    class Threading:
        total = udf.value(int, default=0)

        def process(self, value: bytes) -> str:
            found: list[BaseException] = []

            def work() -> None:
                try:
                    self.total += 1
                except RuntimeError as error:
                    found.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(contextvars.copy_context().run, work).result()
            return f"{self.total} {len(found)}"

    assert run(Threading, [b""]).values == [b"1 1"]


def test_a_batch_with_failures() -> None:
    @udf.map(batch=True)
    class Failing(_Counting):
        def process(self, values: list[bytes], states: Sequence[Any]) -> list[Any]:
            results: list[Any] = []
            for value, state in zip(values, states, strict=True):
                state.total += 1
                match value:
                    case b"error":
                        results.append(OSError("away"))
                    case b"drop":
                        results.append(udf.Drop("unwanted"))
                    case b"output":
                        results.append([b"a", 7])
                    case _:
                        results.append(str(state.total))
            return results

    sent = [("a", b"1"), ("b", b"drop"), ("a", b"error"), ("c", b"1"), ("b", b"1"), ("a", b"drop"), ("d", b"output")]
    results = run(Failing, [udf.Record(value, keys=(key,)) for key, value in sent])
    assert [(one.index, one.result) for one in results.outcomes] == [
        (0, "held up"),
        (1, "drop"),
        (2, "error"),
        (4, "held up"),
        (5, "held up"),
        (6, "error"),
    ]
    assert results.values == [b"1"]
    assert results.parents == [3]
    assert results.states is not None
    assert dict(results.states) == {"c": {"total": 1}}


def test_a_batch_that_raises_changes_nothing() -> None:
    @udf.map(batch=True)
    class Raising(_Counting):
        def process(self, values: list[bytes], states: Sequence[Any]) -> list[Any]:
            states[0].total = 5
            raise OSError("away")

    with pytest.raises(RuntimeError, match="away"):
        run(Raising, [b"a"])


def test_the_states_of_a_batch() -> None:
    found: list[Any] = []

    @udf.map(batch=True)
    class Looking(_Counting):
        def process(self, records: list[udf.Record], states: Sequence[Any]) -> list[None]:
            found.extend(states)
            assert states[0] is states[2]
            assert states[0] is not states[1]
            del states[0].total
            with pytest.raises(AttributeError, match="the function declares no state totl"):
                states[0].totl = 1
            with pytest.raises(RuntimeError, match=r"in a batch function use states\[i\].total, for record i"):
                self.total += 1
            return [None] * len(records)

    results = run(Looking, [udf.Record(b"", keys=(key,)) for key in "aba"], states={"a": {"total": 5}})
    assert results.states is not None
    assert dict(results.states) == {}
    with pytest.raises(RuntimeError, match="state total can only be used while a record is processed"):
        found[0].total += 1


@udf.map(batch=True)
def plain_batch(values: list[bytes], states: Sequence[udf.State], context: udf.Context) -> list[str]:
    return [f"{state.incr_counter('n')} {context.attempt}" for state in states]


def test_a_plain_batch() -> None:
    results = run(plain_batch, [udf.Record(b"", keys=(key,)) for key in "aab"])
    assert results.values == [b"1 0", b"2 0", b"1 0"]


@udf.map(batch=True, decode=json.loads)
def misfits_in_batch(values: list[Any], states: Sequence[udf.State]) -> list[str]:
    return [f"{value} {state.incr_counter('n')}" for value, state in zip(values, states, strict=True)]


def test_misfits_are_not_in_the_batch() -> None:
    records = [udf.Record(value, keys=(key,)) for key, value in (("a", b"1"), ("b", b"no"), ("b", b"2"), ("a", b"3"))]
    results = run(misfits_in_batch, records)
    assert results.values == [b"1 1", b"2 1", b"3 2"]
    assert results.parents == [0, 2, 3]
    assert [(one.index, one.result) for one in results.outcomes] == [(1, "dead letter")]
