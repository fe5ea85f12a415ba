"""Records as rows of a table: the value of each column, before the conversion to a database's own form. Pure.

Above it: the conversions for a database. Below it: frames. A record becomes a row of plain values: for each column, a
member of its JSON value or a part of the record. The result is the same at every attempt.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar

from millstream.exact_json import parse, parse_all, text_of
from millstream_writer.sink import SinkFailure, SinkFrame
from millstream_writer.sinks.file.formats import NOT_AN_OBJECT, NOT_JSON
from millstream_writer.sinks.kept import Converted
from millstream_writer.sinks.tables.settings import DeleteWhen, TableColumn, TableSink

KEY_MISSING = "key column is null"
NOT_TEXT = "value is not text"

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowFormat(ABC, Generic[T]):
    """Converts records to rows of one table."""

    def __init__(self, settings: TableSink) -> None:
        self.columns = settings.row
        self.identified = settings.mode != "insert"
        """Whether a row is found by its keys."""
        self.deletes_all = settings.mode == "delete"
        """Whether every record deletes the row of its keys."""
        self._delete_when = settings.delete_when
        self.keys = [index for index, column in enumerate(self.columns) if column.name in settings.keys]
        """Indexes of the key columns."""
        self._with_json = any(column.part is None for column in self.columns) or (
            settings.delete_when is not None and settings.delete_when.field is not None
        )

    def convert(self, item: SinkFrame) -> Converted[T]:
        """The rows of a frame's records, and the failures of records that cannot become one."""
        parsed, failures = self._parsed(item)
        rows = range(item.frame.records) if not failures else list(parsed)
        objects = [parsed[row] for row in rows] if self._with_json else []
        columns = [_cells(column, item, rows, objects) for column in self.columns]
        if self._delete_when is not None:
            deletes = deletes_of(self._delete_when, item, rows, objects)
        else:
            deletes = [self.deletes_all] * len(rows)
        if self.identified and any(None in columns[key] for key in self.keys):
            whole = [all(columns[key][place] is not None for key in self.keys) for place in range(len(rows))]
            failures += [
                SinkFailure(row, KEY_MISSING, retryable=False)
                for row, is_whole in zip(rows, whole, strict=True)
                if not is_whole
            ]
            places = [place for place, is_whole in enumerate(whole) if is_whole]
            rows = [rows[place] for place in places]
            columns = [[column[place] for place in places] for column in columns]
            deletes = [deletes[place] for place in places]
        kept, made, refused = self.made(rows, columns, deletes)
        return Converted(kept, made, sorted([*failures, *refused], key=lambda failure: failure.index))

    @abstractmethod
    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool]
    ) -> tuple[Sequence[int], Sequence[T], Sequence[SinkFailure]]:
        """The database's form of each valid row, and the failures of the others. `deletes`: which rows delete the row
        with their keys."""

    def _parsed(self, item: SinkFrame) -> tuple[dict[int, Any], list[SinkFailure]]:
        """The JSON objects by row, if columns are members of them, and the failures of records that are not objects."""
        if not self._with_json:
            return dict.fromkeys(range(item.frame.records)), []
        values = item.frame.values()
        many = parse_all(values)
        if many is not None and set(map(type, many)) == {dict}:
            return dict(enumerate(many)), []
        parsed: dict[int, Any] = {}
        failures = []
        for row, value in enumerate(values):
            try:
                one = parse(value)
            except ValueError as error:
                failures.append(SinkFailure(row, NOT_JSON, retryable=False, detail=str(error)))
                continue
            if isinstance(one, dict):
                parsed[row] = one
            else:
                failures.append(SinkFailure(row, NOT_AN_OBJECT, retryable=False))
        return parsed, failures


def _cells(
    column: TableColumn, item: SinkFrame, rows: Sequence[int], objects: Sequence[dict[str, Any]]
) -> Sequence[Any]:
    if column.part is None:
        return members_of(objects, column.field.split(".") if column.field is not None else [column.name])
    return _part(column.part, item, rows)


def members_of(objects: Sequence[dict[str, Any]], path: Sequence[str]) -> Sequence[Any]:
    """The member of each object that a path of names leads to; None where there is none."""
    values: Sequence[Any] = [item.get(path[0]) for item in objects]
    for name in path[1:]:
        values = [value.get(name) if isinstance(value, dict) else None for value in values]
    return values


def _part(part: str, item: SinkFrame, rows: Sequence[int]) -> Sequence[Any]:
    frame = item.frame
    if part == "value":
        values = frame.values()
        return [values[row] for row in rows]
    if part == "eventTime":
        times = frame.event_times_us()
        return [_EPOCH + timedelta(microseconds=times[row]) for row in rows]
    if part == "headers":
        headers = frame.headers()
        return [{name: value.decode(errors="replace") for name, value in headers[row].items()} for row in rows]
    if part == "id":
        ids = item.record_ids()
        return [ids[row] for row in rows]
    keys = frame.keys()
    if part == "key":
        return [keys[row][0].decode(errors="replace") if keys[row] else None for row in rows]
    return [[key.decode(errors="replace") for key in keys[row]] for row in rows]


_COMPARED: dict[type, Callable[[Any], str]] = {
    str: str,
    int: str,
    Decimal: str,
    bool: lambda value: "t" if value else "f",
    type(None): lambda _: "\\N",
    dict: text_of,
    list: text_of,
}


def deletes_of(
    when: DeleteWhen, item: SinkFrame, rows: Sequence[int], objects: Sequence[dict[str, Any]]
) -> Sequence[bool]:
    """Which of the records delete. `objects`: their values, where a member decides."""
    if when.header is not None:
        headers = item.frame.headers()
        wanted = json.dumps(when.equals) if not isinstance(when.equals, str) else when.equals
        return [headers[row].get(when.header) == wanted.encode() for row in rows]
    assert when.field is not None, "one of the two is set"
    wanted_text = _COMPARED[type(when.equals)](when.equals)
    return [_COMPARED[type(value)](value) == wanted_text for value in members_of(objects, when.field.split("."))]
