"""Measures what the server alone can store on this machine, as the reference for the throughput of a pipeline.

Above it: the benchmarks. Below it: a separate server and its connection. It adds frames of the same size as a
pipeline's writers to a stream, in transactions of the size of a commit, with two in flight, and does nothing else.
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
    """Records per second that a server below `directory` stores, measured over at least `records` records."""
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
                # The length of the stream is limited, like that of a buffer that is read and trimmed.
                transaction.xadd(_STREAM, {"d": frame}, maxlen=256, approximate=True)
            await transaction.execute()
