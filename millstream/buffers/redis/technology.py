"""Redis and Valkey as a technology, for the registry.

Above it: the registry. Below it: everything else in this folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millstream.buffers.raw_limit import records_per_s
from millstream.buffers.redis.access import RedisAccess
from millstream.buffers.redis.access_file import files_of, load_access
from millstream.buffers.redis.connection import RedisConnection, open_connection
from millstream.buffers.redis.durability import check_server
from millstream.buffers.redis.ledger import RedisBroker
from millstream.buffers.redis.ot_store import open_redis_ot_stores
from millstream.buffers.redis.repairs import RedisRepairs
from millstream.buffers.redis.server import RedisServerOfRun, open_redis_server
from millstream.buffers.technology import OpenBuffer, Technology
from millstream.ledger.protocol import DurabilityLevel


@dataclass(frozen=True, slots=True)
class RedisLink:
    """`Link` to a Redis or Valkey server."""

    connection: RedisConnection

    @asynccontextmanager
    async def open(
        self, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC, tolerate_lost: bool = False
    ) -> AsyncIterator[OpenBuffer]:
        async with open_redis_ot_stores(self.connection, pipeline) as stores:
            broker = RedisBroker(self.connection, pipeline, require)
            yield OpenBuffer(broker, stores, RedisRepairs(self.connection, pipeline), self.connection.trouble)


class Redis(Technology):
    """`Technology` for Redis and Valkey."""

    key = "redis"

    def load_access(self, path: Path | None, url: str) -> RedisAccess:
        return load_access(path, url)

    def secret_files(self, path: Path) -> Sequence[Path]:
        return files_of(path)

    @asynccontextmanager
    async def connect(self, access: RedisAccess, *, name: str) -> AsyncIterator[RedisLink]:
        async with open_connection(access, name=name) as connection:
            await check_server(connection)
            yield RedisLink(connection)

    def server(
        self, directory: Path, *, durability: DurabilityLevel, port: int | None, buffers: int
    ) -> RedisServerOfRun:
        return RedisServerOfRun(directory, durability=durability, port=port)

    async def raw_limit(self, directory: Path, *, records: int, record_bytes: int, fsync: bool) -> float:
        """Records per second, measured with transactions that add frames to a stream."""
        async with open_redis_server(directory, fsync=fsync) as server, open_connection(server.access) as connection:
            return await records_per_s(records, record_bytes, partial(_write_raw, connection))


async def _write_raw(connection: RedisConnection, frame: bytes, per_commit: int, left: Iterator[int]) -> None:
    for _ in left:
        async with connection.client.pipeline(transaction=True) as transaction:
            for _ in range(per_commit):
                # The length of the stream is limited, like that of a buffer that is read and trimmed.
                transaction.xadd("raw", {"d": frame}, maxlen=256, approximate=True)
            await transaction.execute()


TECHNOLOGY = Redis()
