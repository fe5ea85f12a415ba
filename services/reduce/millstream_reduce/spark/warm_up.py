"""A job for a Spark that has nothing to do: it starts the Python workers and has the JVM compile what every job needs.

Above it: the driver process, and the recording of the ahead-of-time cache. Below it: `jobs`, through which real jobs
go too. The first jobs of a JVM take four times as long as the twentieth, and that half as long again as the hundredth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import EnvironmentFault
from millstream.files import append_private, make_private_directories
from millstream.wire.reduce.v1 import engine_pb2, wal_pb2
from millstream_reduce.batches import encoded
from millstream_reduce.log.entries import entry_buffers, segment_name, total_length
from millstream_reduce.spark.manifest import JobWindow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_JOBS = 20
"""Until a job takes a quarter of the first one's time."""
JOBS = 300
"""Until it does not become faster any more."""
_ROWS = 8
_SEGMENT = 1

PROGRAM = engine_pb2.Program(
    sql=engine_pb2.SqlProgram(
        query="SELECT key, count(*) AS n, avg(value.number) AS mean FROM window GROUP BY key",
        value=engine_pb2.ValueSchema(format="json", fields="number DOUBLE"),
    ),
    keyed=True,
)


def write_windows(directory: Path) -> list[JobWindow]:
    """A window of a few records, and the log it lies in."""
    make_private_directories(directory)
    body = encoded(
        pa.record_batch({
            "value": pa.array([b'{"number": %d}' % number for number in range(_ROWS)], pa.binary()),
            "event_time": pa.array(range(_ROWS), pa.timestamp("us", tz="UTC")),
            "keys": pa.array([[str(number % 2)] for number in range(_ROWS)], pa.list_(pa.string())),
        })
    )  # fmt: skip
    entry = wal_pb2.Entry(append=wal_pb2.Append(rows=_ROWS, has_keys=True))
    buffers = entry_buffers(1, entry.SerializeToString(), body)
    with append_private(directory / segment_name(_SEGMENT)) as segment:
        segment.write(b"".join(buffers))
    pieces = wal_pb2.Pieces(
        segments=[_SEGMENT], offsets=[0], lengths=[total_length(buffers)], first_rows=[0], rows=[_ROWS]
    )
    return [JobWindow(str(directory), wal_pb2.Window(start_us=0, end_us=_ROWS, rows=_ROWS, pieces=pieces))]


def warm_up(spark: SparkSession, windows: Sequence[JobWindow]) -> None:
    """Run one job. Blocking. Raises `EnvironmentFault` where no job can run."""
    from millstream_reduce.spark import jobs

    result = jobs.run(spark, PROGRAM, windows)
    if result.failures:
        failure = result.failures[0]
        advice = ""
        if "ModuleNotFoundError" in failure.reason + failure.detail:
            advice = ". The Python of the executors (`spark.pyspark.python`) needs the packages of `millstream[reduce]`"
        raise EnvironmentFault(f"Spark is there, but cannot run the simplest job: {failure.reason}{advice}")
