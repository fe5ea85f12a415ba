"""Requests, jobs and what becomes of both when one fails, is taken back or Spark is lost. The jobs are Python's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest

from millstream import codes
from millstream.errors import DamageError, RetryLaterError
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.spark.executor import Executor
from millstream_reduce.spark.jobs import JobResult
from millstream_reduce.spark.manifest import JobWindows
from millstream_reduce.spark.session import Session, SessionLostError
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable
from tests.support.errors import raises

LIMIT_S = 60.0
PROGRAM = engine_pb2.Program(sql=engine_pb2.SqlProgram(query="a"))
OTHER = engine_pb2.Program(sql=engine_pb2.SqlProgram(query="b"))


@dataclass
class Threads:
    """Runs functions in threads, as a session does; `cancelled` says so to what is cancelled."""

    lost: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)

    async def run(self, function: Callable[..., Any], *arguments: Any, tag: str = "") -> Any:
        call = asyncio.get_running_loop().run_in_executor(None, function, None, *arguments)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            self.cancelled.set()
            await asyncio.wait((call,))
            call.exception()
            raise

    async def check_alive(self) -> None:
        if self.lost:
            raise SessionLostError("Spark is gone")


class Jobs:
    """Gives every window as many rows as its contents say, and notes what was in each job."""

    def __init__(self, *held: str) -> None:
        """A job whose first window is in a directory of `held` waits until that is let go."""
        self.jobs: list[JobWindows] = []
        self.held = {directory: threading.Event() for directory in held}
        self.begun = threading.Semaphore(0)
        self.fails: Callable[[JobWindows], Exception | None] = lambda windows: None

    def __call__(self, _: object, program: engine_pb2.Program, windows: JobWindows) -> JobResult:
        self.jobs.append(windows)
        self.begun.release()
        if (held := self.held.get(windows[0].directory if windows else "")) is not None:
            assert held.wait(LIMIT_S)
        if (error := self.fails(windows)) is not None:
            raise error
        indexes = [index for index, item in enumerate(windows) for _ in range(item.contents.rows)]
        columns = {
            "window": pa.array(indexes, pa.int32()),
            "value": [
                f"{windows[index].directory}/{windows[index].contents.window.start_us}".encode() for index in indexes
            ],
        }
        nothing = {name: pa.nulls(len(indexes), RESULT_SCHEMA.field(name).type) for name in ("keys", "tags", "headers")}
        failures = [
            engine_pb2.WindowFailure(window=index, reason=str(item.contents.window.start_us))
            for index, item in enumerate(windows)
            if item.contents.rows == 0
        ]
        return JobResult(pa.table(columns | nothing).select(RESULT_SCHEMA.names), failures)


def request(directory: str, *rows: int, program: engine_pb2.Program = PROGRAM) -> engine_pb2.RunRequest:
    """Windows with so many rows each; without rows one fails."""
    windows = [
        WindowContents(Window(index, index + 1), (Piece(1, 0, 64, 0, count),) if count else ())
        for index, count in enumerate(rows)
    ]
    table = WindowTable.of(windows).message()
    return engine_pb2.RunRequest(program=program, directory=directory, windows=table)


def expected(directory: str, *rows: int) -> list[tuple[int, bytes]]:
    return [(index, f"{directory}/{index}".encode()) for index, count in enumerate(rows) for _ in range(count)]


def rows_of(table: pa.Table) -> list[tuple[int, bytes]]:
    assert table.schema.field("window").type == pa.int32()
    return [(row["window"], row["value"]) for row in table.select(["window", "value"]).to_pylist()]


@asynccontextmanager
async def serving(session: Threads, jobs: Jobs, *, stop_after_s: float = 0.0) -> AsyncIterator[Executor]:
    executor = Executor(cast("Session", session), jobs, stop_after_s=stop_after_s)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        serve = tasks.create_task(executor.serve())
        yield executor
        serve.cancel()


async def begun(jobs: Jobs) -> None:
    """Wait until one more job has begun."""
    assert await asyncio.to_thread(jobs.begun.acquire, timeout=LIMIT_S)


async def test_requests_that_wait_share_a_job_and_get_their_own_rows_and_failures() -> None:
    jobs = Jobs("first")
    async with serving(Threads(), jobs) as executor, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(executor.submit(request("first", 1)))
        await begun(jobs)
        shapes = {"a": (2, 0, 1), "b": (), "c": (0, 3), "d": (1,)}
        others = {name: tasks.create_task(executor.submit(request(name, *rows))) for name, rows in shapes.items()}
        await asyncio.sleep(0)
        assert not executor.idle
        jobs.held["first"].set()
        await first
        for name, rows in shapes.items():
            answer, summary = await others[name]
            assert rows_of(answer) == expected(name, *rows)
            failed = [(failure.window, failure.reason) for failure in summary.failures]
            assert failed == [(index, str(index)) for index, count in enumerate(rows) if count == 0]
            assert (summary.job_windows, summary.job_requests) == (6, 4)
    assert [len(job) for job in jobs.jobs] == [1, 6]
    assert (executor.jobs, executor.idle) == (2, True)


async def test_programs_have_jobs_of_their_own_at_the_same_time() -> None:
    jobs = Jobs("a", "b")
    async with serving(Threads(), jobs) as executor, asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.submit(request("a", 1)))
        tasks.create_task(executor.submit(request("b", 1, program=OTHER)))
        await begun(jobs)
        await begun(jobs)
        for held in jobs.held.values():
            held.set()
    assert sorted(job[0].directory for job in jobs.jobs) == ["a", "b"]


async def test_a_request_that_is_taken_back_before_its_job_is_in_none() -> None:
    jobs = Jobs("a")
    async with serving(Threads(), jobs) as executor, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(executor.submit(request("a", 1)))
        await begun(jobs)
        second = tasks.create_task(executor.submit(request("b", 1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        jobs.held["a"].set()
        await first
    assert [job[0].directory for job in jobs.jobs] == ["a"]


async def test_a_job_that_nobody_waits_for_may_end_by_itself() -> None:
    session, jobs = Threads(), Jobs("one")
    async with serving(session, jobs, stop_after_s=LIMIT_S) as executor, asyncio.TaskGroup() as tasks:
        one = tasks.create_task(executor.submit(request("one", 1)))
        await begun(jobs)
        one.cancel()
        await asyncio.wait((one,))
        next_one = tasks.create_task(executor.submit(request("next", 1)))
        await asyncio.sleep(0)
        jobs.held["one"].set()
        await next_one
        assert not session.cancelled.is_set()
    assert [len(windows) for windows in jobs.jobs] == [1, 1]


async def test_a_job_stops_when_nobody_waits_for_it_and_not_before() -> None:
    session, jobs = Threads(), Jobs("first", "one")
    async with serving(session, jobs) as executor, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(executor.submit(request("first", 1)))
        await begun(jobs)
        one, two = (tasks.create_task(executor.submit(request(name, 1))) for name in ("one", "two"))
        await asyncio.sleep(0)
        jobs.held["first"].set()
        await first
        await begun(jobs)
        one.cancel()
        await asyncio.wait((one,))
        assert not session.cancelled.is_set()
        two.cancel()
        assert await asyncio.to_thread(session.cancelled.wait, LIMIT_S)
        # Its place is free when it has ended, and not before.
        next_one = tasks.create_task(executor.submit(request("next", 1)))
        await asyncio.sleep(0)
        assert len(jobs.jobs) == 2
        jobs.held["one"].set()
        assert rows_of((await next_one)[0]) == expected("next", 1)


async def test_damage_in_one_log_does_not_touch_the_requests_of_others() -> None:
    jobs = Jobs("first")
    jobs.fails = lambda windows: (
        DamageError(codes.SEGMENT_DAMAGED, "segment 3 of bad")
        if any(item.directory == "bad" for item in windows)
        else None
    )
    async with serving(Threads(), jobs) as executor, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(executor.submit(request("first", 1)))
        await begun(jobs)
        good = tasks.create_task(executor.submit(request("good", 2)))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(jobs.held["first"].set)
        with raises(codes.SEGMENT_DAMAGED, match="segment 3 of bad"):
            await executor.submit(request("bad", 1))
        await first
        assert rows_of((await good)[0]) == expected("good", 2)
    assert [len(job) for job in jobs.jobs] == [1, 2, 1, 1]


async def test_what_may_be_better_later_is_said_as_long_as_spark_is_there() -> None:
    session, jobs = Threads(), Jobs()
    jobs.fails = lambda windows: RetryLaterError(codes.DISK_FULL, "no space left")
    async with serving(session, jobs) as executor:
        with raises(codes.DISK_FULL):
            await executor.submit(request("a", 1))
        assert executor.jobs == 0


async def test_a_defect_is_an_answer_too() -> None:
    jobs = Jobs()
    jobs.fails = lambda windows: KeyError("unexpected")
    async with serving(Threads(), jobs) as executor:
        with raises(codes.DEFECT, match=r"defect in a Spark job: KeyError\('unexpected'\)"):
            await executor.submit(request("a", 1))


async def test_when_spark_is_lost_everything_ends() -> None:
    session, jobs = Threads(lost=True), Jobs()
    jobs.fails = lambda windows: RetryLaterError(codes.SPARK_LOST, "Spark went away")
    executor = Executor(cast("Session", session), jobs)

    async def both() -> None:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(executor.serve())
            tasks.create_task(executor.submit(request("a", 1)))

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert caught.group_contains(SessionLostError, match="Spark is gone")
