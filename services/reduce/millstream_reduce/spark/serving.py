"""What a driver process does once Spark has started: a first task, then requests, and warm-up jobs while there are no
requests.

Above it: the process. Below it: the gRPC service, whose requests go to the executor, and the session. It knows the wire
protocol, but not what a job computes. Its imports take as long as the start of a JVM.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio

from millstream import codes
from millstream.background import beside
from millstream.errors import InfrastructureError, MillstreamError, RetryLaterError
from millstream.limits import GRPC_MESSAGE_BYTES_MAX
from millstream.wire.reduce.v1 import engine_pb2, spark_pb2, spark_pb2_grpc
from millstream_reduce.spark import jobs, preparing
from millstream_reduce.spark.executor import Executor
from millstream_reduce.spark.manifest import JobWindows
from millstream_reduce.spark.session import Session, probe, start_worker
from millstream_reduce.spark.wire import TokenInterceptor, encoded_rows, error_parts

_log = logging.getLogger(__name__)

STOP_GRACE_S = 10.0
"""Time from the request to stop until unanswered requests are aborted."""
_NO_EXECUTOR_S = 20.0
"""After this time without an answer to the first task, a message says what may be wrong."""
_WARM_UP_PAUSE = 3.0
"""The pause until the next warm-up job, in multiples of the job's own time, so that warming up uses at most a quarter
of a processor."""
_BUSY_S = 0.1
"""How often to check whether there is time for a warm-up job."""


async def serve(
    session: Session,
    directory: Path,
    address: str,
    token: str,
    begun_s: float,
    ready: asyncio.Event,
    stopped: asyncio.Event,
) -> None:
    """Serve on `address` until `stopped`. Sets `ready` when it does. Raises `SessionLostError` and
    `InfrastructureError`.

    `token`: if given, requests without it are refused. `begun_s`: when the process was started, for the description.
    """
    windows = preparing.write_windows(directory / "warm-up")
    async with (
        beside(_end_with(session), "end of Spark"),
        # Starting a Python worker takes as long as the first task, and the machine may have a processor for each.
        beside(_start_worker(session), "first Python worker"),
    ):
        await _first_task(session)
        executor = Executor(session, jobs.run)
        description = _described(session, time.monotonic() - begun_s)
        server = await _open_server(SparkDriverService(session, executor, description), address, token)
        async with beside(_run_jobs(session, executor, windows), "jobs"):
            try:
                # Imported modules stay: searching them for garbage repeatedly would find nothing.
                gc.freeze()
                ready.set()
                _say_ready(session, description)
                await stopped.wait()
            finally:
                # Even if Spark is gone: then there is nothing to wait for.
                await server.stop(STOP_GRACE_S if stopped.is_set() else None)


async def _open_server(service: SparkDriverService, address: str, token: str) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[TokenInterceptor(token)] if token else [], options=SERVER_OPTIONS)
    spark_pb2_grpc.add_SparkDriverServicer_to_server(service, server)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise InfrastructureError(codes.PORT_TAKEN, f"the Spark driver cannot listen on {address}: {error}") from error
    await server.start()
    _log.debug("listening on %s (%d)", address, bound)
    return server


async def _first_task(session: Session) -> None:
    """Without it Spark is not ready: a cluster may have accepted the application without resources to run it."""
    async with beside(_say_when_long(session), "say when long"):
        await session.run(probe)


async def _start_worker(session: Session) -> None:
    """Start it if it runs on this machine. An error here also occurs in the first job, which reports it."""
    if session.description.local:
        with suppress(Exception):
            await session.run(start_worker)


async def _say_when_long(session: Session) -> None:
    waited_s = 0.0
    while True:
        await asyncio.sleep(_NO_EXECUTOR_S)
        waited_s += _NO_EXECUTOR_S
        if session.description.local:
            _log.warning(
                "Spark on this machine is still starting: its first task has not run within %.0f s. Its JVM answers, "
                "so Spark works: the machine is slow or busy",
                waited_s,
            )
            continue
        _log.warning(
            "%s has accepted the application, but runs no task: does it have a worker with enough free memory and "
            "cores "
            "(`spark.executor.memory`, `spark.executor.cores`)?",
            session.description.place,
        )


async def _run_jobs(session: Session, executor: Executor, windows: JobWindows) -> None:
    """Run requests, and the warm-up between them. Raises `InfrastructureError` if no job can run."""
    # Before any window: if Spark cannot run the simplest job, no window is at fault, and none may be given up.
    await session.run(preparing.warm_up, windows)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.serve(), name="requests")
        tasks.create_task(_warm_up(session, executor, windows), name="warm-up")


async def _warm_up(session: Session, executor: Executor, windows: JobWindows) -> None:
    """Run small jobs between real ones, until Java has compiled itself over enough of both."""
    own = 0
    while own + executor.jobs < preparing.JOBS:
        if not executor.idle:
            await asyncio.sleep(_BUSY_S)
            continue
        begun_s = time.monotonic()
        try:
            await session.run(preparing.warm_up, windows)
        except RetryLaterError:
            # An executor may be lost at any time; clients then ask again, too.
            await session.check_alive()
        own += 1
        if own > preparing.FIRST_JOBS or executor.jobs:
            await asyncio.sleep(_WARM_UP_PAUSE * (time.monotonic() - begun_s))


async def _end_with(session: Session) -> None:
    raise session.lost_error(await session.lost())


def _described(session: Session, start_s: float) -> spark_pb2.DescribeResponse:
    return spark_pb2.DescribeResponse(
        spark_version=session.description.spark_version,
        master=session.description.place,
        java_version=session.description.java_version,
        start_s=start_s,
        pid=os.getpid(),
    )


def _say_ready(session: Session, description: spark_pb2.DescribeResponse) -> None:
    java = f", Java {description.java_version}" if description.java_version else ""
    slowly = ""
    if description.java_version and not session.description.cached:
        slowly = "; `millstream spark prepare` halves that"
    _log.info(
        "Spark %s is ready after %.1f s (%s%s)%s",
        description.spark_version,
        description.start_s,
        description.master,
        java,
        slowly,
    )


SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    # Clients on another machine ask whether this one is alive, even while a long job runs.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


class SparkDriverService(spark_pb2_grpc.SparkDriverServicer):
    """The service of an open session."""

    def __init__(self, session: Session, executor: Executor, description: spark_pb2.DescribeResponse) -> None:
        """`description` is complete except for the numbers of jobs."""
        self._session = session
        self._executor = executor
        self._description = description
        self._checking = asyncio.Semaphore(1)

    async def Describe(
        self, request: spark_pb2.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> spark_pb2.DescribeResponse:
        answer = spark_pb2.DescribeResponse()
        answer.CopyFrom(self._description)
        answer.jobs, answer.running = self._executor.jobs, self._executor.running
        return answer

    async def Check(
        self, request: spark_pb2.CheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> engine_pb2.CheckResponse:
        try:
            async with self._checking:
                return await self._session.run(jobs.check, request.program)
        except MillstreamError as error:
            await _abort(context, error)

    async def Run(
        self, request: engine_pb2.RunRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[spark_pb2.RunResponse]:
        try:
            rows, summary = await self._executor.submit(request)
        except MillstreamError as error:
            await _abort(context, error)
        for part in encoded_rows(rows):
            yield spark_pb2.RunResponse(rows=part)
        yield spark_pb2.RunResponse(summary=summary)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: MillstreamError) -> NoReturn:
    text, metadata = error_parts(error)
    code = grpc.StatusCode.UNAVAILABLE if isinstance(error, RetryLaterError) else grpc.StatusCode.FAILED_PRECONDITION
    await context.abort(code, text, metadata)
    raise AssertionError("abort raises")
