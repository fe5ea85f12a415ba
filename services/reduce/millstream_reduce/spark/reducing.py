"""Programs that are functions: the rows of a task as groups, and a function called for each, in Spark's Python workers.

    whole windows ─► rows ─► sorted by window and key ─► parts of many groups
        ─► a function in this worker, or one behind gRPC ─► answers ─► rows, or why a group has none

A group is a window and, in a keyed vertex, a key of it; its rows are in the order of arrival. A task works on whole
windows, so nothing is shuffled. A group that fails is reported as a separate row; other groups are not affected. Memory
is bounded by `PASS_BYTES`, however large a window is: one that is not keyed is passed on as it is read; one that is
keyed is passed on some keys at a time, so that it is read several times. Only the rows of a single key may be more;
they are also passed on as they are read.

Above it: `jobs`. Below it: `rows`, and the two runtimes, which have the same interface.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UdfError, error_of, kind_of
from millstream.limits import MIB
from millstream.udf.native.reduce_client import reduce_over_grpc
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.batches import joined_keys
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.group_keys import join_key, key_parts
from millstream_reduce.spark.errors import meaning
from millstream_reduce.spark.manifest import JobWindows, Manifest, RowRuns, manifest_of
from millstream_reduce.spark.prepared import manifest_of_run, run_job
from millstream_reduce.spark.rows import Chunk, LogEntries, chunks_of, join, numbers_of
from millstream_udf.context import Context
from millstream_udf.failures import FAILURES, summary
from millstream_udf.groups import Group, Part
from millstream_udf.loading import LoadError
from millstream_udf.reduce_arrow import ArrowRows
from millstream_udf.reducing import Answer, Reduce
from millstream_udf.values import Message, Window
from millstream_udf.version import SDK_VERSION

PASS_BYTES = 256 * MIB
"""Bytes of values and headers in memory at a time."""
PART_ROWS = 65536
"""The most rows in a part."""

_Codes = npt.NDArray[np.int64]
_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupsPart:
    """A part, and the window that each of the groups that begin in it belongs to."""

    part: Part
    windows: Sequence[int]


class GroupReader:
    """Reads the groups of a task."""

    def __init__(self, manifest: Manifest, *, keyed: bool, within: Context) -> None:
        """`within`: the context that all groups share; to it they add the origin of their windows."""
        self._manifest = manifest
        self._contexts = [replace(within, **origin._asdict()) for origin in manifest.origins]
        self._keyed = keyed
        self._read = ("value", "event_time", "headers", "keys")
        self._names = self._read[:-1] if keyed else self._read
        """Columns that functions get: in a keyed vertex the group has the keys."""

    def parts(self, log: LogEntries, task: int) -> Iterator[GroupsPart]:
        """Every group once, window by window."""
        for some in self._manifest.by_window(task, PASS_BYTES):
            if some.size <= PASS_BYTES:
                yield from self._sorted(join(list(chunks_of(log, some.entries, self._read))))
            elif self._keyed:
                yield from self._in_passes(log, some.entries)
            else:
                window = int(some.entries[0].windows[0])
                yield from self._stream(chunks_of(log, some.entries, self._names), window, None)

    def _in_passes(self, log: LogEntries, entries: Sequence[RowRuns]) -> Iterator[GroupsPart]:
        """Of a large window: as many of its keys at a time as fit."""
        window = int(entries[0].windows[0])
        sizes: dict[bytes | None, int] = {}
        for chunk in chunks_of(log, entries, ("value", "headers", "keys")):
            codes, keys = _keys_of(chunk)
            of_rows = np.full(len(chunk), (chunk.arrays["value"].nbytes + chunk.arrays["headers"].nbytes) / len(chunk))
            for key, size in zip(keys, np.bincount(codes, of_rows, len(keys)).tolist(), strict=True):
                sizes[key] = sizes.get(key, 0) + int(size) + 1
        for some in _packed(sizes):
            kept = (_only(chunk, some) for chunk in chunks_of(log, entries, self._read))
            if len(some) == 1:
                yield from self._stream((chunk for chunk in kept if len(chunk)), window, some[0])
            else:
                yield from self._sorted(join(list(kept)))

    def _sorted(self, chunk: Chunk) -> Iterator[GroupsPart]:
        """Groups of rows that are in memory."""
        codes, keys = _keys_of(chunk) if self._keyed else (np.zeros(len(chunk), np.int64), [None])
        places = chunk.windows.astype(np.int64) * len(keys) + codes
        if (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            places = places[order]
            indexes: Any = pa.array(order)
            chunk = Chunk(chunk.windows[order], {name: chunk.arrays[name].take(indexes) for name in self._names})
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        counts = np.diff(starts, append=len(places))
        windows, of_keys = np.divmod(places[starts], len(keys))
        groups = self._groups(windows, [_parts_of(key) for key in keys], of_keys)
        batch = self._batch(chunk)
        # As many groups to a part as have this many rows together, at least one; the sender slices a large one.
        ends = np.cumsum(counts)
        first = 0
        while first < len(groups):
            begin = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, begin + PART_ROWS, side="right")))
            rows = batch.slice(begin, int(ends[last - 1]) - begin)
            part = Part(groups[first:last], counts[first:last].tolist(), ArrowRows(rows))
            yield GroupsPart(part, windows[first:last].tolist())
            first = last

    def _stream(self, chunks: Iterator[Chunk], window: int, key: bytes | None) -> Iterator[GroupsPart]:
        """One group, as it is read."""
        (group,) = self._groups(np.array([window]), [_parts_of(key)], np.zeros(1, np.int64))
        waiting = next(chunks, None)
        begun = False
        while waiting is not None:
            following = next(chunks, None)
            groups, windows = ([], []) if begun else ([group], [window])
            part = Part(groups, [len(waiting)], ArrowRows(self._batch(waiting)), following is not None)
            yield GroupsPart(part, windows)
            begun, waiting = True, following

    def _batch(self, chunk: Chunk) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([chunk.arrays[name] for name in self._names], names=list(self._names))

    def _groups(self, indexes: _Codes, keys: Sequence[_Parts | None], of_keys: _Codes) -> list[Group]:
        """One for each of the indexes of windows. `of_keys`: which of the keys it has; None is the whole window, which
        may belong to a key itself."""
        spans = self._manifest.spans
        windows = map(Window, *(column[indexes].tolist() for column in (spans.starts_us, spans.ends_us, spans.early)))
        own = [None] * len(indexes) if spans.keys is None else [spans.keys[index] for index in indexes.tolist()]
        chosen = (keys[number] for number in of_keys.tolist())
        parts = (_parts_of(key) or () if given is None else given for given, key in zip(chosen, own, strict=True))
        return list(map(Group, windows, parts, map(self._contexts.__getitem__, spans.origins[indexes].tolist())))


def _parts_of(key: bytes | None) -> _Parts | None:
    return None if key is None else tuple(part.decode() for part in key_parts(key))


def _keys_of(chunk: Chunk) -> tuple[_Codes, list[bytes | None]]:
    """The key of each row as an index into the keys, parts joined."""
    joined = joined_keys(chunk.arrays["keys"]).dictionary_encode()
    return joined.indices.to_numpy().astype(np.int64), joined.dictionary.to_pylist()


def _only(chunk: Chunk, keys: Sequence[bytes | None]) -> Chunk:
    """The rows that have one of these keys."""
    mask: Any = pc.is_in(joined_keys(chunk.arrays["keys"]), pa.array(keys, pa.binary()))
    arrays = {name: array.filter(mask) for name, array in chunk.arrays.items()}
    return Chunk(chunk.windows[mask.to_numpy(zero_copy_only=False)], arrays)


def _packed(sizes: dict[bytes | None, int]) -> Iterator[list[bytes | None]]:
    """The keys in turn, as many at a time as have `PASS_BYTES` bytes together, at least one."""
    some: list[bytes | None] = []
    size = 0
    for key, of_key in sizes.items():
        if some and size + of_key > PASS_BYTES:
            yield some
            some, size = [], 0
        some.append(key)
        size += of_key
    if some:
        yield some


SMALL_JOB_ROWS = 5_000
"""Up to here one task is faster than several."""
_ALL_WINDOWS = -1
"""Index that means the whole job failed; `reason` and `detail` are the error's text and class."""
BATCH_RESULTS = 10_000
"""Rows that a task hands to Spark at a time, at least."""

TASK_SCHEMA = (
    "window INT, keys ARRAY<STRING>, value BINARY, tags ARRAY<STRING>, headers MAP<STRING, BINARY>, key BINARY, "
    "reason STRING, detail STRING"
)
_COLUMNS = pa.schema([*RESULT_SCHEMA, ("key", pa.binary()), ("reason", pa.string()), ("detail", pa.string())])


def reduced_groups(
    manifest: Manifest | None, encoded: bytes, tasks: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` over a range of task numbers: the results of the groups of those tasks.

    Without a manifest, that of the run is used. `encoded`: the program.
    """
    log = LogEntries()
    program = engine_pb2.Program.FromString(encoded)
    reader = GroupReader(manifest or manifest_of_run(), keyed=program.keyed, within=context_of(program.python))
    try:
        reduce = _reduce(program)
        for task in numbers_of(tasks):
            yield from _reduced(reduce, reader.parts(log, task))
    except MillstreamError as error:
        # Spark would repeat the task for an exception, but the code above knows better.
        rows = _Rows()
        rows.add(_ALL_WINDOWS, None, None, None, None, None, str(error), kind_of(error))
        yield rows.take()


class _Rows:
    """Result rows that are passed to Spark."""

    def __init__(self) -> None:
        self._columns: list[list[object]] = [[] for _ in _COLUMNS]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, *row: object) -> None:
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def add_values(self, windows: Sequence[int], keys: Sequence[_Parts], values: Sequence[bytes]) -> None:
        """One row for each; missing members are null."""
        given: tuple[Sequence[object], ...] = windows, [list(parts) or None for parts in keys], values
        for column, some in zip(self._columns, given, strict=False):
            column.extend(some)
        for column in self._columns[len(given) :]:
            column.extend([None] * len(values))

    def take(self) -> pa.RecordBatch:
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, _COLUMNS, strict=True)]
        self._columns = [[] for _ in _COLUMNS]
        return pa.RecordBatch.from_arrays(arrays, schema=_COLUMNS)


def compute_groups(
    spark: SparkSession, program: engine_pb2.Program, windows: JobWindows, parallelism: int
) -> tuple[pa.Table, list[engine_pb2.WindowFailure]]:
    """The results of all windows, and the windows without any. Raises what Spark raises."""
    tasks_max = min(parallelism, len(windows)) if windows.table.rows.sum() > SMALL_JOB_ROWS else 1
    manifest = manifest_of(windows, tasks_max, whole_windows=True)
    encoded = program.SerializeToString(deterministic=True)

    @contextmanager
    def open_frame(of_run: Manifest | None) -> Iterator[DataFrame]:
        tasks = spark.range(0, manifest.tasks, 1, manifest.tasks)
        yield tasks.mapInArrow(partial(reduced_groups, of_run, encoded), TASK_SCHEMA)

    return _without_failures(run_job(spark, (encoded, manifest.tasks), open_frame, manifest))


def check_function(spark: SparkSession, program: engine_pb2.PythonProgram) -> str:
    """Why the tasks cannot use a function; empty if they can."""
    checker = partial(_load_in_tasks, program.SerializeToString())
    try:
        spark.range(0, 1, 1, 1).mapInArrow(checker, "fault STRING").collect()
    except Exception as error:
        fault = meaning(error)
        if isinstance(fault, UdfError):
            return str(fault)
        raise fault from error
    return ""


def _load_in_tasks(program: bytes, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: no rows, but an error where the tasks cannot load the encoded program."""
    for _ in tasks:
        load(engine_pb2.PythonProgram.FromString(program))
    return iter(())


def context_of(program: engine_pb2.PythonProgram) -> Context:
    """What all calls of a function share, which its `setup` gets."""
    return Context(pipeline=program.pipeline, vertex=program.vertex, version=SDK_VERSION)


def load(program: engine_pb2.PythonProgram) -> Reduce:
    """A user's function. Raises `UdfError` with what to change."""
    from millstream_udf import reducing

    target = program.target
    modules = len(sys.modules)
    try:
        reduce = reducing.load(target, program.directory, context_of(program), program.config)
    except LoadError as error:
        raise UdfError(codes.FUNCTION_IMPORT, str(error)) from error
    except FAILURES as error:
        raise UdfError(
            codes.FUNCTION_IMPORT, f"{target} cannot be imported: {_where(error)}{summary(error)}"
        ) from error
    if len(sys.modules) > modules:
        # As in `worker_daemon`: Spark makes a worker collect garbage after every task, which is useless for imports.
        gc.collect()
        gc.freeze()
    return reduce


def _reduce(program: engine_pb2.Program) -> Reduce:
    if program.HasField("udf"):
        return lambda parts: reduce_over_grpc(program.udf, parts)
    plain = load(program.python)

    def reduce(parts: Iterable[Part]) -> Iterator[Answer]:
        try:
            yield from plain(parts)
        except MillstreamError:
            raise
        except FAILURES as error:
            # Errors of a group are in its answer: this is the function's set-up.
            raise UdfError(
                codes.FUNCTION_IMPORT, f"{program.python.target} cannot be set up: {_where(error)}{summary(error)}"
            ) from error

    return reduce


def _reduced(reduce: Reduce, parts: Iterable[GroupsPart]) -> Iterator[pa.RecordBatch]:
    windows: deque[int] = deque()
    """Windows of the groups that were sent and have no complete answer, in order."""

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
    if not answer.failures and not answer.unfinished and set(map(type, answer.results)) == {bytes}:
        own = [windows.popleft() for _ in answer.groups]
        parts = [group.keys for group in answer.groups]
        if len(answer.results) != len(own) or any(count != 1 for count in answer.counts):
            own = list(chain.from_iterable(map(repeat, own, answer.counts)))
            parts = list(chain.from_iterable(map(repeat, parts, answer.counts)))
        rows.add_values(own, parts, answer.results)  # type: ignore[arg-type]  # they are bytes, all of them
        return
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
            key = join_key([part.encode() for part in group.keys])
            rows.add(window, None, None, None, None, key, failure.error, failure.detail)


def _without_failures(table: pa.Table) -> tuple[pa.Table, list[engine_pb2.WindowFailure]]:
    """Failed windows have no rows; of several failed groups the first is reported."""
    results = table.select(RESULT_SCHEMA.names)
    failed = table.filter(pc.is_valid(table["reason"]))
    if failed.num_rows == 0:
        return results, []
    failures: dict[int, engine_pb2.WindowFailure] = {}
    others: dict[int, int] = {}
    for row in failed.select(["window", "key", "reason", "detail"]).to_pylist():
        window = row["window"]
        if window == _ALL_WINDOWS:
            raise error_of(row["detail"], row["reason"]) or RetryLaterError(codes.SPARK_JOB, row["reason"])
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
