"""Makes the ahead-of-time cache, and tells how Spark does on this machine.

Above it: the command line. Below it: a session, as the driver process has one. Both take some seconds, and can be done
once in a process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from millstream_reduce.spark import aot, warm_up
from millstream_reduce.spark.java import find_java, spark_home
from millstream_reduce.spark.session import open_session, probe
from millstream_reduce.spark.settings import SparkSettings

_RECORDED_JOBS = 20
_TIMED_JOBS = 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """The cache."""

    path: Path
    made: bool
    """Now; it was there otherwise."""
    seconds: float


@dataclass(frozen=True, slots=True)
class SparkReport:
    """What a session on this machine is like."""

    spark_version: str
    spark_home: str
    place: str
    java_version: str
    java_executable: str
    """Both empty where Java runs elsewhere."""
    cache: str
    """Empty when there is none."""
    start_s: float
    """Until Spark had run its first task."""
    first_job_s: float
    """Of the first small job, which starts the Python workers."""
    job_ms: float
    """Median of small jobs, warmed up."""


async def prepare(*, again: bool = False, on_begin: Callable[[], None] = lambda: None) -> Prepared:
    """Make the cache for the Spark and the Java that are installed, unless it is there. Half a minute.

    `on_begin` is called before that half minute. Raises `EnvironmentFault`.
    """
    begun_s = time.monotonic()
    java = find_java()
    found = aot.find_cache(java)
    if found is not None and not again:
        return Prepared(found, made=False, seconds=time.monotonic() - begun_s)
    async with aot.open_recording(java) as path:
        on_begin()
        with tempfile.TemporaryDirectory(prefix="millstream-spark-") as directory:
            settings = SparkSettings(Path(directory) / "scratch")
            async with open_session(settings, record_to=path) as session:
                windows = warm_up.write_windows(settings.directory / "warm-up")
                for _ in range(_RECORDED_JOBS):
                    await session.run(warm_up.warm_up, windows)
    made = aot.find_cache(java)
    assert made is not None, "it was put where it is looked for"
    return Prepared(made, made=True, seconds=time.monotonic() - begun_s)


async def report(settings: SparkSettings) -> SparkReport:
    """Start Spark, or reach it, and measure. Raises `EnvironmentFault` and `UserError`."""
    java = find_java() if settings.remote is None else None
    with tempfile.TemporaryDirectory(prefix="millstream-spark-") as directory:
        ours = replace(settings, directory=Path(directory) / "scratch")
        opened_s = time.monotonic()
        async with open_session(ours) as session:
            windows = warm_up.write_windows(ours.directory / "warm-up")
            await session.run(probe)
            ready_s = time.monotonic()
            await session.run(warm_up.warm_up, windows)
            first_job_s = time.monotonic() - ready_s
            for _ in range(warm_up.FIRST_JOBS):
                await session.run(warm_up.warm_up, windows)
            times_s = []
            for _ in range(_TIMED_JOBS):
                begun_s = time.monotonic()
                await session.run(warm_up.warm_up, windows)
                times_s.append(time.monotonic() - begun_s)
            cache = aot.find_cache(java) if java is not None else None
            return SparkReport(
                spark_version=session.description.spark_version,
                spark_home=str(spark_home()),
                place=session.description.place,
                java_version=java.version if java is not None else "",
                java_executable=str(java.executable) if java is not None else "",
                cache=str(cache or ""),
                start_s=ready_s - opened_s,
                first_job_s=first_job_s,
                job_ms=statistics.median(times_s) * 1000,
            )
