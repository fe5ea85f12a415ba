"""The file of a pipeline, which all of its processes open.

    change ──► thread of the writer ── BEGIN IMMEDIATE … COMMIT, with fsync ──► the file's log
    ask    ──► thread of the reader ── one snapshot                       ◄────────┘
    listeners ◄── data_version, asked every POLL_S: another connection has committed

Above it: the ledger and the OT store, which pass functions of a connection. Below it: SQLite.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from millstream import codes
from millstream.background import open_tasks
from millstream.blocking import ClientThread, open_thread
from millstream.errors import REPAIR, DamageError, InfrastructureError, StorageFullError

POLL_S = 0.02
RETRY_S = 0.05
_LOCK_WAIT_S = 10.0
"""How long a transaction waits for those of other processes."""
_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS ledgers (
  vertex TEXT PRIMARY KEY, id TEXT, shared TEXT, sequence INTEGER, bytes INTEGER, frames_max INTEGER,
  bytes_max INTEGER);
CREATE TABLE IF NOT EXISTS marks (vertex TEXT, lane TEXT, sequence INTEGER, mark BLOB, PRIMARY KEY (vertex, lane));
CREATE TABLE IF NOT EXISTS frames (
  vertex TEXT, buffer TEXT, sequence INTEGER, lane TEXT, name TEXT, data BLOB, PRIMARY KEY (vertex, buffer, sequence));
CREATE INDEX IF NOT EXISTS frames_of_lane ON frames (vertex, buffer, lane);
CREATE TABLE IF NOT EXISTS ids (
  number INTEGER PRIMARY KEY AUTOINCREMENT, vertex TEXT, lane TEXT, stored_s REAL, expires_s REAL, data BLOB);
CREATE TABLE IF NOT EXISTS entries (vertex TEXT, lane TEXT, revision INTEGER, entry BLOB, PRIMARY KEY (vertex, lane));
COMMIT;
"""

T = TypeVar("T")
Call = Callable[[sqlite3.Connection], T]
"""What a transaction does."""


class UnansweredError(Exception):
    """A transaction has failed. Its changes may be stored nevertheless."""


@dataclass(frozen=True, slots=True)
class _Client:
    """A connection, and the thread in which it is used."""

    connection: sqlite3.Connection
    thread: ClientThread

    async def run(self, begin: str, call: Call[T]) -> T:
        return await self.thread.run(_in_transaction, self.connection, begin, call)


class Database:
    """The open file."""

    def __init__(self, path: Path, reader: _Client, writer: _Client) -> None:
        self.path = path
        self.trouble: str | None = None
        """Why the file could not be read at the last poll."""
        self._reader = reader
        self._writer = writer
        self._listeners: list[Callable[[], None]] = []

    async def ask(self, call: Call[T]) -> T:
        """The result of `call`, which reads one snapshot. Raises `UnansweredError`."""
        return await self._reader.run("BEGIN", call)

    async def change(self, call: Call[T]) -> T:
        """The result of `call`, whose changes are durable on return. If `call` raises, nothing is changed.

        Raises `UnansweredError`, `StorageFullError` if the disk is full, and `DamageError` if the file is damaged.
        """
        return await self._writer.run("BEGIN IMMEDIATE", call)

    async def answered(self, call: Call[T]) -> T:
        """`ask`, repeated until it succeeds."""
        return await _repeated(self.ask, call)

    async def changed(self, call: Call[T]) -> T:
        """`change`, repeated until it succeeds: for changes that have the same effect when they are made twice."""
        return await _repeated(self.change, call)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when the file has changed or cannot be read, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def poll(self) -> None:
        """Tell the listeners of changes, forever."""
        known = None
        while True:
            try:
                found, self.trouble = await self.ask(_data_version), None
            except (UnansweredError, DamageError) as error:
                found, self.trouble = None, f"{self.path} cannot be read: {error}"
            if found is None or found != known:
                known = found
                for listener in list(self._listeners):
                    listener()
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def open_database(path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection) -> AsyncIterator[Database]:
    """The file, created if missing. `factory`: the class of its connections."""
    async with (
        _open_client(path, factory, "sqlite reader") as reader,
        _open_client(path, factory, "sqlite writer") as writer,
        open_tasks() as tasks,
    ):
        database = Database(path, reader, writer)
        polling = tasks.create_task(database.poll(), name=f"changes of {path.name}")
        try:
            yield database
        finally:
            polling.cancel()


@asynccontextmanager
async def _open_client(path: Path, factory: type[sqlite3.Connection], name: str) -> AsyncIterator[_Client]:
    async with open_thread(name) as thread:
        try:
            connection = await thread.run(_connect, path, factory)
        except sqlite3.Error as error:
            _refuse_damage(error)
            raise InfrastructureError(codes.BROKER_UNREACHABLE, f"{path} cannot be opened: {error}") from error
        try:
            yield _Client(connection, thread)
        finally:
            thread.end(connection.close)


def _connect(path: Path, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None, factory=factory)
    connection.execute("PRAGMA journal_mode = WAL")
    # With NORMAL, the log is synced only before its pages are copied into the file.
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_TABLES)
    return connection


def _in_transaction(connection: sqlite3.Connection, begin: str, call: Call[T]) -> T:
    try:
        connection.execute(begin)
        found = call(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _refuse_damage(error)
        if _code_of(error) == sqlite3.SQLITE_FULL:
            raise StorageFullError(codes.BROKER_STORAGE_FULL, f"nothing was stored: {error}") from error
        raise UnansweredError(str(error)) from error
    finally:
        # Without effect after a commit.
        connection.rollback()
    return found


def _refuse_damage(error: sqlite3.Error) -> None:
    if _code_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        raise DamageError(codes.LEDGER_GONE, f"the ledgers cannot be read: {error}. {REPAIR}") from error


def _code_of(error: sqlite3.Error) -> int:
    # The last byte of an extended code is the code itself.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


async def _repeated(once: Callable[[Call[T]], Awaitable[T]], call: Call[T]) -> T:
    while True:
        try:
            return await once(call)
        except (UnansweredError, StorageFullError):
            await asyncio.sleep(RETRY_S)
