"""The Spark driver of a pipeline, as a process: `python -m millstream_reduce.spark.driver --help`.

    start Spark ─► a first job ─► serve ─► (while idle) more jobs to warm up ─► SIGTERM ─► finish ─► end

It ends when Spark does: whoever started it starts it again, and its clients ask again. Exit code 0: after SIGTERM.
Otherwise the code of the error that ended it (`millstream/errors.py`), which is also the last line of its log.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import grpc.aio
import uvloop

from millstream.background import open_tasks
from millstream.errors import EnvironmentFault, MillstreamError
from millstream.telemetry.logging import configure_logging
from millstream.wire.reduce.v1 import spark_pb2, spark_pb2_grpc
from millstream_reduce.spark import warm_up
from millstream_reduce.spark.executor import Executor
from millstream_reduce.spark.manifest import JobWindow
from millstream_reduce.spark.service import SERVER_OPTIONS, SparkDriverService
from millstream_reduce.spark.session import Session, SessionLostError, open_session
from millstream_reduce.spark.settings import SparkSettings

log = logging.getLogger(__name__)

STOP_GRACE_S = 10.0
"""From SIGTERM until requests that are not answered are broken off."""
_NO_EXECUTOR_S = 20.0
"""After so long without an answer to the first job it is said what may be wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a driver until it is told to stop. Returns the exit code."""
    begun_s = time.monotonic()
    options = _parser().parse_args(arguments)
    configure_logging(options.pipeline, "spark", level=options.log_level)
    # Tells of every connection that is closed.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        try:
            settings = SparkSettings.from_json(options.settings.read_text(encoding="utf-8"))
        except OSError as error:
            raise EnvironmentFault(f"the settings of Spark, {options.settings}, cannot be read: {error}") from error
        return uvloop.run(_serve(settings, options.address, begun_s))
    except MillstreamError as error:
        log.error("%s", error)
        return error.exit_code
    except BaseExceptionGroup as group:
        return _report(group)


async def _serve(settings: SparkSettings, address: str, begun_s: float) -> int:
    stopped, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Ctrl-C in a terminal reaches the whole group; the runner decides when the driver stops.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    async with open_tasks() as tasks:
        serving = tasks.create_task(_serve_session(settings, address, begun_s, ready, stopped), name="serve")
        stopping = tasks.create_task(stopped.wait(), name="stop")
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            await asyncio.wait((serving,), timeout=2 * STOP_GRACE_S)
        serving.cancel()
        stopping.cancel()
    return 0


async def _serve_session(
    settings: SparkSettings, address: str, begun_s: float, ready: asyncio.Event, stopped: asyncio.Event
) -> None:
    from millstream_reduce.spark import jobs

    async with open_session(settings) as session:
        windows = warm_up.write_windows(settings.directory / "warm-up")
        await _first_job(session, windows)
        executor = Executor(session, jobs.run)
        description = _described(session, time.monotonic() - begun_s)
        service = SparkDriverService(session, executor, jobs.check, description)
        async with open_tasks() as tasks:
            background = [
                tasks.create_task(executor.serve(), name="jobs"),
                tasks.create_task(_end_with(session), name="end of Spark"),
                tasks.create_task(_warm_up(session, executor, windows), name="warm-up"),
            ]
            server = await _open_server(service, address)
            try:
                ready.set()
                _say_ready(session, description)
                await stopped.wait()
            finally:
                # Also when Spark is gone: then there is nothing to wait for.
                await server.stop(STOP_GRACE_S if stopped.is_set() else None)
            for task in background:
                task.cancel()


async def _open_server(service: SparkDriverService, address: str) -> grpc.aio.Server:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    spark_pb2_grpc.add_SparkDriverServicer_to_server(service, server)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise EnvironmentFault(f"the Spark driver cannot listen on {address}: {error}") from error
    await server.start()
    log.debug("listening on %s (%d)", address, bound)
    return server


async def _first_job(session: Session, windows: Sequence[JobWindow]) -> None:
    """Without it Spark is not ready: the first job starts what runs tasks."""
    async with open_tasks() as tasks:
        waiting = tasks.create_task(_say_when_long(session.description.place), name="say when long")
        try:
            await session.run(warm_up.warm_up, windows)
        finally:
            waiting.cancel()


async def _say_when_long(place: str) -> None:
    while True:
        await asyncio.sleep(_NO_EXECUTOR_S)
        log.warning(
            "%s has taken the application, but runs no task: does it have a worker with enough free memory and cores "
            "(`spark.executor.memory`, `spark.executor.cores`)?",
            place,
        )


async def _warm_up(session: Session, executor: Executor, windows: Sequence[JobWindow]) -> None:
    """As long as nobody wants anything."""
    for _ in range(warm_up.JOBS):
        if not executor.idle or executor.jobs:
            return
        await session.run(warm_up.warm_up, windows)


async def _end_with(session: Session) -> None:
    raise SessionLostError(await session.lost())


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
    log.info(
        "Spark %s is ready after %.1f s (%s%s)%s",
        *(description.spark_version, description.start_s, description.master, java, slowly),
    )


def _report(group: BaseExceptionGroup[BaseException]) -> int:
    """Log what ended the process, and give the exit code. That Spark is gone explains everything else."""
    errors = [error for error in _leaves(group) if not isinstance(error, asyncio.CancelledError)]
    ours = [error for error in errors if isinstance(error, MillstreamError)]
    lost = [error for error in ours if isinstance(error, SessionLostError)]
    if ours:
        first = (lost or ours)[0]
        log.error("%s", first)
        return first.exit_code
    log.error("defect: %r", errors[0], exc_info=errors[0])
    return MillstreamError.exit_code


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millstream_reduce.spark.driver", description=__doc__)
    parser.add_argument("--address", required=True, help="where to listen: unix:/path or host:port")
    parser.add_argument("--settings", type=Path, required=True, help="a file as `SparkSettings.to_json` writes it")
    parser.add_argument("--pipeline", default="", help="its name, for the log")
    parser.add_argument("--log-level", default="INFO")
    return parser


def _leave(exit_code: int) -> NoReturn:
    """End at once: a thread that still waits for a lost Spark would hold the process for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    _leave(main())
