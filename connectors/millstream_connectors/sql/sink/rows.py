"""Records as parameters of statements, in the types that drivers accept. Pure.

A text member is written unchanged, a number with all its digits, true and false as 1 and 0, null and missing members as
NULL, an object or a list as JSON. Text for a time column is parsed, except for SQLite, which stores it unchanged.

A column of numbers in SQLite holds 64-bit integers and floats, so a number with more digits is refused, unless the
column has text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import types

from millstream.exact_json import double_of, text_of
from millstream_connectors.shared.tables.rows import NOT_TEXT, Absent, RowFormat
from millstream_connectors.sql.settings import MYSQL, SQLITE, SqlSink
from millstream_writer.sink import SinkFailure

NOT_A_TIME = "value is not a time"
NOT_A_NUMBER_OF_THE_COLUMN = "number has more digits than the column holds"
_PLAIN = frozenset((str, int, type(None)))
_INTEGERS = range(-(1 << 63), 1 << 63)
"""Those of SQLite."""

Number = Callable[[Any], Any]
"""The parameter for an int or a Decimal. Raises `ValueError` if the column cannot hold it."""


class RowChange(NamedTuple):
    """The change of one row."""

    deletes: bool
    """Whether the row with its keys is deleted; otherwise it is inserted."""
    cells: tuple[Any, ...]
    absent: tuple[int, ...] = ()
    """Indexes of the columns that keep the value that the row has."""


class SqlFormat(RowFormat[RowChange]):
    """Converts records to changes."""

    def __init__(self, settings: SqlSink) -> None:
        super().__init__(settings)
        self._parses: dict[int, Callable[[str], Any]] = {}
        self._binary: set[int] = set()
        self._numbers: dict[int, Number] = {}
        self._backend = settings.backend

    def learn(self, known: dict[str, types.TypeEngine[Any]]) -> None:
        """Takes the types of the table's columns from the database."""
        parses = self._backend != SQLITE
        for index, column in enumerate(self.columns):
            of = known.get(column.name)
            self._numbers[index] = self._number_of(of)
            if parses and isinstance(of, types.DateTime):
                self._parses[index] = _aware if of.timezone else _naive
            elif parses and isinstance(of, types.Date):
                self._parses[index] = date.fromisoformat
            elif isinstance(of, types.LargeBinary | types._Binary):
                self._binary.add(index)

    def _number_of(self, column: types.TypeEngine[Any] | None) -> Number:
        if self._backend in MYSQL:
            # A literal with an exponent would be a double, whatever the column is.
            return lambda number: number if isinstance(number, int) else f"{number:f}"
        if isinstance(column, types.String):
            return str
        return _of_sqlite if self._backend == SQLITE else _as_it_is

    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool], absent: Absent
    ) -> tuple[Sequence[int], Sequence[RowChange], Sequence[SinkFailure]]:
        bad: dict[int, SinkFailure] = {}
        cells = [self._column(index, column, rows, bad) for index, column in enumerate(columns)]
        keeps = absent or [()] * len(rows)
        made = [RowChange(*change) for change in zip(deletes, zip(*cells, strict=True), keeps, strict=True)]
        if not bad:
            return rows, made, ()
        good = [place for place, row in enumerate(rows) if row not in bad]
        return [rows[place] for place in good], [made[place] for place in good], list(bad.values())

    def _column(
        self, index: int, column: Sequence[Any], rows: Sequence[int], bad: dict[int, SinkFailure]
    ) -> Sequence[Any]:
        parse, binary, number = self._parses.get(index), index in self._binary, self._numbers.get(index, _as_it_is)
        kinds = set(map(type, column))
        is_plain = parse is None and not binary and kinds <= _PLAIN and (int not in kinds or number is not str)
        if is_plain and "".join(value for value in column if type(value) is str).isascii():
            return column
        found: list[Any] = []
        for row, value in zip(rows, column, strict=True):
            try:
                if isinstance(value, int | Decimal) and not isinstance(value, bool):
                    found.append(number(value))
                else:
                    found.append(_cell(value, parse, binary=binary))
            except UnicodeError:
                bad.setdefault(row, SinkFailure(row, NOT_TEXT, retryable=False, detail="it is not UTF-8"))
                found.append(None)
            except ValueError as error:
                reason = NOT_A_TIME if isinstance(value, str) else NOT_A_NUMBER_OF_THE_COLUMN
                bad.setdefault(row, SinkFailure(row, reason, retryable=False, detail=str(error), shows_value=True))
                found.append(None)
        return found


def _cell(value: Any, parse: Callable[[str], Any] | None, *, binary: bool) -> Any:
    if isinstance(value, bytes):
        return value if binary else value.decode()
    if isinstance(value, dict | list):
        value = text_of(value)
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


def _as_it_is(number: Any) -> Any:
    return number


def _of_sqlite(number: int | Decimal) -> Any:
    if isinstance(number, Decimal):
        return double_of(number)
    if number not in _INTEGERS:
        raise ValueError(f"{number!s:.60} is not a 64-bit integer")
    return number


def _aware(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _naive(text: str) -> datetime:
    # A column without a time zone has UTC.
    return _aware(text).astimezone(UTC).replace(tzinfo=None)
