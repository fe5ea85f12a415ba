"""What counts as a sign of life of a JVM: what it does decides, not time alone."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millstream_reduce.spark.jvm import START_IDLE_S, WORKING_S, SignsOfLife
from tests.support.children import started

LIMIT_S = 120.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def process(code: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs the code, and has begun to."""
    async with started(
        sys.executable,
        "-c",
        f"print(flush=True)\n{code}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    ) as begun:
        assert begun.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            await begun.stdout.readline()
            yield begun


BUSY = "while True: pass"
IDLE = "import sys; sys.stdin.read()"


async def until_idle(signs: SignsOfLife) -> None:
    """It waits for its input now: two looks have seen no work."""
    while signs._works():  # noqa: ASYNC110  # another process has no event to wait for
        await asyncio.sleep(0.05)


def never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def at_once() -> asyncio.Future[None]:
    answer = never()
    answer.set_result(None)
    return answer


@pytest.mark.process
async def test_one_that_starts_has_as_long_as_it_works_and_some_time_to_wait() -> None:
    clock = Clock()
    async with process(BUSY) as busy, process(IDLE) as idle:
        signs = SignsOfLife(busy.pid, clock)
        for _ in range(5):
            clock.now_s += 10 * START_IDLE_S
            assert await signs.look()
        signs = SignsOfLife(idle.pid, clock)
        await until_idle(signs)
        clock.now_s += START_IDLE_S - 1
        assert await signs.look()
        clock.now_s += 1
        assert not await signs.look()


@pytest.mark.process
async def test_one_that_a_signal_stops_shows_none_also_while_it_starts() -> None:
    async with process(BUSY) as busy:
        signs = SignsOfLife(busy.pid)
        assert await signs.look()
        busy.send_signal(signal.SIGSTOP)
        # It has been stopped a moment after the signal was sent.
        while await signs.look():  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.05)
        busy.send_signal(signal.SIGCONT)
        while not await signs.look():  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.05)


@pytest.mark.process
async def test_one_that_does_not_answer_is_alive_while_it_works_up_to_a_limit() -> None:
    clock = Clock()
    async with process(BUSY) as busy, process(IDLE) as idle:
        working, silent = SignsOfLife(busy.pid, clock), SignsOfLife(idle.pid, clock)
        await until_idle(silent)
        for signs in (working, silent):
            signs.begin_to_ask(never)
        assert await working.look()
        assert not await silent.look()
        clock.now_s += WORKING_S
        assert not await working.look()


@pytest.mark.process
async def test_one_that_answers_is_alive_whatever_it_does() -> None:
    async with process(IDLE) as idle:
        signs = SignsOfLife(idle.pid)
        await until_idle(signs)
        signs.begin_to_ask(at_once)
        assert await signs.look()


@pytest.mark.process
async def test_one_that_cannot_be_asked_is_not_taken_for_alive() -> None:
    def broken() -> asyncio.Future[None]:
        answer = never()
        answer.set_exception(ConnectionError("it has gone"))
        return answer

    async with process(IDLE) as idle:
        signs = SignsOfLife(idle.pid)
        signs.begin_to_ask(broken)
        assert not await signs.look()


@pytest.mark.process
async def test_one_that_is_about_to_be_stopped_is_asked_no_more() -> None:
    def shut() -> asyncio.Future[None]:
        raise RuntimeError("cannot schedule new futures after shutdown")

    clock = Clock()
    async with process("import time; time.sleep(60)") as idle:
        signs = SignsOfLife(idle.pid, clock)
        signs.begin_to_ask(shut)
        signs.stop_asking()
        assert await signs.look()
