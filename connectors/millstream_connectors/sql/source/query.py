"""The statements of a `sql` source: the last row, and pages of rows in the order of the cursor.

    last ─► the greatest cursor
    page ─► rows after a cursor, up to another

Every statement is here, and blocks. Above it: the lane, and `validate --online`. Below it: a connection.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from millstream.limits import RECORD_BYTES_MAX, SQL_PAGE_ROWS
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.query_lane import QueryRow
from millstream_connectors.shared.tables.names import table_parts
from millstream_connectors.sql.settings import SqlSource
from millstream_connectors.sql.source.values import Cursor, json_of

_SHOWN = 1024
"""Bytes of a row that is too large that are kept for messages."""
_PAGE_BYTES = 8 * 1024 * 1024


class RepeatedError(Exception):
    """Several rows have the same cursor."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor)
        self.cursor = cursor


class Page(NamedTuple):
    """Consecutive rows."""

    rows: list[QueryRow[Cursor]]
    is_all: bool
    """Whether no more rows follow up to the requested end."""


class Query:
    """The statements for one lane."""

    def __init__(self, settings: SqlSource, partition: int, partitions: int) -> None:
        self._settings = settings
        self._partition, self._partitions = partition, partitions
        self.cursor: tuple[str, ...] = settings.cursor

    @property
    def is_idle(self) -> bool:
        """Whether another lane reads all rows instead."""
        return self._settings.split is None and self._partition > 0

    def prepare(self, connection: Connection) -> list[Fault]:
        """Inspects the table or query. Returns its problems."""
        settings = self._settings
        with connection.begin():
            if settings.table is not None:
                schema, name = table_parts(settings.table)
                inspector = sa.inspect(connection)
                if not inspector.has_table(name, schema=schema):
                    what = f"there is no table {settings.table} in {settings.shown}"
                    return [Fault(("table",), what, "a table, or a view")]
                keys = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
                self.cursor = settings.cursor or tuple(keys)
                if not self.cursor:
                    what = f"the table {settings.table} has no primary key"
                    return [Fault(("table",), what, "`cursor`: columns that together identify a row")]
            known = list(connection.execute(sa.select(sa.text("*")).select_from(self._from()).limit(0)).keys())
        faults = [
            Fault(("cursor", index), f"the query has no column `{name}`", f"one of {', '.join(known)}")
            for index, name in enumerate(self.cursor)
            if name not in known
        ]
        split = settings.split
        if split is not None and split.column not in known:
            faults.append(
                Fault(("split", "column"), f"the query has no column `{split.column}`", f"one of {', '.join(known)}")
            )
        twice = sorted({name for name in known if known.count(name) > 1})
        faults += [
            Fault(("query",), f"the query has several columns `{name}`", "each name once, by `AS`") for name in twice
        ]
        return faults

    def last(self, connection: Connection, after: Cursor | None) -> Cursor | None:
        """The greatest cursor after `after`; None if there is none."""
        columns = self._columns()
        statement = sa.select(*columns).select_from(self._from()).where(*self._where(after, None))
        with connection.begin():
            row = connection.execute(statement.order_by(*(column.desc() for column in columns)).limit(1)).first()
        return None if row is None else tuple(row)

    def page(self, connection: Connection, after: Cursor | None, end: Cursor) -> Page:
        """The first rows after `after` and up to `end`. Raises `RepeatedError`."""
        statement = (
            sa.select(sa.text("*"))
            .select_from(self._from())
            .where(*self._where(after, end))
            .order_by(*self._columns())
            .limit(SQL_PAGE_ROWS)
        )
        rows: list[QueryRow[Cursor]] = []
        size = 0
        with connection.begin():
            found = connection.execute(statement)
            names = list(found.keys())
            places = [names.index(name) for name in self.cursor]
            heads = [f"{json_of(name)}:" for name in names]
            while size < _PAGE_BYTES or len(rows) < 2:
                part = found.fetchmany(256)
                for row in part:
                    whole = "{" + ",".join(map("".join, zip(heads, map(json_of, row), strict=True))) + "}"
                    value = whole.encode()
                    rows.append(_row(tuple(row[place] for place in places), value))
                    size += min(len(value), RECORD_BYTES_MAX)
                if not part:
                    break
            is_all = len(rows) < SQL_PAGE_ROWS and not part
            found.close()
            if rows:
                self._check_identity(connection, after, rows)
        return Page(rows, is_all)

    def _check_identity(self, connection: Connection, after: Cursor | None, rows: list[QueryRow[Cursor]]) -> None:
        """A position could not separate rows with the same cursor. The database decides which texts are equal: `a` and
        `A` may be."""
        before: Cursor | None = None
        for row in rows:
            if row.cursor == before:
                raise RepeatedError(row.cursor)
            before = row.cursor
        columns, last = self._columns(), rows[-1].cursor
        if any(isinstance(one, str) for one in last):
            where = self._where(after, last)
        else:
            # Only the last row may have an equal one that was not read.
            where = [column == value for column, value in zip(columns, last, strict=True)]
            where += self._where(None, None)
        statement = sa.select(*columns).select_from(self._from()).where(*where)
        twice = connection.execute(statement.group_by(*columns).having(sa.func.count() > 1).limit(1)).first()
        if twice is not None:
            raise RepeatedError(tuple(twice))

    def _columns(self) -> list[sa.ColumnElement[Any]]:
        return [sa.column(name) for name in self.cursor]

    def _from(self) -> sa.FromClause | sa.TextClause:
        settings = self._settings
        if settings.query is not None:
            # A colon in the query is not a parameter.
            return sa.text("(" + re.sub(r"(?<![:\w\\]):(?=\w)", r"\\:", settings.query) + "\n) q")
        assert settings.table is not None, "one of the two is there"
        schema, name = table_parts(settings.table)
        return sa.table(name, schema=schema).alias("q")

    def _where(self, after: Cursor | None, end: Cursor | None) -> list[sa.ColumnElement[bool]]:
        columns = self._columns()
        terms: list[sa.ColumnElement[bool]] = [column.is_not(None) for column in columns]
        if after is not None:
            terms.append(_beyond(columns, after, is_after=True))
        if end is not None:
            terms.append(_beyond(columns, end, is_after=False))
        split = self._settings.split
        if split is not None:
            column: sa.ColumnElement[Any] = sa.column(split.column)
            low, high = split.bounds(self._partition, self._partitions)
            if low is not None:
                terms.append(column >= low)
            if high is not None:
                terms.append(sa.or_(column < high, column.is_(None)) if low is None else column < high)
        return terms


def _row(cursor: Cursor, value: bytes) -> QueryRow[Cursor]:
    return QueryRow(cursor, len(value), value if len(value) <= RECORD_BYTES_MAX else value[:_SHOWN])


def _beyond(columns: list[sa.ColumnElement[Any]], bound: Cursor, *, is_after: bool) -> sa.ColumnElement[bool]:
    """The condition for rows after a cursor, or up to it. It compares column by column, which every database
    supports."""
    first, value = columns[0], sa.literal(bound[0])
    if len(columns) == 1:
        return first > value if is_after else first <= value
    rest = _beyond(columns[1:], bound[1:], is_after=is_after)
    # The first term allows the use of an index.
    if is_after:
        return sa.and_(first >= value, sa.or_(first > value, rest))
    return sa.and_(first <= value, sa.or_(first < value, rest))
