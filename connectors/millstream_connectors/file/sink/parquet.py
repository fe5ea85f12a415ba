"""Parquet for the file sink. Imported only when a sink needs it, because Arrow is an extra of the distribution.

    values ─► one JSON text a line ─► Arrow's parser ─► table            the fast path, for frames without invalid
    records
           └► record by record ─► cells of those that fit ─► table       if the fast path refuses anything

Both return the same table for records that both accept: the fast path is used only for frames whose lines are exactly
one object each.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from millstream.exact_json import double_of, number_of
from millstream.frame import Frame
from millstream.json_text import members_reader
from millstream.limits import MIB
from millstream_connectors.file.sink.formats import CaughtBytes, StorableRows, convert_cells
from millstream_connectors.shared.arrow_arrays import numbers_array, texts_array
from millstream_connectors.shared.columns import Column

ROW_GROUP_RECORDS = 64 * 1024
"""Rows kept in memory until they are encoded. Larger groups are better for readers, but take more memory."""
ROW_GROUP_BYTES = 16 * MIB

NESTING_MAX = 500
"""Number of arrays and objects in one value up to which their nesting need not be checked."""

_LONG = re.compile(rb"[0-9](?:\.?[0-9]){15}")
"""A number that a float may not hold: doubles are exact up to 15 digits."""
_CONSTANT = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf(?:inity)?)\s*[,\]}]")
_FIRST, _LAST = itemgetter(0), itemgetter(-1)
_OPENED, _CLOSED = {ord("{")}, {ord("}")}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES_US = [
    (moment - _EPOCH) // timedelta(microseconds=1)
    for moment in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
]
_EARLIEST, _LATEST = numbers_array(pa.int64(), array("q", _TIMES_US))
"""Range of times that Python supports, too."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": _TIMESTAMP,
}
_ZULU, _NOTHING = texts_array([b"Z", b""])
_OFFSET = r"(?:[zZ]|[+-]\d\d:?\d\d)$"
_BINARY = pa.schema([pa.field("value", pa.binary(), nullable=False)])


class Parquet:
    """Members of a JSON object as columns; without declared columns, one binary column `value`."""

    extension = "parquet"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.schema = pa.schema([(column.name, _TYPES[column.type]) for column in columns]) if columns else _BINARY
        # Times are read as text first, because Arrow's JSON parser and ours accept different times.
        parsed = [(c.name, pa.string() if c.type == "timestamp" else _TYPES[c.type]) for c in columns]
        floats = {column.name: Any for column in columns if column.type == "float"}
        self._floats = members_reader(floats, number_of) if floats else None
        self._parse_options = pj.ParseOptions(
            explicit_schema=pa.schema(parsed), newlines_in_values=False, unexpected_field_behavior="ignore"
        )

    def convert(self, frame: Frame) -> StorableRows[pa.Table]:
        if not self._columns:
            table = pa.Table.from_arrays([texts_array(frame.values(), pa.binary())], schema=_BINARY)
            return StorableRows(range(frame.records), table, table.nbytes)
        values = frame.values()
        fast = self._parse_all(values)
        if fast is not None:
            return StorableRows(range(frame.records), fast, fast.nbytes)
        cells, rows, failures = convert_cells(values, self._columns)
        arrays = [
            pa.array([row_cells[number] for row_cells in cells], field.type) for number, field in enumerate(self.schema)
        ]
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        return StorableRows(rows, table, table.nbytes, failures)

    def begin(self) -> ParquetBody:
        return ParquetBody(self.schema)

    def _parse_all(self, values: Sequence[bytes]) -> pa.Table | None:
        """All values at once; None if anything is unusual."""
        text = b"\n".join(values)
        if not _is_plain(values, text) or not self._has_doubles(values, text):
            return None
        try:
            if not text.isascii():
                text.decode()
            options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
            # The stubs know only files and paths; Arrow's own reader saves a copy.
            table = pj.read_json(pa.BufferReader(text), options, self._parse_options)  # type: ignore[arg-type]
            return self._typed(table) if table.num_rows == len(values) else None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            return None

    def _has_doubles(self, values: Sequence[bytes], text: bytes) -> bool:
        """Whether the numbers in columns of floats lose no digits: Arrow's parser does not say."""
        if self._floats is None or _LONG.search(text) is None:
            return True
        members = self._floats(values)
        try:
            for number in chain.from_iterable(members or ()):
                if isinstance(number, int | Decimal):
                    double_of(number)
        except ValueError:
            return False
        return members is not None

    def _typed(self, table: pa.Table) -> pa.Table | None:
        """The parsed columns in their final types."""
        arrays = []
        for field in self.schema:
            column = table.column(field.name)
            if field.type == _TIMESTAMP:
                # Most times end like this, and looking for a pattern takes ten times as long.
                if pc.all(pc.ends_with(column, "Z")).as_py() is False:
                    column = _with_offsets(column)
                column = pc.cast(column, _TIMESTAMP)
                times_us = column.cast(pa.int64())
                early, late = pc.less(times_us, _EARLIEST), pc.greater(times_us, _LATEST)
                if pc.any(early).as_py() is True or pc.any(late).as_py() is True:
                    return None
            elif field.type == pa.float64() and pc.all(pc.is_finite(column)).as_py() is False:
                return None
            arrays.append(column)
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _with_offsets(times: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """A time without an offset is in UTC."""
    has_offset = pc.match_substring_regex(times, _OFFSET)
    if pc.all(has_offset).as_py() is not False:
        return times
    zoned = pc.binary_join_element_wise(times, _ZULU, _NOTHING)
    found: pa.ChunkedArray[Any] = pc.if_else(has_offset, times, zoned)
    return found


def _is_plain(values: Sequence[bytes], text: bytes) -> bool:
    """Whether the two parsers agree on these values, which are joined with line breaks in `text`.

    1. There are as many lines as values, and each begins with `{` and ends with `}`. Arrow reads over line breaks, and
       takes several objects in a line. But no object continues with `{` after `}`, so each value is at least one row;
       if there are as many rows as values, each is exactly one.
    2. There is no NaN or Infinity outside of texts, which Arrow accepts and JSON does not have.
    3. There is no nesting that Python's parser refuses and Arrow's does not.
    """
    # A search for one byte takes a hundredth of the time of a search for two.
    if b"\r" in text or text.count(b"\n") != len(values) - 1:
        return False
    if not all(values) or set(map(_FIRST, values)) != _OPENED or set(map(_LAST, values)) != _CLOSED:
        return False
    if (b"N" in text or b"I" in text) and (b"NaN" in text or b"Inf" in text) and _CONSTANT.search(text) is not None:
        return False
    if (b"[" in text and text.count(b"[")) + text.count(b"{") - len(values) > NESTING_MAX:
        return max(value.count(b"[") + value.count(b"{") for value in values) <= NESTING_MAX
    return True


class ParquetBody:
    """One Parquet file. Arrow's output is collected in memory, so that a full disk never leaves a partly written
    file."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._records = 0
        self._bytes = 0
        self._caught = CaughtBytes()
        self._writer = pq.ParquetWriter(pa.PythonFile(self._caught, "w"), schema)

    def add(self, content: pa.Table, start: int, stop: int) -> bytes:
        part = content.slice(start, stop - start)
        self._waiting.append(part)
        self._records += part.num_rows
        self._bytes += part.nbytes
        if self._records >= ROW_GROUP_RECORDS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()
        return self._caught.take()

    def finish(self) -> bytes:
        if self._waiting:
            self._write_group()
        self._writer.close()
        return self._caught.take()

    def _write_group(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting.clear()
        self._records = self._bytes = 0
