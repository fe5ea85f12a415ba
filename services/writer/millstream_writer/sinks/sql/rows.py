"""Records as parameters of statements, in the types that drivers accept. Pure.

A text member is written unchanged, a number as a number, true and false as 1 and 0, null and missing members as NULL,
an object or a list as JSON. Text for a time column is parsed, except for SQLite, which stores it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from sqlalchemy import types

from millstream_writer.sink import SinkFailure
from millstream_writer.sinks.sql.connector import SqlSink
from millstream_writer.sinks.tables.rows import NOT_TEXT, RowFormat, as_json

NOT_A_TIME = "value is not a time"
_PLAIN = frozenset((str, int, float, type(None)))


class Change(NamedTuple):
    """The change of one row."""

    deletes: bool
    """Whether the row with its keys is deleted; otherwise it is inserted."""
    cells: tuple[Any, ...]


class SqlFormat(RowFormat[Change]):
    """Converts records to changes."""

    def __init__(self, settings: SqlSink) -> None:
        super().__init__(settings)
        self._parses: dict[int, Callable[[str], Any]] = {}
        self._binary: set[int] = set()

    def learn(self, known: dict[str, types.TypeEngine[Any]], *, parses: bool) -> None:
        """The types of the table's columns. `parses`: whether times in text are parsed."""
        for index, column in enumerate(self.columns):
            of = known.get(column.name)
            if parses and isinstance(of, types.DateTime):
                self._parses[index] = _aware if of.timezone else _naive
            elif parses and isinstance(of, types.Date):
                self._parses[index] = date.fromisoformat
            elif isinstance(of, types.LargeBinary | types._Binary):
                self._binary.add(index)

    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool]
    ) -> tuple[Sequence[int], Sequence[Change], Sequence[SinkFailure]]:
        bad: dict[int, SinkFailure] = {}
        cells = [self._column(index, column, rows, bad) for index, column in enumerate(columns)]
        made = [Change(*change) for change in zip(deletes, zip(*cells, strict=True), strict=True)]
        if not bad:
            return rows, made, ()
        good = [place for place, row in enumerate(rows) if row not in bad]
        return [rows[place] for place in good], [made[place] for place in good], list(bad.values())

    def _column(
        self, index: int, column: Sequence[Any], rows: Sequence[int], bad: dict[int, SinkFailure]
    ) -> Sequence[Any]:
        parse, binary = self._parses.get(index), index in self._binary
        kinds = set(map(type, column))
        is_plain = parse is None and not binary and kinds <= _PLAIN
        if is_plain and "".join(value for value in column if type(value) is str).isascii():
            return column
        found: list[Any] = []
        for row, value in zip(rows, column, strict=True):
            try:
                found.append(_cell(value, parse, binary=binary))
            except UnicodeError:
                bad.setdefault(row, SinkFailure(row, NOT_TEXT, retryable=False, detail="it is not UTF-8"))
                found.append(None)
            except ValueError as error:
                bad.setdefault(row, SinkFailure(row, NOT_A_TIME, retryable=False, detail=str(error), shows_value=True))
                found.append(None)
        return found


def _cell(value: Any, parse: Callable[[str], Any] | None, *, binary: bool) -> Any:
    if isinstance(value, bytes):
        return value if binary else value.decode()
    if isinstance(value, dict | list):
        value = as_json(value)
    if isinstance(value, str):
        encoded = value.encode()
        if binary:
            return encoded
        return value if parse is None else parse(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, datetime):
        return value.isoformat() if parse is None else parse(value.isoformat())
    return value


def _aware(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _naive(text: str) -> datetime:
    # A column without a time zone has UTC.
    return _aware(text).astimezone(UTC).replace(tzinfo=None)
