"""Opens what a pipeline keeps in a Redis or Valkey server.

Above it: the technology's entry in the registry. Below it: connection, ledgers and OT stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.buffers.redis.access import RedisAccess
from millstream.buffers.redis.connection import open_connection
from millstream.buffers.redis.durability import check_server
from millstream.buffers.redis.ledger import RedisBroker
from millstream.ledger.protocol import DurabilityLevel


@asynccontextmanager
async def open_redis_broker(
    access: RedisAccess, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC
) -> AsyncIterator[RedisBroker]:
    """The pipeline's ledgers. Raises `EnvironmentFault` when the server cannot be reached or cannot keep them."""
    async with open_connection(access, name=f"millstream {pipeline}") as connection:
        await check_server(connection)
        yield RedisBroker(connection, pipeline, require)
