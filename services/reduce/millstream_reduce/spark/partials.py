"""Aggregates the rows of a task where they are read, in Spark's Python workers, before Spark does. Pure.

    batches of rows ─► GROUP_ROWS of them ─► one row for each group ─► Spark, which aggregates those

Above it: `rows`. Below it: Arrow. It does not know the query: `preaggregation` says what is kept of a group. Rows are
passed on unchanged, each as its own group, if Arrow's result would differ from Spark's (a sum that overflows, NaN among
compared values), and if there are as many groups as rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from millstream.limits import MIB
from millstream_reduce.spark.manifest import Spans, span_column

_compute: Any = pyarrow.compute

GROUP_ROWS = 262_144
"""About how many rows are aggregated together."""
GROUP_BYTES = 32 * MIB
WORTH_ROWS = 2
"""The average number of rows that a group must have; otherwise the rest of the task's rows is passed on unchanged."""
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """A column of partial results."""

    name: str
    function: str
    """As of `preaggregation.Partial`."""
    of: str
    """The column of the rows; empty for `rows`."""
    kind: pa.DataType
    """Of the partial results."""


@dataclass(frozen=True, slots=True)
class Partials:
    """How the rows of a task are aggregated."""

    by: tuple[str, ...]
    """Columns whose values make a group, the window's index first."""
    kept: tuple[PartialColumn, ...]
    spans: tuple[str, ...]
    """Those of `SPAN_COLUMNS` that are needed, too."""

    def of(self, batches: Iterable[pa.RecordBatch], spans: Spans) -> Iterator[pa.RecordBatch]:
        """Columns `by`, then those kept, then those of the spans."""
        worth = True
        for table in _tables(batches):
            if worth and all(self._does_as_spark(table, kept) for kept in self.kept):
                groups = self._aggregated(table)
                worth = groups.num_rows * WORTH_ROWS <= table.num_rows
            else:
                groups = self._as_they_are(table)
            for name in self.spans:
                groups = groups.append_column(name, span_column(name, groups.column(self.by[0]).to_numpy(), spans))
            yield from groups.combine_chunks().to_batches()

    def _aggregated(self, table: pa.Table) -> pa.Table:
        """The sums are of columns of their own, in the type of the result."""
        columns = {name: table.column(name) for name in self.by}
        aggregates: list[Any] = []
        names = []
        for kept in self.kept:
            function, options = _ARROW[kept.function]
            if kept.function == "rows":
                aggregates.append(([], function, options))
                names.append(function)
                continue
            columns[kept.name] = _cast(table.column(kept.of), kept) if function == "sum" else table.column(kept.of)
            aggregates.append((kept.name, function, options))
            names.append(f"{kept.name}_{function}")
        groups = pa.table(columns).group_by(list(self.by), use_threads=False).aggregate(aggregates)
        found = [groups.column(name) for name in self.by]
        found += [groups.column(name).cast(kept.kind) for name, kept in zip(names, self.kept, strict=True)]
        return self._named(found)

    def _as_they_are(self, table: pa.Table) -> pa.Table:
        columns: list[Any] = [table.column(name) for name in self.by]
        for kept in self.kept:
            if kept.function == "rows":
                columns.append(pa.array(np.ones(table.num_rows, np.int64)))
            elif kept.function == "count":
                columns.append(table.column(kept.of).is_valid().cast(kept.kind))
            else:
                columns.append(_cast(table.column(kept.of), kept))
        return self._named(columns)

    def _named(self, columns: Sequence[Any]) -> pa.Table:
        return pa.table(dict(zip((*self.by, *(kept.name for kept in self.kept)), columns, strict=True)))

    def _does_as_spark(self, table: pa.Table, kept: PartialColumn) -> bool:
        if kept.function == "sum" and pa.types.is_integer(kept.kind):
            extremes = _compute.min_max(table.column(kept.of)).as_py()
            largest = max(abs(extremes["min"] or 0), abs(extremes["max"] or 0))
            return bool(largest * table.num_rows <= _LARGEST)
        if kept.function in ("min", "max") and pa.types.is_floating(kept.kind):
            return not _compute.any(_compute.is_nan(table.column(kept.of))).as_py()
        return True


_NULL_OF_NONE = _compute.ScalarAggregateOptions(skip_nulls=True, min_count=1)
_ARROW: dict[str, tuple[str, Any]] = {
    "rows": ("count_all", None),
    "count": ("count", _compute.CountOptions(mode="only_valid")),
    "sum": ("sum", _NULL_OF_NONE),
    "sum_double": ("sum", _NULL_OF_NONE),
    "min": ("min", _NULL_OF_NONE),
    "max": ("max", _NULL_OF_NONE),
}


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _cast(column: Any, kept: PartialColumn) -> Any:
    # A BIGINT that is not a DOUBLE becomes the nearest one, as in Spark.
    return column.cast(kept.kind, safe=not pa.types.is_floating(kept.kind))
