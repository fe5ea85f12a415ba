"""Measures what the broker alone can store on this machine, as the reference for the throughput of a pipeline.

Above it: the benchmarks. Below it: a separate broker and its connection. It writes frames and atomic batches of the
same size as a pipeline's writers, with two batches in flight, and does nothing else.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from millstream import limits
from millstream.buffers.jetstream.nats_server import open_nats_server
from millstream.frame import build_frame
from millstream.nats.connection import BrokerConnection, open_connection

_STREAM = "raw"
_IN_FLIGHT = 2
_ANSWER_TIMEOUT_S = 30.0


async def measure_raw_limit(directory: Path, *, records: int, record_bytes: int, sync_always: bool) -> float:
    """Records per second that a broker below `directory` stores, measured over at least `records` records."""
    size = frame_records(record_bytes)
    frame = build_frame([b"x" * record_bytes] * size, array("q", [0]) * size, ingest_time_us=0).encode()
    per_batch = min(limits.COMMIT_MESSAGES_MAX, max(1, limits.COMMIT_BYTES_MAX // len(frame)))
    batches = -(-records // (size * per_batch))
    async with (
        open_nats_server(directory, sync_always=sync_always) as server,
        open_connection(server.access) as connection,
    ):
        await connection.api(
            f"STREAM.CREATE.{_STREAM}",
            {"name": _STREAM, "subjects": [f"{_STREAM}.>"], "storage": "file", "allow_atomic": True},
        )
        left = iter(range(batches))
        begun_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(_write(connection, left, frame, per_batch), name="raw writer")
        elapsed_s = time.perf_counter() - begun_s
    return batches * per_batch * size / elapsed_s


def frame_records(record_bytes: int) -> int:
    """Records in a full frame of a pipeline's writer."""
    return max(1, min(limits.FRAME_RECORDS_MAX, limits.FRAME_BYTES_MAX // record_bytes))


async def _write(connection: BrokerConnection, left: Iterator[int], frame: bytes, per_batch: int) -> None:
    for _ in left:
        batch = uuid4().hex
        reply, answer = connection.expect_answer()
        for number in range(1, per_batch + 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == per_batch:
                headers["Nats-Batch-Commit"] = "1"
            await connection.publish(f"{_STREAM}.d", frame, headers, reply if number == per_batch else "")
        await connection.answer_of(answer, _ANSWER_TIMEOUT_S)
