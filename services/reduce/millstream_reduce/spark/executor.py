"""Runs the jobs of a driver: takes requests, combines those that fit into one job, and divides its result.

    serving ─► submit ─► Waiting ─► one job for several requests ─► Session.run ─► jobs
       ▲                                                                            │
       └──────────────── rows and failures of each request ◄────────────────────────┘

A job costs 50 ms whatever its size, so waiting requests for the same program are combined into one. Rules:
 1. At most `JOBS_MAX` jobs at a time, at most one of them large, so that a large one does not hold up small ones.
 2. At most one small job of a program runs: requests that arrive meanwhile wait for the next one, which becomes
    larger.
 3. The oldest request that may run decides for which program; others for it join, oldest first, within the bounds.

Above it: the service. Below it: the session. It knows windows by their index only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError
from millstream.limits import MIB
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark.jobs import JobResult
from millstream_reduce.spark.manifest import JobWindows, WindowsOrigin
from millstream_reduce.spark.session import JOBS_MAX, Session
from millstream_reduce.values import WindowTable

_log = logging.getLogger(__name__)


STOP_AFTER_S = 5.0
"""A job whose result is no longer wanted has this long to end by itself. Stopping one interrupts Spark's threads, and a
thread that is writing results then never releases their memory: some hundred large ones would end the JVM."""


RunJob = Callable[[SparkSession, engine_pb2.Program, JobWindows], JobResult]


Outcome = tuple[pa.Table, engine_pb2.RunSummary]
"""The answer to a request, as `WindowEngine.run` gives it."""


JOB_WINDOWS_MAX = 10_000
JOB_BYTES_MAX = 256 * MIB
"""Bytes of the log that a job may read. A larger request has its own job."""
LARGE_BYTES = 32 * MIB
"""A request with more bytes is large: it takes 100 ms or more."""


class JobLane(NamedTuple):
    """Jobs of one lane run one after another."""

    program: bytes
    large: bool


@dataclass(eq=False, slots=True)
class Request:
    """A request that has not been answered yet."""

    message: engine_pb2.RunRequest
    program: bytes
    """That of the message, encoded."""
    size: int
    """Bytes of the log that contain its windows."""
    outcome: asyncio.Future[Outcome]

    @property
    def lane(self) -> JobLane:
        return JobLane(self.program, self.size > LARGE_BYTES)


@dataclass(eq=False, slots=True)
class Job:
    """A job that runs, or is about to."""

    lane: JobLane
    requests: Sequence[Request]
    task: asyncio.Task[None] | None = None
    abandoned: list[Request] = field(default_factory=list)
    """Requests whose client has disconnected."""


class Executor:
    """Jobs of one session. `serve` is its only task; the others only wait."""

    def __init__(self, session: Session, run_job: RunJob, *, stop_after_s: float = STOP_AFTER_S) -> None:
        self._session = session
        self._stop_after_s = stop_after_s
        self._run_job = run_job
        self._waiting = RequestQueue()
        self._running: dict[JobLane, Job] = {}
        self._changed = asyncio.Event()
        self._tags = itertools.count(1)
        self.jobs = 0
        """Jobs run so far."""

    @property
    def idle(self) -> bool:
        """No request waits or runs."""
        return not self._running and not len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that run now."""
        return len(self._running)

    async def submit(self, message: engine_pb2.RunRequest) -> Outcome:
        """Wait for the result of a request. Cancelling takes it back; a job without a waiting request stops in a
        while."""
        program = message.program.SerializeToString(deterministic=True)
        request = Request(message, program, bytes_of(message), asyncio.get_running_loop().create_future())
        self._waiting.add(request)
        self._changed.set()
        try:
            return await request.outcome
        except asyncio.CancelledError:
            self._abandon(request)
            raise

    async def serve(self) -> None:
        """Run jobs, forever. Raises `SessionLostError`."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                while (job := self._waiting.take(self._running.keys())) is not None:
                    self._running[job.lane] = job
                    job.task = tasks.create_task(self._run(job), name="job")
                await self._changed.wait()

    def _abandon(self, request: Request) -> None:
        if self._waiting.remove(request):
            return
        for job in self._running.values():
            if request in job.requests:
                job.abandoned.append(request)
                if len(job.abandoned) == len(job.requests) and job.task is not None:
                    asyncio.get_running_loop().call_later(self._stop_after_s, job.task.cancel)

    async def _run(self, job: Job) -> None:
        try:
            await self._compute(job.requests)
        finally:
            del self._running[job.lane]
            self._changed.set()

    async def _compute(self, requests: Sequence[Request]) -> None:
        """Run one job for some requests, and give each its outcome."""
        windows = JobWindows.of(windows_of(request.message) for request in requests)
        begun_s = time.monotonic()
        tag = f"millstream-{os.getpid()}-hand-over-{next(self._tags)}"
        try:
            result = await self._session.run(self._run_job, requests[0].message.program, windows, tag=tag)
        except RetryLaterError as error:
            await self._session.check_alive()
            _fail(requests, error)
        except MillstreamError as error:
            if len(requests) == 1:
                _fail(requests, error)
                return
            # The log of one of them may be damaged, which does not affect the others.
            for request in requests:
                if not request.outcome.done():
                    await self._compute([request])
        except Exception as error:  # noqa: BLE001  # a defect must not leave those who wait without an answer
            await self._session.check_alive()
            _log.exception("defect: a job failed in an unexpected way")
            _fail(requests, MillstreamError(codes.DEFECT, f"defect in a Spark job: {error!r}"))
        else:
            self.jobs += 1
            job_s = time.monotonic() - begun_s
            for request, rows, failures in _shares(requests, result):
                summary = engine_pb2.RunSummary(
                    failures=failures,
                    job_s=job_s,
                    job_windows=len(windows),
                    job_requests=len(requests),
                    job_tag=tag,
                )
                if not request.outcome.done():
                    request.outcome.set_result((rows, summary))


def _fail(requests: Sequence[Request], error: MillstreamError) -> None:
    for request in requests:
        if not request.outcome.done():
            request.outcome.set_exception(error)


def _shares(
    requests: Sequence[Request], result: JobResult
) -> list[tuple[Request, pa.Table, list[engine_pb2.WindowFailure]]]:
    """Rows and failures of each request, with the indexes of its own windows."""
    shares = []
    first = 0
    for request in requests:
        end = first + request.message.windows.count
        failures = []
        for failure in result.failures:
            if first <= failure.window < end:
                own = engine_pb2.WindowFailure()
                own.CopyFrom(failure)
                own.window -= first
                failures.append(own)
        shares.append((request, _rows_of(result.table, first, end, alone=len(requests) == 1), failures))
        first = end
    return shares


def _rows_of(table: pa.Table, first: int, end: int, *, alone: bool) -> pa.Table:
    if alone:
        return table
    windows = table.column("window")
    bounds = pa.scalar(first, windows.type), pa.scalar(end, windows.type)
    rows = table.filter(pc.and_(pc.greater_equal(windows, bounds[0]), pc.less(windows, bounds[1])))
    return rows.set_column(rows.schema.get_field_index("window"), "window", pc.subtract(rows["window"], bounds[0]))


class RequestQueue:
    """The requests that wait, oldest first."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def remove(self, request: Request) -> bool:
        """Take one back; False if it is not (or no longer) waiting."""
        is_waiting = request in self._requests
        if is_waiting:
            self._requests.remove(request)
        return is_waiting

    def take(self, running: Set[JobLane]) -> Job | None:
        """The next job, while those of `running` run; None if no job may start."""
        if len(running) >= JOBS_MAX:
            return None
        large_runs = any(lane.large for lane in running)
        for request in self._requests:
            lane = request.lane
            if lane not in running and not (lane.large and large_runs):
                return Job(lane, self._take_lane(lane))
        return None

    def _take_lane(self, lane: JobLane) -> list[Request]:
        taken: list[Request] = []
        kept: list[Request] = []
        windows = size = 0
        full = False
        for request in self._requests:
            windows_with, size_with = windows + request.message.windows.count, size + request.size
            fits = not taken or (windows_with <= JOB_WINDOWS_MAX and size_with <= JOB_BYTES_MAX)
            if request.lane != lane or full or not fits:
                # Those after one that does not fit wait, too: first come, first served.
                full = full or request.lane == lane
                kept.append(request)
                continue
            taken.append(request)
            windows, size = windows_with, size_with
        self._requests = kept
        return taken


def windows_of(request: engine_pb2.RunRequest) -> tuple[str, WindowTable, WindowsOrigin]:
    """The windows of a request, with where their log lies, and who asks."""
    origin = WindowsOrigin(request.lane, request.replica, request.attempt, request.watermark_us, request.traceparent)
    return request.directory, WindowTable.from_message(request.windows), origin


def bytes_of(request: engine_pb2.RunRequest) -> int:
    """How many bytes of the log contain the windows; an entry that several share counts once."""
    return int(WindowTable.from_message(request.windows).entries[:, 2].sum())
