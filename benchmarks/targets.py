"""How fast sinks are, each beside a plain loop of the client library into the same target, in the same run.

    python benchmarks/targets.py [--only NAME,…] [--records N] [--rounds N] [--json]

Each plain loop reads the members of each record with the json module (where the client takes Arrow tables, with
Arrow's parser), and writes them in requests or transactions of as many records as the sink's, one after another and
without a position. The sink gets the same records through the delivery, in frames of 4,096. Both take turns. Seconds of
the processor are those of this process; those of the servers are not counted. Shares are medians of the rounds.

Pub/Sub is Google's emulator, which keeps messages in memory. BigQuery is a stand-in over the published protocol, in
Python and in a process of its own. So their rates say nothing about the services; seconds of the processor do say what
the sink costs. A target whose server is not there is left out, with the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from objects import delivered, parsed, timed
from sinks import COLUMNS, FRAME_RECORDS, FRAMES_PER_WRITE, make_frame

from millstream.spec.models import FallbackSink
from tests.support import bigquery_server, mariadb_server, opensearch_server, pubsub_server

NAMES = [column["name"] for column in COLUMNS]
WRITTEN = [{"name": name} for name in NAMES]
FRAMES_PER_COMMIT = 64
MESSAGES_MAX = 1000
VALUES = make_frame().values()


class Target(NamedTuple):
    """A table, topic or index without records."""

    spec: dict[str, Any]
    """Of the sink."""
    write: Callable[[int], None]
    """The plain loop: the records of so many frames."""
    found: Callable[[], int]
    """Number of records that are there."""


class Case(NamedTuple):
    opened: Callable[[], AbstractContextManager[Callable[[], Target]]]
    """The server; it makes targets."""
    loop: str
    """What the plain loop does."""
    missing: Callable[[], str] = lambda: ""
    """Why there is no server."""


def writes(frames: int) -> Iterator[list[bytes]]:
    """The records of so many frames, as many at a time as the sink gets in a write."""
    for first in range(0, frames, FRAMES_PER_WRITE):
        yield VALUES * min(FRAMES_PER_WRITE, frames - first)


def rows(values: list[bytes]) -> list[tuple[Any, ...]]:
    """As the json module reads them."""
    return [tuple(member[name] for name in NAMES) for member in map(json.loads, values)]


# SQLite, MariaDB


@contextmanager
def sqlite() -> Iterator[Callable[[], Target]]:
    with tempfile.TemporaryDirectory() as directory:

        def target() -> Target:
            file = Path(tempfile.mkdtemp(dir=directory)) / "t.db"

            @contextmanager
            def connected() -> Iterator[sqlite3.Connection]:
                with closing(sqlite3.connect(file)) as connection:
                    # As the sink does it.
                    connection.execute("PRAGMA synchronous = EXTRA")
                    yield connection

            def write(frames: int) -> None:
                with connected() as connection:
                    for values in writes(frames):
                        with connection:
                            connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows(values))

            def count() -> int:
                with connected() as connection:
                    return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])

            with connected() as connection:
                connection.execute("CREATE TABLE t (id INTEGER, carrier TEXT, delay REAL, ok INTEGER, at TEXT)")
            spec = {"sql": {"url": f"sqlite:///{file}", "table": "t", "columns": WRITTEN}}
            return Target(spec, write, count)

        yield target


@contextmanager
def mariadb() -> Iterator[Callable[[], Target]]:
    with mariadb_server.open_mariadb() as server:

        def target() -> Target:
            database = server.database()
            database.execute("CREATE TABLE t (id BIGINT, carrier VARCHAR(20), delay DOUBLE, ok BOOL, at VARCHAR(30))")

            def write(frames: int) -> None:
                with closing(database.connect()) as connection, connection.cursor() as cursor:
                    for values in writes(frames):
                        connection.begin()
                        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s, %s)", rows(values))
                        connection.commit()

            spec = {"sql": {**database.settings, "table": "t", "columns": WRITTEN}}
            return Target(spec, write, lambda: int(database.rows("SELECT count(*) FROM t")[0][0]))

        yield target


# Iceberg


@contextmanager
def iceberg() -> Iterator[Callable[[], Target]]:
    from pyiceberg.catalog.sql import SqlCatalog

    with tempfile.TemporaryDirectory() as directory:

        def target() -> Target:
            home = Path(tempfile.mkdtemp(dir=directory))
            catalog = {"sqlite": str(home / "catalog.db"), "warehouse": str(home / "warehouse")}
            commits = {"maxRecords": FRAMES_PER_COMMIT * FRAME_RECORDS, "maxBytes": "1GiB", "commitEvery": "1h"}
            theirs = SqlCatalog("default", uri=f"sqlite:///{home / 'catalog.db'}", warehouse=f"file://{home}/warehouse")

            def write(frames: int) -> None:
                theirs.create_namespace("shop")
                table = theirs.create_table("shop.t", parsed(VALUES).schema)
                for first in range(0, frames, FRAMES_PER_COMMIT):
                    count = min(FRAMES_PER_COMMIT, frames - first)
                    table.append(pa.concat_tables([parsed(VALUES) for _ in range(count)]))

            def count() -> int:
                return int(theirs.load_table("shop.t").scan().count())

            spec = {"iceberg": {"catalog": catalog, "table": "shop.t", "columns": COLUMNS, **commits}}
            return Target(spec, write, count)

        yield target


# Pub/Sub


@contextmanager
def pubsub() -> Iterator[Callable[[], Target]]:
    import grpc
    from google.cloud.pubsub_v1 import PublisherClient  # type: ignore[import-untyped]
    from google.cloud.pubsub_v1.types import BatchSettings  # type: ignore[import-untyped]
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    with pubsub_server.open_pubsub() as server:

        def target() -> Target:
            queue = server.queue()

            def write(frames: int) -> None:
                with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                    batches = BatchSettings(max_messages=MESSAGES_MAX, max_bytes=9_000_000, max_latency=1.0)
                    client = PublisherClient(batches, transport=PublisherGrpcTransport(channel=channel))
                    for values in writes(frames):
                        for answer in [client.publish(queue.topic, value) for value in values]:
                            answer.result()
                    client.stop()

            return Target({"pubsub": server.sink(queue)}, write, lambda: len(server.taken(queue)))

        yield target


# BigQuery

TYPES = {"id": "INT64", "carrier": "STRING", "delay": "DOUBLE", "ok": "BOOL", "at": "STRING"}


def serve_bigquery(pipe: Connection) -> None:
    """In a process of its own, so that its seconds are not counted."""
    with bigquery_server.open_bigquery() as server:
        while (asked := pipe.recv()) is not None:
            pipe.send(len(server.rows(asked)) if asked else (server.settings, server.create(TYPES)))


@contextmanager
def bigquery() -> Iterator[Callable[[], Target]]:
    import grpc
    from google.cloud.bigquery_storage_v1 import BigQueryWriteClient, types
    from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

    from millstream_connectors.bigquery.sink.rows import RowType

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_bigquery, args=(theirs,), daemon=True)
    process.start()

    def asked(what: str) -> Any:
        ours.send(what)
        return ours.recv()

    def target() -> Target:
        settings, name = asked("")
        row_type = RowType(bigquery_server.schema_of(TYPES), NAMES)

        def requests(stream: str, frames: int) -> Iterator[Any]:
            offset = 0
            for values in writes(frames):
                request = types.AppendRowsRequest.pb()(write_stream=stream)
                request.offset.value = offset
                if not offset:
                    request.proto_rows.writer_schema.proto_descriptor.CopyFrom(row_type.descriptor)
                rows = (row_type._message(**json.loads(value)).SerializeToString() for value in values)
                request.proto_rows.rows.serialized_rows.extend(rows)
                offset += len(values)
                yield types.AppendRowsRequest.wrap(request)

        def write(frames: int) -> None:
            endpoint = settings["endpoint"].removeprefix("http://")
            with grpc.insecure_channel(endpoint) as channel:
                writer: Any = BigQueryWriteClient
                client = writer(transport=BigQueryWriteGrpcTransport(channel=channel))
                parent = f"projects/{settings['project']}/datasets/{settings['dataset']}/tables/{name}"
                stream = client.create_write_stream(
                    parent=parent, write_stream=types.WriteStream(type_=types.WriteStream.Type.COMMITTED)
                )
                for answer in client.append_rows(requests(stream.name, frames)):
                    assert not answer.error.code, answer.error.message

        spec = {"bigquery": {**settings, "table": name, "positionTable": f"{name}_positions", "columns": WRITTEN}}
        return Target(spec, write, lambda: int(asked(name)))

    try:
        yield target
    finally:
        ours.send(None)
        process.join()


# OpenSearch


@contextmanager
def opensearch() -> Iterator[Callable[[], Target]]:
    with opensearch_server.open_opensearch() as server:

        def target() -> Target:
            index = server.index()

            def write(frames: int) -> None:
                number = 0
                with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
                    for values in writes(frames):
                        lines = []
                        for value in values:
                            head = json.dumps({"create": {"_id": str(number)}})
                            lines.append(f"{head}\n{json.dumps(json.loads(value))}\n")
                            number += 1
                        headers = {"Content-Type": "application/x-ndjson"}
                        connection.request("POST", f"/{index}/_bulk", "".join(lines).encode(), headers)
                        answer = json.loads(connection.getresponse().read())
                        assert not answer["errors"], answer

            def count() -> int:
                server.ask("POST", f"{index}/_refresh")
                return int(server.ask("GET", f"{index}/_count")["count"])

            spec = {"opensearch": {**server.settings, "index": index, "lanesIndex": f"{index}-lanes"}}
            return Target(spec, write, count)

        yield target


CASES = {
    "sqlite": Case(sqlite, "json and sqlite3's executemany"),
    "mariadb": Case(mariadb, "json and PyMySQL's executemany", mariadb_server.why_missing),
    "iceberg": Case(iceberg, "Arrow's parser and pyiceberg's append"),
    "pubsub": Case(pubsub, "publish of google-cloud-pubsub, in batches of 1,000", pubsub_server.why_missing),
    "bigquery": Case(bigquery, "json and AppendRows of google-cloud-bigquery-storage"),
    "opensearch": Case(opensearch, "json and bulk requests by http.client", opensearch_server.why_missing),
}


class Measured(NamedTuple):
    rate: float
    """Records per second of the sink, the median of the rounds."""
    loop_rate: float
    share: float
    """Of the loop's rate."""
    cpu_share: float
    """Records per second of the processor, next to those of the loop."""
    cpu_us: float
    """Microseconds of the processor for a record."""
    loop_cpu_us: float


def measure(case: Case, frames: int, rounds: int) -> Measured:
    found: list[tuple[tuple[float, float], tuple[float, float]]] = []
    records = frames * FRAME_RECORDS
    with case.opened() as make:
        # Modules are imported now, and connections of the client are not made for the first time.
        warm = make()
        warm.write(1)
        asyncio.run(delivered(FallbackSink.model_validate(make().spec), 1))
        for _ in range(rounds):
            loop, sink = make(), make()
            took = timed(lambda loop=loop: loop.write(frames))  # type: ignore[misc]
            spec = FallbackSink.model_validate(sink.spec)
            ours = timed(lambda spec=spec: asyncio.run(delivered(spec, frames)))  # type: ignore[misc]
            for target in (loop, sink):
                assert (count := target.found()) == records, f"{count} of {records} records"
            found.append((ours, took))
    median = statistics.median
    return Measured(
        rate=records / median(ours for (ours, _), _ in found),
        loop_rate=records / median(theirs for _, (theirs, _) in found),
        share=median(theirs[0] / ours[0] for ours, theirs in found),
        cpu_share=median(theirs[1] / ours[1] for ours, theirs in found),
        cpu_us=median(ours for (_, ours), _ in found) / records * 1e6,
        loop_cpu_us=median(theirs for _, (_, theirs) in found) / records * 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="default: all of them")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    print(f"load: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    results = {}
    for name in options.only.split(","):
        case = CASES[name]
        if why := case.missing():
            print(f"{name:10} left out: {why}")
            continue
        result = results[name] = measure(case, max(1, options.records // FRAME_RECORDS), options.rounds)
        print(
            f"{name:10} {result.rate:>10,.0f} records/s, {result.share:.2f} of {result.loop_rate:,.0f} by {case.loop}; "
            f"processor: {result.cpu_us:.2f} µs a record, {result.loop_cpu_us:.2f} by the loop ({result.cpu_share:.2f})"
        )
    if options.json:
        print(json.dumps({"targets": {name: result._asdict() for name, result in results.items()}}))


if __name__ == "__main__":
    main()
