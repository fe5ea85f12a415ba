"""Measures what the server alone can store on this machine: transactions that add frames to a stream.

Above it: the benchmarks. Below it: a separate server and its connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from redis.asyncio import Redis

from millstream.buffers.raw_limit import records_per_s
from millstream.buffers.redis.connection import open_connection
from millstream.buffers.redis.redis_server import open_redis_server

_STREAM = "raw"


async def measure_raw_limit(directory: Path, *, records: int, record_bytes: int, fsync: bool) -> float:
    """Records per second that a server below `directory` stores, measured over at least `records` records."""
    async with open_redis_server(directory, fsync=fsync) as server, open_connection(server.access) as connection:
        return await records_per_s(records, record_bytes, partial(_write, connection.client))


async def _write(client: Redis, frame: bytes, per_commit: int, left: Iterator[int]) -> None:
    for _ in left:
        async with client.pipeline(transaction=True) as transaction:
            for _ in range(per_commit):
                # The length of the stream is limited, like that of a buffer that is read and trimmed.
                transaction.xadd(_STREAM, {"d": frame}, maxlen=256, approximate=True)
            await transaction.execute()
