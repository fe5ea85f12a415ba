"""Tables and files between which a storm moves records: of SQLAlchemy's databases, BigQuery, Delta, Iceberg, object
stores and this machine.

Tables of Delta and Iceberg and files are in a bucket, so there is a server outside that can be killed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from millstream_connectors.delta.client import options_of
from millstream_connectors.shared.objects.settings import ObjectStore
from tests.contract.sinks.file_target import finished_files
from tests.recovery.kills import OUTSIDE
from tests.recovery.storms import VICTIMS, Place, mapping, number_of
from tests.support.bigquery_server import BigQueryServer
from tests.support.mariadb_server import MariaServer
from tests.support.object_server import Bucket, ObjectServer
from tests.support.opensearch_server import OpenSearchServer

_ROWS = """\
import json
import os


def branded(value):
    return json.dumps({"n": json.loads(value)["n"], "brand": os.urandom(4).hex()}).encode()
"""
_COLUMNS = [{"name": "n", "type": "int"}, {"name": "brand", "type": "string"}]
_FOLLOWED = {"follow": True, "pollEvery": "100ms"}
_OFTEN = {"commitEvery": "200ms"}


class SqlitePlace(Place):
    """From a file of SQLite, which is read as it grows."""

    function = _ROWS

    def __init__(self, directory: Path) -> None:
        self._file = directory / "shop.db"

    async def settings(self) -> tuple[str, str]:
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
        url = {"url": f"sqlite:///{self._file}", "table": "numbers"}
        return mapping("sql", {**url, "follow": True, "pollEvery": "10ms"}), self._make_target()

    @abstractmethod
    def _make_target(self) -> str:
        """The settings of the sink."""

    async def fill(self, first: int, stop: int) -> None:
        with closing(sqlite3.connect(self._file, timeout=60)) as connection, connection:
            connection.executemany("INSERT INTO numbers VALUES (?)", ((number,) for number in range(first, stop)))


class SqlPlace(SqlitePlace):
    """Into MariaDB."""

    def __init__(self, server: MariaServer, directory: Path) -> None:
        super().__init__(directory)
        self._server = server
        self._database = server.database()

    def _make_target(self) -> str:
        self._database.execute(
            "CREATE TABLE copies (n BIGINT, brand VARCHAR(20), place BIGINT AUTO_INCREMENT PRIMARY KEY)"
        )
        return mapping("sql", self._database.settings, table="copies", columns=[{"name": "n"}, {"name": "brand"}])

    async def restart(self) -> None:
        self._server.kill()
        self._server.start()

    async def numbers(self) -> list[int]:
        return [n for (n,) in self._database.rows("SELECT n FROM copies ORDER BY place")]


class OpenSearchPlace(SqlitePlace):
    """Into an index."""

    def __init__(self, server: OpenSearchServer, directory: Path) -> None:
        super().__init__(directory)
        self._server = server
        self._index = server.index()

    def _make_target(self) -> str:
        return mapping("opensearch", self._server.settings, index=self._index)

    async def restart(self) -> None:
        self._server.kill()
        self._server.start()

    async def numbers(self) -> list[int]:
        return self._server.numbers(self._index)


class BigQueryPlace(SqlitePlace):
    """Into a table of a stand-in for BigQuery."""

    def __init__(self, server: BigQueryServer, directory: Path) -> None:
        super().__init__(directory)
        self._server = server
        self._table = server.create({"n": "INT64", "brand": "STRING"})

    def _make_target(self) -> str:
        columns = [{"name": "n"}, {"name": "brand"}]
        given = {**self._server.settings, "table": self._table, "positionTable": f"{self._table}_positions"}
        return mapping("bigquery", given, columns=columns)

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._server.start)

    async def numbers(self) -> list[int]:
        return [row["n"] for row in self._server.rows(self._table)]


class FilePlace(Place):
    """From a file of this machine, which is read as it grows, into others. There is no server."""

    victims = tuple(victim for victim in VICTIMS if victim != OUTSIDE)

    def __init__(self, directory: Path) -> None:
        self._file = directory / "numbers.txt"
        self._target = directory / "out"

    async def settings(self) -> tuple[str, str]:
        self._file.touch()
        return (
            mapping("file", {"paths": [str(self._file)], "format": "lines", "follow": True}),
            mapping("file", {"path": str(self._target), "format": "lines", "rolling": {"maxAge": "200ms"}}),
        )

    async def fill(self, first: int, stop: int) -> None:
        with self._file.open("ab") as file:
            file.write(b"".join(b"%d\n" % number for number in range(first, stop)))

    async def restart(self) -> None:
        raise AssertionError("there is no server")

    async def numbers(self) -> list[int]:
        return [number_of(line) for file in finished_files(self._target) for line in file.read_bytes().splitlines()]


class BucketPlace(Place):
    """Something in a bucket."""

    def __init__(self, server: ObjectServer, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._bucket: Bucket = server.bucket()

    async def restart(self) -> None:
        self._server.kill()
        self._server.start()
        self._server.until_complete(self._bucket)

    async def numbers(self) -> list[int]:
        return [*self._numbers()]

    @abstractmethod
    def _numbers(self) -> Iterator[int]:
        """Those in the target."""


class DeltaPlace(BucketPlace):
    """From a table of Delta Lake, which is read as it grows, into another."""

    function = _ROWS

    async def settings(self) -> tuple[str, str]:
        await self.fill(0, 0)
        store = {"store": self._server.settings}
        return (
            mapping("delta", {"path": self._bucket.url("in"), **_FOLLOWED, **store}),
            mapping("delta", {"path": self._bucket.url("out"), "columns": _COLUMNS, **_OFTEN, **store}),
        )

    async def fill(self, first: int, stop: int) -> None:
        rows = pa.table({"n": pa.array(range(first, stop), pa.int64())})
        write_deltalake(self._bucket.url("in"), rows, mode="append", storage_options=self._options("in"))

    def _numbers(self) -> Iterator[int]:
        table = DeltaTable(self._bucket.url("out"), storage_options=self._options("out"))
        yield from (row["n"] for row in table.to_pyarrow_table().to_pylist())

    def _options(self, name: str) -> dict[str, str]:
        store = ObjectStore.model_validate(self._server.settings)
        return options_of(self._bucket.url(name), store, self._directory, "test")


class IcebergPlace(BucketPlace):
    """From a table of Iceberg, which is read as it grows, into another; the catalog is a file of SQLite."""

    function = _ROWS

    async def settings(self) -> tuple[str, str]:
        catalog = self._catalog()
        catalog.create_namespace("shop")
        catalog.create_table("shop.numbers", pa.schema({"n": pa.int64()}))
        named = {"sqlite": str(self._directory / "catalog.db"), "warehouse": self._bucket.url("lake")}
        store = {"store": self._server.settings}
        source = {"catalog": {"sqlite": named["sqlite"]}, "table": "shop.numbers", **_FOLLOWED, **store}
        sink = {"catalog": named, "table": "shop.copies", "columns": _COLUMNS, **_OFTEN, **store}
        return mapping("iceberg", source), mapping("iceberg", sink)

    async def fill(self, first: int, stop: int) -> None:
        rows = pa.table({"n": pa.array(range(first, stop), pa.int64())})
        self._catalog().load_table("shop.numbers").append(rows)

    def _numbers(self) -> Iterator[int]:
        found = self._catalog().load_table("shop.copies").scan().to_arrow()
        yield from (row["n"] for row in found.to_pylist())

    def _catalog(self) -> SqlCatalog:
        settings = self._server.settings
        properties: dict[str, Any] = {
            "uri": f"sqlite:///{self._directory / 'catalog.db'}",
            "warehouse": self._bucket.url("lake"),
            "s3.endpoint": settings["endpoint"],
            "s3.region": settings["region"],
            "s3.access-key-id": settings["accessKey"],
            "s3.secret-access-key": settings["secretKey"],
        }
        return SqlCatalog("default", **properties)


class ObjectsPlace(BucketPlace):
    """From objects of lines, which are read as they come, into others."""

    async def settings(self) -> tuple[str, str]:
        store = {"store": self._server.settings}
        rolling = {"maxAge": "200ms"}
        return (
            mapping("file", {"paths": [self._bucket.url("in/*.txt")], "format": "lines", **_FOLLOWED, **store}),
            mapping("file", {"path": self._bucket.url("out"), "format": "lines", "rolling": rolling, **store}),
        )

    async def fill(self, first: int, stop: int) -> None:
        self._bucket.put(f"in/{first:09}.txt", b"".join(b"%d\n" % number for number in range(first, stop)))

    def _numbers(self) -> Iterator[int]:
        for key in self._bucket.keys("out"):
            if "/_millstream/" not in key:
                yield from map(number_of, self._bucket.get(key).splitlines())
