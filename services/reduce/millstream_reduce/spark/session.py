"""A Spark session: opens it, runs functions in threads, cancels and watches them.

Above it: the executor of jobs. Below it: PySpark, and the JVM or the Spark Connect server behind it. It runs functions
of the session; it knows neither windows nor programs.

Spark itself tries a master for a minute and then reports "all masters unresponsive"; this module reports at once what
refuses, and where.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from millstream import codes
from millstream.background import open_tasks
from millstream.errors import InfrastructureError, MillstreamError, UserError
from millstream.files import make_private_directories
from millstream.udf.socket_directory import open_socket_directory
from millstream_reduce.spark import aot
from millstream_reduce.spark.java import find_java
from millstream_reduce.spark.jvm import STOP_TIMEOUT_S, Gateway, Jvm, JvmCommand, SparkEndedError, open_jvm
from millstream_reduce.spark.settings import SparkSettings, driver_conf, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JOBS_MAX = 2
"""Concurrent jobs: on two cores a second one brings half as much again, a third nothing."""
_OTHER_CALLS_MAX = 3
"""Calls besides them: a check of a program, a probe, a cancellation."""
SESSION_TIMEOUT_S = 600.0
"""Time until a session of a cluster or server exists. One on this machine may take as long as its JVM works."""
PROBE_TIMEOUT_S = 60.0
_CANCEL_REPEAT_S = 0.5
_ENDING_S = 2.0
_LOOK_AT_PANDAS = "require_minimum_pandas_version"

Answer = TypeVar("Answer")


class SessionLostError(SparkEndedError):
    """The session is gone: a new process has to start over."""

    def __init__(self, reason: str, killed_by: int = 0) -> None:
        super().__init__(codes.SPARK_LOST, reason, killed_by)


@dataclass(frozen=True, slots=True)
class SessionDescription:
    """What runs."""

    spark_version: str
    place: str
    """The master or server."""
    java_version: str
    """Empty if it runs elsewhere and is not reported."""
    cached: bool
    """It started from the ahead-of-time cache."""
    local: bool = False
    """Tasks run in its JVM, on this machine."""


class Session:
    """An open session. Created by `open_session`."""

    def __init__(
        self, spark: SparkSession, description: SessionDescription, jvm: Jvm | None, calls: ThreadPoolExecutor
    ) -> None:
        self.spark = spark
        self.description = description
        self._jvm = jvm
        self._calls = calls
        self._tags = count(1)

    async def lost(self) -> str:
        """Wait until it is known to be gone. Returns why."""
        if self._jvm is None:
            # Nothing reports it; a job fails, and then `probe`.
            await asyncio.Event().wait()
            raise AssertionError("it is never set")
        return await self._jvm.ended()

    def lost_error(self, reason: str) -> SessionLostError:
        """For a session that is known to be gone."""
        return SessionLostError(reason, self._jvm.killed_by if self._jvm is not None else 0)

    async def run(self, function: Callable[..., Answer], *arguments: Any, tag: str = "") -> Answer:
        """Call `function(session, *arguments)` in its own thread. Cancelling stops its Spark jobs, and waits.

        `tag`: that of the jobs in Spark; by default a new one.
        """
        tag = tag or f"millstream-{os.getpid()}-{next(self._tags)}"
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._calls, self._tagged, tag, function, *arguments)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # Jobs that the function is about to start are not known yet, so cancelling once may not be enough.
            while not call.done():
                with suppress(Exception):
                    await loop.run_in_executor(self._calls, self._cancel, tag)
                await asyncio.wait((call,), timeout=_CANCEL_REPEAT_S)
            if not call.cancelled():
                call.exception()
            raise

    async def check_alive(self) -> None:
        """Raise `SessionLostError` unless Spark still runs what it is asked to."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self.run(probe)
        except TimeoutError:
            raise SessionLostError(
                f"Spark ({self.description.place}) has not run the simplest job within {PROBE_TIMEOUT_S:.0f} s"
            ) from None
        except Exception as error:
            # Whatever the error: a call that never fails has failed.
            reason = f"Spark ({self.description.place}) is gone: {first_line(error)}"
            if self._jvm is not None:
                # How its JVM has ended says more, and will be known in a moment.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ENDING_S):
                        reason = await self._jvm.ended()
            raise self.lost_error(reason) from error

    def _tagged(self, tag: str, function: Callable[..., Answer], *arguments: Any) -> Answer:
        if self._jvm is None:
            self.spark.addTag(tag)
            try:
                return function(self.spark, *arguments)
            finally:
                self.spark.removeTag(tag)
        context = self.spark.sparkContext
        context.addJobTag(tag)
        context.setInterruptOnCancel(True)
        try:
            return function(self.spark, *arguments)
        finally:
            context.removeJobTag(tag)

    def _cancel(self, tag: str) -> None:
        if self._jvm is None:
            self.spark.interruptTag(tag)
        else:
            self.spark.sparkContext.cancelJobsWithTag(tag)


@asynccontextmanager
async def open_session(
    settings: SparkSettings, *, record_to: Path | None = None, on_started: Callable[[], object] = lambda: None
) -> AsyncIterator[Session]:
    """Start Spark, or connect to it; at most once in a process. Raises `InfrastructureError` and `UserError`.

    With `record_to` the JVM writes an ahead-of-time cache there when the block ends, which takes half a minute.
    `on_started` is called when there is nothing left to do but wait.
    """
    _clear(settings.directory)
    _hush_py4j()
    calls = ThreadPoolExecutor(max_workers=JOBS_MAX + _OTHER_CALLS_MAX, thread_name_prefix="spark")

    def started() -> None:
        # This takes as long as a JVM needs to start, and can be done meanwhile; earlier, it would only slow that down.
        calls.submit(_import_pyspark if settings.remote is None else _import_connect)
        on_started()

    opening = (
        _open_remote(settings, calls, started) if settings.remote else _open_driver(settings, calls, record_to, started)
    )
    try:
        async with opening as session:
            yield session
    finally:
        calls.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(settings.directory, ignore_errors=True)


@asynccontextmanager
async def _open_remote(
    settings: SparkSettings, calls: ThreadPoolExecutor, on_started: Callable[[], object]
) -> AsyncIterator[Session]:
    on_started()
    await await_server(settings.place)
    spark = await _in_time(calls, settings, _connect, settings)
    yield Session(spark, SessionDescription(spark.version, settings.place, "", cached=False), None, calls)
    await _stop(calls, spark)


@asynccontextmanager
async def _open_driver(
    settings: SparkSettings, calls: ThreadPoolExecutor, record_to: Path | None, on_started: Callable[[], object]
) -> AsyncIterator[Session]:
    java = find_java()
    local = settings.local_tasks is not None
    if not local:
        await await_server(settings.place)
    cache = aot.find_cache(java) if record_to is None else None
    options = aot.use_options(cache) if record_to is None else aot.record_options(record_to)
    python = settings.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    with open_socket_directory() as sockets:
        command = JvmCommand(
            java=java,
            master=settings.effective_master,
            conf=driver_conf(settings, sockets, options),
            python=python,
            directory=settings.directory,
            memory_bytes=settings.driver_memory_bytes,
            local=local,
            records_cache=record_to is not None,
            stop_timeout_s=STOP_TIMEOUT_S if record_to is None else aot.RECORD_TIMEOUT_S,
        )
        async with open_jvm(command, on_started) as (jvm, gateway):
            spark = await _unless_ended(jvm, _in_time(calls, settings, _attach, gateway, python))
            description = SessionDescription(
                spark.version, settings.place, java.version, cached=cache is not None, local=local
            )
            asking = ThreadPoolExecutor(1, "ask spark")
            try:
                jvm.signs.begin_to_ask(lambda: asyncio.get_running_loop().run_in_executor(asking, _answers, spark))
                yield Session(spark, description, jvm, calls)
            finally:
                # The watch continues until the JVM has ended, and may not ask when nothing answers any more.
                jvm.signs.stop_asking()
                # It may wait for an answer that never comes.
                asking.shutdown(wait=False, cancel_futures=True)
            await _stop(calls, spark)


async def _unless_ended(jvm: Jvm, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of `work`; `InfrastructureError` if the JVM ends first."""
    async with open_tasks() as tasks:
        ending = tasks.create_task(jvm.ended(), name="end of the JVM")
        working = tasks.create_task(_captured(work), name="session")
        await asyncio.wait((ending, working), return_when=asyncio.FIRST_COMPLETED)
        # A call fails if the JVM ends during it, a little before the end is known.
        if working.done() and isinstance(working.result(), Exception):
            await asyncio.wait((ending,), timeout=_ENDING_S)
        ended = ending.result() if ending.done() else None
        ending.cancel()
        working.cancel()
    if ended is not None:
        raise SparkEndedError(codes.SPARK_NOT_STARTED, f"Spark does not start: {ended}", jvm.killed_by)
    answer = working.result()
    if isinstance(answer, Exception):
        raise answer
    return answer


async def _captured(work: Coroutine[Any, Any, Answer]) -> Answer | Exception:
    try:
        return await work
    except Exception as error:  # noqa: BLE001  # raised again by the caller, which knows more by then
        return error


async def _in_time(
    calls: ThreadPoolExecutor, settings: SparkSettings, function: Callable[..., SparkSession], *arguments: Any
) -> SparkSession:
    try:
        async with asyncio.timeout(SESSION_TIMEOUT_S if settings.local_tasks is None else None):
            return await asyncio.get_running_loop().run_in_executor(calls, function, *arguments)
    except TimeoutError:
        raise InfrastructureError(
            codes.SPARK_NOT_STARTED,
            f"{settings.place} was reached, but has not opened a session within {SESSION_TIMEOUT_S:.0f} s. Look at its "
            "log",
        ) from None
    except MillstreamError:
        raise
    except Exception as error:
        raise _start_fault(settings.place, error) from error


def _start_fault(place: str, error: Exception) -> MillstreamError:
    """Spark rejected its settings, or could not do what they say."""
    text = first_line(error)
    if "IllegalArgumentException" in text or "IllegalArgumentException" in type(error).__name__:
        return UserError(codes.SPARK_SETTINGS, f"Spark rejects its settings (`spec.spark`): {text}")
    return InfrastructureError(codes.SPARK_NOT_STARTED, f"Spark does not start on {place}: {text}")


def _import_connect() -> None:
    import pyspark.sql  # noqa: F401


def _import_pyspark() -> None:
    """Imports all that a session on a JVM of ours will import."""
    import pyspark.sql
    from pyspark.sql.pandas import functions, utils

    # Both would import pandas to read its version, which takes half a second, and do not use it.
    for module in (utils, functions):
        setattr(module, _LOOK_AT_PANDAS, _known_version)
    # It is imported when the first object is passed to Java.
    import pyspark.testing.utils  # noqa: F401


def _known_version() -> None:
    """Stands for a check of the version of pandas, which is known from our own dependencies."""


def _attach(gateway: Gateway, python: str) -> SparkSession:
    """A session of the JVM behind `gateway`."""
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    os.environ["PYSPARK_PYTHON"] = python
    for name in [name for name in os.environ if name.startswith(("SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_API"))]:
        del os.environ[name]
    _import_pyspark()
    from pyspark.sql import SparkSession

    _hush_queries()
    return SparkSession.builder.getOrCreate()


def _connect(settings: SparkSettings) -> SparkSession:
    """Its own session at a Spark Connect server."""
    from pyspark.sql import SparkSession

    _hush_queries()
    session: SparkSession = SparkSession.builder.remote(_with_token(settings)).create()
    for name, value in session_conf(settings).items():
        session.conf.set(name, value)
    return session


def _with_token(settings: SparkSettings) -> str:
    """The server's address with its token, which makes PySpark encrypt the connection."""
    if not settings.token:
        return settings.place
    server, _, parameters = settings.place.removeprefix("sc://").partition("/")
    return f"sc://{server}/{parameters.rstrip(';')};token={quote(settings.token, safe='')}"


async def _stop(calls: ThreadPoolExecutor, spark: SparkSession) -> None:
    """Best effort: the end of the process does the same."""
    with suppress(Exception):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await asyncio.get_running_loop().run_in_executor(calls, spark.stop)


def _hush_py4j() -> None:
    """Keep py4j from reporting connections that end with their JVM: the error of the pending answer says so.

    It releases Java objects in its own thread, even while the JVM ends, and reports that with the root logger.
    """
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger().addFilter(_not_from_py4j)


def _hush_queries() -> None:
    """Keep PySpark from logging errors of a query in its own format: the answer reports them."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _answers(spark: SparkSession) -> None:
    """Make the JVM answer. Blocking."""
    java: Any = spark.sparkContext._jvm
    java.java.lang.System.nanoTime()


def start_worker(spark: SparkSession) -> None:
    """Start a Python worker on this machine, and do nothing with it. Blocking."""
    spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id BIGINT").collect()


def probe(spark: SparkSession) -> None:
    """Run one task. Blocking; waits for an executor, however long there is none."""
    spark.range(1).collect()


def _clear(directory: Path) -> None:
    """Create the directory of temporary files, without what a killed driver has left in it."""
    try:
        shutil.rmtree(directory, ignore_errors=True)
        make_private_directories(directory)
    except OSError as error:
        raise InfrastructureError(
            codes.CANNOT_WRITE, f"cannot create {directory} for Spark's temporary files: {error.strerror}"
        ) from error


def first_line(error: BaseException) -> str:
    """What happened, in one line: for a Java exception the message without its stack."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        with suppress(Exception):
            return str(java.toString()).splitlines()[0]
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


_log = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long to retry a server that cannot be reached, because it may just be restarting."""
_RETRY_S = 0.5
_CONNECT_TIMEOUT_S = 3.0
_DEFAULT_PORTS = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}
_PLACE = re.compile(r"(?:k8s://)?(?P<scheme>[a-z][a-z0-9]*)://(?P<hosts>[^/;]+)")


def addresses_of(place: str) -> list[tuple[str, int]]:
    """Hosts and ports of a master or server; of several masters any will do. Empty if it has none (yarn)."""
    if place.startswith("k8s://") and "://" not in place.removeprefix("k8s://"):
        place = "k8s://https://" + place.removeprefix("k8s://")
    match = _PLACE.match(place)
    if match is None:
        return []
    found = []
    for text in match["hosts"].split(","):
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit():
            host, port = text, str(_DEFAULT_PORTS.get(match["scheme"], 0))
        found.append((host.strip("[]"), int(port)))
    return found


async def await_server(place: str, *, wait_s: float = WAIT_S) -> None:
    """Return when one of its addresses accepts a connection; raise `InfrastructureError` after `wait_s`."""
    addresses = addresses_of(place)
    if not addresses:
        return
    deadline_s = time.monotonic() + wait_s
    warned = False
    while True:
        trouble = ""
        for host, port in addresses:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, TimeoutError) as error:
                trouble = f"{host}:{port}: {_reason(error)}"
                continue
            writer.close()
            return
        if time.monotonic() >= deadline_s:
            raise InfrastructureError(
                codes.SPARK_UNREACHABLE,
                f"Spark cannot be reached at {place} ({trouble}): start it, or correct `spec.spark` of the pipeline",
            )
        if not warned:
            warned = True
            _log.warning("Spark cannot be reached at %s (%s); trying again for %.0f s", place, trouble, wait_s)
        await asyncio.sleep(_RETRY_S)


def _reason(error: OSError | TimeoutError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)
