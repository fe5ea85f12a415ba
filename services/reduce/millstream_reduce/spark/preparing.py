"""Jobs for an idle Spark: they warm it up, record its ahead-of-time cache, and measure it.

A job over a few windows starts the Python workers and makes the JVM compile what every job needs. The first jobs of a
JVM take four times as long as the twentieth, and that half as long again as the hundredth.

Above it: the driver process, and the command line, which creates the cache once per installation. Below it: `jobs`,
which real jobs use, too, and a session like that of the driver process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.files import append_private, make_private_directories
from millstream.wire.reduce.v1 import engine_pb2, wal_pb2
from millstream_reduce.batches import encoded
from millstream_reduce.log.entries import entry_buffers, segment_name
from millstream_reduce.spark import aot
from millstream_reduce.spark.java import find_java, spark_home
from millstream_reduce.spark.manifest import JobWindows, WindowsOrigin
from millstream_reduce.spark.session import open_session, probe
from millstream_reduce.spark.settings import SparkSettings
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RECORDED_JOBS = 20
_TIMED_JOBS = 20


@dataclass(frozen=True, slots=True)
class AotCache:
    """The cache."""

    path: Path
    made: bool
    """Whether it was created now."""
    seconds: float


@dataclass(frozen=True, slots=True)
class SparkReport:
    """The properties of a session on this machine."""

    spark_version: str
    spark_home: str
    place: str
    java_version: str
    java_executable: str
    """Both empty if Java runs elsewhere."""
    cache: str
    """Empty when there is none."""
    start_s: float
    """Time until Spark had run its first task."""
    first_job_s: float
    """Time of the first small job, which starts the Python workers."""
    job_ms: float
    """Median of small jobs, warmed up."""


async def prepare(*, again: bool = False, on_progress: Callable[[str], None] = lambda _: None) -> AotCache:
    """Create the cache for the installed Spark and Java, unless it exists. Takes about a minute.

    `on_progress` is called with each step in words, but not if the cache exists. Raises `InfrastructureError`.
    """
    begun_s = time.monotonic()
    java = find_java()
    found = aot.find_cache(java)
    if found is not None and not again:
        return AotCache(found, made=False, seconds=time.monotonic() - begun_s)
    async with aot.open_recording(java) as path:
        on_progress("starting Spark, to record what it loads")
        with tempfile.TemporaryDirectory(prefix="millstream-spark-") as directory:
            settings = SparkSettings(Path(directory) / "scratch")
            async with open_session(settings, record_to=path) as session:
                windows = write_windows(settings.directory / "warm-up")
                on_progress(f"running {_RECORDED_JOBS} small jobs")
                for _ in range(_RECORDED_JOBS):
                    await session.run(warm_up, windows)
                on_progress("writing the cache, which takes most of the time")
    made = aot.find_cache(java)
    assert made is not None, "it was put where it is looked for"
    return AotCache(made, made=True, seconds=time.monotonic() - begun_s)


async def report(settings: SparkSettings) -> SparkReport:
    """Start Spark, or connect to it, and measure. Raises `InfrastructureError` and `UserError`."""
    java = find_java() if settings.remote is None else None
    with tempfile.TemporaryDirectory(prefix="millstream-spark-") as directory:
        ours = replace(settings, directory=Path(directory) / "scratch")
        opened_s = time.monotonic()
        async with open_session(ours) as session:
            windows = write_windows(ours.directory / "warm-up")
            await session.run(probe)
            ready_s = time.monotonic()
            await session.run(warm_up, windows)
            first_job_s = time.monotonic() - ready_s
            for _ in range(FIRST_JOBS):
                await session.run(warm_up, windows)
            times_s = []
            for _ in range(_TIMED_JOBS):
                begun_s = time.monotonic()
                await session.run(warm_up, windows)
                times_s.append(time.monotonic() - begun_s)
            return SparkReport(
                spark_version=session.description.spark_version,
                spark_home=str(spark_home()),
                place=session.description.place,
                java_version=java.version if java is not None else "",
                java_executable=str(java.executable) if java is not None else "",
                cache=str(aot.find_cache(java) or "") if java is not None else "",
                start_s=ready_s - opened_s,
                first_job_s=first_job_s,
                job_ms=statistics.median(times_s) * 1000,
            )


FIRST_JOBS = 20
"""Jobs until a job takes a quarter of the first one's time."""
JOBS = 100
"""Jobs until it takes hardly less: 200 more would save a tenth of each later job, and cost what some 1,300 of them save
(`benchmarks/spark_warm_up.py`)."""
_ROWS = 8
_SEGMENT = 1

PROGRAM = engine_pb2.Program(
    sql=engine_pb2.SqlProgram(
        query="SELECT key, count(*) AS n, avg(value.number) AS mean FROM window GROUP BY key",
        value=engine_pb2.ValueSchema(format="json", fields="number DOUBLE"),
    ),
    keyed=True,
)


def write_windows(directory: Path) -> JobWindows:
    """A window of a few records, and its log."""
    make_private_directories(directory)
    body = encoded(
        pa.record_batch({
            "value": pa.array([b'{"number": %d}' % number for number in range(_ROWS)], pa.binary()),
            "event_time": pa.array(range(_ROWS), pa.timestamp("us", tz="UTC")),
            "keys": pa.array([[str(number % 2)] for number in range(_ROWS)], pa.list_(pa.string())),
        })
    )  # fmt: skip
    meta = wal_pb2.Entry(append=wal_pb2.Append(rows=_ROWS, has_keys=True)).SerializeToString()
    entry = b"".join(entry_buffers(1, meta, body))
    with append_private(directory / segment_name(_SEGMENT)) as segment:
        segment.write(entry)
    contents = WindowContents(Window(0, _ROWS), (Piece(_SEGMENT, 0, len(entry), 0, _ROWS),))
    return JobWindows.of([(str(directory), WindowTable.of([contents]), WindowsOrigin())])


def warm_up(spark: SparkSession, windows: JobWindows) -> None:
    """Run one job. Blocking. Raises `InfrastructureError` if no job can run."""
    from millstream_reduce.spark import jobs

    result = jobs.run(spark, PROGRAM, windows)
    if result.failures:
        failure = result.failures[0]
        advice = ""
        if "ModuleNotFoundError" in failure.reason + failure.detail:
            advice = ". The Python of the executors (`spark.pyspark.python`) needs the packages of `millstream[reduce]`"
        raise InfrastructureError(
            codes.SPARK_RUNS_NO_JOB, f"Spark is there, but cannot run the simplest job: {failure.reason}{advice}"
        )
