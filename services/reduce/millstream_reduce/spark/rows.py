"""Reads the rows of a task from the log, inside Spark's Python workers.

    entries, mapped and checked ─► runs sliced ─► glued to GLUED_ROWS ─► columns a query needs ─► ahead ─► Spark

Above it: Spark's `mapInArrow`, or the tasks that call users' functions. Below it: the entries of the log, and
`decoding`. It does not know what is computed. Rows are copied where they are glued, and nowhere before. A thread reads
them ahead: otherwise a worker would read nothing while the JVM takes a batch, and the JVM would be idle while the
worker reads.
"""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from millstream import codes
from millstream.errors import DamageError
from millstream_reduce.batches import HEADERS, KEYS, as_bytes, decoded
from millstream_reduce.log.entries import EntryError, read_entry, segment_name
from millstream_reduce.spark.decoding import Array, Decoder
from millstream_reduce.spark.manifest import TIMESTAMP, WINDOW, Manifest, RowRuns, Spans, span_column
from millstream_reduce.spark.partials import Partials
from millstream_reduce.spark.prepared import manifest_of_run

_compute: Any = pyarrow.compute

GLUED_ROWS = 8192
"""The least number of rows in a batch for Spark, unless it is the last."""
_BODIES_MAX = 256
BATCH_ROWS_MAX = 65536
"""The most rows in a batch, whatever the entries have."""

LOG_COLUMNS: dict[str, pa.DataType] = {"value": pa.binary(), "event_time": TIMESTAMP, "keys": KEYS, "headers": HEADERS}
"""Columns of the entries' bodies; the last two may be missing there."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a query needs of every row."""

    names: tuple[str, ...]
    """Of the table `window`, without `value`."""
    raw: bool = False
    """Whether it needs the value unchanged."""
    decoder: Decoder | None = None
    """Or some of its fields."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of the log, by columns, and the window of each."""

    windows: npt.NDArray[np.int32]
    arrays: dict[str, Array]

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def value_kind(self) -> pa.DataType | None:
        """The type of the values, which may be bytes or columns."""
        values = self.arrays.get("value")
        return values.type if values is not None else None


class LogEntries:
    """The entries that a task reads. Each is checked once."""

    def __init__(self) -> None:
        self._segments: dict[tuple[str, int], memoryview] = {}
        self._bodies: dict[tuple[str, int, int], pa.RecordBatch] = {}
        """The last ones that were read, because the windows of one entry may be read separately. They are views of the
        segments."""
        self._checked: set[tuple[str, int, int]] = set()

    def body(self, runs: RowRuns) -> pa.RecordBatch:
        """All rows of an entry; they share the mapped file's memory. Raises `DamageError`."""
        place = (runs.directory, runs.segment, runs.offset)
        if (batch := self._bodies.get(place)) is None:
            batch = self._read(runs, check=place not in self._checked)
            self._checked.add(place)
            if len(self._bodies) >= _BODIES_MAX:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[place] = batch
        needed = int((runs.first_rows + runs.rows).max())
        if batch.num_rows < needed:
            raise DamageError(
                codes.SEGMENT_DAMAGED, f"{_place_of(runs)}: {batch.num_rows} rows, of which row {needed} is needed"
            )
        return batch

    def _read(self, runs: RowRuns, *, check: bool) -> pa.RecordBatch:
        try:
            entry = read_entry(self._segment(runs), runs.offset, check=check)
            return decoded(entry.body, entry.message().append)
        except EntryError as fault:
            raise DamageError(codes.SEGMENT_DAMAGED, f"{_place_of(runs)}: {fault.reason}") from fault
        except (DamageError, OSError, ValueError) as error:
            raise DamageError(codes.SEGMENT_DAMAGED, f"{_place_of(runs)}: {error}") from error

    def _segment(self, runs: RowRuns) -> memoryview:
        if (mapped := self._segments.get((runs.directory, runs.segment))) is None:
            with _path_of(runs).open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._segments[runs.directory, runs.segment] = mapped
        return mapped


def _path_of(runs: RowRuns) -> Path:
    return Path(runs.directory, segment_name(runs.segment))


def _place_of(runs: RowRuns) -> str:
    return f"{_path_of(runs)}, offset {runs.offset}"


def chunks_of(
    log: LogEntries, entries: Iterable[RowRuns], names: Sequence[str], *, takes_arrow: bool = False
) -> Iterator[Chunk]:
    """The rows of `entries`, log columns `names` of them, run by run, at most `BATCH_ROWS_MAX` at a time.
    `takes_arrow`: values may be columns."""
    for runs in entries:
        batch = log.body(runs)
        arrays = {name: column_of(batch, name) for name in names}
        for windows, first_rows, rows in _cut(runs):
            total = int(rows.sum())
            of_rows = np.repeat(windows.astype(np.int32), rows)
            if len(rows) == 1 or (first_rows[1:] == first_rows[:-1] + rows[:-1]).all():
                first = int(first_rows[0])
                chosen = {name: array.slice(first, total) for name, array in arrays.items()}
            else:
                before = np.cumsum(rows) - rows
                indexes: Any = pa.array(np.repeat(first_rows - before, rows) + np.arange(total))
                chosen = {name: array.take(indexes) for name, array in arrays.items()}
            if "value" in chosen and not takes_arrow:
                chosen["value"] = as_bytes(chosen["value"])
            yield Chunk(of_rows, chosen)


def _cut(runs: RowRuns) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Windows, first rows and rows of runs that have at most `BATCH_ROWS_MAX` rows together."""
    windows, first_rows, rows = runs.windows, runs.first_rows, runs.rows
    if len(rows) == 1 and rows[0] <= BATCH_ROWS_MAX:
        # Nearly every entry; what follows would cost more than reading it.
        yield windows, first_rows, rows
        return
    if int(rows.max()) > BATCH_ROWS_MAX:
        pieces = -(-rows // BATCH_ROWS_MAX)
        skipped = (np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * BATCH_ROWS_MAX
        windows = np.repeat(windows, pieces)
        first_rows = np.repeat(first_rows, pieces) + skipped
        rows = np.minimum(np.repeat(rows, pieces) - skipped, BATCH_ROWS_MAX)
    start = 0
    ends = np.cumsum(rows)
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BATCH_ROWS_MAX, side="right")))
        yield windows[start:stop], first_rows[start:stop], rows[start:stop]
        start = stop


def glued(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same rows in fewer chunks, each with values of one type."""
    waiting: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        if waiting and (rows + len(chunk) > BATCH_ROWS_MAX or chunk.value_kind != waiting[0].value_kind):
            yield join(waiting)
            waiting, rows = [], 0
        waiting.append(chunk)
        rows += len(chunk)
        if rows >= GLUED_ROWS:
            yield join(waiting)
            waiting, rows = [], 0
    if waiting:
        yield join(waiting)


def join(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk of the rows of all, at least one."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        np.concatenate([chunk.windows for chunk in chunks]),
        {name: pa.concat_arrays([chunk.arrays[name] for chunk in chunks]) for name in chunks[0].arrays},
    )


def column_of(batch: pa.RecordBatch, name: str) -> Array:
    """A log column of an entry; lists that are missing or null are empty."""
    if name in batch.schema.names:
        column: Array = batch.column(name)
        if column.null_count and name in ("keys", "headers"):
            rows: list[object] = [[] if row is None else row for row in column.to_pylist()]
            return pa.array(rows, LOG_COLUMNS[name])
        return column
    offsets = pa.py_buffer(bytes(4 * (batch.num_rows + 1)))
    if name == "keys":
        return pa.ListArray.from_buffers(KEYS, batch.num_rows, [None, offsets], children=[pa.array([], pa.string())])
    nothing = pa.StructArray.from_arrays(
        [pa.array([], pa.string()), pa.array([], pa.binary())], fields=[HEADERS.key_field, HEADERS.item_field]
    )
    return pa.Array.from_buffers(HEADERS, batch.num_rows, [None, offsets], children=[nothing])


def key_of(keys: Array) -> Array:
    """`key`: a single part as it is; several joined by "/", with a backslash before each "/" and backslash in them;
    null for a record without keys."""
    lengths = _compute.list_value_length(keys)
    extremes = _compute.min_max(lengths).as_py()
    if extremes == {"min": 1, "max": 1}:
        return keys.flatten()
    parts = keys.flatten()
    joined = _compute.binary_join(keys, "/")
    if _compute.any(_compute.match_substring_regex(parts, r"[/\\]")).as_py():
        escaped = _compute.replace_substring_regex(parts, r"([/\\])", r"\\\1")
        starts = keys.offsets.to_numpy()
        lists = pa.ListArray.from_arrays(pa.array(starts - starts[0], pa.int32()), escaped)
        joined = _compute.if_else(_compute.equal(lengths, 1), joined, _compute.binary_join(lists, "/"))
    if extremes["min"] == 0:
        joined = _compute.if_else(_compute.equal(lengths, 0), pa.scalar(None, pa.string()), joined)
    return joined


def numbers_of(tasks: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """The task numbers that Spark hands to a task."""
    for batch in tasks:
        numbers: Any = batch.column(0).to_pylist()
        yield from numbers


class RowReader:
    """For `mapInArrow` over a range of task numbers: the rows of those tasks."""

    def __init__(self, manifest: Manifest | None, columns: Columns, partials: Partials | None = None) -> None:
        """Without a manifest, that of the run is used. With `partials` it returns those, instead of the rows."""
        self._manifest = manifest
        self._columns = columns
        self._partials = partials

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        manifest = self._manifest or manifest_of_run()
        log = LogEntries()
        needed: list[str] = [name for name in ("event_time", "keys", "headers") if name in self._columns.names]
        if "key" in self._columns.names and "keys" not in needed:
            needed.append("keys")
        if self._columns.raw or self._columns.decoder is not None:
            needed.append("value")
        takes_arrow = self._columns.decoder is not None and self._columns.decoder.takes_arrow
        for task in numbers_of(tasks):
            chunks = glued(chunks_of(log, manifest.by_entry(task), needed, takes_arrow=takes_arrow))
            with closing(ahead(self._batch(chunk, manifest.spans) for chunk in chunks)) as batches:
                if self._partials is None:
                    yield from batches
                else:
                    yield from self._partials.of(batches, manifest.spans)

    def _batch(self, chunk: Chunk, spans: Spans) -> pa.RecordBatch:
        columns: dict[str, Array] = {WINDOW: pa.array(chunk.windows)}
        columns |= {name: _column(name, chunk, spans) for name in self._columns.names}
        if self._columns.raw:
            columns["value"] = as_bytes(chunk.arrays["value"])
        if self._columns.decoder is not None:
            decoded, _ = self._columns.decoder.decode(chunk.arrays["value"])
            columns |= {field_column(index): array for index, array in enumerate(decoded)}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _column(name: str, chunk: Chunk, spans: Spans) -> Array:
    if name in chunk.arrays:
        return chunk.arrays[name]
    if name == "key":
        return key_of(chunk.arrays["keys"])
    return span_column(name, chunk.windows, spans)


def field_column(index: int) -> str:
    """Name of the column with a decoded field of the value."""
    return f"__field_{index}"


DEPTH = 2
"""Items in memory besides the one being created and the one being used."""

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items, and the error that ends them, a little earlier. Once it is closed or has ended, no thread is
    left."""
    made: queue.SimpleQueue[tuple[Item] | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(DEPTH)
    closed = False

    def make() -> None:
        try:
            for item in items:
                room.acquire()
                if closed:
                    return
                made.put((item,))
        except BaseException as error:  # noqa: BLE001  # raised again where the items are taken
            made.put(error)
        else:
            made.put(None)

    thread = threading.Thread(target=make, name="read ahead", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item[0]
    finally:
        closed = True
        room.release()
        thread.join()
