"""Targets that are full: each sink says so, waits, and loses and repeats nothing when there is space again.

Files and SQLite have tests of their own. MariaDB and Kafka end themselves when their disk is full, so their tests are
those in which the server is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millstream import codes
from millstream.limits import MIB
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import (
    delta_spec,
    finished_objects,
    iceberg_spec,
    iceberg_table,
    jetstream_spec,
    object_spec,
    opensearch_spec,
    postgres_spec,
    redis_spec,
)
from tests.contract.sinks.table_lanes import again
from tests.small_disk import open_small_disk
from tests.support import mqtt_broker, object_server, postgres_server
from tests.support.errors import raises
from tests.support.nats_outside import open_outside_nats
from tests.support.opensearch_server import OpenSearchServer
from tests.support.rabbit_server import RabbitServer
from tests.support.redis_server import open_redis
from tests.unit.writer.sink_frames import sink_frame

_RECORDS, _TEXT_BYTES = 10, 20_000


def frame(sequence: int) -> SinkFrame:
    """Records that cannot be compressed, of 200 kB."""
    rng = random.Random(sequence)
    numbers = range(sequence * _RECORDS, (sequence + 1) * _RECORDS)
    rows = [{"n": n, "text": rng.randbytes(_TEXT_BYTES // 2).hex()} for n in numbers]
    return sink_frame([json.dumps(row).encode() for row in rows], sequence)


async def waits_for_space(
    spec: FallbackSink, said: str, fill: Callable[[], Awaitable[None]], make_space: Callable[[], Awaitable[None]]
) -> None:
    """Write a frame, two that do not fit, and both when there is space again."""
    async with open_sink(spec, sink_owner(1)) as lane:
        await again(lambda: lane.write([frame(1)], Position(1)))
        await fill()
        for _ in range(2):
            with raises(codes.TARGET_AWAY, said):
                for sequence in (2, 3):
                    await lane.write([frame(sequence)], Position(sequence))
                    await lane.flush()
        await make_space()
        for sequence in (2, 3):
            await again(lambda sequence=sequence: lane.write([frame(sequence)], Position(sequence)))  # type: ignore[misc]
        await again(lane.flush)


async def collects_until_there_is_space(spec: FallbackSink, said: str, disk: Disk) -> None:
    """The same for a lane that keeps in memory what it has taken, until it writes a file."""
    async with open_sink(spec, sink_owner(1)) as lane:
        await again(lambda: lane.write([frame(1)], Position(1)))
        await again(lane.flush)
        await disk.fill()
        await lane.write([frame(2)], Position(2))
        with raises(codes.TARGET_AWAY, said):
            await lane.flush()
        with raises(codes.TARGET_AWAY, said):
            await lane.write([frame(3)], Position(3))
        assert lane.durable == Position(1)
        await disk.make_space()
        await again(lambda: lane.write([frame(3)], Position(3)))
        await again(lane.flush)
        assert lane.durable == Position(3)


ALL = [*range(_RECORDS, 4 * _RECORDS)]


class Disk:
    """A small one that another user's server may use, and that can be filled."""

    def __init__(self, path: Path) -> None:
        self.space = path / "space"
        self.space.mkdir(mode=0o777)
        self.space.chmod(0o777)
        self._ballast = path / "ballast"

    async def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    async def make_space(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    # The directories of a test are root's alone, and servers run as another user.
    with tempfile.TemporaryDirectory(prefix="millstream-full-") as name:
        Path(name).chmod(0o755)
        with open_small_disk(Path(name) / "disk", 8 * MIB) as path:
            yield Disk(path)


@pytest.mark.guarantee("I1")
async def test_postgres_whose_disk_is_full(disk: Disk) -> None:
    if why := postgres_server.why_missing():
        pytest.skip(why)
    # A server of its own, because its directory is removed with the disk.
    with postgres_server.open_postgres() as server:
        if os.geteuid() == 0:
            owner = server.directory.stat()
            os.chown(disk.space, owner.st_uid, owner.st_gid)
        disk.space.chmod(0o700)
        database = await server.database()
        await database.execute(f"CREATE TABLESPACE small LOCATION '{disk.space}'")
        await database.execute("CREATE TABLE numbers (n int PRIMARY KEY, text text) TABLESPACE small")
        spec = postgres_spec(database, "insert")
        await waits_for_space(spec, "cannot be used now: .*No space left on device", disk.fill, disk.make_space)
        assert await database.column("SELECT n FROM numbers ORDER BY n") == ALL


@pytest.mark.guarantee("I1")
async def test_redis_whose_memory_is_full() -> None:
    with open_redis() as server:

        async def limit(size: int) -> None:
            server.command("CONFIG", "SET", "maxmemory", size)

        spec = redis_spec(server, "stream", "numbers")
        await waits_for_space(spec, "used memory > .maxmemory.", lambda: limit(1), lambda: limit(0))
        assert [json.loads(entry["value"])["n"] for entry in server.entries("numbers")] == ALL


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_stream_of_nats_that_is_full(tmp_path: Path, kept: bool) -> None:
    async with open_outside_nats(tmp_path / "nats") as nats:
        spec = await jetstream_spec(nats, **({"positions": "positions"} if kept else {}))
        config = (await nats.connection.api("STREAM.INFO.orders"))["config"]

        async def limit(size: int) -> None:
            await nats.connection.api("STREAM.UPDATE.orders", {**config, "max_bytes": size, "discard": "new"})

        await waits_for_space(spec, "maximum bytes exceeded", lambda: limit(300_000), lambda: limit(-1))
        assert [json.loads(value)["n"] for value in await nats.values("orders", "orders.new")] == ALL


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_bucket_whose_servers_disk_is_full(disk: Disk) -> None:
    if why := object_server.why_missing():
        pytest.skip(why)
    with object_server.open_objects_server(disk.space) as server:
        bucket = server.bucket()
        await collects_until_there_is_space(object_spec(bucket, "jsonl"), "cannot be used now", disk)
        rows = [json.loads(line) for key in finished_objects(bucket) for line in bucket.get(key).splitlines()]
        assert [row["n"] for row in rows] == ALL


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
async def test_a_table_in_a_directory_whose_disk_is_full(disk: Disk, kind: str) -> None:
    spec = delta_spec(str(disk.space / "table")) if kind == "delta" else iceberg_spec(disk.space)
    await collects_until_there_is_space(spec, "cannot be used now: .*No space left on device.*Free some space", disk)
    if kind == "delta":
        delta = DeltaTable(str(disk.space / "table"))
        numbers, files = delta.to_pyarrow_table()["n"], delta.file_uris()
    else:
        iceberg = iceberg_table(disk.space)
        numbers = iceberg.scan().to_arrow()["n"]
        files = [str(path) for path in iceberg.inspect.files()["file_path"].to_pylist()]
        iceberg.catalog.close()
    assert sorted(str(number) for number in numbers.to_pylist()) == sorted(map(str, ALL))
    # Attempts that failed have left nothing that takes up space.
    assert {file.name for file in disk.space.rglob("*.parquet*")} == {Path(path).name for path in files}


@pytest.mark.guarantee("I1")
async def test_rabbitmq_whose_disk_is_nearly_full(rabbit: RabbitServer) -> None:
    queue = rabbit.queue()
    spec = FallbackSink.model_validate({"rabbitmq": {**rabbit.settings, "routingKey": queue, "timeout": "1s"}})

    async def limit(size: int | None) -> None:
        await asyncio.to_thread(rabbit.limit_disk, *([] if size is None else [size]))

    said = "accepts no messages now: it is low on disk space"
    await waits_for_space(spec, said, lambda: limit(1 << 60), lambda: limit(None))
    # What was sent when it did not read may arrive as well, with the same ids.
    found = {message.header.properties.message_id: json.loads(message.body)["n"] for message in rabbit.taken(queue)}
    assert sorted(found.values()) == ALL


@pytest.mark.guarantee("I1")
async def test_mosquitto_whose_disk_is_full_says_nothing_and_keeps_messages_in_memory(disk: Disk) -> None:
    if why := mqtt_broker.why_missing():
        pytest.skip(why)
    server = mqtt_broker.MqttServer(disk.space, saves=True)
    server.start()
    try:
        topic = server.topic()
        server.keep(topic)
        spec = FallbackSink.model_validate({"mqtt": {**server.settings, "topic": topic}})
        async with open_sink(spec, sink_owner(1)) as lane:
            await lane.write([frame(1)], Position(1))
            await disk.fill()
            for sequence in (2, 3):
                await lane.write([frame(sequence)], Position(sequence))
        await disk.make_space()
        server.stop()
        server.start()
        assert [json.loads(message.payload)["n"] for message in server.kept(topic)] == ALL
    finally:
        server.kill()


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_opensearch_whose_disk_is_nearly_full(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()

    def is_blocked() -> bool:
        return "read_only" in json.dumps(opensearch.ask("GET", f"{index}/_settings"))

    async def fill() -> None:
        opensearch.want_free("1pb")
        async with asyncio.timeout(60):
            # It looks at its disk every ten seconds.
            while not is_blocked():  # noqa: ASYNC110  # of a server there is no event
                await asyncio.sleep(0.1)

    async def make_space() -> None:
        opensearch.want_free("1b")

    try:
        await waits_for_space(opensearch_spec(opensearch, index), f"does not write to {index} now", fill, make_space)
    finally:
        opensearch.want_free(None)
    assert opensearch.numbers(index) == ALL
