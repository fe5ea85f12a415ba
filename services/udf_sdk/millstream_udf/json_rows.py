"""Writes the rows of a table as JSON objects, in the same form as the rows of a query.

    many rows ─► Arrow: each column as texts, then all of them joined
    few rows ──► Python, which takes less time to begin

Above it: `arrow`, `reduce_arrow`, `arrow_values` and `arrow_json`. Below it: pyarrow.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream_udf.misfits import BadOutput

MANY_ROWS = 512
"""From so many rows on, Arrow takes less time."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
_NANOSECONDS = "[ns"
"""In the names of types whose values have them."""
_CONSTANTS = {None: "null", True: "true", False: "false"}
_ESCAPED = r'[\x00-\x1f"\\]'
"""The characters that JSON texts cannot have as they are."""
_PLAIN_FROM, _PLAIN_BELOW = 1e-4, 1e15
"""Between these, Python writes numbers without an exponent."""


def rows_as_json(table: Any) -> list[bytes]:
    """Rows as JSON objects. Raises `BadOutput`."""
    return items(json_column(table))


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


def json_column(table: Any) -> Any:
    """The rows as a binary array of JSON objects. `table`: a table or a batch. Raises `BadOutput`."""
    names = table.schema.names
    if not names or len(set(names)) != len(names):
        return pa.array([_written(row).encode() for row in table.to_pylist()], pa.binary())
    columns = [whole(column) for column in table.columns]
    if table.num_rows >= MANY_ROWS:
        return _joined(names, columns)
    form = "{" + ",".join(encode_basestring(name).replace("%", "%%") + ":%s" for name in names) + "}"
    return pa.array([(form % row).encode() for row in zip(*map(_cells, columns), strict=True)], pa.binary())


def whole(column: Any) -> Any:
    """An array for a column that may have several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _joined(names: Sequence[str], columns: Sequence[Any]) -> Any:
    parts: list[Any] = []
    before = "{"
    for name, column in zip(names, columns, strict=True):
        begin, texts, end = _texts(column)
        parts += (pa.scalar(f"{before}{encode_basestring(name)}:{begin}"), texts)
        before = f"{end},"
    joined: Any = pc.binary_join_element_wise(*parts, pa.scalar(f"{before[:-1]}}}"), pa.scalar(""))
    return joined.cast(pa.binary())


def _texts(column: Any) -> tuple[str, Any, str]:
    """The cells of a column as JSON, in an array of texts without nulls; and what is before and after each."""
    kind, texts = column.type, None
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        texts = column.cast(pa.string())
    elif pa.types.is_float64(kind) or pa.types.is_float32(kind):
        texts = _decimals(column.cast(pa.float64()))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Arrow does not check that they are UTF-8, and JSON has to be.
        column.validate(full=True)
        texts = column.cast(pa.string())
        if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
            texts = None
        elif not column.null_count:
            return '"', texts, '"'
        else:
            quote = pa.scalar('"')
            texts = pc.binary_join_element_wise(quote, texts, quote, pa.scalar(""))
    if texts is None:
        return "", pa.array(list(_cells(column)), pa.string()), ""
    return "", pc.fill_null(texts, "null") if texts.null_count else texts, ""


def _decimals(column: Any) -> Any:
    """Numbers as texts, as Python writes them; None if Arrow might have another form for one of them."""
    size = pc.abs(column)
    zero, first, last = map(pa.scalar, (0.0, _PLAIN_FROM, _PLAIN_BELOW))
    plain = pc.or_(pc.equal(size, zero), pc.and_(pc.greater_equal(size, first), pc.less(size, last)))
    if pc.all(plain).as_py() is False:
        return None
    texts: Any = column.cast(pa.string())
    if pc.any(pc.match_substring(texts, "e")).as_py():
        return None
    whole = pc.equal(pc.floor(column), column)
    if not pc.any(whole).as_py():
        return texts
    return pc.if_else(whole, pc.binary_join_element_wise(texts, pa.scalar(".0"), pa.scalar("")), texts)


def _cells(column: Any) -> Iterable[str]:
    """The cells of a column as JSON."""
    kind, cells = column.type, _values(column)
    if pa.types.is_boolean(kind):
        return map(_CONSTANTS.__getitem__, cells)
    if not column.null_count:
        if pa.types.is_integer(kind):
            return map(str, cells)
        if (pa.types.is_float64(kind) or pa.types.is_float32(kind)) and all(map(math.isfinite, cells)):
            return map(float.__repr__, cells)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return map(encode_basestring, cells)
    return map(_written, cells)


def _values(column: Any) -> list[Any]:
    """The cells as values of Python. Those that have nanoseconds are texts already."""
    # Python has no nanoseconds, and whether Arrow cuts or refuses them depends on whether pandas is installed.
    return list(map(_of_scalar, column)) if _NANOSECONDS in str(column.type) else column.to_pylist()


def _of_scalar(scalar: Any) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.DictionaryScalar):
        return _of_scalar(scalar.value)
    if isinstance(scalar, pa.StructScalar):
        return {name: _of_scalar(item) for name, item in scalar.items()}
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar) and not pa.types.is_map(kind):
        items_of: Any = scalar.values
        return [_of_scalar(item) for item in items_of]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        micros, nanos = divmod(scalar.value, 1000)
        moment = _EPOCH + timedelta(microseconds=micros)
        return _with_nanos(moment, nanos) + "Z" if kind.tz else _with_nanos(moment, nanos, shortest=True)
    if pa.types.is_time(kind) and kind.unit == "ns":
        micros, nanos = divmod(scalar.value, 1000)
        return _with_nanos((_EPOCH + timedelta(microseconds=micros)).time(), nanos, shortest=True)
    return scalar.as_py()


def _with_nanos(moment: datetime | time, nanos: int, *, shortest: bool = False) -> str:
    """`shortest`: without a fraction that is zero."""
    if nanos:
        return f"{moment.isoformat(timespec='microseconds')}{nanos:03}"
    return moment.isoformat(timespec="auto" if shortest else "microseconds")


def _written(value: Any) -> str:
    match value:
        case None | bool():
            return _CONSTANTS[value]
        case int():
            return str(value)
        case str():
            return encode_basestring(value)
        case float():
            return float.__repr__(value) if math.isfinite(value) else "null"
        case dict():
            return "{" + ",".join(f"{encode_basestring(name)}:{_written(item)}" for name, item in value.items()) + "}"
        case list():
            return f"[{','.join(map(_written, value))}]"
        case datetime() if value.tzinfo is not None:
            return f'"{_with_nanos(value.astimezone(UTC).replace(tzinfo=None), 0)}Z"'
        case datetime() | date() | time():
            return f'"{value.isoformat()}"'
        case bytes():
            return f'"{base64.b64encode(value).decode()}"'
        case Decimal():
            # A float would lose digits.
            text = f"{value:f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
    raise BadOutput(
        f"rows of a table without a column value become JSON, which has no {type(value).__name__}: add a column value"
    )
