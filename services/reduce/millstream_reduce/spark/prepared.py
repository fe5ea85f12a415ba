"""Jobs that Spark plans once and runs repeatedly over new windows.

    name of a job ─► built, analysed and planned at its first run ─► run ─► run ─► run

A plan is run again only if every operator in it is known to keep nothing of the previous run (`_REPEATABLE`); others
are planned again each time. A query that reads the clock or is random is also analysed again, because the analysis
determines both.

Building, analysing and planning a small job takes as long as running it. Runs of a program differ in the manifest, so
it is not part of the job: it is passed with each run as a property of the thread that starts it, which Spark passes to
the tasks. A Spark Connect server has no such properties; there each run is a separate job.

Above it: the queries and functions. Below it: Spark. It does not know what is computed.
"""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from millstream_reduce.spark.manifest import Manifest

_PROPERTY = "millstream.manifest"
_JOBS_MAX = 64
_EXECUTION = "org.apache.spark.sql.execution"
_REPEATABLE = frozenset(
    f"{_EXECUTION}.{operator}"
    for operator in (
        "WholeStageCodegenExec", "InputAdapter", "RangeExec", "ProjectExec", "FilterExec",
        "SortExec", "UnionExec", "GenerateExec", "python.MapInArrowExec",
        "aggregate.HashAggregateExec", "aggregate.ObjectHashAggregateExec", "aggregate.SortAggregateExec",
        "joins.SortMergeJoinExec", "window.WindowExec", "window.WindowGroupLimitExec",
    )
)  # fmt: skip
"""Physical operators (their Java classes) that hand on what their children give now. Exchanges, caches, broadcasts and
adaptive plans keep what they once got, and would give the rows of earlier windows again. One that is missing here costs
the time of planning."""

OpenFrame = Callable[[Manifest | None], AbstractContextManager[DataFrame]]
"""Creates the job for a manifest, or for the one that is passed with each run; what it needs exists during the
block."""

_jobs: dict[tuple[SparkSession, Hashable], PreparedJob] = {}


class PreparedJob:
    """A job that has been described."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        execution = frame._jdf.queryExecution()
        self.repeatable = is_repeatable(execution.executedPlan())
        """Whether its physical plan may be run again."""
        self.settled = _is_settled(frame, execution.analyzed())
        """Whether its analysis may be reused."""
        self._running = threading.Lock()

    def run(self, spark: SparkSession, manifest: Manifest) -> pa.Table:
        """Its rows. May be called from several threads at a time: the property belongs to the thread."""
        # A physical plan has variables for its generated code, so it serves one run at a time.
        if not self.repeatable or not self._running.acquire(blocking=False):
            return _rows(spark, self._frame.select("*"), manifest)
        try:
            return _rows(spark, self._frame, manifest)
        finally:
            self._running.release()


def is_repeatable(plan: Any) -> bool:
    """Whether a physical plan (a Java object) consists of known operators only."""
    if plan.getClass().getName() not in _REPEATABLE or not plan.subqueries().isEmpty():
        return False
    children = plan.children()
    return all(is_repeatable(children.apply(index)) for index in range(children.size()))


def _is_settled(frame: DataFrame, analyzed: Any) -> bool:
    """Whether an analysed plan means the same at any time: it is not random, and does not read the clock."""
    java: Any = frame.sparkSession._jvm
    patterns = java.org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(analyzed.deterministic()) and not analyzed.containsPattern(patterns.CURRENT_LIKE())


def _rows(spark: SparkSession, frame: DataFrame, manifest: Manifest) -> pa.Table:
    context = spark.sparkContext
    context.setLocalProperty(_PROPERTY, base64.b64encode(pickle.dumps(manifest)).decode())
    try:
        return frame.toArrow()
    finally:
        context.setLocalProperty(_PROPERTY, None)  # type: ignore[arg-type]  # as its documentation has it


def run_job(spark: SparkSession, name: Hashable, open_frame: OpenFrame, manifest: Manifest) -> pa.Table:
    """Run the job of this name over the rows of `manifest`. Raises what Spark raises."""
    if type(spark) is not SparkSession:
        with open_frame(manifest) as frame:
            return frame.toArrow()
    if (job := _jobs.get((spark, name))) is None:
        with open_frame(None) as frame:
            job = PreparedJob(frame)
        while len(_jobs) >= _JOBS_MAX:
            _jobs.pop(next(iter(_jobs)), None)
        _jobs[spark, name] = job
    if not job.settled:
        with open_frame(None) as frame:
            return _rows(spark, frame, manifest)
    return job.run(spark, manifest)


def manifest_of_run() -> Manifest:
    """In a task: the manifest of the run that it belongs to."""
    context = TaskContext.get()
    sent = context.getLocalProperty(_PROPERTY) if context is not None else None
    if sent is None:
        raise RuntimeError("not running inside a Millstream Spark task")
    manifest: Manifest = pickle.loads(base64.b64decode(sent))
    return manifest
