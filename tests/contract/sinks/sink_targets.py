"""A target for each kind of sink: what to write in the spec, and what has arrived."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from millstream.spec.models import FallbackSink
from millstream.udf.function import open_local_function
from millstream.udf.protocol import UdfClient
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_writer.sink import Guarantee
from tests.contract.sinks.file_target import COLUMNS, file_spec, numbers_in, numbers_of
from tests.contract.sinks.http_target import HttpTarget, open_http_target
from tests.support import sizes
from tests.support.bigquery_server import BigQueryServer, open_bigquery
from tests.support.kafka_server import KafkaServer
from tests.support.mariadb_server import MariaDatabase, MariaServer
from tests.support.mqtt_broker import MqttServer
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.support.object_server import Bucket, ObjectServer
from tests.support.opensearch_server import OpenSearchServer
from tests.support.postgres_server import Database, PostgresServer
from tests.support.pubsub_server import PubsubServer, Queue
from tests.support.rabbit_server import RabbitServer
from tests.support.redis_server import RedisServer
from tests.support.sqs_server import SqsServer

NUMBERS = {"n": "INT64", "text": "STRING"}
"""Columns of tables of BigQuery."""
WRITING_SINK = Path(__file__).parent / "writing_sink.py"
POSITION_SINK = Path(__file__).parent / "sqlite_sink.py"
KINDS = [
    "file jsonl",
    "file csv",
    "file parquet",
    "objects jsonl",
    "objects parquet",
    "http",
    "http batches",
    "udsink",
    "udsink positions",
    "postgres insert",
    "postgres upsert",
    "sqlite insert",
    "sqlite upsert",
    "mariadb insert",
    "mariadb upsert",
    "kafka",
    "redis stream",
    "redis set",
    "jetstream positions",
    "jetstream ids",
    "rabbit classic",
    "rabbit quorum",
    "delta",
    "iceberg",
    *(("sqs", "sqs fifo") if sizes.ALL else ("sqs",)),
    *(("pubsub none", "pubsub key") if sizes.ALL else ("pubsub none",)),
    "mqtt",
    "bigquery",
    "opensearch insert",
    "opensearch upsert",
]

_GUARANTEES = {
    "file": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "objects": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "http": Guarantee.EXACTLY_ONCE_IDEMPOTENT,
    "udsink": Guarantee.AT_LEAST_ONCE,
    "udsink positions": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "postgres": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "sqlite": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "mariadb": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "kafka": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "redis": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "jetstream positions": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "jetstream ids": Guarantee.AT_LEAST_ONCE,
    "sqs": Guarantee.AT_LEAST_ONCE,
    "pubsub": Guarantee.AT_LEAST_ONCE,
    "mqtt": Guarantee.AT_LEAST_ONCE,
    "rabbit": Guarantee.AT_LEAST_ONCE,
    "delta": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "iceberg": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "bigquery": Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
    "opensearch": Guarantee.EXACTLY_ONCE_IDEMPOTENT,
}


@dataclass
class SinkTarget:
    """A target that is there."""

    kind: str
    directory: Path
    spec: FallbackSink
    http: HttpTarget = field(default_factory=HttpTarget)
    udf_client: UdfClient | None = None
    database: Database | None = None
    mariadb: MariaDatabase | None = None
    kafka: KafkaServer | None = None
    redis: RedisServer | None = None
    rabbit: RabbitServer | None = None
    sqs: SqsServer | None = None
    pubsub: PubsubServer | None = None
    subscribed: Queue | None = None
    """Of Pub/Sub."""
    mqtt: MqttServer | None = None
    opensearch: OpenSearchServer | None = None
    bigquery: BigQueryServer | None = None
    nats: OutsideNats | None = None
    bucket: Bucket | None = None
    topic: str = ""
    """Of Kafka; the stream or prefix of Redis; the queue of RabbitMQ or SQS; the topic of MQTT; the index of
    OpenSearch; the table of BigQuery."""

    @property
    def guarantee(self) -> Guarantee:
        return _GUARANTEES.get(self.kind) or _GUARANTEES[self.kind.split()[0]]

    def numbers(self) -> list[int]:
        """What has arrived, in the order of its coming; repeated records as the target itself takes them."""
        if self.bucket is not None:
            return object_numbers(self.bucket)
        if self.spec.kind == "file":
            return numbers_in(self.directory / "out")
        if self.mariadb is not None:
            return maria_numbers(self.mariadb)
        if self.spec.kind == "sql":
            return [row[0] for row in sqlite_rows(self.directory / "shop.db", "SELECT n FROM numbers ORDER BY place")]
        if self.spec.kind == "delta":
            return delta_numbers(self.directory / "table")
        if self.spec.kind == "iceberg":
            return iceberg_numbers(self.directory)
        if self.spec.kind == "http":
            return [json.loads(line)["n"] for body in self.http.accepted().values() for line in body.splitlines()]
        if self.database is not None:
            return [row[0] for row in self.database.rows_at_once("SELECT n FROM numbers ORDER BY place")]
        if self.kafka is not None:
            return [json.loads(value)["n"] for value in self.kafka.values(self.topic)]
        if self.redis is not None:
            return redis_numbers(self.redis, self.topic)
        if self.rabbit is not None:
            return [json.loads(message.body)["n"] for message in self.rabbit.taken(self.topic)]
        if self.sqs is not None:
            found = [json.loads(message["Body"])["n"] for message in self.sqs.taken(self.topic)]
            # Only a FIFO queue has an order, and it leaves repeated messages out.
            return found if self.topic.endswith(".fifo") else sorted(found)
        if self.pubsub is not None:
            assert self.subscribed is not None
            # Messages with different keys have no order.
            return sorted(json.loads(message.data)["n"] for message in self.pubsub.taken(self.subscribed))
        if self.mqtt is not None:
            return [json.loads(message.payload)["n"] for message in self.mqtt.kept(self.topic)]
        if self.bigquery is not None:
            return bigquery_numbers(self.bigquery, self.topic)
        if self.opensearch is not None:
            return self.opensearch.numbers(self.topic)
        if self.nats is not None:
            return jetstream_numbers(self.nats)
        if self.kind == "udsink positions":
            return position_sink_numbers(self.directory / "written")
        written = self.directory / "written"
        return [json.loads(line)["n"] for line in written.read_text().splitlines()] if written.exists() else []


def postgres_spec(database: Database, mode: str, /, **more: object) -> FallbackSink:
    """A sink that writes into the table `numbers`."""
    columns = [{"name": "n"}, {"name": "text"}]
    options = {"table": "numbers", "mode": mode, "columns": columns, "keys": ["n"] if mode != "insert" else []}
    return FallbackSink.model_validate({"postgres": {**database.settings, **options, **more}})


def sql_spec(url: str, mode: str, /, **more: object) -> FallbackSink:
    """A sink that writes into the table `numbers`."""
    columns = [{"name": "n"}, {"name": "text"}]
    options = {"table": "numbers", "mode": mode, "columns": columns, "keys": ["n"] if mode != "insert" else []}
    return FallbackSink.model_validate({"sql": {"url": url, **options, **more}})


MARIA_NUMBERS = """\
CREATE TABLE numbers (n INT PRIMARY KEY, text VARCHAR(20), place BIGINT AUTO_INCREMENT, KEY (place)) CHARSET utf8mb4
"""


def maria_spec(database: MariaDatabase, mode: str, /, **more: object) -> FallbackSink:
    """A sink that writes into the table `numbers`."""
    return sql_spec(database.url, mode, **{"user": database.settings["user"], **more})


def maria_numbers(database: MariaDatabase) -> list[int]:
    """In the order of the rows."""
    return [n for (n,) in database.rows("SELECT n FROM numbers ORDER BY place")]


def sqlite_rows(file: Path, statement: str) -> list[tuple[Any, ...]]:
    """Of a database, for which the file is created."""
    with closing(sqlite3.connect(file)) as connection, connection:
        return connection.execute(statement).fetchall()


def position_sink_numbers(file: Path) -> list[int]:
    """What `sqlite_sink.py` has committed."""
    try:
        return [row[0] for row in sqlite_rows(file, "SELECT n FROM numbers ORDER BY place")]
    except sqlite3.OperationalError:
        # It creates its tables when it is opened.
        return []


def delta_spec(path: str, /, **more: object) -> FallbackSink:
    """A sink that writes into the table."""
    return FallbackSink.model_validate({"delta": {"path": path, "columns": COLUMNS, **more}})


def delta_numbers(table: Path | str, options: dict[str, str] | None = None) -> list[int]:
    """As deltalake reads them. A table has no order."""
    try:
        rows = DeltaTable(str(table), storage_options=options).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    assert all(row["text"] == f"text {row['n']}" for row in rows)
    return sorted(row["n"] for row in rows)


def iceberg_spec(directory: Path, /, **more: object) -> FallbackSink:
    """A sink that writes into a table of a catalog in the directory."""
    catalog = {"sqlite": str(directory / "catalog.db"), "warehouse": str(directory / "warehouse")}
    settings = {"catalog": catalog, "table": "shop.numbers", "columns": COLUMNS, **more}
    return FallbackSink.model_validate({"iceberg": settings})


def iceberg_table(directory: Path, **properties: str) -> Table:
    """As pyiceberg opens it."""
    return _iceberg_catalog(directory, **properties).load_table("shop.numbers")


def _iceberg_catalog(directory: Path, **properties: str) -> SqlCatalog:
    return SqlCatalog("default", uri=f"sqlite:///{directory / 'catalog.db'}", **properties)


def iceberg_numbers(directory: Path, **properties: str) -> list[int]:
    """As pyiceberg reads them. A table has no order."""
    with closing(_iceberg_catalog(directory, **properties)) as catalog:
        try:
            rows = catalog.load_table("shop.numbers").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
    assert all(row["text"] == f"text {row['n']}" for row in rows)
    return sorted(row["n"] for row in rows)


def redis_spec(server: RedisServer, mode: str, target: str, /, **more: object) -> FallbackSink:
    """A sink that writes into the stream, or the keys with the prefix, `target`."""
    options = {"mode": mode, "stream" if mode == "stream" else "prefix": target, **more}
    return FallbackSink.model_validate({"redisStreams": {**server.settings, **options}})


def bigquery_spec(server: BigQueryServer, table: str, /, **more: object) -> FallbackSink:
    """A sink that adds rows to the table."""
    options = {"table": table, "positionTable": f"{table}_positions", "columns": [{"name": name} for name in NUMBERS]}
    return FallbackSink.model_validate({"bigquery": {**server.settings, **options, **more}})


def bigquery_numbers(server: BigQueryServer, table: str) -> list[int]:
    """A table has no order."""
    rows = server.rows(table)
    assert all(row["text"] == f"text {row['n']}" for row in rows)
    return sorted(row["n"] for row in rows)


def opensearch_spec(server: OpenSearchServer, index: str, /, **more: object) -> FallbackSink:
    """A sink that writes into the index."""
    options = {"index": index, "lanesIndex": f"{index}-lanes", **more}
    return FallbackSink.model_validate({"opensearch": {**server.settings, **options}})


def object_spec(bucket: Bucket, form: str, /, **more: object) -> FallbackSink:
    """A sink that writes below `out`."""
    columns = [] if form == "jsonl" else COLUMNS
    options = {"path": bucket.url("out"), "format": form, "columns": columns, "store": bucket.server.settings, **more}
    return FallbackSink.model_validate({"file": options})


def finished_objects(bucket: Bucket) -> list[str]:
    """In the order of their records."""
    keys = [key for key in bucket.keys("out") if "/_millstream/" not in key]
    return sorted(keys, key=lambda key: (key.rpartition("/")[2], key))


def object_numbers(bucket: Bucket) -> list[int]:
    """The records of all finished objects, each read as the whole file it must be."""
    return [number for key in finished_objects(bucket) for number in numbers_of(key, bucket.get(key))]


def redis_numbers(server: RedisServer, target: str) -> list[int]:
    """Of a stream in its order, of keys in that of the numbers."""
    if server.client.exists(target):
        return [json.loads(entry["value"])["n"] for entry in server.entries(target)]
    values = [server.client.get(key) for key in server.client.scan_iter(f"{target}*", count=1000)]
    return sorted(json.loads(value)["n"] for value in values if isinstance(value, bytes))


async def jetstream_spec(nats: OutsideNats, /, **more: object) -> FallbackSink:
    """A sink that writes to the subject `orders.new` of a stream that is made for it."""
    await nats.create("orders", "orders.>", "positions.>", allow_atomic=True, allow_rollup_hdrs=True)
    return FallbackSink.model_validate({"jetstream": {**nats.settings, "subject": "orders.new", **more}})


def jetstream_numbers(nats: OutsideNats) -> list[int]:
    """In the order of the stream."""
    return [json.loads(value)["n"] for value in nats.values_at_once("orders", "orders.new")]


async def _table_target(
    kind: str, directory: Path, postgres: PostgresServer | None, mariadb: MariaServer | None
) -> SinkTarget | None:
    """A table of a database; None for other kinds."""
    name, _, option = kind.partition(" ")
    if name == "sqlite":
        file = directory / "shop.db"
        sqlite_rows(file, "CREATE TABLE numbers (n INTEGER UNIQUE, text TEXT, place INTEGER PRIMARY KEY)")
        return SinkTarget(kind, directory, sql_spec(f"sqlite:///{file}", option))
    if name == "mariadb":
        assert mariadb is not None
        rows = mariadb.database()
        rows.execute(MARIA_NUMBERS)
        return SinkTarget(kind, directory, maria_spec(rows, option), mariadb=rows)
    if name == "postgres":
        assert postgres is not None
        database = await postgres.database()
        await database.execute("CREATE TABLE numbers (n int PRIMARY KEY, text text, place bigserial)")
        return SinkTarget(kind, directory, postgres_spec(database, option), database=database)
    return None


@asynccontextmanager
async def open_target(
    kind: str,
    directory: Path,
    postgres: PostgresServer | None = None,
    kafka: KafkaServer | None = None,
    redis: RedisServer | None = None,
    objects: ObjectServer | None = None,
    rabbit: RabbitServer | None = None,
    sqs: SqsServer | None = None,
    pubsub: PubsubServer | None = None,
    mqtt: MqttServer | None = None,
    opensearch: OpenSearchServer | None = None,
    mariadb: MariaServer | None = None,
) -> AsyncIterator[SinkTarget]:
    """The servers: for kinds that begin with their names."""
    name, _, option = kind.partition(" ")
    async with AsyncExitStack() as stack:
        if name == "file":
            yield SinkTarget(kind, directory, file_spec(directory / "out", option))
        elif name == "delta":
            yield SinkTarget(kind, directory, delta_spec(str(directory / "table")))
        elif name == "iceberg":
            yield SinkTarget(kind, directory, iceberg_spec(directory))
        elif name == "objects":
            assert objects is not None
            bucket = objects.bucket()
            yield SinkTarget(kind, directory, object_spec(bucket, option), bucket=bucket)
        elif (table := await _table_target(kind, directory, postgres, mariadb)) is not None:
            yield table
        elif name == "http":
            http = await stack.enter_async_context(open_http_target(HttpTarget()))
            batch = {"maxRecords": 7 if option else 1}
            spec = FallbackSink.model_validate({"http": {"url": http.url, "batch": batch}})
            yield SinkTarget(kind, directory, spec, http)
        elif name == "redis":
            assert redis is not None
            target = f"records-{uuid4()}"
            yield SinkTarget(kind, directory, redis_spec(redis, option, target), redis=redis, topic=target)
        elif name == "jetstream":
            nats = await stack.enter_async_context(open_outside_nats(directory / "nats"))
            more = {"positions": "positions"} if option == "positions" else {}
            yield SinkTarget(kind, directory, await jetstream_spec(nats, **more), nats=nats)
        elif name == "rabbit":
            assert rabbit is not None
            queue = rabbit.queue(option)
            spec = FallbackSink.model_validate({"rabbitmq": {**rabbit.settings, "routingKey": queue}})
            yield SinkTarget(kind, directory, spec, rabbit=rabbit, topic=queue)
        elif name == "sqs":
            assert sqs is not None
            yield _sqs_target(kind, directory, sqs)
        elif name == "pubsub":
            assert pubsub is not None
            yield _pubsub_target(kind, directory, pubsub)
        elif name == "mqtt":
            assert mqtt is not None
            topic = mqtt.topic()
            mqtt.keep(topic)
            spec = FallbackSink.model_validate({"mqtt": {**mqtt.settings, "topic": topic}})
            yield SinkTarget(kind, directory, spec, mqtt=mqtt, topic=topic)
        elif name == "bigquery":
            yield _bigquery_target(kind, directory, stack.enter_context(open_bigquery()))
        elif name == "opensearch":
            assert opensearch is not None
            yield _opensearch_target(kind, directory, opensearch)
        elif name == "kafka":
            assert kafka is not None
            topic = kafka.create(f"records-{uuid4()}")
            spec = FallbackSink.model_validate({"kafka": {"brokers": [kafka.brokers], "topic": topic}})
            yield SinkTarget(kind, directory, spec, kafka=kafka, topic=topic)
        else:
            function = f"{POSITION_SINK}:Numbers" if option else f"{WRITING_SINK}:append"
            env = {"SINK_TARGET": str(directory / "written")}
            process = SidecarSpec(python_command(function), role="sink", pipeline="p", vertex="out", env=env)
            client = await stack.enter_async_context(open_local_function(process, log=lambda _, line: None))
            spec = FallbackSink.model_validate({"udsink": {"python": function}})
            yield SinkTarget(kind, directory, spec, udf_client=client)


def _sqs_target(kind: str, directory: Path, server: SqsServer) -> SinkTarget:
    queue = server.queue(fifo=kind.endswith("fifo"))
    spec = FallbackSink.model_validate({"sqs": server.settings(queue)})
    return SinkTarget(kind, directory, spec, sqs=server, topic=queue)


def _pubsub_target(kind: str, directory: Path, server: PubsubServer) -> SinkTarget:
    subscribed = server.queue()
    keys = kind.partition(" ")[2]
    spec = FallbackSink.model_validate({"pubsub": {**server.sink(subscribed), "orderingKeySource": keys}})
    return SinkTarget(kind, directory, spec, pubsub=server, subscribed=subscribed)


def _bigquery_target(kind: str, directory: Path, server: BigQueryServer) -> SinkTarget:
    table = server.create(NUMBERS)
    return SinkTarget(kind, directory, bigquery_spec(server, table), bigquery=server, topic=table)


def _opensearch_target(kind: str, directory: Path, server: OpenSearchServer) -> SinkTarget:
    index = server.index()
    spec = opensearch_spec(server, index, mode=kind.partition(" ")[2])
    return SinkTarget(kind, directory, spec, opensearch=server, topic=index)
