"""Programs that are functions: called by Spark's tasks, group by group.

    groups ─► a function in this worker, or one behind gRPC ─► answers ─► rows, or why a group has none

Above it: `jobs`. Below it: `groups`, and the two runtimes, which look the same from here. A task works on whole
windows, so nothing is shuffled. A group that fails is told as a row of its own; no other group is touched.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.errors import MillstreamError, UdfError
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.spark.faults import error_class, error_name, meaning
from millstream_reduce.spark.groups import GroupReader, GroupsPart
from millstream_reduce.spark.manifest import KEY_SEPARATOR, JobWindow, Manifest, manifest_of
from millstream_reduce.spark.prepared import manifest_of_run, run_job
from millstream_reduce.spark.rows import Log
from millstream_reduce.udf_client import reduce_over_grpc
from millstream_udf.context import Context
from millstream_udf.failures import FAILURES, summary
from millstream_udf.groups import Part
from millstream_udf.loading import LoadError
from millstream_udf.reducing import Answer, Reducer
from millstream_udf.values import Message

SMALL_JOB_ROWS = 5_000
"""Up to here one task is faster than several."""
_ALL_WINDOWS = -1
"""Stands for a window where the whole job has failed; `reason` and `detail` are the error's text and class."""
BATCH_RESULTS = 10_000
"""Rows that a task hands to Spark at a time, at least."""

TASK_SCHEMA = (
    "window INT, keys ARRAY<STRING>, value BINARY, tags ARRAY<STRING>, headers MAP<STRING, BINARY>, key BINARY, "
    "reason STRING, detail STRING"
)
_COLUMNS = pa.schema([*RESULT_SCHEMA, ("key", pa.binary()), ("reason", pa.string()), ("detail", pa.string())])

Reduce = Callable[[Iterable[Part]], Iterator[Answer]]


class GroupReducer:
    """For `mapInArrow` over a range of task numbers: the results of the groups of those tasks."""

    def __init__(self, manifest: Manifest | None, program: bytes) -> None:
        """Without a manifest it is that of the run. `program`: encoded."""
        self._manifest = manifest
        self._program = program

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        log = Log()
        rows = _Rows()
        program = engine_pb2.Program.FromString(self._program)
        within = context_of(program.python)
        reader = GroupReader(self._manifest or manifest_of_run(), keyed=program.keyed, within=within)
        try:
            reduce = _reduce(program)
            for batch in tasks:
                tasks_of_batch: Any = batch.column(0).to_pylist()
                for task in tasks_of_batch:
                    yield from _reduced(reduce, reader.parts(log, task))
        except MillstreamError as error:
            # As an exception it would be tried again by Spark, which knows less than those above.
            rows.add(_ALL_WINDOWS, None, None, None, None, None, str(error), error_name(error))
            yield rows.take()


class _Rows:
    """Result rows on their way to Spark."""

    def __init__(self) -> None:
        self._columns: list[list[object]] = [[] for _ in _COLUMNS]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, *row: object) -> None:
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def take(self) -> pa.RecordBatch:
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, _COLUMNS, strict=True)]
        self._columns = [[] for _ in _COLUMNS]
        return pa.RecordBatch.from_arrays(arrays, schema=_COLUMNS)


def compute_groups(
    spark: SparkSession, program: engine_pb2.Program, windows: Sequence[JobWindow], parallelism: int
) -> tuple[pa.Table, list[engine_pb2.WindowFailure]]:
    """The results of all windows, and those that have none. Raises what Spark raises."""
    rows = sum(item.window.rows for item in windows)
    tasks = min(parallelism, len(windows)) if rows > SMALL_JOB_ROWS else 1
    manifest = manifest_of(windows, tasks, whole_windows=True)
    encoded = program.SerializeToString(deterministic=True)

    @contextmanager
    def open_frame(of_run: Manifest | None) -> Iterator[DataFrame]:
        numbers = spark.range(0, manifest.tasks, 1, manifest.tasks)
        yield numbers.mapInArrow(GroupReducer(of_run, encoded), TASK_SCHEMA)

    return _without_failures(run_job(spark, (encoded, manifest.tasks), open_frame, manifest))


def check_function(spark: SparkSession, program: engine_pb2.PythonProgram) -> str:
    """Why a function cannot be used by the tasks; empty when it can."""
    checker = _FunctionChecker(program)
    try:
        spark.range(0, 1, 1, 1).mapInArrow(checker, "fault STRING").collect()
    except Exception as error:
        fault = meaning(error)
        if isinstance(fault, UdfError):
            return str(fault)
        raise fault from error
    return ""


class _FunctionChecker:
    def __init__(self, program: engine_pb2.PythonProgram) -> None:
        self._program = program.SerializeToString()

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in tasks:
            load(engine_pb2.PythonProgram.FromString(self._program))
        return iter(())


def context_of(program: engine_pb2.PythonProgram) -> Context:
    """What all calls of a function share, and its `setup` is told."""
    return Context(pipeline=program.pipeline, vertex=program.vertex)


def load(program: engine_pb2.PythonProgram) -> Reducer:
    """A function of the user's. Raises `UdfError` with what to change."""
    from millstream_udf import reducing

    target = program.target
    modules = len(sys.modules)
    try:
        reducer = reducing.load(target, program.directory, context_of(program))
    except LoadError as error:
        raise UdfError(str(error)) from error
    except FAILURES as error:
        raise UdfError(f"{target} cannot be imported: {_where(error)}{summary(error)}") from error
    if len(sys.modules) > modules:
        # As in `worker_daemon`: Spark has a worker collect garbage after every task, for what was imported in vain.
        gc.collect()
        gc.freeze()
    return reducer


def _reduce(program: engine_pb2.Program) -> Reduce:
    if program.HasField("udf"):
        return lambda parts: reduce_over_grpc(program.udf, parts)
    reducer = load(program.python)

    def reduce(parts: Iterable[Part]) -> Iterator[Answer]:
        try:
            yield from reducer.answers(parts)
        except MillstreamError:
            raise
        except FAILURES as error:
            # What a group raises is in its answer: this is the function's set-up.
            raise UdfError(f"{program.python.target} cannot be set up: {_where(error)}{summary(error)}") from error

    return reduce


def _reduced(reduce: Reduce, parts: Iterable[GroupsPart]) -> Iterator[pa.RecordBatch]:
    windows: deque[int] = deque()
    """Of the groups that were sent and have no whole answer, in order."""

    def sent() -> Iterator[Part]:
        for item in parts:
            windows.extend(item.windows)
            yield item.part

    rows = _Rows()
    for answer in reduce(sent()):
        _add(rows, answer, windows)
        if len(rows) >= BATCH_RESULTS:
            yield rows.take()
    if len(rows):
        yield rows.take()


def _add(rows: _Rows, answer: Answer, windows: deque[int]) -> None:
    failures = {failure.index: failure for failure in answer.failures}
    at = 0
    for index, (group, count) in enumerate(zip(answer.groups, answer.counts, strict=True)):
        unfinished = answer.unfinished and index == len(answer.groups) - 1
        window = windows[0] if unfinished else windows.popleft()
        for result in answer.results[at : at + count]:
            if isinstance(result, Message):
                keys = group.keys if result.keys is None else result.keys
                headers = list(result.headers.items()) if result.headers else None
                rows.add(window, list(keys) or None, result.value, list(result.tags) or None, headers, None, None, None)
            else:
                rows.add(window, list(group.keys) or None, result, None, None, None, None, None)
        at += count
        if (failure := failures.get(index)) is not None:
            key = KEY_SEPARATOR.join(part.encode() for part in group.keys)
            rows.add(window, None, None, None, None, key, failure.error, failure.detail)


def _without_failures(table: pa.Table) -> tuple[pa.Table, list[engine_pb2.WindowFailure]]:
    """Failed windows have no rows; of several groups that failed the first is told."""
    results = table.select(RESULT_SCHEMA.names)
    failed = table.filter(pc.is_valid(table["reason"]))
    if failed.num_rows == 0:
        return results, []
    failures: dict[int, engine_pb2.WindowFailure] = {}
    others: dict[int, int] = {}
    for row in failed.select(["window", "key", "reason", "detail"]).to_pylist():
        window = row["window"]
        if window == _ALL_WINDOWS:
            raise error_class(row["detail"])(row["reason"])
        if window in failures:
            others[window] = others.get(window, 0) + 1
            continue
        failures[window] = engine_pb2.WindowFailure(window=window, reason=row["reason"], detail=row["detail"])
        if row["key"]:
            failures[window].key = row["key"]
    for window, more in others.items():
        failures[window].reason += f" (and {more} more groups of this window failed)"
    keep = pc.invert(pc.is_in(results["window"], pa.array(list(failures), pa.int32())))
    return results.filter(keep), [failures[window] for window in sorted(failures)]


def _where(error: BaseException) -> str:
    """File and line of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
