"""Measures what the broker alone can store on this machine: atomic batches of a stream.

Above it: the benchmarks. Below it: a separate broker and its connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

from millstream.buffers.jetstream.nats_server import open_nats_server
from millstream.buffers.raw_limit import records_per_s
from millstream.nats.connection import BrokerConnection, open_connection

_STREAM = "raw"
_ANSWER_TIMEOUT_S = 30.0


async def measure_raw_limit(directory: Path, *, records: int, record_bytes: int, sync_always: bool) -> float:
    """Records per second that a broker below `directory` stores, measured over at least `records` records."""
    async with (
        open_nats_server(directory, sync_always=sync_always) as server,
        open_connection(server.access) as connection,
    ):
        await connection.api(
            f"STREAM.CREATE.{_STREAM}",
            {"name": _STREAM, "subjects": [f"{_STREAM}.>"], "storage": "file", "allow_atomic": True},
        )
        return await records_per_s(records, record_bytes, partial(_write, connection))


async def _write(connection: BrokerConnection, frame: bytes, per_batch: int, left: Iterator[int]) -> None:
    for _ in left:
        batch = uuid4().hex
        for number in range(1, per_batch):
            await connection.publish(
                f"{_STREAM}.d", frame, {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            )
        last = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(per_batch), "Nats-Batch-Commit": "1"}
        await connection.request(f"{_STREAM}.d", frame, last, timeout_s=_ANSWER_TIMEOUT_S)
