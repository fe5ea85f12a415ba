"""Connections to databases through SQLAlchemy, each in its own thread, and what their errors mean to a lane.

Above it: connectors. Below it: SQLAlchemy and a driver. The calls block, so a lane has a thread for them (`SqlThread`).
Every failure becomes a Millstream error, by who must act: one that passes by itself becomes `RetryLaterError`, so the
lane waits for a server that is away, restarts or is full, and tries again after a lock or a deadlock.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, closing, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.pool import NullPool

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.importing import importing
from millstream.limits import SQL_CONNECT_TIMEOUT_S, SQL_LOCK_TIMEOUT_S
from millstream.spec.references import resolve
from millstream.wire.client_tls import context_of, is_not_accepted
from millstream_connectors.shared.failing import on_failure, translating
from millstream_connectors.sql.settings import SQLITE, SqlDatabase

T = TypeVar("T")

FAILURES = (exc.SQLAlchemyError, OSError, TimeoutError, OverflowError, UnicodeEncodeError)
"""Exceptions of the client: everything that can go wrong between a lane and its database."""


class _Means(Enum):
    RECORD = "a record is invalid"
    PASSING = "it may work later"
    REFUSED = "the user lacks a permission"
    UNFIT = "the user has to change something"


_MYSQL: dict[int, _Means] = {
    # A value that does not fit its column, a check, a trigger's SIGNAL, a statement that is too long for the server.
    **dict.fromkeys((1153, 1264, 1265, 1292, 1366, 1406, 1411, 1441, 1644, 1690, 3819, 4025), _Means.RECORD),
    # Refused users, databases, tables and columns.
    **dict.fromkeys((1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1698), _Means.REFUSED),
    # Full disks, lock time-outs, deadlocks, shutdowns, read-only servers, killed statements, lost connections.
    **dict.fromkeys(
        (1020, 1021, 1026, 1030, 1037, 1040, 1041, 1053, 1077, 1105, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1180),
        _Means.PASSING,
    ),
    **dict.fromkeys(
        (1203, 1205, 1206, 1213, 1226, 1290, 1317, 1412, 1836, 1927, 1969, 2002, 2003, 2006, 2013, 3024, 4031),
        _Means.PASSING,
    ),
    # Columns, tables and functions that do not exist.
    **dict.fromkeys((1054, 1064, 1146, 1305, 1364), _Means.UNFIT),
}
"""By the server's error number; PyMySQL's classes are too coarse."""
_SQLITE: dict[int, _Means] = {
    sqlite3.SQLITE_CONSTRAINT: _Means.RECORD,
    sqlite3.SQLITE_MISMATCH: _Means.RECORD,
    sqlite3.SQLITE_TOOBIG: _Means.RECORD,
    sqlite3.SQLITE_ERROR: _Means.UNFIT,
    sqlite3.SQLITE_NOTADB: _Means.UNFIT,
    sqlite3.SQLITE_CORRUPT: _Means.UNFIT,
    sqlite3.SQLITE_PERM: _Means.REFUSED,
    sqlite3.SQLITE_AUTH: _Means.REFUSED,
    sqlite3.SQLITE_READONLY: _Means.REFUSED,
    sqlite3.SQLITE_CANTOPEN: _Means.REFUSED,
}
"""By SQLite's primary code. Other codes may pass: busy, locked, full, I/O errors, no memory, interrupted."""
_SQLSTATES = {
    _Means.RECORD: ("22", "23", "44", "P0", "27"),
    _Means.REFUSED: ("28", "3D", "42501"),
    _Means.PASSING: ("08", "25", "40", "53", "55", "57", "58", "XX", "HYT"),
}
"""By the first characters of the SQLSTATE, for other databases whose driver reports it."""

_STATEMENT_BYTES_MAX = "statement_bytes_max"
"""Key of a connection's information."""
_VALUE_BYTES_MAX = 64
"""Bytes of a number or time, and of the marks around a text."""


class SqlThread:
    """A lane's thread, with the lane's connection to the database."""

    def __init__(self, settings: SqlDatabase, base_dir: Path, where: str, thread: ClientThread) -> None:
        self._settings = settings
        self._base_dir = base_dir
        self._where = where
        self._thread = thread
        self._engine: Engine | None = None
        self._connection: Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def open(self, *, create: bool = False, writes: bool = False) -> None:
        """Connect. `create`: create a SQLite file that does not exist. `writes`: whether the connection writes. Raises
        Millstream errors."""
        settings = self._settings
        if self._engine is None:
            self._engine = await importing(_engine, settings, self._base_dir, self._where, create=create, writes=writes)
        opened: list[Connection] = []
        # The connection may be opened after the timeout.
        with on_failure(partial(self._thread.submit, lambda: _give_up(*opened))), self.translated():
            async with asyncio.timeout(settings.timeout_s):
                await self._thread.run(lambda engine: opened.append(engine.connect()), self._engine)
        self._connection = opened[0]

    def translated(self) -> AbstractContextManager[None]:
        """Converts errors of the client to Millstream errors."""
        return translating(FAILURES, partial(error_of, settings=self._settings, where=self._where))

    async def run(self, call: Callable[[Connection], T]) -> T:
        """The result of a call on the connection, in the thread. Raises what the call raises, and `TimeoutError`."""
        connection = self._connection
        assert connection is not None, "it is open"
        async with asyncio.timeout(self._settings.timeout_s):
            return await self._thread.run(call, connection)

    def close(self) -> None:
        """Abandon the connection and its uncommitted changes. Does not wait for it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._settings.backend == SQLITE:
            # Interrupts a statement that waits or runs.
            raw: Any = connection.connection.driver_connection if not connection.closed else None
            if raw is not None:
                raw.interrupt()
        self._thread.submit(lambda: _give_up(connection))


def _give_up(*connections: Connection) -> None:
    for connection in connections:
        with suppress(Exception):
            # Without a request to the server, which may not answer.
            connection.invalidate()
            connection.close()


@asynccontextmanager
async def open_sql_thread(settings: SqlDatabase, base_dir: Path, where: str, name: str) -> AsyncIterator[SqlThread]:
    """A thread, without a connection at first. The end does not wait for a call in progress."""
    async with open_thread(name) as thread:
        with closing(SqlThread(settings, base_dir, where, thread)) as way:
            yield way


def _engine(settings: SqlDatabase, base_dir: Path, where: str, *, create: bool, writes: bool) -> Engine:
    """The engine, which opens connections. Each one is used by its lane only."""
    fault = driver_fault(settings)
    if fault is not None:
        raise UserError(codes.EXTRA_NEEDED, f"{where}: {settings.shown}: it {fault[0]} (expected: {fault[1]})")
    if settings.file is not None:
        return _sqlite_engine(base_dir / settings.file, create=create, writes=writes)
    what = f"{where}: the password for {settings.shown}"
    password = None if settings.password is None else resolve(settings.password, base_dir, what)
    url = _url(settings).set(username=settings.user, password=password)
    arguments: dict[str, Any] = {}
    if settings.driver == "pymysql":
        seconds = max(1, round(settings.timeout_s))
        arguments = {"connect_timeout": SQL_CONNECT_TIMEOUT_S, "read_timeout": seconds, "write_timeout": seconds}
        if settings.tls is not None:
            arguments["ssl"] = context_of(settings.tls, base_dir, where)
        # Values that do not fit are rejected, not truncated.
        arguments["init_command"] = (
            "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), time_zone = '+00:00', "
            f"innodb_lock_wait_timeout = {SQL_LOCK_TIMEOUT_S}"
        )
    engine = sa.create_engine(url, poolclass=NullPool, connect_args=arguments)
    if settings.driver == "pymysql":
        _limit_statements(engine)
    return engine


def _limit_statements(engine: Engine) -> None:
    """Divides or refuses statements that are too long for the server. It would close the connection, as if it were
    away, so the record would be tried again forever."""
    from pymysql.err import DataError  # type: ignore[import-untyped]

    @event.listens_for(engine, "connect")
    def ask(connection: Any, record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            # A packet has to be shorter, and has one byte more than its statement.
            record.info[_STATEMENT_BYTES_MAX] = int(cursor.fetchone()[0]) - 2

    @event.listens_for(engine, "before_cursor_execute")
    def check(
        connection: Connection, cursor: Any, statement: str, parameters: Any, context: object, executemany: bool
    ) -> None:
        limit = connection.info[_STATEMENT_BYTES_MAX]
        # PyMySQL joins rows up to this length.
        cursor.max_stmt_length = min(cursor.max_stmt_length, limit)
        for row in parameters if executemany else (parameters,):
            if _bytes_at_most(statement, row) <= limit:
                continue
            size = len(cursor.mogrify(statement, row).encode(errors="surrogateescape"))
            if size > limit:
                what = f"its statement has {size} bytes; the server's `max_allowed_packet` allows {limit}"
                raise exc.DataError(None, None, DataError(1153, what))


def _bytes_at_most(statement: str, row: Any) -> int:
    """Upper limit of the bytes of a statement with these values. Computed without writing them."""
    values = row.values() if isinstance(row, dict) else row or ()
    texts = [value for value in values if isinstance(value, str | bytes)]
    # A byte may be escaped by another one, and a character has at most four.
    sizes = (len(text) * (4 if isinstance(text, str) else 2) for text in texts)
    return len(statement) + _VALUE_BYTES_MAX * len(values) + sum(sizes)


def _sqlite_engine(file: Path, *, create: bool, writes: bool) -> Engine:
    address = f"file:{quote(str(file))}?mode={'rwc' if create else 'rw'}"

    def connect() -> sqlite3.Connection:
        # A statement that is given up is interrupted from another thread.
        connection = sqlite3.connect(
            address, uri=True, timeout=SQL_LOCK_TIMEOUT_S, check_same_thread=False, isolation_level=None
        )
        if not writes:
            # Text that is not UTF-8 is read with replacement characters.
            connection.text_factory = lambda found: found.decode("utf-8", "surrogateescape")
            connection.execute("PRAGMA query_only = ON")
        # `FULL` does not sync the removal of the journal: a loss of power could take a commit back.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)

    # The driver does not begin transactions by itself: a transaction that writes takes the lock at its start, and one
    # that reads takes none.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _url(settings: SqlDatabase) -> sa.URL:
    url = sa.make_url(settings.url)
    return url.set(drivername=f"{settings.backend}+{settings.driver}") if settings.driver else url


def driver_fault(settings: SqlDatabase) -> tuple[str, str] | None:
    """What is wrong with the database or driver that the URL names, and what is expected."""
    try:
        dialect: type[Dialect] = _url(settings).get_dialect()
        if dialect.is_async:
            return f"has the asynchronous driver {dialect.driver}", "a synchronous driver"
        dialect.import_dbapi()
    except exc.NoSuchModuleError:
        return (
            f"has a dialect that SQLAlchemy does not know: {settings.url.partition(':')[0]}",
            "a dialect of SQLAlchemy",
        )
    except ImportError as error:
        return f"needs a driver that is not installed: {error}", "the driver's package, beside `millstream[sql]`"
    return None


def _cause(error: BaseException) -> BaseException:
    """The driver's error, which SQLAlchemy has wrapped."""
    return getattr(error, "orig", None) or error


def _means(error: BaseException) -> _Means:
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return _Means.RECORD
    cause = _cause(error)
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", None)
        if code is not None:
            return _SQLITE.get(code & 0xFF, _Means.PASSING)
    number = cause.args[0] if cause.args else None
    if type(cause).__module__.startswith("pymysql") and number in _MYSQL:
        return _MYSQL[number]
    state = str(getattr(cause, "sqlstate", None) or "")
    for means, classes in _SQLSTATES.items():
        if state.startswith(classes):
            return means
    if isinstance(error, exc.IntegrityError | exc.DataError):
        return _Means.RECORD
    if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError | OSError | TimeoutError):
        return _Means.PASSING
    return _Means.UNFIT


def is_of_a_record(error: BaseException) -> bool:
    """Whether the database rejects the contents of a record."""
    return isinstance(error, FAILURES) and _means(error) is _Means.RECORD


def is_refusal(error: BaseException) -> bool:
    """Whether the user lacks a right."""
    return _means(error) is _Means.REFUSED


def is_a_lock(error: BaseException) -> bool:
    """Whether another transaction holds a lock that this one needs."""
    return _cause(error).args[:1] == (1205,)


def said(error: BaseException) -> str:
    """The database's message, without the statement and its values."""
    cause = _cause(error)
    number = cause.args[0] if len(cause.args) > 1 else None
    text = str(cause.args[1]) if isinstance(number, int) else str(cause)
    return text or type(error).__name__


def reason_of(error: BaseException) -> str:
    """The reason for a rejection, from a small set: `integrity error`."""
    cause = _cause(error)
    code = getattr(cause, "sqlite_errorname", None)
    if code is not None:
        return f"refused by the database: {code.removeprefix('SQLITE_').replace('_', ' ').lower()}"
    if type(cause).__module__.startswith("pymysql") and cause.args and isinstance(cause.args[0], int):
        return f"refused by the database: error {cause.args[0]}"
    return f"refused by the database: {type(cause).__name__.removesuffix('Error').lower()}"


def error_of(error: BaseException, settings: SqlDatabase, where: str) -> MillstreamError:
    """The Millstream error for an error of the client."""
    place, text = f"{where}: {settings.shown}", said(error)
    if isinstance(error, TimeoutError):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
    if is_not_accepted(text):
        return UserError(codes.TARGET_REFUSES, f"{place} does not accept `tls.certificate`, or wants one: {text}")
    if "CERTIFICATE_VERIFY_FAILED" in text or "doesn't support SSL" in text or "WRONG_VERSION_NUMBER" in text:
        return UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {text}")
    means = _means(error)
    if means is _Means.REFUSED:
        who = f" {settings.user}" if settings.user is not None else ""
        return UserError(codes.TARGET_REFUSES, f"{place} refuses{who}: {text}" if who else f"{place}: {text}")
    if means is _Means.PASSING:
        return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {text}")
    return UserError(codes.TARGET_UNFIT, f"{place}: {text}")
