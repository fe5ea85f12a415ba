"""Records as rows of a table: the value of each column, before the conversion to a database's own form. Pure.

Above it: the conversions for a database. Below it: frames. A record becomes a row of plain values: for each column, a
member of its JSON value or a part of the record. The result is the same at every attempt.

A member that is absent is not null: an upsert leaves its column of an existing row as it is. A row that is only
inserted has no earlier value, so there it becomes NULL, unless the record says that the value is another one
(`unchanged`, as changes of tables have it); such a record is refused.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar

from millstream.exact_json import parse_all, text_of
from millstream_connectors.shared.json_rows import json_objects
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_connectors.shared.tables.settings import DeleteWhen, Part, TableColumn, TableSink
from millstream_writer.sink import SinkFailure, SinkFrame

KEY_MISSING = "key column is null"
UNCHANGED = "column is unchanged, and its value is not in the record"
NOT_TEXT = "value is not text"

T = TypeVar("T")
Absent = Sequence[tuple[int, ...]]
"""For each row, the indexes of columns whose member is absent."""

_ABSENT = object()
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
        self._keeps = settings.mode == "upsert"
        """Whether columns of absent members keep the value that the row has."""
        self._refuses = {} if self.identified else _members_after(self.columns)
        self._with_json = any(column.part is None for column in self.columns) or (
            settings.delete_when is not None and settings.delete_when.field is not None
        )

    def convert(self, item: SinkFrame) -> ConvertedRecords[T]:
        """The rows of a frame's records, and the failures of records that cannot become one."""
        parsed, failures = self._parsed(item)
        rows = range(item.frame.records) if not failures else list(parsed)
        objects = [parsed[row] for row in rows] if self._with_json else []
        if self._refuses and (lacking := _unchanged(self._refuses, rows, objects)):
            failures += lacking
            without = {failure.index for failure in lacking}
            rows = [row for row in rows if row not in without]
            objects = [parsed[row] for row in rows]
        columns, absent = self._columns_of(item, rows, objects)
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
            absent = [absent[place] for place in places] if absent else ()
        kept, made, refused = self.made(rows, columns, deletes, absent)
        return ConvertedRecords(kept, made, sorted([*failures, *refused], key=lambda failure: failure.index))

    def _columns_of(
        self, item: SinkFrame, rows: Sequence[int], objects: Sequence[dict[str, Any]]
    ) -> tuple[list[Sequence[Any]], Absent]:
        """The values of each column, and which of them are absent and kept; nothing if there are none."""
        columns: list[Sequence[Any]] = []
        kept: dict[int, Sequence[Any]] = {}
        for index, column in enumerate(self.columns):
            if column.part is not None:
                columns.append(_part(column.part, item, rows))
                continue
            keeps = self._keeps and index not in self.keys
            values = members_of(objects, _path_of(column), _ABSENT if keeps else None)
            if keeps and _ABSENT in values:
                kept[index] = values
                values = [None if value is _ABSENT else value for value in values]
            columns.append(self._fitted(column, values, objects))
        if not kept:
            return columns, ()
        return columns, [
            tuple(index for index, values in kept.items() if values[place] is _ABSENT) for place in range(len(rows))
        ]

    def _fitted(self, column: TableColumn, values: Sequence[Any], objects: Sequence[dict[str, Any]]) -> Sequence[Any]:
        """The values of a column of members, in the form that the column needs beyond their own. `objects`: the
        records."""
        return values

    @abstractmethod
    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool], absent: Absent
    ) -> tuple[Sequence[int], Sequence[T], Sequence[SinkFailure]]:
        """The database's form of each valid row, and the failures of the others. `deletes`: which rows delete the row
        with their keys. `absent`: the columns of each row that keep their value, which are None in `columns`; empty if
        there are none."""

    def _parsed(self, item: SinkFrame) -> tuple[Mapping[int, Any], list[SinkFailure]]:
        """The JSON objects by row, if columns are members of them, and the failures of records that are not objects."""
        if not self._with_json:
            return dict.fromkeys(range(item.frame.records)), []
        values = item.frame.values()
        many = parse_all(values)
        if many is not None and set(map(type, many)) == {dict}:
            return dict(enumerate(many)), []
        return json_objects(values)


def _path_of(column: TableColumn) -> Sequence[str]:
    return column.field.split(".") if column.field is not None else [column.name]


def members_of(objects: Sequence[dict[str, Any]], path: Sequence[str], absent: object = None) -> Sequence[Any]:
    """The member of each object that a path of names leads to; `absent` where an object does not have it. Members of
    null are null."""
    values: Sequence[Any] = [item.get(path[0], absent) for item in objects]
    for name in path[1:]:
        values = [
            value.get(name, absent) if isinstance(value, dict) else absent if value is absent else None
            for value in values
        ]
    return values


def _members_after(columns: Sequence[TableColumn]) -> dict[str, str]:
    """The columns that are members of `after`, by the name of the member."""
    paths = ((column.name, _path_of(column)) for column in columns if column.part is None)
    return {path[1]: name for name, path in paths if len(path) > 1 and path[0] == "after"}


def _unchanged(members: dict[str, str], rows: Sequence[int], objects: Sequence[dict[str, Any]]) -> list[SinkFailure]:
    """Failures of changes whose source did not send the value of a column, because it is large and unchanged."""
    failures = []
    for row, value in zip(rows, objects, strict=True):
        named = value.get("unchanged")
        missing = [column for name, column in members.items() if isinstance(named, list) and name in named]
        if missing:
            detail = f"{', '.join(missing)}: REPLICA IDENTITY FULL of the source's table sends unchanged values, too"
            failures.append(SinkFailure(row, UNCHANGED, retryable=False, detail=detail))
    return failures


def _keys_of(item: SinkFrame) -> list[list[str]]:
    given = item.frame.keys()
    return [[key.decode(errors="replace") for key in keys] for keys in given]


_PARTS: Mapping[Part, Callable[[SinkFrame], Sequence[Any]]] = {
    "value": lambda item: item.frame.values(),
    "key": lambda item: [keys[0] if keys else None for keys in _keys_of(item)],
    "keys": _keys_of,
    "eventTime": lambda item: [_EPOCH + timedelta(microseconds=time_us) for time_us in item.frame.event_times_us()],
    "headers": lambda item: [
        {name: value.decode(errors="replace") for name, value in headers.items()} for headers in item.frame.headers()
    ],
    "id": lambda item: item.record_ids(),
}
"""Each part of the records of a frame."""


def _part(part: Part, item: SinkFrame, rows: Sequence[int]) -> Sequence[Any]:
    column = _PARTS[part](item)
    return column if len(rows) == len(column) else [column[row] for row in rows]


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
