"""How fast each kind of sink takes records, through the delivery, with everything durable at the end.

    python benchmarks/sinks.py [--records N] [--kinds jsonl,csv,parquet,...] [--directory PATH] [--json]

Records are JSON objects of about 100 bytes with five members, in frames of 4,096. The raw limit of a file sink is
what the same machine takes to write and fsync the same number of bytes to the same disk, in pieces of 1 MiB. The plain
loop of JSON lines parses each record with the json module and writes it; that of CSV gives its members to csv.writer.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import os
import random
import resource
import tempfile
import time
from array import array
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from aiohttp import web

from millstream.clock import SystemClock
from millstream.frame import Frame, build_frame
from millstream.record import LaneId, Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.connector import SinkOwner
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import SinkFrame

FRAME_RECORDS = 4096
FRAMES_PER_WRITE = 8
COLUMNS = [
    {"name": "id", "type": "int"},
    {"name": "carrier", "type": "string"},
    {"name": "delay", "type": "float"},
    {"name": "ok", "type": "bool"},
    {"name": "at", "type": "timestamp"},
]
KINDS = ("blackhole", "log", "jsonl", "csv", "parquet", "http")
HTTP_SHARE = 8
"""HTTP gets one record in so many: each request waits for its answer."""


@dataclass(frozen=True, slots=True)
class Measured:
    kind: str
    records: int
    seconds: float
    records_per_s: int
    records_per_cpu_s: int
    """What one processor does in a second when nothing else needs it."""
    raw_limit_records_per_s: int | None
    of_plain_loop: float | None
    """CPU seconds next to those of a plain loop over the same records in memory, taken in the same run."""
    loop_blocked_ms: float
    """Longest time for which the event loop did not run."""
    rss_mib: int
    """Most memory the process had so far."""


def make_frame() -> Frame:
    values = [
        json.dumps(
            {
                "id": n,
                "carrier": f"UA{n % 50}",
                "delay": n / 7,
                "ok": n % 2 == 0,
                "at": f"2013-01-01T05:{n % 60:02}:00Z",
            }
        )
        for n in range(FRAME_RECORDS)
    ]
    return build_frame([value.encode() for value in values], array("q", range(FRAME_RECORDS)), ingest_time_us=0)


def raw_seconds(path: Path, size: int) -> float:
    """To write and fsync so many bytes."""
    piece = os.urandom(1 << 20)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size // len(piece))):
            file.write(piece)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun
    path.unlink()
    return seconds


def plain_loop_seconds(kind: str, frame: Frame, frames: int) -> float | None:
    """Of the CPU."""
    if kind not in ("jsonl", "csv"):
        return None
    values, names = frame.values(), [column["name"] for column in COLUMNS]
    begun = time.process_time()
    for _ in range(frames):
        if kind == "jsonl":
            lines = io.BytesIO()
            for value in values:
                json.loads(value)
                lines.write(value + b"\n")
        else:
            text = io.StringIO()
            writer = csv.writer(text)
            for value in values:
                member = json.loads(value)
                writer.writerow([member[name] for name in names])
            text.getvalue().encode()
    return time.process_time() - begun


class Nowhere(io.TextIOBase):
    """Takes text and forgets it."""

    def write(self, text: str) -> int:
        return len(text)


class LoopWatch:
    """Sees how long the event loop is kept from running."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, time.perf_counter() - begun - 0.001)


async def http_target(stack: AsyncExitStack) -> str:
    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response()

    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}/"


async def _held(sequence: int, name: str) -> str | None:
    return None


async def measure(kind: str, records: int, directory: Path) -> Measured:
    frame = make_frame()
    frames = max(1, records // FRAME_RECORDS // (HTTP_SHARE if kind == "http" else 1))
    async with AsyncExitStack() as stack:
        if kind in ("blackhole", "log"):
            written: dict[str, object] = {kind: {}}
        elif kind == "http":
            written = {"http": {"url": await http_target(stack), "batch": {"maxRecords": 500}}}
        else:
            columns = [] if kind == "jsonl" else COLUMNS
            written = {"file": {"path": kind, "format": kind, "columns": columns}}
        if kind == "log":
            stack.enter_context(redirect_stdout(Nowhere()))
        lane = LaneId("out", "in-out", 0)
        owner = SinkOwner("bench", lane, 0, 1, Position(0), "bench", directory, SystemClock(), _held)
        sink = await stack.enter_async_context(open_sink(FallbackSink.model_validate(written), owner))
        policy = RetryPolicy(Backoff(0.1), OnFailure.RETRY)
        limits = DeliveryLimits(1 << 40, 1 << 50)
        delivery = Delivery(sink, None, policy, limits, where="bench", rng=random.Random(1))
        watch = LoopWatch()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch.run())
            begun, begun_cpu = time.perf_counter(), time.process_time()
            for first in range(1, frames + 1, FRAMES_PER_WRITE):
                sequences = range(first, min(first + FRAMES_PER_WRITE, frames + 1))
                batch = [SinkFrame(frame, sequence, 0, f"out/in-out/0/{sequence}/") for sequence in sequences]
                await delivery.write(batch, Position(sequences[-1]))
                delivery.take_settled()
            await delivery.flush()
            seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - begun_cpu
            watching.cancel()
    size = sum(file.stat().st_size for file in directory.glob(f"{kind}/*") if file.is_file())
    count = frames * FRAME_RECORDS
    limit = round(count / raw_seconds(directory / "raw", size)) if size else None
    plain = plain_loop_seconds(kind, frame, frames)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Measured(
        kind=kind,
        records=count,
        seconds=round(seconds, 3),
        records_per_s=round(count / seconds),
        records_per_cpu_s=round(count / cpu_seconds),
        raw_limit_records_per_s=limit,
        of_plain_loop=round(cpu_seconds / plain, 2) if plain else None,
        loop_blocked_ms=round(watch.longest_s * 1000, 1),
        rss_mib=memory,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--directory", type=Path, help="where file sinks write; default: a temporary directory")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for kind in options.kinds.split(","):
            measured = asyncio.run(measure(kind, options.records, Path(directory)))
            results.append(measured)
            limit = f", raw limit {measured.raw_limit_records_per_s:,}/s" if measured.raw_limit_records_per_s else ""
            loop = f", {measured.of_plain_loop} times a plain loop" if measured.of_plain_loop else ""
            print(
                f"{kind:10} {measured.records_per_s:>13,} records/s, {measured.records_per_cpu_s:,} a CPU second"
                f"{loop}{limit}; event loop blocked at most {measured.loop_blocked_ms} ms; {measured.rss_mib} MiB"
            )
    if options.json:
        print(json.dumps({"sinks": [asdict(measured) for measured in results]}))


if __name__ == "__main__":
    main()
