"""Values as Arrow columns, on the way to the next function of a chain or to an SQL reduce: the function that makes them
writes no JSON, and what takes them parses none.

Above it: `arrow`, and frames, whose parts are made here. Below it: pyarrow, so it is imported only if a
function uses Arrow.

The columns stand for the JSON objects that `rows_as_json` writes of their rows. They are used only where that makes no
difference to the second function: with cells that stay the same when they are written as JSON and parsed with their
types. Every other value travels as JSON, and what needs JSON gets it from the columns.

That JSON is never much larger than the columns, whichever rows are taken from them: otherwise limits that hold for one
form would not hold for the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa

from millstream_udf.arrow_messages import JSON_TIMES, is_compressed
from millstream_udf.misfits import BadOutput

_COLUMNS_MAX = 256
"""More would make the schema, which is in every frame, a large part of small ones."""
_JSON_BYTES_MAX = 6 * 1024 * 1024
"""All rows of a batch, if they were one JSON object: less than the largest record, so none of them is too large."""
_ESCAPED = 6
"""Bytes of JSON for a byte of text, at most."""
_CELL_BYTES_MAX = 32
"""Bytes of JSON for a number or constant, at most."""


def packed(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow IPC stream; empty if they have to travel as JSON."""
    fields: list[pa.Field[Any]] = [field.remove_metadata() for field in rows.schema]
    schema = pa.schema(fields)
    texts = rows.nbytes + sum(len(name.encode()) for name in schema.names)
    if _fault_of(schema) or _ESCAPED * texts + _CELL_BYTES_MAX * len(fields) > _JSON_BYTES_MAX:
        return b""
    if not all(map(_stays_the_same, rows.columns)):
        return b""
    return stream_of(pa.RecordBatch.from_arrays(rows.columns, schema=schema))


def stream_of(rows: pa.RecordBatch | pa.Table) -> bytes:
    """These rows as an Arrow IPC stream."""
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, rows.schema) as stream:
        stream.write(rows)
    return target.getvalue().to_pybytes()


@lru_cache(maxsize=64)
def _fault_of(schema: pa.Schema) -> str:
    """Why rows with these columns travel as JSON, whatever they hold; empty if they need not."""
    if not 0 < len(schema) <= _COLUMNS_MAX:
        return f"{len(schema)} columns"
    if len(set(schema.names)) != len(schema):
        return "two columns of one name"
    of_columns, of_json = 0.0, 2
    for field in schema:
        if (sizes := _sizes(field.type)) is None:
            return f"a column of type {field.type}"
        of_columns += sizes[0]
        of_json += len(encode_basestring(field.name).encode()) + 2 + sizes[1]
    # What texts add to both is less than that.
    return "JSON that would be much larger" if of_json > JSON_TIMES * of_columns else ""


def _sizes(kind: Any) -> tuple[float, int] | None:
    """Bytes of a cell in a column, and at most as JSON, without those of a text; None for other types than JSON has."""
    if pa.types.is_boolean(kind):
        return 1 / 8, len("false")
    if pa.types.is_integer(kind):
        return kind.bit_width / 8, max(len("null"), len(str(-(1 << kind.bit_width - 1))))
    if _is_number(kind):
        return kind.bit_width / 8, len("-1.2345678901234567e-308")
    if _is_text(kind):
        return 8 if pa.types.is_large_string(kind) else 4, len("null")
    return None


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: Any) -> bool:
    return pa.types.is_float64(kind) or pa.types.is_float32(kind)


def _stays_the_same(column: Any) -> bool:
    """Whether JSON keeps the cells as they are, in a column of a type that it has."""
    if _is_text(column.type):
        # Arrow itself does not check that a text is UTF-8.
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    if _is_number(column.type):
        import pyarrow.compute as pc

        # Infinity and NaN become null.
        return pc.all(pc.is_finite(column)).as_py() is not False
    return True


def unpacked(column: bytes, count: int) -> pa.RecordBatch:
    """The rows, in the memory of `column`. Raises `ValueError` if it does not have `count` of them, or if they do not
    stand for JSON objects."""
    try:
        with pa.ipc.open_stream(column) as stream:
            if fault := _fault_of(stream.schema):
                raise ValueError(f"Arrow columns that do not stand for JSON objects: {fault}")
            if is_compressed(column):
                raise ValueError("the values are not Arrow columns: they are compressed")
            rows = stream.read_next_batch()
            rows.validate(full=True)
            more = next(stream, None)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(f"the values are not Arrow columns: {error!r}") from error
    if rows.num_rows != count:
        raise ValueError(f"a frame with {count} records has {rows.num_rows} rows of Arrow columns")
    if more is not None or rows.nbytes > len(column):
        raise ValueError("the values are not Arrow columns: several batches")
    return rows


def check(column: bytes, count: int) -> None:
    """Raises `ValueError` unless the columns can be read, and JSON would not change a cell."""
    rows = unpacked(column, count)
    for name, cells in zip(rows.schema.names, rows.columns, strict=True):
        if not _stays_the_same(cells):
            raise ValueError(f"Arrow columns that do not stand for JSON objects: JSON changes cells of {name}")


def parts(column: bytes, count: int, groups: Sequence[Sequence[int]]) -> list[bytes]:
    """For each group, the columns of the rows at its indexes, in that order. Raises `ValueError`."""
    rows = unpacked(column, count)
    numbers = (pa.py_buffer(array("I", indexes)) for indexes in groups)
    places = (pa.Array.from_buffers(pa.uint32(), some.size // 4, [None, some]) for some in numbers)
    return [stream_of(rows.take(some)) for some in places]


def part(column: bytes, count: int, start: int, stop: int) -> bytes:
    """The columns of the rows from `start` up to but not including `stop`. Raises `ValueError`."""
    return stream_of(unpacked(column, count).slice(start, stop - start))


def joined(columns: Sequence[bytes], counts: Sequence[int]) -> bytes:
    """The columns of all rows, in order; empty if they have not the same names and types. Raises `ValueError`."""
    batches = list(map(unpacked, columns, counts))
    if any(not batch.schema.equals(batches[0].schema) for batch in batches):
        return b""
    whole: list[Any] = [pa.concat_arrays(arrays) for arrays in zip(*(batch.columns for batch in batches), strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(whole, schema=batches[0].schema))


def fields_of(rows: pa.RecordBatch, schema: pa.Schema) -> list[Any] | None:
    """The columns for the fields of `schema`; None if the JSON of the rows would have to be parsed to know them."""
    fields: list[Any] = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        column = rows.column(at) if at >= 0 else pa.nulls(rows.num_rows, field.type)
        if column.type != field.type or (column.null_count and not field.nullable):
            return None
        fields.append(column)
    return fields


def as_json(column: bytes, count: int) -> list[bytes]:
    """The values. Raises `ValueError`."""
    from millstream_udf.json_rows import rows_as_json

    try:
        return rows_as_json(unpacked(column, count))
    except BadOutput as error:
        raise ValueError(f"the values are not Arrow columns of JSON: {error}") from error
