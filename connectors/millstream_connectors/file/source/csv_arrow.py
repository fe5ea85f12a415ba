"""CSV lines without quotes, parsed and written as JSON by Arrow, column by column. Pure.

Most lines of most files are like this: the text between delimiters is the unchanged text of a field, and needs no
escaping in JSON. Whole columns are then checked, converted to members and joined without a Python object per field, and
the result is the stored form of a frame's columns.

Arrow parses CSV, numbers and times differently from Python. So it is used only where both certainly agree, and
everything else is left to `csv_parsing`, which returns the same records for any lines: quotes, text that JSON escapes,
rows with too few or too many fields, values that do not have their column's type, text that is not in its encoding.

Above it: `csv_parsing`. Below it: pyarrow, an extra whose import takes as long as some 100,000 rows. So this module is
imported only if a file is large, or if pyarrow is already loaded.
"""

from __future__ import annotations

from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from millstream.extract import RFC3339, YEAR_1_US, Extraction, TimeParser
from millstream.limits import RECORD_BYTES_MAX
from millstream.values import Values
from millstream_connectors.file.source.csv_members import ENCODERS
from millstream_connectors.shared.arrow_arrays import numbers_array, texts_array
from millstream_connectors.shared.parsing import UTF_8, ParsedLines, SealedRecords
from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2

_Array = Any
"""An array of pyarrow, whose stubs require a type parameter."""

_ESCAPED = frozenset((*range(0x20), *b'"\\')) - frozenset(b"\n")
"""Bytes that JSON text must escape, and CSV quotes. Newlines separate the lines."""
_TIMES = pa.timestamp("us", tz="UTC")


def _number(kind: pa.DataType, packed: array[Any]) -> Any:
    return numbers_array(kind, packed)[0]


_EMPTY, _NULL, _QUOTE, _ZERO_TENTHS = texts_array([b"", b"null", b'"', b".0"])
_ABSENT = pa.Array.from_buffers(pa.string(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]
_ZERO, _ONE = _number(pa.float64(), array("d", [0.0])), _number(pa.float64(), array("d", [1.0]))
_PLAIN_MIN, _PLAIN_MAX = _number(pa.float64(), array("d", [1e-4])), _number(pa.float64(), array("d", [1e9]))
"""Both Arrow and Python write numbers in this range without an exponent."""
_FIRST_TIME = _number(pa.int64(), array("q", [YEAR_1_US + 86_400_000_000]))
"""Before the second day of the year 1, Arrow accepts times that Python does not."""


def _reader(data: bytes) -> Any:
    return pa.BufferReader(data)


class ArrowRows:
    """Lines without quotes, under one header."""

    def __init__(
        self, names: Sequence[str], types: Sequence[str], *, encoding: str, delimiter: str, extraction: Extraction
    ) -> None:
        """The names of all columns and their types; `encoding` is a codec's own name, `delimiter` is ASCII."""
        self._encoding = encoding
        self._escaped = bytes(_ESCAPED - frozenset(delimiter.encode()))
        self._extraction = extraction
        self._types = types
        numbers = list(map(str, range(len(names))))
        self._parsing = csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False)
        # A block holds all lines that are parsed at once, so that each column is one array.
        self._reading = csv.ReadOptions(use_threads=False, column_names=numbers, block_size=4 * RECORD_BYTES_MAX)
        self._converting = csv.ConvertOptions(
            column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False
        )
        quotes = ['"' if name == "string" else "" for name in types]
        self._befores: _Array = texts_array(
            [
                f"{last}{',' if index else '{'}{encode_basestring(name)}:{quote}".encode()
                for index, (last, name, quote) in enumerate(zip(["", *quotes], names, quotes, strict=False))
            ]
        )
        self._end = texts_array([f"{quotes[-1]}}}".encode()])[0]
        self._time_index = names.index(extraction.time_field) if extraction.time_field is not None else -1
        self._key_indexes = [names.index(name) for name in extraction.key_fields]

    def parse(self, lines: Sequence[bytes]) -> ParsedLines | None:
        """A record for each of the lines; None if one of them is not that simple."""
        data = b"\n".join(lines)
        try:
            if self._encoding != UTF_8:
                data = data.decode(self._encoding).encode()
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
            # For a line of delimiters only, Arrow returns a row, whatever the number of columns.
            if data.startswith(b"\n") or b"\n\n" in data:
                return None
            # Arrow drops a byte order mark.
            if len(data.translate(None, self._escaped)) != len(data) or data.startswith(BOM_UTF8):
                return None
            table = csv.read_csv(_reader(data), self._reading, self._parsing, self._converting)
            if table.num_rows != len(lines) or any(column.num_chunks != 1 for column in table.columns):
                return None
            fields = [column.chunk(0) for column in table.columns]
            # An empty line is not a row.
            if len(fields) == 1 and pc.any(pc.equal(fields[0], _EMPTY)).as_py():
                return None
            sealed = self._sealed(fields)
            # A record is too large; the other parser reports which one.
            return ParsedLines(len(lines), sealed=sealed) if sealed.size <= RECORD_BYTES_MAX else None
        except ValueError:
            return None

    def _sealed(self, fields: Sequence[_Array]) -> SealedRecords:
        """Errors: `ValueError` for a field that does not have its column's type."""
        parts: list[_Array] = []
        for before, texts, name in zip(self._befores, fields, self._types, strict=True):
            parts += (before, texts if name == "string" else _members(texts, name))
        values = pc.binary_join_element_wise(*parts, self._end, _EMPTY)
        column = _bytes_column(values)
        has_time = self._time_index >= 0
        return SealedRecords(
            records=len(values),
            size=len(column.data),
            values=Values(column.SerializeToString()),
            event_times_us=_event_times(fields[self._time_index], self._extraction.parse_time) if has_time else None,
            keys_column=_keys_column([fields[index] for index in self._key_indexes]) if self._key_indexes else b"",
        )


def _members(texts: _Array, name: str) -> _Array:
    """The fields of a column of a type other than string, in JSON form. Errors: `ValueError`."""
    given = pc.if_else(pc.equal(texts, _EMPTY), _ABSENT, texts)
    members = _AGREED[name](given) if name in _AGREED else None
    if members is None:
        return _taken(texts, lambda unique: texts_array([ENCODERS[name](text).encode() for text in unique]))
    return pc.fill_null(members, _NULL)


def _ints(given: _Array) -> _Array | None:
    """None if Python might write one of them differently, or does not accept it as a whole number."""
    members = _cast(_cast(given, pa.int64()), pa.string())
    return members if members is not None and _all(pc.equal(members, given)) else None


def _numbers(given: _Array) -> _Array | None:
    """The same for numbers. Both write the fewest digits that identify the number."""
    numbers = _cast(given, pa.float64())
    if numbers is None or not _all(pc.is_finite(numbers)):
        return None
    sizes = pc.abs(numbers)
    sizes = pc.if_else(pc.equal(sizes, _ZERO), _ONE, sizes)
    if not _all(pc.and_(pc.greater_equal(sizes, _PLAIN_MIN), pc.less(sizes, _PLAIN_MAX))):
        return None
    members = numbers.cast(pa.string())
    whole = pc.binary_join_element_wise(members, _ZERO_TENTHS, _EMPTY)
    return pc.if_else(pc.match_substring(members, "."), members, whole)


def _moments(given: _Array) -> _Array | None:
    """The same for times, which stay unchanged."""
    return None if _instants(given) is None else pc.binary_join_element_wise(_QUOTE, given, _QUOTE, _EMPTY)


_AGREED: dict[str, Callable[[_Array], _Array | None]] = {"int": _ints, "float": _numbers, "timestamp": _moments}


def _instants(given: _Array) -> _Array | None:
    """Microseconds since 1970; None if Python might parse one of the times differently."""
    times = _cast(given, _TIMES)
    times = times.cast(pa.int64()) if times is not None else None
    return times if times is not None and _all(pc.greater_equal(times, _FIRST_TIME)) else None


def _event_times(texts: _Array, parse: TimeParser) -> array[int]:
    """Errors: `ValueError`."""
    times = _instants(texts) if parse is RFC3339 else None
    if times is None:
        times = _taken(texts, lambda unique: numbers_array(pa.int64(), array("q", map(parse, unique))))
    taken = array("q")
    taken.frombytes(memoryview(times.buffers()[1])[: 8 * len(times)])
    return taken


def _taken(texts: _Array, make: Callable[[list[str]], _Array]) -> _Array:
    """The result of `make` for each text. It is called once per distinct text, because many columns contain repeated
    values."""
    coded = texts.dictionary_encode()
    return make(coded.dictionary.to_pylist()).take(coded.indices)


def _cast(values: _Array | None, kind: pa.DataType) -> _Array | None:
    """None if one of the values is not of that kind."""
    try:
        return values.cast(kind) if values is not None else None
    except pa.ArrowInvalid:
        return None


def _all(truths: _Array) -> bool:
    """Without nulls."""
    return pc.all(truths, min_count=0).as_py() is True


def _bytes_column(texts: _Array) -> frame_pb2.SealedBytesColumn:
    """The texts, without an offset into their buffers, as a column of a frame."""
    _, offsets, data = texts.buffers()
    starts = array("I")
    starts.frombytes(memoryview(offsets)[: starts.itemsize * (len(texts) + 1)])
    return frame_pb2.SealedBytesColumn(
        offsets=columns.pack_offsets(starts), data=bytes(memoryview(data)[: starts[-1]]) if starts[-1] else b""
    )


def _keys_column(parts: Sequence[_Array]) -> bytes:
    """For each row, a list of its fields in these columns."""
    if len(parts) == 1:
        return frame_pb2.SealedListColumn(items=_bytes_column(parts[0])).SerializeToString()
    rows, width = len(parts[0]), len(parts)
    order = array("q", (column * rows + row for row in range(rows) for column in range(width)))
    items = pa.concat_arrays(parts).take(numbers_array(pa.int64(), order))
    starts = columns.pack_offsets(range(0, width * rows + 1, width))
    return frame_pb2.SealedListColumn(starts=starts, items=_bytes_column(items)).SerializeToString()
