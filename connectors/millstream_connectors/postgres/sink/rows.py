"""Records as lines of PostgreSQL's COPY text format, which the server turns into whatever types the table has. Pure.

If the table's columns have the types of JSON itself, records are rows of the binary format instead (`typed`).

A text member is written unchanged, a number with its digits, true and false as `t` and `f`, null and missing members as
NULL, an object or a list as JSON, and a list for an array column as an array. So a column may have any type for which
the text is valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import astuple

from millstream.exact_json import text_of
from millstream_connectors.postgres.sink.typed import Row, TypedRows
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_connectors.shared.tables.rows import NOT_TEXT, Absent, RowFormat
from millstream_connectors.shared.tables.settings import TableColumn, TableSink
from millstream_writer.sink import SinkFailure, SinkFrame

_NULL = "\\N"
_CHANGE = {"op", "before", "after", "lsn", "xid", "commitTime"}
"""Members of the changes that the postgres source reads."""
_SPECIAL = re.compile(r"[\\\n\r\t]")
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _text(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPED[found[0]], text) if _SPECIAL.search(text) else text


def _json(value: object) -> str:
    return _text(text_of(value))


_FIELDS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: str,
    float: repr,
    Decimal: str,
    bool: lambda value: "t" if value else "f",
    type(None): lambda _: _NULL,
    dict: _json,
    list: _json,
    datetime: datetime.isoformat,
    bytes: lambda value: _text(value.decode(errors="surrogateescape")),
}


class ArrayColumn(NamedTuple):
    """What a list needs to become an array."""

    delimiter: str
    """The character between two elements."""
    of_json: bool
    """Whether the elements are JSON, so that a list in a list is one of them."""


class PartialLine(bytes):
    """A line of a record that does not have all columns."""

    absent: tuple[int, ...]
    """Indexes of the columns that keep the value that the row has."""


class CopyFormat(RowFormat[bytes | Row]):
    """A line for each record, with its line break; or a row for each. With `deleteWhen`, a line has a flag that tells
    whether the record deletes. For an upsert, it ends with the columns that are absent, as a list of their indexes."""

    typed: TypedRows | None = None
    """Rows in the table's own types, once these are known and if they are supported."""
    arrays: Mapping[str, ArrayColumn] = MappingProxyType({})
    """The columns that are arrays, once they are known."""
    json: Container[str] = frozenset()
    """The columns that are JSON, once they are known."""

    def __init__(self, settings: TableSink) -> None:
        super().__init__(settings)
        self.is_flagged = settings.delete_when is not None
        self._is_upsert = settings.mode == "upsert"

    def line_of(self, row: bytes | Row) -> bytes:
        """Encodes a row as a line."""
        if isinstance(row, bytes):
            return row
        fields = [_FIELDS[type(value)](value) for value in astuple(row)]
        return ("\t".join([*fields, _NULL] if self._is_upsert else fields) + "\n").encode()

    def convert(self, item: SinkFrame) -> ConvertedRecords[bytes | Row]:
        if self.typed is not None and (rows := self.typed(item.frame.values())) is not None:
            return ConvertedRecords(range(item.frame.records), rows, [])
        return super().convert(item)

    def _fitted(self, column: TableColumn, values: Sequence[Any], objects: Sequence[dict[str, Any]]) -> Sequence[Any]:
        array = self.arrays.get(column.name)
        if array is not None:
            return [_as_array(value, array) for value in values]
        if column.name in self.json:
            return [_as_json(value, one) for value, one in zip(values, objects, strict=True)]
        return values

    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool], absent: Absent
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[SinkFailure]]:
        fields = [_texts(column) for column in columns]
        if self.is_flagged:
            fields.append(["t" if is_delete else "f" for is_delete in deletes])
        if self._is_upsert:
            fields.append(list(map(_indexes, absent)) if absent else [_NULL] * len(rows))
        joined = list(map("\t".join, zip(*fields, strict=True)))
        lines: list[bytes] = []
        with suppress(UnicodeEncodeError):
            lines = [text.encode() + b"\n" for text in joined]
            return rows, _parts(lines, absent) if absent else lines, ()
        kept, failures = [], []
        for place, (row, text) in enumerate(zip(rows, joined, strict=True)):
            try:
                line = text.encode() + b"\n"
            except UnicodeEncodeError:
                failures.append(SinkFailure(row, NOT_TEXT, retryable=False, detail="it is not UTF-8"))
                continue
            kept.append(row)
            lines += _parts([line], absent[place : place + 1]) if absent else [line]
        return kept, lines, failures


def _parts(lines: Sequence[bytes], absent: Absent) -> list[bytes]:
    made: list[bytes] = []
    for line, kept in zip(lines, absent, strict=True):
        if kept:
            part = PartialLine(line)
            part.absent = kept
            made.append(part)
        else:
            made.append(line)
    return made


def _indexes(absent: Sequence[int]) -> str:
    return "{" + ",".join(map(str, absent)) + "}" if absent else _NULL


def _as_json(value: Any, record: Mapping[str, Any]) -> Any:
    """A text is the text of a JSON value, except in a change of a table, whose JSON values are members."""
    is_text = isinstance(value, str) and record.keys() >= _CHANGE
    return text_of(value) if is_text or isinstance(value, bool) else value


def _as_array(value: Any, array: ArrayColumn) -> Any:
    """A list as the text of an array; anything else as it is."""
    if not isinstance(value, list):
        return value
    return "{" + array.delimiter.join(_element(one, array) for one in value) + "}"


def _element(value: Any, array: ArrayColumn) -> str:
    if value is None:
        return "NULL"
    if array.of_json:
        text = text_of(value)
    elif isinstance(value, list):
        return str(_as_array(value, array))
    elif isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        return "t" if value else "f"
    else:
        text = text_of(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _texts(values: Sequence[Any]) -> list[str]:
    kinds = set(map(type, values))
    if kinds == {str} and _SPECIAL.search("".join(values)) is None:
        return list(values)
    if len(kinds) == 1:
        return list(map(_FIELDS[kinds.pop()], values))
    return [_FIELDS[type(value)](value) for value in values]
