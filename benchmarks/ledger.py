"""How fast the ledger is, beside what the broker can do at all, in one run on one server with fsync on every write.

    python benchmarks/ledger.py [--seconds S] [--size BYTES] [--frames N]

Prints: MB/s and commits/s of raw atomic batches (the smallest publisher there can be) and of `Ledger.commit`, both
with batches of N frames one after another, taking turns; MB/s of reading what was written; milliseconds of a commit of
one small frame, and from its receipt until a reader has it. CPU is that of this process: the server has its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import nats
import uvloop

from millstream import limits
from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.ledger.protocol import Ledger, LedgerLimits
from millstream.record import BufferId, LaneId
from tests.support.ledgers import LaneOwner

OUT = BufferId("out", 0)
SMALL = BufferId("small", 0)
TURNS = 8
RAW_STREAM = {
    "name": "raw",
    "subjects": ["raw.>"],
    "storage": "file",
    "allow_atomic": True,
    "max_bytes": 4096 * limits.MIB,
}


@dataclass
class Turns:
    """What one way of writing has reached so far."""

    write: Callable[[], Awaitable[object]]
    batches: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    async def take(self, seconds: float) -> None:
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() < start_s + seconds:
            await self.write()
            self.batches += 1
        self.seconds += time.perf_counter() - start_s
        self.cpu_seconds += time.process_time() - start_cpu_s

    def text(self, batch_bytes: int) -> str:
        rate = self.batches / self.seconds
        return (
            f"{rate * batch_bytes / 1e6:8.1f} MB/s  {rate:7.1f} batches/s  "
            f"{self.cpu_seconds / self.batches * 1e3:5.2f} ms CPU each"
        )


@asynccontextmanager
async def raw_writer(server: NatsServer, data: bytes, frames: int) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """The barest publisher: no marks, no guards, nothing but the batch."""
    client = await nats.connect(server.url, pending_size=4 * limits.COMMIT_BYTES_MAX, **server.access.client_options())
    try:
        await client.request("$JS.API.STREAM.CREATE.raw", json.dumps(RAW_STREAM).encode(), timeout=5)

        async def write() -> None:
            name = uuid4().hex
            for number in range(1, frames):
                headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
                await client.publish("raw.out", data, headers=headers)
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(frames), "Nats-Batch-Commit": "1"}
            answer = await client.request("raw.out", data, headers=headers, timeout=10)
            assert b"error" not in answer.data, answer.data

        yield write
        await client.request("$JS.API.STREAM.DELETE.raw", b"", timeout=5)
    finally:
        await client.close()


async def reading(ledger: Ledger, frames: int) -> float:
    """MB/s of reading everything from the start."""
    size = 0
    start_s = time.perf_counter()
    async with ledger.read(OUT, 0) as stored:
        for _ in range(frames):
            size += len((await anext(stored)).data)
    return size / 1e6 / (time.perf_counter() - start_s)


async def latency(owner: LaneOwner, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of small commits, and from each receipt until a reader has the frame."""
    committing: list[float] = []
    arriving: list[float] = []
    async with owner.ledger.read(SMALL, 0) as stored:
        for _ in range(count):
            start_s = time.perf_counter()
            await owner.commit((SMALL, b"x" * 100))
            committed_s = time.perf_counter()
            await anext(stored)
            committing.append((committed_s - start_s) * 1e3)
            arriving.append((time.perf_counter() - committed_s) * 1e3)
    return committing, arriving


async def main(seconds: float, size: int, frames: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with (
            open_nats_server(Path(directory)) as server,
            open_jetstream_broker(server.access, "bench") as broker,
        ):
            bounds = LedgerLimits(frames_per_buffer_max=1_000_000, bytes_max=8192 * limits.MIB)
            ledger = await broker.ledger("v", bounds)
            lane = LaneId("v", "in-v", 0)
            owner = LaneOwner(ledger, lane, await ledger.take_over(lane, "benchmark"))
            print(f"durability: {ledger.durability.level.value}, verified: {ledger.durability.verified}")
            print(f"batches of {frames} frames of {size} bytes, {seconds:g} s each")
            data = os.urandom(size)
            async with raw_writer(server, data, frames) as write_raw:
                raw = Turns(write_raw)
                ours = Turns(lambda: owner.commit(*((OUT, data) for _ in range(frames))))
                for _ in range(TURNS):
                    await raw.take(seconds / TURNS)
                    await ours.take(seconds / TURNS)
            print(f"raw batches    {raw.text(frames * size)}")
            print(f"ledger.commit  {ours.text(frames * size)}  {ours.batches / raw.batches:.0%} of raw")
            written = ours.batches * frames
            print(f"ledger.read    {await reading(ledger, written):8.1f} MB/s")
            for name, values in zip(("commit", "arrival"), await latency(owner, 200), strict=True):
                print(f"{name:8} of one frame  p50 {statistics.median(values):.2f} ms  max {max(values):.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--size", type=int, default=50_000)
    parser.add_argument("--frames", type=int, default=10)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.seconds, arguments.size, arguments.frames))
