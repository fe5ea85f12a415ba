"""OT stores in SQLite: a row for each lane, with the number of its puts, which guards the next one.

Above it: `RevisionedOtStore`, which decides when to put and when to read. Below it: the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from millstream import codes, limits
from millstream.errors import RetryLaterError
from millstream.record import LaneId
from millstream.watermark.revisions import RevisionedOtStore, RevisionedOtStores, open_stores
from millstream.watermark.store import OtUpdate, decode_update
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from millstream_toys.sqlite_buffers.database import Database, UnansweredError

_STORED = "SELECT revision, entry FROM entries WHERE vertex = ? AND lane = ?"


class SqliteOtStore(RevisionedOtStore):
    """`OtStore` over the rows of one vertex."""

    failures = (UnansweredError, RetryLaterError)

    def __init__(self, database: Database, vertex: str, tasks: asyncio.TaskGroup, interval_s: float) -> None:
        super().__init__(vertex, f"the OT store of {vertex}", tasks, interval_s)
        self._database = database

    async def forget(self, lane: LaneId) -> None:
        self._revisions.pop(lane.key, None)
        statement = "DELETE FROM entries WHERE vertex = ? AND lane = ?"
        async with self._answering(lane.key):
            await self._database.change(lambda database: database.execute(statement, (self.vertex, lane.key)))

    async def _publish_after(self, revision: int, key: str, entry: OtEntry) -> int:
        def put(database: sqlite3.Connection) -> bool:
            found = database.execute(_STORED, (self.vertex, key)).fetchone()
            if (found[0] if found is not None else 0) != revision:
                return False
            row = (self.vertex, key, revision + 1, entry.SerializeToString())
            database.execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
            return True

        if not await self._database.change(put):
            raise RetryLaterError(codes.BROKER_AWAY, f"{self._name}: {key} was put by another process")
        return revision + 1

    _take_over_after = _publish_after

    async def _stored(self, key: str) -> tuple[int, OtEntry | None]:
        found = await self._database.ask(lambda database: database.execute(_STORED, (self.vertex, key)).fetchone())
        return (found[0], decode_update(self._name, key, found[1]).entry) if found is not None else (0, None)

    async def _read_all(self) -> list[OtUpdate]:
        query = "SELECT lane, entry FROM entries WHERE vertex = ?"
        found = await self._database.ask(lambda database: database.execute(query, (self.vertex,)).fetchall())
        return [decode_update(self._name, key, data) for key, data in found]

    @asynccontextmanager
    async def _answering(self, key: str) -> AsyncIterator[None]:
        try:
            yield
        except UnansweredError as error:
            raise RetryLaterError(codes.BROKER_AWAY, f"{self._name} does not answer ({key}): {error}") from error

    def _on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        # The file tells that it has changed, and not what: every change may be a put that the watcher has missed.
        return self._database.on_change(listener)


SqliteOtStores = RevisionedOtStores[SqliteOtStore]


def open_ot_stores(
    database: Database, *, publish_interval_s: float = limits.OT_PUBLISH_INTERVAL_S
) -> AbstractAsyncContextManager[SqliteOtStores]:
    """The OT stores of a pipeline. Entries that are not flushed at the end are not published."""

    async def open_store(vertex: str, tasks: asyncio.TaskGroup) -> SqliteOtStore:
        return SqliteOtStore(database, vertex, tasks, publish_interval_s)

    async def delete(vertex: str | None) -> None:
        statement = "DELETE FROM entries WHERE vertex = coalesce(?, vertex)"
        await database.changed(lambda connection: connection.execute(statement, (vertex,)))

    return open_stores(open_store, delete)
