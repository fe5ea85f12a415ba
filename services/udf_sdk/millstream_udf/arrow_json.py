"""Converts JSON objects to columns of a schema.

Some types are texts in JSON that Arrow does not read in the forms in which `json_rows` writes them:

    dates, times                     a text
    timestamps in s or ms            a text with six digits after the seconds
    bytes                            a text in base64

Above it: `arrow` and `reduce_arrow`. Below it: pyarrow.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from millstream_udf.json_rows import items
from millstream_udf.json_types import loaded
from millstream_udf.misfits import Misfit, expected, missing

_DAY = "1970-01-01T"
"""Before a time, which Arrow reads only together with a date."""
OWNER = "the schema"
"""The required type of a value, for messages."""


def decoded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the fields of its values, which are JSON objects, instead of the values. Raises `Misfit` for the
    first value that does not fit the schema."""
    whole, misfits = fitting(batch, schema)
    for misfit in misfits.values():
        raise misfit
    return whole


def fitting(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, Misfit]]:
    """The same as `decoded` for the rows that fit, and the misfits of the others by row."""
    values = items(batch["value"])
    columns = _columns(values, schema)
    misfits: dict[int, Misfit] = {}
    if columns is None:
        _look(values, schema, 0, misfits)
        rows = [row for row in range(len(values)) if row not in misfits]
        batch = batch.take(pa.array(rows, pa.int64()))
        columns = _columns([values[row] for row in rows], schema)
        if columns is None:
            raise Misfit("is refused by pyarrow together with others, though not alone").of(OWNER)
    arrays: list[Any] = [*columns, *batch.columns[1:]]
    return pa.RecordBatch.from_arrays(arrays, names=[*schema.names, *batch.schema.names[1:]]), misfits


def _look(values: Sequence[bytes], schema: pa.Schema, first: int, misfits: dict[int, Misfit]) -> None:
    """Finds the values that do not fit by halving, because most do."""
    if _columns(values, schema) is not None:
        return
    if len(values) == 1:
        misfits[first] = _misfit(values[0], schema).of(OWNER)
        return
    middle = len(values) // 2
    _look(values[:middle], schema, first, misfits)
    _look(values[middle:], schema, first + middle, misfits)


def _misfit(value: bytes, schema: pa.Schema) -> Misfit:
    try:
        given = loaded(value)
    except Misfit as misfit:
        return misfit
    if not isinstance(given, dict):
        return expected("an object", given)
    for field in schema:
        if field.name not in given and not field.nullable:
            return missing(field.name, list(given))
        alone = json.dumps({field.name: given.get(field.name)}).encode()
        if _columns([alone], pa.schema([field])) is None:
            return expected(str(field.type), given.get(field.name)).below(field.name)
    return Misfit("is refused by pyarrow")


def _columns(values: Sequence[bytes], schema: pa.Schema) -> list[Any] | None:
    """The fields of values; None if one does not fit."""
    if not values:
        return [pa.array([], field.type) for field in schema]
    if len(values) > 1 and not _are_apart(values):
        return None
    data = b"\n".join(values)
    options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pa_json.ParseOptions(
        explicit_schema=_schema_read(schema), newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    try:
        if not data.isascii():
            data.decode()
        table = pa_json.read_json(BytesIO(data), read_options=options, parse_options=parsing)
        if table.num_rows != len(values):
            return None
        table = table.combine_chunks()
        columns: list[Any] = [_of_kind(table[field.name].chunk(0), field.type) for field in schema]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    full = all(field.nullable or not column.null_count for field, column in zip(schema, columns, strict=True))
    return columns if full else None


def _are_apart(values: Sequence[bytes]) -> bool:
    """Whether values that are parsed together cannot run into each other: no object continues with `{` after `}`. So
    there is at least one object for each value, and if there are as many as values, each is where it belongs."""
    stripped = list(map(bytes.strip, values))
    return {value[:1] for value in stripped} == {b"{"} and {value[-1:] for value in stripped} == {b"}"}


@lru_cache(maxsize=64)
def _schema_read(schema: pa.Schema) -> pa.Schema:
    """The same fields with the types that Arrow reads."""
    return pa.schema([field.with_type(_kind_read(field.type)) for field in schema])


def _kind_read(kind: Any) -> Any:
    types = pa.types
    if types.is_date(kind) or types.is_time(kind) or _is_bytes(kind):
        return pa.string()
    if types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_kind_read(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_kind_read(field.type)) for field in kind])
    return kind


def _is_bytes(kind: Any) -> bool:
    return any(of(kind) for of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))


def _of_kind(column: Any, kind: Any) -> Any:
    """A column of a type of `_kind_read` as one of its own type. Raises `pyarrow.ArrowInvalid` if a text is not a value
    of it, or has more digits."""
    types = pa.types
    if column.type == kind:
        return column
    if types.is_list(kind):
        return pa.ListArray.from_arrays(
            column.offsets, _of_kind(column.values, kind.value_type), type=kind, mask=column.is_null()
        )
    if types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [_of_kind(column.field(at), field.type) for at, field in enumerate(kind)],
            fields=list(kind),
            mask=column.is_null(),
        )
    if _is_bytes(kind):
        return pa.array([None if text is None else _decoded(text) for text in column.to_pylist()], kind)
    if types.is_time(kind):
        day, nothing = pa.scalar(_DAY), pa.scalar("")
        whole: Any = pc.binary_join_element_wise(day, column, nothing)
        return whole.cast(pa.timestamp("ns")).cast(pa.time64("ns")).cast(kind)
    return column.cast(kind)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
