"""Rows of an Arrow table as JSON objects, made column by column. Pure.

Arrow converts numbers, texts, booleans, times and dates; a column of another type (lists, structs, bytes) is converted
value by value. Above it: sources that read Parquet and lake tables. Below it: pyarrow, an extra.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = r'[\x00-\x1f"\\]'
_Array = Any
"""An array of pyarrow, whose stubs require a type parameter."""


def json_rows(batch: pa.RecordBatch) -> list[bytes]:
    """A JSON object for each row. Null and NaN become members that are null."""
    if not batch.num_columns:
        return [b"{}"] * batch.num_rows
    parts: list[_Array] = []
    for index, field in enumerate(batch.schema):
        before = f"{',' if index else '{'}{encode_basestring(field.name)}:"
        members = pc.fill_null(_members(batch.column(index), field.type), _text("null"))
        parts += (_text(before), members)
    joined = pc.binary_join_element_wise(*parts, _text("}"), _text(""))
    values: list[bytes] = joined.cast(pa.large_binary()).to_pylist()
    return values


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
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        return finite.cast(pa.large_string())
    if types.is_decimal(kind) or types.is_date(kind):
        return _between_quotes(column.cast(pa.string()).cast(pa.large_string()))
    if types.is_timestamp(kind):
        instants = column.cast(pa.timestamp("us", tz="UTC"), safe=False)
        return _between_quotes(pc.strftime(instants, format="%Y-%m-%dT%H:%M:%SZ").cast(pa.large_string()))
    from millstream_reader.sources.file.table_file import as_json

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
