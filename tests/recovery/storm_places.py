"""The servers between which a storm moves records, one for each connector that holds exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tests.recovery.storms import Place, mapping, number_of
from tests.recovery.table_places import (
    BigQueryPlace,
    DeltaPlace,
    FilePlace,
    IcebergPlace,
    ObjectsPlace,
    OpenSearchPlace,
    SqlPlace,
)
from tests.support import (
    kafka_server,
    mariadb_server,
    object_server,
    opensearch_server,
    postgres_server,
    pulsar_server,
)
from tests.support.bigquery_server import open_bigquery
from tests.support.kafka_server import KafkaServer, open_kafka
from tests.support.mariadb_server import open_mariadb
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.support.object_server import open_objects_server
from tests.support.opensearch_server import open_opensearch
from tests.support.postgres_server import Database, PostgresServer, open_postgres
from tests.support.pulsar_server import EXACT, PulsarServer, open_pulsar
from tests.support.redis_server import RedisServer, open_redis

_PULSAR_LEDGER_ENTRIES = 20_000
"""So many that a storm at full size has some ledgers, and not thousands."""
_ROWS = """\
import json
import os


def branded(value):
    row = json.loads(value)
    return json.dumps({"n": row.get("after", row)["n"], "brand": os.urandom(4).hex()}).encode()
"""


class KafkaPlace(Place):
    """The broker of Kafka lives as long as the thread that starts it, so it is started in the thread of the loop."""

    lanes = 4

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._topic = f"numbers-{uuid4()}"
        self._target = f"out-{uuid4()}"

    async def settings(self) -> tuple[str, str]:
        for topic in (self._topic, self._target):
            self._server.create(topic, self.lanes)
        brokers = {"brokers": [self._server.brokers]}
        return (
            mapping("kafka", brokers, topic=self._topic, consumerGroup=self._topic),
            mapping("kafka", brokers, topic=self._target),
        )

    async def fill(self, first: int, stop: int) -> None:
        for lane in range(self.lanes):
            values = [b"%d" % number for number in range(first, stop) if number % self.lanes == lane]
            self._server.produce(self._topic, values, lane)

    async def restart(self) -> None:
        self._server.restart()

    async def numbers(self) -> list[int]:
        return [number_of(value) for value in self._server.values(self._target)]


class RedisPlace(Place):
    """Two streams."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    async def settings(self) -> tuple[str, str]:
        given = self._server.settings
        return (
            mapping("redisStreams", given, stream="numbers", format="record"),
            mapping("redisStreams", given, stream="seen"),
        )

    async def fill(self, first: int, stop: int) -> None:
        pipeline = self._server.client.pipeline(transaction=False)
        for number in range(first, stop):
            pipeline.xadd("numbers", {"value": number})
        pipeline.execute()

    async def restart(self) -> None:
        self._server.restart()

    async def numbers(self) -> list[int]:
        return [number_of(entry["value"]) for entry in self._server.entries("seen")]


class JetStreamPlace(Place):
    """Two streams of a NATS server that is not the broker."""

    def __init__(self, nats: OutsideNats) -> None:
        self._nats = nats

    async def settings(self) -> tuple[str, str]:
        await self._nats.create("numbers")
        await self._nats.create("seen", "seen.>", "positions.>", allow_atomic=True, allow_rollup_hdrs=True)
        given = self._nats.settings
        return (
            mapping("jetstream", given, stream="numbers"),
            mapping("jetstream", given, subject="seen.all", positions="positions"),
        )

    async def fill(self, first: int, stop: int) -> None:
        await self._nats.publish("numbers.n", *(b"%d" % number for number in range(first, stop)))

    async def restart(self) -> None:
        await self._nats.server.restart()
        await self._nats.connection.connected()

    async def numbers(self) -> list[int]:
        return [number_of(value) for value in await self._nats.values("seen", "seen.all")]


class PulsarPlace(Place):
    """Two topics. The server lives as long as the thread that starts it, so it is started in the thread of the loop."""

    lanes = 2

    def __init__(self, server: PulsarServer) -> None:
        self._server = server
        self._topic = server.topic(self.lanes)
        self._target = server.topic(self.lanes, EXACT)

    async def settings(self) -> tuple[str, str]:
        given = self._server.settings
        return (
            mapping("pulsar", given, topic=self._topic, subscriptionName="totals"),
            mapping("pulsar", given, topic=self._target),
        )

    async def fill(self, first: int, stop: int) -> None:
        await asyncio.to_thread(self._server.send, self._topic, [b"%d" % number for number in range(first, stop)])

    async def restart(self) -> None:
        self._server.restart()

    async def numbers(self) -> list[int]:
        return [number_of(value) for value in self._server.values(self._target)]


class PostgresPlace(Place):
    """Two tables, the first read by a growing number; with `changes` by logical replication."""

    function = _ROWS

    def __init__(self, server: PostgresServer, *, changes: bool) -> None:
        self._server = server
        self._changes = changes
        self._database: Database

    async def settings(self) -> tuple[str, str]:
        self._database = await self._server.database()
        await self._database.execute(
            "CREATE TABLE rows (n bigint PRIMARY KEY)", "CREATE TABLE copies (n bigint, brand text, place bigserial)"
        )
        given = self._database.settings
        cdc = {"publication": "ours", "slot": "ours", "tables": ["rows"], "createPublication": True}
        query: dict[str, object] = {"query": "SELECT n FROM rows", "cursor": ["n"], "pollEvery": "10ms"}
        return (
            mapping("postgres", given, **({"cdc": cdc} if self._changes else query)),
            mapping("postgres", given, table="copies", columns=[{"name": "n"}, {"name": "brand"}]),
        )

    async def fill(self, first: int, stop: int) -> None:
        await self._database.execute(f"INSERT INTO rows SELECT generate_series({first}, {stop - 1})")

    async def restart(self) -> None:
        self._server.restart()

    async def numbers(self) -> list[int]:
        return await self._database.column("SELECT n FROM copies ORDER BY place")


@asynccontextmanager
async def _kafka(directory: Path) -> AsyncIterator[Place]:
    with open_kafka(directory / "kafka") as server:
        yield KafkaPlace(server)


@asynccontextmanager
async def _jetstream(directory: Path) -> AsyncIterator[Place]:
    async with open_outside_nats(directory / "nats") as nats:
        yield JetStreamPlace(nats)


@asynccontextmanager
async def _file(directory: Path) -> AsyncIterator[Place]:
    yield FilePlace(directory)


Opener = Callable[[Path], AbstractAsyncContextManager[Place]]
_Server = TypeVar("_Server")


def _beside(server: Callable[[], AbstractContextManager[_Server]], place: Callable[[_Server, Path], Place]) -> Opener:
    """Of a place with a server whose data is in a temporary directory."""

    @asynccontextmanager
    async def opened(directory: Path) -> AsyncIterator[Place]:
        with server() as running:
            yield place(running, directory)

    return opened


_MISSING: Mapping[str, Callable[[], str]] = {
    "kafka": kafka_server.why_missing,
    "pulsar": pulsar_server.why_missing,
    "postgres": postgres_server.why_missing,
    "postgresCdc": postgres_server.why_missing,
    "sql": mariadb_server.why_missing,
    "opensearch": opensearch_server.why_missing,
    "delta": object_server.why_missing,
    "iceberg": object_server.why_missing,
    "objects": object_server.why_missing,
}
IN_ORDER = ("redisStreams", "jetstream", "postgres", "sql")
"""Those of one lane whose target keeps the order of its records."""


def why_missing(connector: str) -> str:
    """Why its server cannot be started here; empty when it can."""
    look = _MISSING.get(connector)
    return look() if look is not None else ""


PLACES: Mapping[str, Opener] = {
    "kafka": _kafka,
    "redisStreams": _beside(open_redis, lambda server, _: RedisPlace(server)),
    "jetstream": _jetstream,
    "pulsar": _beside(partial(open_pulsar, _PULSAR_LEDGER_ENTRIES), lambda server, _: PulsarPlace(server)),
    "postgres": _beside(open_postgres, lambda server, _: PostgresPlace(server, changes=False)),
    "postgresCdc": _beside(
        partial(open_postgres, wal_level="logical"), lambda server, _: PostgresPlace(server, changes=True)
    ),
    "sql": _beside(open_mariadb, SqlPlace),
    "opensearch": _beside(open_opensearch, OpenSearchPlace),
    "bigquery": _beside(open_bigquery, BigQueryPlace),
    "file": _file,
    "delta": _beside(open_objects_server, DeltaPlace),
    "iceberg": _beside(open_objects_server, IcebergPlace),
    "objects": _beside(open_objects_server, ObjectsPlace),
}
"""Each opens a server of its own, with its data in this directory or a temporary one."""
