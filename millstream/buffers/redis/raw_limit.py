"""What the server itself can store on this machine: the yardstick beside which a pipeline's rate means something.

Above it: the benchmarks. Below it: a server of its own and its connection. It adds frames of the same size as a
pipeline's writers do to a stream, as many in a transaction as a commit holds, two in flight, and does nothing else.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from redis.asyncio import Redis

from millstream import limits
from millstream.buffers.redis.connection import open_connection
from millstream.buffers.redis.redis_server import open_redis_server
from millstream.frame import build_frame

_STREAM = "raw"
_IN_FLIGHT = 2


async def measure_raw_limit(directory: Path, *, records: int, record_bytes: int, fsync: bool) -> float:
    """Records per second that a server below `directory` stores, over at least `records` of them."""
    size = max(1, min(limits.FRAME_RECORDS_MAX, limits.FRAME_BYTES_MAX // record_bytes))
    frame = build_frame([b"x" * record_bytes] * size, array("q", [0]) * size, ingest_time_us=0).encode()
    per_commit = min(limits.COMMIT_MESSAGES_MAX, max(1, limits.COMMIT_BYTES_MAX // len(frame)))
    commits = -(-records // (size * per_commit))
    async with open_redis_server(directory, fsync=fsync) as server, open_connection(server.access) as connection:
        left = iter(range(commits))
        begun_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(_write(connection.client, left, frame, per_commit), name="raw writer")
        elapsed_s = time.perf_counter() - begun_s
    return commits * per_commit * size / elapsed_s


async def _write(client: Redis, left: Iterator[int], frame: bytes, per_commit: int) -> None:
    for _ in left:
        async with client.pipeline(transaction=True) as transaction:
            for _ in range(per_commit):
                # What is stored is bounded, as a buffer that is read and trimmed is.
                transaction.xadd(_STREAM, {"d": frame}, maxlen=256, approximate=True)
            await transaction.execute()
