"""A lane of the `sqlite` sink: rows, and how far the lane is, in one transaction under the owner's epoch."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

from millstream import codes
from millstream.errors import DamageError, FencedError
from millstream.record import Position
from millstream_toys.sqlite.connector import SqliteSink
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, WriteResult, exact_end, exact_position

_TABLES = """
CREATE TABLE IF NOT EXISTS records (value BLOB);
CREATE TABLE IF NOT EXISTS lanes (name TEXT PRIMARY KEY, ledger TEXT, epoch INTEGER, sequence INTEGER, record INTEGER);
"""
_OPENED = "INSERT OR IGNORE INTO lanes VALUES (?, ?, 0, ?, ?)"
_FENCE = "UPDATE lanes SET epoch = ? WHERE name = ? AND epoch < ?"
_MOVE = "UPDATE lanes SET sequence = ?, record = ? WHERE name = ? AND epoch = ?"


class _SqliteLane:
    def __init__(self, database: sqlite3.Connection, owner: SinkOwner) -> None:
        self._database = database
        self._owner = owner
        self._durable = owner.start

    def take_over(self) -> None:
        """Fence owners with a lower epoch, and learn how far they came."""
        owner, epoch = self._owner, self._owner.epoch
        with self._database as transaction:
            transaction.execute(_OPENED, (owner.name, owner.ledger_id, *owner.start))
            found = transaction.execute("SELECT ledger, sequence, record FROM lanes WHERE name = ?", (owner.name,))
            ledger, *position = found.fetchone()
            if ledger != owner.ledger_id:
                raise DamageError(
                    codes.SINK_AHEAD, f"{owner.where}: the table has records of another run; name another one"
                )
            if not transaction.execute(_FENCE, (epoch, owner.name, epoch)).rowcount:
                raise FencedError(
                    codes.OUTPUT_TAKEN_OVER, f"{owner.where}: the table has an owner with epoch {epoch} or more"
                )
        self._durable = max(self._durable, Position(*position))

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return self._durable

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        rows = [
            (value,)
            for item in frames
            for index, value in zip(item.indexes(), item.frame.values(), strict=True)
            if exact_position(item, index + 1) > self._durable
        ]
        reached = max(self._durable, exact_end(frames, end))
        with self._database as transaction:
            transaction.executemany("INSERT INTO records VALUES (?)", rows)
            if not transaction.execute(_MOVE, (*reached, self._owner.name, self._owner.epoch)).rowcount:
                raise FencedError(codes.OUTPUT_TAKEN_OVER, f"{self._owner.where}: another owner writes into the table")
        self._durable = reached
        return WriteResult()

    async def flush(self) -> None:
        """Every write is durable when it returns."""

    async def tick(self) -> None:
        """Nothing waits for a time."""


@asynccontextmanager
async def open_sqlite(settings: SqliteSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The table, with every former owner of the lane fenced."""
    with closing(sqlite3.connect(owner.base_dir / settings.path)) as database:
        # SQLite's default may lose the last commits in a power failure.
        database.execute("PRAGMA synchronous = EXTRA")
        database.executescript(_TABLES)
        lane = _SqliteLane(database, owner)
        lane.take_over()
        yield lane
