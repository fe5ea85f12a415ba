"""Rows aggregated where they are read: whatever is made of them, aggregating it once more gives what the rows give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream_reduce.spark import partials
from millstream_reduce.spark.manifest import Spans
from millstream_reduce.spark.partials import PartialColumn, Partials

SPANS = Spans(np.array([10, 20]), np.array([20, 30]), np.array([0, 0]), None, np.array([0, 0]))
KEPT = (
    PartialColumn("rows", "rows", "", pa.int64()),
    PartialColumn("count", "count", "n", pa.int64()),
    PartialColumn("sum", "sum", "n", pa.int64()),
    PartialColumn("mean", "sum_double", "n", pa.float64()),
    PartialColumn("least", "min", "x", pa.float64()),
    PartialColumn("most", "max", "n", pa.int32()),
)
PARTIALS = Partials(("window", "key"), KEPT, ("window_start",))


def batch_of(rows: list[tuple[int, str | None, int | None, float | None]]) -> pa.RecordBatch:
    windows, keys, numbers, floats = zip(*rows, strict=True)
    columns = [pa.array(windows, pa.int32()), pa.array(keys), pa.array(numbers, pa.int32()), pa.array(floats)]
    return pa.RecordBatch.from_arrays(columns, names=["window", "key", "n", "x"])


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    found = [row for batch in batches for row in batch.to_pylist()]
    return [{**row, "window_start": row["window_start"].microsecond} for row in found]


def test_groups() -> None:
    batches = [
        batch_of([(0, "a", 1, 2.5), (1, "a", 5, 1.0), (0, None, None, None)]),
        batch_of([(0, "a", None, 2.0)] * 5),
    ]
    found = rows_of(PARTIALS.of(batches, SPANS))
    assert list(found[0]) == ["window", "key", "rows", "count", "sum", "mean", "least", "most", "window_start"]
    assert sorted(map(str, found)) == sorted(
        map(
            str,
            [
                {"window": 0, "key": "a", "rows": 6, "count": 1, "sum": 1, "mean": 1.0, "least": 2.0, "most": 1}
                | {"window_start": 10},
                {"window": 1, "key": "a", "rows": 1, "count": 1, "sum": 5, "mean": 5.0, "least": 1.0, "most": 5}
                | {"window_start": 20},
                {"window": 0, "key": None, "rows": 1, "count": 0, "sum": None, "mean": None, "least": None}
                | {"most": None, "window_start": 10},
            ],
        )
    )


def test_rows_go_on_as_they_are_once_there_are_as_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partials, "GROUP_ROWS", 4)
    batches = [batch_of([(0, f"{n}", n, None) for n in range(4)]), batch_of([(0, "a", 1, 2.0)] * 4)]
    found = rows_of(PARTIALS.of(batches, SPANS))
    assert len(found) == 8
    alone = {"window": 0, "key": "a", "rows": 1, "count": 1, "sum": 1, "mean": 1.0, "least": 2.0, "most": 1}
    assert found[4:] == [alone | {"window_start": 10}] * 4


def test_rows_are_aggregated_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partials, "GROUP_ROWS", 4)
    found = rows_of(PARTIALS.of([batch_of([(0, "a", 1, 2.0)] * 3)] * 5, SPANS))
    assert [row["rows"] for row in found] == [6, 6, 3]


def test_rows_go_on_as_they_are_where_arrow_does_not_do_as_spark_does() -> None:
    found = rows_of(PARTIALS.of([batch_of([(0, "a", 1, math.nan), (0, "a", 1, 1.0)])], SPANS))
    assert [row["rows"] for row in found] == [1, 1]
    assert math.isnan(found[0]["least"])
    large = Partials(("window", "key"), (PartialColumn("sum", "sum", "n", pa.int64()),), ())
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0, 0, 0, 0], pa.int32()), pa.array(["a"] * 4), pa.array([2**61] * 4, pa.int64())],
        names=["window", "key", "n"],
    )
    assert [row["sum"] for one in large.of([batch], SPANS) for row in one.to_pylist()] == [2**61] * 4
    assert [row["sum"] for one in large.of([batch.slice(0, 3)], SPANS) for row in one.to_pylist()] == [3 * 2**61]


def test_of_no_rows_there_is_nothing() -> None:
    assert list(PARTIALS.of([], SPANS)) == []
