"""SQLite as a technology, as `interStepBuffer` names it.

Above it: Millstream, which finds `SQLITE` by its entry point. Below it: everything else in this folder.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from millstream import codes, limits
from millstream.buffers.technology import BrokerAnswer, Technology
from millstream.errors import InfrastructureError, UserError
from millstream.files import make_private_directories
from millstream.frame import build_frame
from millstream.ledger.protocol import DurabilityLevel
from millstream_toys.sqlite_buffers.database import Database, open_database
from millstream_toys.sqlite_buffers.ledger import SqliteBroker, SqliteRepairs
from millstream_toys.sqlite_buffers.ot_store import SqliteOtStores, open_ot_stores

_SCHEME = "sqlite:"


@dataclass(frozen=True, slots=True)
class SqliteAccess:
    """`Access` to a directory. Whoever can write there has access, so there are no credentials."""

    directory: Path
    connection: type[sqlite3.Connection] = sqlite3.Connection
    """The class of connections."""
    identity: ClassVar = "a user of the file system"

    @property
    def url(self) -> str:
        return f"{_SCHEME}{self.directory}"

    @property
    def place(self) -> str:
        return str(self.directory)


@dataclass(frozen=True, slots=True)
class SqliteBuffer:
    """`InterStepBuffer` over one file."""

    database: Database
    broker: SqliteBroker
    stores: SqliteOtStores
    repairs: SqliteRepairs

    def trouble(self) -> str | None:
        return self.database.trouble


@dataclass(frozen=True, slots=True)
class SqliteLink:
    """`Link` to a directory, which has a file for each pipeline."""

    access: SqliteAccess

    @asynccontextmanager
    async def open(
        self, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC, tolerate_lost: bool = False
    ) -> AsyncIterator[SqliteBuffer]:
        # Every commit is synced, which is enough for any `require`.
        path = self.access.directory / f"{pipeline}.db"
        async with open_database(path, self.access.connection) as database, open_ot_stores(database) as stores:
            broker = SqliteBroker(database, pipeline)
            yield SqliteBuffer(database, broker, stores, SqliteRepairs(database, broker))


@dataclass(slots=True)
class NoServer:
    """`Server` without a process: the pipeline's processes open the file themselves."""

    directory: Path
    port: int = 0

    @property
    def access(self) -> SqliteAccess:
        return SqliteAccess(self.directory.absolute() / "store")

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> Mapping[str, str]:
        try:
            make_private_directories(self.access.directory)
        except OSError as error:
            what = f"cannot prepare {self.access.directory}: {error.strerror}"
            raise InfrastructureError(codes.CANNOT_WRITE, what) from error
        return {"access.json": "{}\n"}

    def command(self) -> list[str]:
        return []

    async def is_ready(self, pid: int) -> bool:
        return True

    async def ask(self) -> BrokerAnswer | None:
        return BrokerAnswer()

    def ended(self, pid: int) -> None:
        """Nothing is left behind."""

    def log_entry(self, line: bytes) -> bytes | None:
        return None

    def says_full(self, line: bytes) -> bool:
        return False


class Sqlite(Technology):
    """`Technology` for files of SQLite."""

    key = "sqlite"

    def load_access(self, path: Path | None, url: str) -> SqliteAccess:
        if not url.startswith(_SCHEME):
            raise UserError(codes.BROKER_ADDRESS, f"{url} is not a directory of SQLite files (expected: sqlite:/path)")
        return SqliteAccess(Path(url.removeprefix(_SCHEME)))

    def secret_files(self, path: Path) -> Sequence[Path]:
        return ()

    @asynccontextmanager
    async def connect(self, access: SqliteAccess, *, name: str) -> AsyncIterator[SqliteLink]:
        if not access.directory.is_dir():
            raise InfrastructureError(codes.BROKER_UNREACHABLE, f"there is no directory {access.place}")
        yield SqliteLink(access)

    def server(self, directory: Path, *, durability: DurabilityLevel, port: int | None, buffers: int) -> NoServer:
        return NoServer(directory)

    async def raw_limit(self, directory: Path, *, records: int, record_bytes: int, fsync: bool) -> float:
        size = max(1, min(limits.FRAME_RECORDS_MAX, limits.FRAME_BYTES_MAX // record_bytes))
        data = build_frame([bytes(record_bytes)] * size, array("q", [0]) * size, ingest_time_us=0).encode()
        statement = "REPLACE INTO frames VALUES ('raw', '', ?, '', '', ?)"
        commits = -(-records // size)

        def store(connection: sqlite3.Connection, number: int) -> None:
            # The file is limited, like a buffer that is read and trimmed.
            connection.execute(statement, (number % 256, data))

        directory.mkdir(exist_ok=True)
        async with open_database(directory / "raw.db") as database:
            begun_s = time.perf_counter()
            for number in range(commits):
                await database.change(partial(store, number=number))
            return commits * size / (time.perf_counter() - begun_s)


SQLITE = Sqlite()
