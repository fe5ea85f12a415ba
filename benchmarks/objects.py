"""How fast the file sink puts Parquet into a bucket, and the file source reads it, beside Arrow's own client.

    python benchmarks/objects.py [--records N] [--rounds N] [--json]

The server is SeaweedFS on the loopback (`make servers`). In each round, in turns: the sink, through the delivery, from
JSON values in frames of 4,096; Arrow, which parses the same JSON and writes the same Parquet, in files of the same
number of records; and Arrow writing tables that are in memory already. The ratio is of the best rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from sinks import COLUMNS, FRAME_RECORDS, FRAMES_PER_WRITE, make_frame

from millstream.clock import SystemClock
from millstream.record import SOURCE_INPUT, LaneId, Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.spec.models import FallbackSink, Source
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.opening_sources import open_source
from millstream_writer.connector import SinkOwner
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import SinkFrame
from tests.support.object_server import Bucket, ObjectServer, open_objects_server, why_missing

FRAMES_PER_FILE = 64
_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "string": pa.string(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


async def _held(sequence: int, name: str) -> str | None:
    return None


async def sink(bucket: Bucket, frames: int) -> None:
    """All of it through the sink."""
    rolling = {"maxRecords": FRAMES_PER_FILE * FRAME_RECORDS, "maxBytes": "1GiB", "maxAge": "1h"}
    settings = {"path": bucket.url("ours"), "format": "parquet", "columns": COLUMNS, "rolling": rolling}
    spec = FallbackSink.model_validate({"file": {**settings, "store": bucket.server.settings}})
    await delivered(spec, frames)


async def delivered(spec: FallbackSink, frames: int) -> None:
    """So many frames, through the delivery, until they are durable."""
    lane = LaneId("out", "in-out", 0)
    owner = SinkOwner("bench", lane, 0, 1, Position(0), "bench", Path("."), SystemClock(), _held)
    frame = make_frame()
    async with open_sink(spec, owner) as opened:
        policy, limits = RetryPolicy(Backoff(0.1), OnFailure.RETRY), DeliveryLimits(1 << 40, 1 << 50)
        delivery = Delivery(opened, None, policy, limits, where="bench", rng=random.Random(1))
        for first in range(1, frames + 1, FRAMES_PER_WRITE):
            sequences = range(first, min(first + FRAMES_PER_WRITE, frames + 1))
            batch = [SinkFrame(frame, sequence, 0, f"out/in-out/0/{sequence}/") for sequence in sequences]
            await delivery.write(batch, Position(sequences[-1]))
            delivery.take_settled()
        await delivery.flush()


async def source(bucket: Bucket) -> int:
    """Read what the sink wrote; the number of records."""
    settings = {"paths": [bucket.url("ours/*.parquet")], "format": "parquet", "store": bucket.server.settings}
    spec, lane, count = Source.model_validate({"file": settings}), LaneId("in", SOURCE_INPUT, 0), 0
    async with open_source(spec, lane, 1, b"", base_dir=Path("."), clock=SystemClock()) as opened:
        while True:
            batch = await opened.read(FRAME_RECORDS, 1 << 20, 1.0)
            count += batch.frame.records if batch.frame is not None else 0
            if batch.ended:
                return count


def parsed(values: list[bytes]) -> pa.Table:
    """Arrow's own parser, with the columns of the sink."""
    text = b"\n".join(values)
    schema = pa.schema([(column["name"], _TYPES[column["type"]]) for column in COLUMNS])
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return pj.read_json(pa.BufferReader(text), reading, options)  # type: ignore[arg-type]  # the stubs know files only


def arrow(server: ObjectServer, bucket: Bucket, frames: int, *, parse: bool) -> None:
    """The same files by Arrow's client."""
    files = server.files()
    values = make_frame().values()
    table = parsed(values)
    for first in range(0, frames, FRAMES_PER_FILE):
        count = min(FRAMES_PER_FILE, frames - first)
        parts = [parsed(values) if parse else table for _ in range(count)]
        path = f"{bucket.name}/arrow-{parse}/{first}.parquet"
        pq.write_table(pa.concat_tables(parts), path, filesystem=files, row_group_size=65_536)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and those of the processor."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begun, time.process_time() - begun_cpu


def measure(server: ObjectServer, frames: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Records per second, and per second of the processor, each of its best round."""
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        bucket = server.bucket()
        calls: dict[str, Callable[[], object]] = {
            "sink": lambda bucket=bucket: asyncio.run(sink(bucket, frames)),  # type: ignore[misc]
            "arrow from JSON": lambda bucket=bucket: arrow(server, bucket, frames, parse=True),  # type: ignore[misc]
            "arrow from tables": lambda bucket=bucket: arrow(server, bucket, frames, parse=False),  # type: ignore[misc]
            "source": lambda bucket=bucket: asyncio.run(source(bucket)),  # type: ignore[misc]
        }
        for name, call in calls.items():
            seconds, cpu = timed(call)
            records = frames * FRAME_RECORDS
            before = best.get(name, (0.0, 0.0))
            best[name] = max(before[0], records / seconds), max(before[1], records / cpu)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    if why := why_missing():
        parser.error(why)
    with open_objects_server() as server:
        best = measure(server, max(1, options.records // FRAME_RECORDS), options.rounds)
    limit, limit_cpu = best["arrow from JSON"]
    for name, (rate, rate_cpu) in best.items():
        print(
            f"{name:18} {rate:>12,.0f} records/s ({rate / limit:.2f} of Arrow from JSON), "
            f"{rate_cpu:,.0f} a CPU second ({rate_cpu / limit_cpu:.2f})"
        )
    if options.json:
        print(json.dumps({"objects": best}))


if __name__ == "__main__":
    main()
