"""Converts JSON objects to columns of a schema, and rows of a table to JSON objects.

Above it: `arrow` and `reduce_arrow`. Below it: pyarrow, imported only if a function uses it.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from millstream_udf.failures import BadOutput
from millstream_udf.json_types import loaded
from millstream_udf.misfits import Misfit, expected, missing

if TYPE_CHECKING:
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa
    from pyarrow import json as pa_json

    if not values:
        return [pa.array([], field.type) for field in schema]
    if len(values) > 1 and not _are_apart(values):
        return None
    data = b"\n".join(values)
    options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pa_json.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore")
    try:
        if not data.isascii():
            data.decode()
        table = pa_json.read_json(BytesIO(data), read_options=options, parse_options=parsing)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != len(values):
        return None
    table = table.combine_chunks()
    columns: list[Any] = [table[name].chunk(0) for name in schema.names]
    full = all(field.nullable or not column.null_count for field, column in zip(schema, columns, strict=True))
    return columns if full else None


def _are_apart(values: Sequence[bytes]) -> bool:
    """Whether values that are parsed together cannot run into each other: no object continues with `{` after `}`. So
    there is at least one object for each value, and if there are as many as values, each is where it belongs."""
    stripped = list(map(bytes.strip, values))
    return {value[:1] for value in stripped} == {b"{"} and {value[-1:] for value in stripped} == {b"}"}


def items(column: Any) -> list[bytes]:
    """The byte strings of a binary array. Slicing its data is five times as fast as `to_pylist`."""
    if not len(column):
        return []
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = array("i")
    offsets.frombytes(memoryview(offsets_buffer)[4 * column.offset : 4 * (column.offset + len(column) + 1)])
    first = offsets[0]
    data = b"" if data_buffer is None else bytes(memoryview(data_buffer)[first : offsets[-1]])
    if first == 0:
        return [data[start:stop] for start, stop in pairwise(offsets)]
    return [data[start - first : stop - first] for start, stop in pairwise(offsets)]


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_CONSTANTS = {None: "null", True: "true", False: "false"}


def rows_as_json(table: Any) -> list[bytes]:
    """Rows as JSON objects, in the same form as the rows of a query. Raises `BadOutput`."""
    names = table.schema.names
    if not names or len(set(names)) != len(names):
        return [_encode(_plain(row)).encode() for row in table.to_pylist()]
    # Column by column: a row by itself takes several times as long.
    form = "{" + ",".join(_encode(name).replace("%", "%%") + ":%s" for name in names) + "}"
    rows = zip(*map(_texts, table.columns), strict=True)
    return [(form % row).encode() for row in rows]


def _texts(column: Any) -> Iterable[str]:
    """The cells of a column as JSON."""
    import pyarrow as pa

    kind, cells = column.type, column.to_pylist()
    if pa.types.is_boolean(kind):
        return map(_CONSTANTS.__getitem__, cells)
    if not column.null_count:
        if pa.types.is_integer(kind):
            return map(str, cells)
        if (pa.types.is_float64(kind) or pa.types.is_float32(kind)) and all(map(math.isfinite, cells)):
            return map(float.__repr__, cells)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return map(encode_basestring, cells)
    return [_encode(_plain(cell)) for cell in cells]


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
    raise BadOutput(
        f"rows of a table without a column value become JSON, which has no {type(value).__name__}: add a column value"
    )
