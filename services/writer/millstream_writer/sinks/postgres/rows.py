"""Records as lines of PostgreSQL's COPY text format, which the server turns into whatever types the table has. Pure.

If the table's columns have the types of JSON itself, records are rows of the binary format instead (`typed`).

A text member is written unchanged, a number with its digits, true and false as `t` and `f`, null and missing members as
NULL, an object or a list as JSON. So a column may have any type for which the text is valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import astuple

from millstream.exact_json import text_of
from millstream_writer.sink import SinkFailure, SinkFrame
from millstream_writer.sinks.kept import Converted
from millstream_writer.sinks.postgres.typed import Row, TypedRows
from millstream_writer.sinks.tables.rows import NOT_TEXT, RowFormat
from millstream_writer.sinks.tables.settings import TableSink

_NULL = "\\N"
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


def line_of(row: bytes | Row) -> bytes:
    """Encodes a row as a line."""
    if isinstance(row, bytes):
        return row
    return ("\t".join([_FIELDS[type(value)](value) for value in astuple(row)]) + "\n").encode()


class CopyFormat(RowFormat[bytes | Row]):
    """A line for each record, with its line break; or a row for each. With `deleteWhen`, a line ends with a flag that
    tells whether the record deletes."""

    typed: TypedRows | None = None
    """Rows in the table's own types, once these are known and if they are supported."""

    def __init__(self, settings: TableSink) -> None:
        super().__init__(settings)
        self.is_flagged = settings.delete_when is not None

    def convert(self, item: SinkFrame) -> Converted[bytes | Row]:
        if self.typed is not None and (rows := self.typed(item.frame.values())) is not None:
            return Converted(range(item.frame.records), rows, [])
        return super().convert(item)

    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool]
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[SinkFailure]]:
        fields = [_texts(column) for column in columns]
        if self.is_flagged:
            fields.append(["t" if is_delete else "f" for is_delete in deletes])
        joined = list(map("\t".join, zip(*fields, strict=True)))
        with suppress(UnicodeEncodeError):
            return rows, [text.encode() + b"\n" for text in joined], ()
        kept, lines, failures = [], [], []
        for row, text in zip(rows, joined, strict=True):
            try:
                lines.append(text.encode() + b"\n")
            except UnicodeEncodeError:
                failures.append(SinkFailure(row, NOT_TEXT, retryable=False, detail="it is not UTF-8"))
                continue
            kept.append(row)
        return kept, lines, failures


def _texts(values: Sequence[Any]) -> list[str]:
    kinds = set(map(type, values))
    if kinds == {str} and _SPECIAL.search("".join(values)) is None:
        return list(values)
    if len(kinds) == 1:
        return list(map(_FIELDS[kinds.pop()], values))
    return [_FIELDS[type(value)](value) for value in values]
