"""Records as lines of PostgreSQL's COPY text format, which the server turns into whatever types the table has. Pure.

Where the table has the types of JSON itself, they are rows of its binary format instead (`typed`).

A member that is text goes in as it is, a number as it is written, true and false as `t` and `f`, null and what is
missing as NULL, an object or a list as JSON. So a column may be of any type that its text is valid for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from millstream_writer.sink import SinkFailure, SinkFrame
from millstream_writer.sinks.file.formats import NOT_AN_OBJECT, NOT_JSON, parse_json, parse_many
from millstream_writer.sinks.postgres.connector import DeleteWhen, PostgresSink, TableColumn
from millstream_writer.sinks.postgres.typed import Row, TypedRows

KEY_MISSING = "key column is null"
NOT_TEXT = "value is not text"

_NULL = "\\N"
_SPECIAL = re.compile(r"[\\\n\r\t]")
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lines:
    """What is written of one frame."""

    rows: Sequence[int]
    """Which records they are, rising."""
    lines: Sequence[bytes] | Sequence[Row]
    """A line for each, with its line break; or a row for each."""
    failures: Sequence[SinkFailure]
    """The others."""


def _text(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPED[found[0]], text) if _SPECIAL.search(text) else text


def _json(value: object) -> str:
    return _text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


_FIELDS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: str,
    float: repr,
    bool: lambda value: "t" if value else "f",
    type(None): lambda _: _NULL,
    dict: _json,
    list: _json,
}


def line_of(row: bytes | Row) -> bytes:
    """A row as a line."""
    if isinstance(row, bytes):
        return row
    return ("\t".join([_FIELDS[type(value)](value) for value in row]) + "\n").encode()


class RowFormat:
    """How records become rows of one table."""

    typed: TypedRows | None = None
    """Those of the table's own types, once these are known and if they are plain."""

    def __init__(self, settings: PostgresSink) -> None:
        self._columns = settings.row
        self._mode = settings.mode
        self._delete_when = settings.delete_when
        self._keys = [index for index, column in enumerate(self._columns) if column.name in settings.keys]
        self._identified = settings.mode != "insert"
        self._with_json = any(column.part is None for column in self._columns) or (
            settings.delete_when is not None and settings.delete_when.field is not None
        )

    def convert(self, item: SinkFrame) -> Lines:
        """The lines of a frame's records, and those that cannot be one."""
        if self.typed is not None and (typed := self._typed(self.typed, item)) is not None:
            return Lines(range(item.frame.records), typed, [])
        parsed, failures = self._parsed(item)
        rows = range(item.frame.records) if not failures else list(parsed)
        objects = [parsed[row] for row in rows] if self._with_json else []
        columns = [self._column(column, item, rows, objects) for column in self._columns]
        if self._delete_when is not None:
            columns.append(_deletes(self._delete_when, item, rows, objects))
        elif self._mode == "delete":
            columns.append(["t"] * len(rows))
        elif self._identified:
            columns.append(["f"] * len(rows))
        keys = [columns[index] for index in self._keys] if self._identified else []
        if not any(_NULL in column for column in keys):
            with suppress(UnicodeEncodeError):
                whole = [text.encode() for text in map("\t".join, zip(*columns, strict=True))]
                return Lines(rows, [line + b"\n" for line in whole], failures)
        kept, lines = [], []
        for row, fields in zip(rows, zip(*columns, strict=True), strict=True):
            if self._identified and any(fields[index] == _NULL for index in self._keys):
                failures.append(SinkFailure(row, KEY_MISSING, retryable=False))
                continue
            try:
                lines.append(("\t".join(fields) + "\n").encode())
            except UnicodeEncodeError:
                failures.append(SinkFailure(row, NOT_TEXT, retryable=False, detail="it is not UTF-8"))
                continue
            kept.append(row)
        return Lines(kept, lines, sorted(failures, key=lambda failure: failure.index))

    def _typed(self, typed: TypedRows, item: SinkFrame) -> Sequence[Row] | None:
        rows = typed.rows(item.frame.values())
        if rows is None or not self._identified:
            return rows
        if any(row[index] is None for row in rows for index in self._keys):
            return None
        deletes = self._mode == "delete"
        return [(*row, deletes) for row in rows]

    def _parsed(self, item: SinkFrame) -> tuple[dict[int, Any], list[SinkFailure]]:
        """The JSON objects by row, where columns come out of them, and the records that are none."""
        if not self._with_json:
            return dict.fromkeys(range(item.frame.records)), []
        values = item.frame.values()
        many = parse_many(values)
        if many is not None and set(map(type, many)) == {dict}:
            return dict(enumerate(many)), []
        parsed: dict[int, Any] = {}
        failures = []
        for row, value in enumerate(values):
            try:
                one = parse_json(value)
            except ValueError as error:
                failures.append(SinkFailure(row, NOT_JSON, retryable=False, detail=str(error)))
                continue
            if isinstance(one, dict):
                parsed[row] = one
            else:
                failures.append(SinkFailure(row, NOT_AN_OBJECT, retryable=False))
        return parsed, failures

    def _column(
        self, column: TableColumn, item: SinkFrame, rows: Sequence[int], objects: Sequence[dict[str, Any]]
    ) -> Sequence[str]:
        if column.part is None:
            return _members(objects, column.field.split(".") if column.field is not None else [column.name])
        return _part(column.part, item, rows)


def _members(objects: Sequence[dict[str, Any]], path: Sequence[str]) -> list[str]:
    values: Sequence[Any] = [item.get(path[0]) for item in objects]
    for name in path[1:]:
        values = [value.get(name) if isinstance(value, dict) else None for value in values]
    kinds = set(map(type, values))
    if kinds == {str} and _SPECIAL.search("".join(values)) is None:
        return list(values)
    if len(kinds) == 1:
        return list(map(_FIELDS[kinds.pop()], values))
    return [_FIELDS[type(value)](value) for value in values]


def _part(part: str, item: SinkFrame, rows: Sequence[int]) -> list[str]:
    frame = item.frame
    if part == "value":
        values = frame.values()
        return [_text(values[row].decode(errors="surrogateescape")) for row in rows]
    if part == "eventTime":
        times = frame.event_times_us()
        return [(_EPOCH + timedelta(microseconds=times[row])).isoformat() for row in rows]
    if part == "headers":
        headers = frame.headers()
        return [_json({name: value.decode(errors="replace") for name, value in headers[row].items()}) for row in rows]
    if part == "id":
        ids = item.record_ids()
        return [_text(ids[row]) for row in rows]
    keys = frame.keys()
    if part == "key":
        return [_text(keys[row][0].decode(errors="replace")) if keys[row] else _NULL for row in rows]
    return [_json([key.decode(errors="replace") for key in keys[row]]) for row in rows]


def _deletes(
    when: DeleteWhen, item: SinkFrame, rows: Sequence[int], objects: Sequence[dict[str, Any]]
) -> Sequence[str]:
    if when.header is not None:
        headers = item.frame.headers()
        wanted = json.dumps(when.equals) if not isinstance(when.equals, str) else when.equals
        return ["t" if headers[row].get(when.header) == wanted.encode() else "f" for row in rows]
    assert when.field is not None, "one of the two is there"
    wanted_field = _FIELDS[type(when.equals)](when.equals)
    return ["t" if field == wanted_field else "f" for field in _members(objects, when.field.split("."))]
