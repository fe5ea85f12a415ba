"""Rows of an Arrow table as JSON objects, made column by column. Pure.

Arrow converts numbers, texts, booleans, times and dates; a column of another type (lists, structs, bytes) is converted
value by value. Above it: sources that read Parquet and lake tables. Below it: pyarrow, an extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.limits import BLOCK_BYTES_MAX, RECORD_BYTES_MAX
from millstream_connectors.file.source.value_as_json import as_json

_ESCAPED = r'[\x00-\x1f"\\]'
_NO_NANOS = r"(\.\d{6})000(Z?)$"
"""The end of a time in nanoseconds that has none beyond its microseconds."""
_CELL_BYTES = 8
"""Of a number in JSON, with its punctuation."""
_Array = Any
"""An array of pyarrow, whose stubs require a type parameter."""


def json_rows(batch: pa.RecordBatch) -> list[bytes]:
    """A JSON object for each row. Null and NaN become members that are null."""
    if not batch.num_columns:
        return [b"{}"] * batch.num_rows
    parts: list[_Array] = []
    for index, field in enumerate(batch.schema):
        before = f"{',' if index else '{'}{encode_basestring(field.name)}:"
        parts += (_text(before), pc.fill_null(_members(batch.column(index), field.type), _text("null")))
    values: list[bytes] = pc.binary_join_element_wise(*parts, _text("}"), _text("")).cast(pa.large_binary()).to_pylist()
    return values


def bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts whose names, texts and bytes have at most `BLOCK_BYTES_MAX`, or that are one row. Cells that no
    record could hold are cut: they are too large also then, and are reported as such."""
    sizes = [size for column in batch.columns if (size := _bytes_of(column)) is not None]
    names = sum(len(name.encode()) + _CELL_BYTES for name in batch.schema.names)
    if names * batch.num_rows + sum(pc.sum(size).as_py() or 0 for size in sizes) <= BLOCK_BYTES_MAX:
        yield batch
        return
    texts = zip(*(pc.fill_null(size, 0).to_pylist() for size in sizes), strict=True) if sizes else repeat(())
    rows = [sum(row, names) for row, _ in zip(texts, range(batch.num_rows), strict=False)]
    start, held = 0, 0
    for row, size in enumerate(rows):
        if row > start and held + size > BLOCK_BYTES_MAX:
            yield _cut(batch.slice(start, row - start), held)
            start, held = row, 0
        held += size
    yield _cut(batch.slice(start), held)


def _bytes_of(column: _Array) -> _Array | None:
    """The number of bytes of each text, also of those that a dictionary holds once; None for other columns."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        inner = _bytes_of(column.dictionary)
        return None if inner is None else inner.cast(pa.int64()).take(column.indices)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([kind.byte_width] * len(column), pa.int64())
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return pc.binary_length(column).cast(pa.int64()) if any(of(kind) for of in texts) else None


def _cut(rows: pa.RecordBatch, size: int) -> pa.RecordBatch:
    """One row that is too large for a record, with its texts shortened."""
    if rows.num_rows > 1 or size <= 2 * RECORD_BYTES_MAX:
        return rows
    return pa.RecordBatch.from_arrays([_cut_cells(column) for column in rows.columns], rows.schema.names)


def _cut_cells(column: _Array) -> _Array:
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _cut_cells(column.dictionary))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, RECORD_BYTES_MAX)
    if _bytes_of(column) is not None:
        return pc.binary_slice(column.cast(pa.large_binary()), 0, RECORD_BYTES_MAX)
    return column


def _text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _members(column: _Array, kind: pa.DataType) -> _Array:
    """The members as JSON text; null for nulls."""
    types = pa.types
    if types.is_dictionary(kind):
        return _members(column.dictionary_decode(), kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(column.cast(pa.large_string()))
    if types.is_integer(kind) or types.is_boolean(kind):
        return column.cast(pa.large_string())
    if types.is_float32(kind) or types.is_float64(kind):
        return pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind)).cast(pa.large_string())
    if types.is_decimal(kind) or types.is_date(kind):
        return _between_quotes(column.cast(pa.string()).cast(pa.large_string()))
    if types.is_timestamp(kind):
        instants = column.cast(pa.timestamp("ns" if kind.unit == "ns" else "us", tz="UTC"))
        texts = pc.strftime(instants, format="%Y-%m-%dT%H:%M:%SZ").cast(pa.large_string())
        return _between_quotes(pc.replace_substring_regex(texts, _NO_NANOS, r"\1\2"))
    if types.is_time64(kind) and kind.unit == "ns":
        texts = pc.replace_substring_regex(column.cast(pa.string()).cast(pa.large_string()), _NO_NANOS, r"\1\2")
        return _between_quotes(pc.replace_substring_regex(texts, r"\.0+$", ""))
    made = [None if value is None else as_json(value).decode() for value in column.to_pylist()]
    return pa.array(made, pa.large_string())


def _quoted(texts: _Array) -> _Array:
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py() is not True:
        return _between_quotes(texts)
    # Each distinct text once: columns contain repeated values.
    coded = texts.dictionary_encode()
    made = [None if text is None else encode_basestring(text) for text in coded.dictionary.to_pylist()]
    return pa.array(made, pa.large_string()).take(coded.indices)


def _between_quotes(texts: _Array) -> _Array:
    return pc.binary_join_element_wise(_text('"'), texts, _text('"'), _text(""))
