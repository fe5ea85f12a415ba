"""The suite that other people's sources run, on sources of tables and of NATS."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from millstream_testing import SourceConformance
from tests.support.mariadb_server import LOCKED, MariaDatabase, MariaServer
from tests.support.nats_outside import NatsAtOnce, open_nats_at_once
from tests.support.rerouting import rerouted
from tests.support.sizes import sized

_NUMBERS = range(1, 101)
_PARTS = (_NUMBERS[:30], _NUMBERS[30:60], _NUMBERS[60:])
"""In so many versions of a table."""

# Only `make test-all` takes a minute for each.
SourceConformance.away_s = sized(0, 60)


class _Numbers(SourceConformance):
    """Rows with a number each."""

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b'{"n":%d}' % n for n in _NUMBERS]


class TestSqlite(_Numbers):
    def settings(self, place: Path) -> Mapping[str, Any]:
        with closing(sqlite3.connect(place / "shop.db")) as connection, connection:
            connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
            connection.executemany("INSERT INTO numbers VALUES (?)", ((n,) for n in _NUMBERS))
        return {"sql": {"url": "sqlite:///shop.db", "table": "numbers"}}


@pytest.mark.sweep
class TestMariaDb(_Numbers):
    """Three lanes share the rows."""

    partitions = 3
    server: ClassVar[MariaServer]
    database: ClassVar[MariaDatabase]

    @pytest.fixture(autouse=True)
    def _server(self, mariadb: MariaServer) -> None:
        type(self).server = mariadb

    def settings(self, place: Path) -> Mapping[str, Any]:
        database = self.server.database()
        rows = ", ".join(f"({n})" for n in _NUMBERS)
        database.execute("CREATE TABLE numbers (n INT PRIMARY KEY)", f"INSERT INTO numbers VALUES {rows}")
        type(self).database = database
        return {"sql": {**database.settings, "table": "numbers", "split": {"column": "n", "from": 1, "to": 100}}}

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        wrong = {"user": LOCKED, "password": "wr0ng-s3cret", "table": "numbers"}
        return {"sql": {**self.database.settings, **wrong}}, "wr0ng-s3cret"


class TestDelta(_Numbers):
    def settings(self, place: Path) -> Mapping[str, Any]:
        for part in _PARTS:
            write_deltalake(str(place / "table"), _table(part), mode="append")
        return {"delta": {"path": "table"}}


@pytest.mark.sweep
class TestIceberg(_Numbers):
    def settings(self, place: Path) -> Mapping[str, Any]:
        uri, warehouse = f"sqlite:///{place / 'catalog.db'}", str(place / "warehouse")
        with closing(SqlCatalog("default", uri=uri, warehouse=warehouse)) as catalog:
            catalog.create_namespace("shop")
            table = catalog.create_table("shop.numbers", _table(()).schema)
            for part in _PARTS:
                table.append(_table(part))
        return {"iceberg": {"catalog": {"sqlite": "catalog.db"}, "table": "shop.numbers"}}


class _OfNats(_Numbers):
    """On a server of its own, because tests kill it."""

    nats: ClassVar[NatsAtOnce]

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with open_nats_at_once(tmp_path / "nats") as nats:
            type(self).nats = nats
            yield

    def _wrong(self, place: Path) -> dict[str, Any]:
        (place / "wrong").write_text("wr0ng-s3cret")
        user = self.nats.outside.server.access.user
        return {**self.nats.outside.settings, "auth": {"basic": {"user": user, "password": {"file": "wrong"}}}}


class TestJetStream(_OfNats):
    def settings(self, place: Path) -> Mapping[str, Any]:
        self.nats.run(self._filled())
        return {"jetstream": {**self.nats.outside.settings, "stream": "numbers", "stopAtEnd": True}}

    def stop_target(self, place: Path) -> bool:
        self.nats.run(self.nats.outside.server.kill())
        return True

    def start_target(self, place: Path) -> None:
        self.nats.run(self.nats.outside.server.start())

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        return {"jetstream": {**self._wrong(place), "stream": "numbers"}}, "wr0ng-s3cret"

    async def _filled(self) -> None:
        await self.nats.outside.create("numbers")
        await self.nats.outside.publish("numbers.all", *self.expected(Path()))


class TestNats(_OfNats):
    """At most once: what is sent while there is a subscription arrives once, in order. So the suite stops no server."""

    @pytest.fixture(autouse=True)
    def _sender(self, _server: None) -> Iterator[None]:
        """Sends the records to the first lane that listens."""
        sending = asyncio.run_coroutine_threadsafe(self._send(), self.nats.loop)
        try:
            yield
        finally:
            sending.cancel()

    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"nats": {**self.nats.outside.settings, "subject": "numbers"}}

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        return {"nats": {**self._wrong(place), "subject": "numbers"}}, "wr0ng-s3cret"

    async def _send(self) -> None:
        connection = self.nats.outside.connection
        first, *others = self.expected(Path())
        while True:
            reply, answer = connection.expect_answer()
            await connection.publish("numbers", first, None, reply)
            await connection.client.flush()
            # The server answers a message that no one gets, and before it answers the ping.
            if not answer.done():
                break
            await asyncio.sleep(0.01)
        for value in others:
            await connection.publish("numbers", value)


def _table(numbers: Sequence[int]) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})
