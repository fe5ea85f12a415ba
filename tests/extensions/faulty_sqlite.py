"""Buffers in SQLite with the faults that the contract suites need, opened as Millstream opens them.

Above it: the suites. Below it: the technology, whose connections fail on request, as those to a disk that is away do.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.ledger.protocol import Broker
from millstream.record import LaneId
from millstream.watermark.store import OtStores
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from millstream_toys.sqlite_buffers.database import open_database
from millstream_toys.sqlite_buffers.ot_store import open_ot_stores
from millstream_toys.sqlite_buffers.technology import SQLITE, SqliteAccess

SLOW_S = 0.2
_POLL_S = 0.02


@dataclass(slots=True)
class Faults:
    """What happens to the transactions of some connections."""

    lost: deque[bool] = field(default_factory=deque)
    """Changes that get no answer: whether each is stored."""
    away: bool = False
    slow_s: float = 0.0
    """How long each snapshot takes to begin."""
    over: threading.Event = field(default_factory=threading.Event)
    """Ends what is slow."""

    def connection(self) -> type[sqlite3.Connection]:
        """The class of connections with these faults."""
        faults = self

        class Connection(sqlite3.Connection):
            changes = False

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if faults.away:
                    raise sqlite3.OperationalError("disk I/O error")
                if sql.startswith("BEGIN"):
                    self.changes = sql == "BEGIN IMMEDIATE"
                    faults.over.wait(0 if self.changes else faults.slow_s)
                if sql != "COMMIT" or not self.changes or not faults.lost:
                    return super().execute(sql, parameters)
                if faults.lost.popleft():
                    super().execute(sql)
                raise sqlite3.OperationalError("disk I/O error")

        return Connection


class SqliteHarness:
    """`tests.support.ledgers.Harness` for SQLite."""

    def __init__(self, broker: Broker, access: SqliteAccess, pipeline: str, faults: Faults) -> None:
        self.broker = broker
        self._access = access
        self._pipeline = pipeline
        self._faults = faults
        self._processes = AsyncExitStack()

    def lose_answer(self, *, landed: bool) -> None:
        self._faults.lost.append(landed)

    def slow_down(self) -> None:
        self._faults.slow_s = SLOW_S

    async def other_process(self) -> Broker:
        access = SQLITE.load_access(None, self._access.url)
        opened = SQLITE.open(access, self._pipeline, name="another")
        return (await self._processes.enter_async_context(opened)).broker

    async def save(self, vertex: str) -> None:
        self._copy(self._file(), self._saved())

    async def set_back(self, vertex: str) -> None:
        self._copy(self._saved(), self._file())

    async def pass_time(self, seconds: float, until: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(seconds + 10):
            while not await until():  # noqa: ASYNC110  # there is no event for what has expired
                await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        self._faults.over.set()
        await self._processes.aclose()

    def _file(self) -> Path:
        return self._access.directory / f"{self._pipeline}.db"

    def _saved(self) -> Path:
        return self._access.directory / "saved"

    def _copy(self, source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
            read.backup(written)


@asynccontextmanager
async def open_sqlite_harness(directory: Path, pipeline: str) -> AsyncIterator[SqliteHarness]:
    """Ledgers in a file below `directory`."""
    faults = Faults()
    access = SqliteAccess(directory, faults.connection())
    async with SQLITE.open(access, pipeline, name="test") as buffer:
        harness = SqliteHarness(buffer.broker, access, pipeline, faults)
        try:
            yield harness
        finally:
            await harness.close()


class SqliteStores:
    """`Broker` of the suite for OT stores, over files in a directory."""

    def __init__(self, directory: Path, pipeline: str) -> None:
        self._directory = directory
        self._pipeline = pipeline
        self._faults = Faults()

    @asynccontextmanager
    async def open(self, pipeline: str = "", *, publish_interval_s: float = 0.02) -> AsyncIterator[OtStores]:
        path = self._directory / f"{pipeline or self._pipeline}.db"
        async with (
            open_database(path, self._faults.connection()) as database,
            open_ot_stores(database, publish_interval_s=publish_interval_s) as stores,
        ):
            yield stores

    async def stop(self) -> None:
        self._faults.away = True

    async def start(self) -> None:
        self._faults.away = False

    async def lose_answer(self, vertex: str, lane: LaneId, entry: OtEntry) -> None:
        statement = "UPDATE entries SET revision = revision + 1, entry = ? WHERE vertex = ? AND lane = ?"
        with closing(sqlite3.connect(self._directory / f"{self._pipeline}.db")) as database, database:
            database.execute(statement, (entry.SerializeToString(), vertex, lane.key))
