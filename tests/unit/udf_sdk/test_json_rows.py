"""Rows of tables as JSON: however many there are, they are what Python writes of each."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream_udf import json_rows
from millstream_udf.json_rows import rows_as_json
from millstream_udf.misfits import BadOutput

ROWS: dict[str, Any] = {
    "whole": pa.array([0, -(2**63), 2**63 - 1], pa.int64()),
    "small": pa.array([1, None, 255], pa.uint8()),
    "float": pa.array([0.1, 1e-07, 1e22]),
    "single": pa.array([0.1, 0.0, -0.0], pa.float32()),
    "halves": pa.array([0.5, 1.5, 2.0]),
    "missing": pa.array([1.5, None, 2.0]),
    "not finite": pa.array([float("nan"), float("inf"), float("-inf")]),
    "yes": pa.array([True, False, None]),
    "text": pa.array(["", 'a "quoted"\n\x00\u2028\x7f', "ü界😀 %s %% %(a)s"]),
    "long text": pa.array(["a", "b", "\\"], pa.large_string()),
    "some text": pa.array(["a", None, "c"]),
    "distinct": pa.array(["x", "y", "x"]).dictionary_encode(),
    "bytes": pa.array([b"", b"\xff", None]),
    "time": pa.array([0, 1, None], pa.timestamp("us", tz="UTC")),
    "day": pa.array([0, 1, None], pa.date32()),
    "list": pa.array([[1, None], [], None]),
    "inner": pa.array([{"a": 1, "b": [float("nan")]}, {"a": None, "b": None}, None]),
    "none": pa.nulls(3),
    'a "name" %s 100 %': pa.array([1, 2, 3]),
}


def row_by_row(table: Any) -> list[bytes]:
    rows = (plain(row) for row in table.to_pylist())
    return [json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() for row in rows]


def plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
    return value


@pytest.mark.parametrize("name", ROWS)
def test_a_column_is_written_as_its_rows_are(name: str) -> None:
    batch = pa.record_batch({name: ROWS[name]})
    assert rows_as_json(batch) == row_by_row(batch)
    assert rows_as_json(batch.slice(1, 1)) == row_by_row(batch.slice(1, 1))
    table = pa.Table.from_batches([batch, batch.slice(1)])
    assert rows_as_json(table) == row_by_row(table)


def test_rows_of_many_columns_are_objects() -> None:
    batch = pa.record_batch(ROWS)
    assert rows_as_json(batch) == row_by_row(batch)
    assert list(map(json.loads, rows_as_json(batch)))[1]["float"] == 1e-07
    assert rows_as_json(batch.slice(0, 0)) == []
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert rows_as_json(twice) == row_by_row(twice) == [b'{"a":2}']


def test_a_type_without_json_is_refused() -> None:
    with pytest.raises(BadOutput, match="JSON, which has no timedelta"):
        rows_as_json(pa.record_batch({"a": pa.array([1], pa.duration("us"))}))


MANY = 8


@pytest.fixture(autouse=True, scope="module")
def few_are_many() -> Iterator[None]:
    """Arrow writes so few rows that they are easily generated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "MANY_ROWS", MANY)
        yield


def repeated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """So many rows that Arrow writes them."""
    rows = [row for _ in range(MANY) for row in range(batch.num_rows)]
    return batch.take(pa.array(rows, pa.int64()))


@pytest.mark.parametrize("name", ROWS)
def test_many_rows_are_written_as_few_are(name: str) -> None:
    batch = repeated(pa.record_batch({name: ROWS[name], "other": ROWS["whole"]}))
    assert rows_as_json(batch) == row_by_row(batch)
    part = batch.slice(1, MANY)
    assert rows_as_json(part) == row_by_row(part)
    table = pa.Table.from_batches([batch, batch.slice(1)])
    assert rows_as_json(table) == row_by_row(table)


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=20))
@example([1e-4, 9.999999999999999e-05, 999999999999999.9, 1e15, -0.0, 5e-324, 1.7976931348623157e308])
@example([1e15 - 1, 123456789012345.0, 0.1 + 0.2, -1e-4, 3.0])
@example([1e9, 9999999999.0, 1e10, 10000000000.5])
@example([2.0, None, 0.5])
def test_numbers_are_written_as_python_writes_them(numbers: list[float | None]) -> None:
    column: Any = pa.array(numbers, pa.float64())
    batch = repeated(pa.record_batch({"double": column, "single": column.cast(pa.float32(), safe=False)}))
    assert rows_as_json(batch) == row_by_row(batch)
    for number in numbers:
        alone = repeated(pa.record_batch({"a": pa.array([number], pa.float64())}))
        assert rows_as_json(alone) == row_by_row(alone)


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=20))
@example(["\x00", "\x1f", "\x7f"])
def test_texts_are_written_as_python_writes_them(texts: list[str | None]) -> None:
    batch = repeated(pa.record_batch({"a": pa.array(texts, pa.string()), "b": pa.array(texts, pa.large_string())}))
    assert rows_as_json(batch) == row_by_row(batch)
    for text in texts:
        alone = repeated(pa.record_batch({text or "": pa.array([text], pa.string())}))
        assert rows_as_json(alone) == row_by_row(alone)


def test_texts_that_are_not_utf_8_are_refused() -> None:
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0")
    column = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    batch = pa.record_batch({"a": column})
    for rows in (batch, repeated(batch)):
        with pytest.raises(ValueError, match=r"UTF8|utf-8"):
            rows_as_json(rows)
