"""What a broker stores as atomic batches, as single messages and as packs, with fsync on every write.

    python benchmarks/staging.py [--records N] [--times N] [WAY,FRAMES,IN_FLIGHT,STREAMS ...]

Frames have 4,096 records of 100 bytes. WAY is `batch` (FRAMES messages in an atomic batch), `single` (messages of one
frame, each of which expects the sequence of the one before) or `pack` (the same with FRAMES frames in a message).
IN_FLIGHT: commits on their way in each stream. Prints the medians of all turns: records a second of all STREAMS
together, and processor seconds of the broker for a million records.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psutil
import uvloop

from millstream import limits
from millstream.buffers.jetstream.server import open_nats_server
from millstream.frame import build_frame
from millstream.nats.client import Msg
from millstream.nats.connection import BrokerConnection, open_connection

_RECORD_BYTES = 100
_ANSWER_TIMEOUT_S = 30.0
_WAYS = ("batch,17,1,2", "batch,17,2,1", "single,1,1,2", "single,1,2,2", "pack,2,1,2", "pack,4,1,2", "pack,7,1,2")


class Way(NamedTuple):
    """One way to store frames."""

    name: str
    frames: int
    in_flight: int
    streams: int

    @classmethod
    def of(cls, text: str) -> Way:
        name, *numbers = text.split(",")
        return cls(name, *map(int, numbers))


async def write(connection: BrokerConnection, stream: str, way: Way, frame: bytes, commits: int) -> None:
    """Store so many commits, and return when all of them are answered."""
    space = asyncio.Semaphore(way.in_flight)
    payload = frame * way.frames if way.name == "pack" else frame

    async def answered(answer: asyncio.Future[Msg]) -> None:
        message = await connection.answer_of(answer, _ANSWER_TIMEOUT_S)
        if b'"error"' in message.data:
            raise SystemExit(f"refused: {message.data.decode()}")
        space.release()

    async with asyncio.TaskGroup() as group:
        for number in range(commits):
            await space.acquire()
            reply, answer = connection.expect_answer()
            for headers in _headers(way, stream, number):
                last = way.name != "batch" or "Nats-Batch-Commit" in headers
                await connection.publish(f"{stream}.d", payload, headers, reply if last else "")
            group.create_task(answered(answer))


def _headers(way: Way, stream: str, number: int) -> Iterator[dict[str, str]]:
    if way.name != "batch":
        subject = "Nats-Expected-Last-Subject-Sequence"
        yield {subject: str(number), f"{subject}-Subject": f"{stream}.>"}
        return
    batch = uuid4().hex
    for place in range(1, way.frames + 1):
        commit = {"Nats-Batch-Commit": "1"} if place == way.frames else {}
        yield {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place), **commit}


async def measured(way: Way, frame: bytes, records: int) -> tuple[float, float]:
    """Records a second, and processor seconds of the broker for a million."""
    per_commit = limits.FRAME_RECORDS_MAX * (1 if way.name == "single" else way.frames)
    commits = max(1, records // way.streams // per_commit)
    with tempfile.TemporaryDirectory() as directory:
        async with open_nats_server(Path(directory)) as server, AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(open_connection(server.access)) for _ in range(way.streams)]
            for number, connection in enumerate(connections):
                config = {"name": f"s{number}", "subjects": [f"s{number}.>"], "storage": "file", "allow_atomic": True}
                await connection.api(f"STREAM.CREATE.s{number}", {**config, "max_bytes": 4096 * limits.MIB})
            broker = next(one for one in psutil.Process().children(recursive=True) if "nats-server" in one.name())
            used_s, begun_s = sum(broker.cpu_times()[:2]), time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number, connection in enumerate(connections):
                    group.create_task(write(connection, f"s{number}", way, frame, commits))
            elapsed_s = time.perf_counter() - begun_s
            stored = commits * per_commit * way.streams
            return stored / elapsed_s, (sum(broker.cpu_times()[:2]) - used_s) / stored * 1e6


async def main(texts: list[str], records: int, times: int) -> None:
    values = [b"x" * _RECORD_BYTES] * limits.FRAME_RECORDS_MAX
    frame = build_frame(values, array("q", [0]) * len(values), ingest_time_us=0).encode()
    print(f"load before: {os.getloadavg()[0]:.1f}; frames of {len(frame):,} bytes")
    found: dict[str, list[tuple[float, float]]] = {text: [] for text in texts}
    for _ in range(times):
        for text in texts:
            found[text].append(await measured(Way.of(text), frame, records))
    for text, results in found.items():
        rate, used_s = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"{text:16} {rate:12,.0f} records/s  {used_s:5.2f} s of the broker's processor time for a million")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=_WAYS)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    uvloop.run(main(list(arguments.ways), arguments.records, arguments.times))
