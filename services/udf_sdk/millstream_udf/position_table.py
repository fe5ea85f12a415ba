"""A table of positions in a user's database, for sinks that keep positions: the statements that are easy to get wrong.

    lane ─► open: INSERT the lane if it is new, UPDATE its epoch to a higher one ─► COMMIT ─► SELECT the position
    position ─► store: UPDATE the position if the lane's epoch is unchanged          ─► the caller commits

Above it: users' sinks. Below it: a connection of the Python Database API (PEP 249) to SQLite, PostgreSQL or MySQL.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

from millstream_udf.values import Fenced, SinkLane

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_HOLDERS = {"qmark": "?", "numeric": "?", "format": "%s", "pyformat": "%s"}
"""The placeholder of a parameter, by the paramstyle of the module."""


class PositionTable:
    """Stores the position of a lane, in the transactions of a connection that also has the records.

    `connection` comes from sqlite3, psycopg, PyMySQL or another module of the Database API, not in autocommit mode.
    `table` may include a schema; it is created if it does not exist. Several sinks may share it.
    """

    def __init__(self, connection: Any, table: str = "millstream_sink_positions") -> None:
        if not _NAME.fullmatch(table):
            raise ValueError(f"{table!r} is not the name of a table: use letters, digits, _ and one dot")
        self._connection = connection
        self._table = table
        self._holder = _HOLDERS[_paramstyle(connection)]
        self._lane: SinkLane | None = None

    def open(self, lane: SinkLane) -> bytes | None:
        """Take the lane over, in a transaction of its own. Returns its position, for `open` to return. Raises `Fenced`
        if a newer owner has it."""
        _check_transactions(self._connection)
        self._create()
        if not self._run(
            "UPDATE {table} SET epoch = {0} WHERE lane = {1} AND epoch < {2}", (lane.epoch, lane.name, lane.epoch)
        ):
            found = self._run("SELECT position FROM {table} WHERE lane = {0}", (lane.name,), fetch=True)
            if found is not None:
                self._connection.rollback()
                what = f"{self._table} has epoch {lane.epoch} of lane {lane.name} or a higher one"
                raise Fenced(what, position=_position(found))
            # If another owner inserts the lane at the same moment, one of the two fails here, and is opened again.
            self._run("INSERT INTO {table} (lane, epoch, flushes) VALUES ({0}, {1}, 0)", (lane.name, lane.epoch))
        # After this commit, an older owner can no longer change the position, so it is safe to read it.
        self._connection.commit()
        found = self._run("SELECT position FROM {table} WHERE lane = {0}", (lane.name,), fetch=True)
        self._connection.rollback()
        self._lane = lane
        return _position(found)

    def store(self, position: bytes) -> None:
        """Store the position in the open transaction; commit after this call. Raises `Fenced` if a newer owner has the
        lane: then do not commit."""
        if self._lane is None:
            raise RuntimeError("PositionTable.store was called before PositionTable.open")
        _check_transactions(self._connection)
        values = (position.decode(), self._lane.name, self._lane.epoch)
        # Some modules count only the rows that change, so one column always changes. A query for the epoch instead
        # might read an older snapshot.
        update = "UPDATE {table} SET position = {0}, flushes = flushes + 1 WHERE lane = {1} AND epoch = {2}"
        if not self._run(update, values):
            self._connection.rollback()
            raise Fenced(f"{self._table} has another epoch of lane {self._lane.name}")

    def _create(self) -> None:
        columns = (
            "lane VARCHAR(250) NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, position TEXT, flushes BIGINT NOT NULL"
        )
        try:
            self._run("SELECT 1 FROM {table} WHERE lane = {0}", ("",), fetch=True)
        except Exception:  # noqa: BLE001  # each module has errors of its own; if there is another cause, the next fails
            self._connection.rollback()
            self._run(f"CREATE TABLE IF NOT EXISTS {{table}} ({columns})", ())
        # Some databases commit a CREATE TABLE automatically, others only with the transaction.
        self._connection.commit()

    def _run(self, statement: str, values: Sequence[Any], *, fetch: bool = False) -> Any:
        """The number of rows; with `fetch`, the first row or None."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement.format(*[self._holder] * len(values), table=self._table), values)
            return cursor.fetchone() if fetch else cursor.rowcount
        finally:
            cursor.close()


def _position(row: Any) -> bytes | None:
    return None if row is None or row[0] is None else str(row[0]).encode()


def _paramstyle(connection: Any) -> str:
    root = type(connection).__module__.partition(".")[0]
    style = getattr(sys.modules.get(root), "paramstyle", None)
    if isinstance(connection, sqlite3.Connection):
        style = sqlite3.paramstyle
    if style not in _HOLDERS:
        raise TypeError(
            f"PositionTable cannot use a {type(connection).__name__}: paramstyle of the module {root} is {style}"
        )
    return str(style)


def _check_transactions(connection: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        # Before Python 3.12, only the isolation level exists; -1 means that it decides.
        mode = getattr(connection, "autocommit", -1)
        commits = mode is True or (mode == -1 and connection.isolation_level is None)
    else:
        mode = getattr(connection, "get_autocommit", None) or getattr(connection, "autocommit", False)
        commits = (mode() if callable(mode) else mode) is True
    if commits:
        raise RuntimeError(
            "the connection commits each statement by itself (autocommit), so records and position are not one "
            "transaction: open it without autocommit"
        )
