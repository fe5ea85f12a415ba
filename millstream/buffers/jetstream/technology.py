"""JetStream as a technology, for the registry.

Above it: the registry. Below it: everything else in this folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from millstream.buffers.jetstream.access_file import files_of, load_access
from millstream.buffers.jetstream.ledger import jetstream_broker
from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.buffers.jetstream.repairs import JetStreamRepairs
from millstream.buffers.jetstream.sending import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE
from millstream.buffers.jetstream.trims import ReadFrames
from millstream.buffers.raw_limit import records_per_s
from millstream.buffers.technology import OpenBuffer, Technology
from millstream.ledger.protocol import DurabilityLevel
from millstream.nats.access import BrokerAccess
from millstream.nats.connection import BrokerConnection, open_connection

if TYPE_CHECKING:
    from millstream.buffers.jetstream.server import JetStreamServer, NatsServer

_RAW = "raw"
"""The stream with which the server is measured."""
_RAW_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class JetStreamLink:
    """`Link` to a NATS server."""

    connection: BrokerConnection
    access: BrokerAccess
    seen: ReadFrames = field(default_factory=ReadFrames)

    @asynccontextmanager
    async def open(
        self, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC, tolerate_lost: bool = False
    ) -> AsyncIterator[OpenBuffer]:
        broker = jetstream_broker(
            self.connection, self.access, pipeline, self.seen, require=require, tolerate_lost=tolerate_lost
        )
        async with open_jetstream_ot_stores(self.connection, pipeline) as stores:
            yield OpenBuffer(broker, stores, JetStreamRepairs(self.connection, pipeline), self.connection.trouble)


class JetStream(Technology):
    """`Technology` for NATS JetStream."""

    key = "jetstream"

    def load_access(self, path: Path | None, url: str) -> BrokerAccess:
        return load_access(path, url)

    def secret_files(self, path: Path) -> Sequence[Path]:
        return files_of(path)

    @asynccontextmanager
    async def connect(self, access: BrokerAccess, *, name: str) -> AsyncIterator[JetStreamLink]:
        async with open_connection(access, name=name) as connection:
            yield JetStreamLink(connection, access)

    def server(
        self, directory: Path, *, durability: DurabilityLevel, port: int | None, buffers: int
    ) -> JetStreamServer:
        # Imported late, because a worker never starts a server.
        from millstream.buffers.jetstream.server import JetStreamServer

        return JetStreamServer(directory, durability=durability, port=port, buffers=buffers)

    def raw_limit(self, directory: Path, *, records: int, record_bytes: int, fsync: bool) -> Coroutine[Any, Any, float]:
        from millstream.buffers.jetstream.server import open_nats_server

        return _raw_limit(open_nats_server(directory, sync_always=fsync), records, record_bytes)


async def _raw_limit(opening: AbstractAsyncContextManager[NatsServer], records: int, record_bytes: int) -> float:
    """Records per second, measured with atomic batches."""
    async with opening as server, open_connection(server.access) as connection:
        stream = {"name": _RAW, "subjects": [f"{_RAW}.>"], "storage": "file", "allow_atomic": True}
        await connection.api(f"STREAM.CREATE.{_RAW}", stream)
        return await records_per_s(records, record_bytes, partial(_write_raw, connection))


async def _write_raw(connection: BrokerConnection, frame: bytes, per_batch: int, left: Iterator[int]) -> None:
    for _ in left:
        batch = uuid4().hex
        for number in range(1, per_batch):
            await connection.publish(f"{_RAW}.d", frame, {BATCH_ID: batch, BATCH_SEQUENCE: str(number)})
        last = {BATCH_ID: batch, BATCH_SEQUENCE: str(per_batch), BATCH_COMMIT: "1"}
        await connection.request(f"{_RAW}.d", frame, last, timeout_s=_RAW_TIMEOUT_S)


TECHNOLOGY = JetStream()
