"""Work in the function's thread: with a task there, or in one turn of its loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

import pytest

from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.thread import FunctionThread, open_thread


def given_back(value: bytes) -> bytes:
    return value


@pytest.fixture
async def thread() -> AsyncIterator[FunctionThread]:
    async with open_thread(define(given_back, "given_back"), Context("p", "map")) as opened:
        yield opened


async def name_of_the_thread() -> str:
    return threading.current_thread().name


async def test_it_runs_in_the_functions_thread(thread: FunctionThread) -> None:
    assert await thread.run_through(name_of_the_thread()) == "function"
    assert await thread.run(name_of_the_thread()) == "function"


async def test_it_needs_no_task(thread: FunctionThread) -> None:
    async def task() -> asyncio.Task[None] | None:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return None

    assert await thread.run_through(task()) is None


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (ValueError("no good"), ValueError),
        (Panic("no good"), Panic),
        (asyncio.CancelledError(), RuntimeError),
    ],
)
@pytest.mark.parametrize("run", [FunctionThread.run, FunctionThread.run_through])
async def test_its_errors_reach_who_waits(
    thread: FunctionThread,
    run: Callable[[FunctionThread, Coroutine[None, None, None]], Awaitable[None]],
    raised: BaseException,
    arrives: type[BaseException],
) -> None:
    async def fails() -> None:
        raise raised

    with pytest.raises(arrives):
        async with asyncio.timeout(10):
            await run(thread, fails())


async def test_work_that_waits_is_refused(thread: FunctionThread) -> None:
    with pytest.raises(RuntimeError, match="has waited"):
        await thread.run_through(asyncio.sleep(0))
    assert await thread.run_through(name_of_the_thread()) == "function"


async def test_what_nobody_waits_for_does_not_begin(thread: FunctionThread) -> None:
    held, begun = threading.Event(), asyncio.Event()

    async def holds() -> None:
        held.wait(10)

    async def begins() -> None:
        begun.set()

    holding = asyncio.create_task(thread.run_through(holds()))
    unwanted = asyncio.create_task(thread.run_through(begins()))
    await asyncio.sleep(0)
    unwanted.cancel()
    await asyncio.wait((unwanted,))
    held.set()
    await holding
    # The loop of the thread has its turns in order.
    await thread.run_through(name_of_the_thread())
    assert not begun.is_set()
