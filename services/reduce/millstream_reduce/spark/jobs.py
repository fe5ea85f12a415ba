"""Computes closed windows: checks programs, and runs them in whole jobs.

    programs and windows ─► jobs ─► Spark ─► result rows of every window, or why it has none

Above it: the driver, which decides what goes into a job. Below it: `sql` for queries, `reducing` for functions. A run
has no side effects. A window that cannot be computed fails alone: it is found by computing ever fewer windows together.
Blocking; both functions may be called from several threads at a time.

A lost worker is not blamed on a window at first: the system may have killed it because another process needed memory.
Cases:
 1. Under several windows: they are computed in halves, as after a failure.
 2. Under one window alone: it is computed again after a pause.
 3. Under the same window alone, `LOSSES_MAX` times: then it is the window's fault.

The same holds for a job that failed without a reason that Spark can name, `FAILURES_MAX` times: but only while Spark
computes something else. Otherwise the machine is at fault, or the cluster, and the whole job is tried again later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.group_keys import key_parts
from millstream_reduce.spark.errors import JobFailedError, WindowError, WorkerLostError, meaning
from millstream_reduce.spark.manifest import JobWindow, JobWindows
from millstream_reduce.spark.reducing import check_function, compute_groups
from millstream_reduce.spark.sql import QueryError, SqlPlan, compute_sql, plan_sql

__all__ = ["JobResult", "JobWindow", "JobWindows", "check", "run"]

_log = logging.getLogger(__name__)

LOSSES_MAX = 2
"""Jobs of one window alone that may lose their workers until it is that window's fault. Each job has tried the task as
often as `spark.task.maxFailures` says, on this machine 4 times."""
LOSS_PAUSE_S = 1.0
"""Pause between them, after which the memory may be free again."""
FAILURES_MAX = 3
"""Jobs of one window alone that may fail for an unknown reason until it is that window's fault."""
_PLANS_MAX = 256

Compute = Callable[[JobWindows], tuple[pa.Table, list[engine_pb2.WindowFailure]]]
"""Computes windows: returns result rows, and windows that are known to have failed."""
_ALONE = {
    WorkerLostError: (
        LOSSES_MAX,
        (
            f"computing this window alone has ended its Python workers, in {LOSSES_MAX} jobs one after the other: its "
            "function ends the process, crashes, or needs more memory than there is"
        ),
    ),
    JobFailedError: (
        FAILURES_MAX,
        (
            f"computing this window alone has failed in {FAILURES_MAX} jobs one after the other, while Spark computes "
            "others: "
        ),
    ),
}
"""How often computing a window alone may fail in each of these ways, and what is said then."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a run."""

    table: pa.Table
    """window: int32, keys: list<string>, value: binary, tags: list<string>, headers: map<string, binary>."""
    failures: list[engine_pb2.WindowFailure]
    """Windows that have no rows in the table, and why."""


def check(spark: SparkSession, program: engine_pb2.Program) -> engine_pb2.CheckResponse:
    """Whether a program can run."""
    kind = program.WhichOneof("kind")
    if kind == "python":
        fault = check_function(spark, program.python)
        return engine_pb2.CheckResponse(faults=[fault] if fault else [])
    if kind == "udf":
        # The service may not have been started yet, and describes what it serves when it is called.
        return engine_pb2.CheckResponse()
    try:
        plan = _planned(spark, program.sql.SerializeToString(deterministic=True))
    except QueryError as fault:
        return engine_pb2.CheckResponse(faults=[str(fault)])
    return engine_pb2.CheckResponse(columns=plan.result_columns, one_by_one=plan.one_by_one)


def run(spark: SparkSession, program: engine_pb2.Program, windows: JobWindows) -> JobResult:
    """Compute windows. Raises `MillstreamError` for errors that are not the fault of a window."""
    compute = partial(_computed, spark, _computation(spark, program), program.sql.query)
    tables, failures = _isolated(compute, windows, 0)
    return JobResult(completed(pa.concat_tables(tables or [RESULT_SCHEMA.empty_table()]), windows), failures)


def _computation(spark: SparkSession, program: engine_pb2.Program) -> Compute:
    parallelism = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    if program.WhichOneof("kind") != "sql":
        return lambda windows: compute_groups(spark, program, windows, parallelism)
    plan = _planned(spark, program.sql.SerializeToString(deterministic=True))
    return lambda windows: (compute_sql(spark, plan, windows, parallelism), [])


@lru_cache(_PLANS_MAX)
def _planned(spark: SparkSession, program: bytes) -> SqlPlan:
    """`program`: encoded. Analysing a query again costs as much as a small job."""
    return plan_sql(spark, engine_pb2.SqlProgram.FromString(program))


def _isolated(
    compute: Compute, windows: JobWindows, first: int
) -> tuple[list[pa.Table], list[engine_pb2.WindowFailure]]:
    """Compute `windows`, the first of which has the index `first`; those that fail are computed alone."""
    if not windows:
        return [], []
    try:
        table, failures = compute(windows)
        for failure in failures:
            failure.window += first
        return [_shifted(table, first)], failures
    except WindowError as fault:
        if len(windows) == 1:
            return [], [engine_pb2.WindowFailure(window=first, reason=fault.reason, detail=fault.detail)]
    middle = len(windows) // 2
    tables, failures = _isolated(compute, windows[:middle], first)
    more_tables, more_failures = _isolated(compute, windows[middle:], first + middle)
    return tables + more_tables, failures + more_failures


def _computed(
    spark: SparkSession, compute: Compute, query: str, windows: JobWindows
) -> tuple[pa.Table, list[engine_pb2.WindowFailure]]:
    """Raises `WindowError` if some of the windows is, or may be, at fault. `query`: the user's text if it is SQL."""
    failed = {WorkerLostError: 0, JobFailedError: 0}
    while True:
        try:
            return compute(windows)
        except Exception as error:
            fault = meaning(error, query)
            if not isinstance(fault, (WorkerLostError, JobFailedError)):
                raise fault from error
            failed[type(fault)] += 1
            _log.warning("%s; no attempt of a window is counted", fault)
            times_max, text = _ALONE[type(fault)]
            if len(windows) > 1 or failed[type(fault)] >= times_max:
                if isinstance(fault, JobFailedError):
                    _check_others(spark, fault)
                    text += fault.reason
                raise WindowError(text, getattr(fault, "detail", "")) from error
        # In its own thread, which nothing else wakes.
        threading.Event().wait(LOSS_PAUSE_S * 2 ** (failed[type(fault)] - 1))


def _check_others(spark: SparkSession, fault: JobFailedError) -> None:
    """Raises the error of a job unless Spark computes others, with Python workers and a shuffle."""
    try:
        tasks = spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id BIGINT")
        tasks.repartition(2).groupBy().count().collect()
    except Exception as error:
        raise fault from error


def _shifted(table: pa.Table, first: int) -> pa.Table:
    if first == 0:
        return table
    return table.set_column(0, "window", pa.compute.add(table.column("window"), pa.scalar(first, pa.int32())))


def completed(table: pa.Table, windows: JobWindows) -> pa.Table:
    """The table with the types of the boundary; results without keys get those of the one key that their window belongs
    to."""
    columns: dict[str, Any] = {name: table.column(name) for name in table.schema.names}
    if columns["keys"].null_count == len(table) and (keys := windows.table.keys) is not None:
        of_windows = [None if key is None else [part.decode() for part in key_parts(key)] for key in keys]
        lists: Any = pa.array(of_windows, pa.list_(pa.string()))
        columns["keys"] = lists.take(pa.array(np.asarray(columns["window"])))
    return pa.table([columns[field.name].cast(field.type) for field in RESULT_SCHEMA], schema=RESULT_SCHEMA)
