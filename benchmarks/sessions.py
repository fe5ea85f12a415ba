"""What each leg of a reduce takes for many small sessions: the flights of each plane, between two rests.

    python benchmarks/sessions.py [--json]
    python benchmarks/compare.py --base REV --times 3 -- benchmarks/sessions.py --json

The legs of the demo's `planes`, one after the other in one process, without Spark and without a broker, each in
processor seconds for all sessions of the year: records are taken in (the log included), windows are handed over,
requests go to Spark's driver and become what its tasks are given, the rows are read and the function is called,
results come back, and frames are made of them. What Spark itself takes beside that is not in it. The input is that of
`make demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pickle
import pstats
import subprocess
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from millstream.clock import END_OF_TIME_US, MICROSECONDS
from millstream.frame import Frame, build_frame
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import engine_pb2, wal_pb2
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.lane.jobs import WindowResults
from millstream_reduce.lane.units import UnitMaker
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import Queue, QueuedFrame, open_queue
from millstream_reduce.spark.executor import windows_of
from millstream_reduce.spark.manifest import JobWindows, manifest_of
from millstream_reduce.spark.reducing import reduced_groups
from millstream_reduce.spark.wire import decoded_rows, encoded_rows
from millstream_reduce.values import WindowTable
from millstream_reduce.windows import WindowConfig, make_windowing
from millstream_writer.routing import Route, Router

ROOT = Path(__file__).resolve().parent.parent
FLIGHTS = ROOT / "examples" / "flights"
FRAME_RECORDS = 4096
DELAY_US = 24 * 3600 * MICROSECONDS
CONFIG = WindowConfig("session", timeout_us=12 * 3600 * MICROSECONDS, keyed=True)
_TASKS = pa.record_batch([pa.array([0])], names=["id"])


class Legs:
    """Processor seconds by leg."""

    def __init__(self, profiled: str) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._profiled = profiled
        self.profile = cProfile.Profile()

    @contextmanager
    def leg(self, name: str) -> Iterator[None]:
        """What happens meanwhile belongs to it."""
        if name == self._profiled:
            self.profile.enable()
        begun = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] += time.process_time() - begun
            if name == self._profiled:
                self.profile.disable()


def frames() -> list[tuple[Frame, int]]:
    """The records as `enrich` gives them, keyed by plane, and the watermark behind each frame."""
    table = pyarrow.csv.read_csv(FLIGHTS / "data" / "flights.csv")
    columns = table.select(["tailnum", "time_hour", "dep_delay", "distance", "carrier", "flight", "origin", "dest"])
    rows = [row for row in columns.to_pylist() if row["tailnum"]]
    made, newest = [], 0
    for first in range(0, len(rows), FRAME_RECORDS):
        some = rows[first : first + FRAME_RECORDS]
        times = array("q", [int(row["time_hour"].timestamp()) * MICROSECONDS for row in some])
        values = [json.dumps({**row, "time_hour": row["time_hour"].isoformat()}).encode() for row in some]
        keys = [[row["tailnum"].encode()] for row in some]
        newest = max(newest, *times)
        made.append((build_frame(values, times, ingest_time_us=7, keys=keys), newest - DELAY_US))
    return made


async def take_in(queue: Queue, legs: Legs) -> list[wal_pb2.HandOver]:
    """All records; windows are handed over as they would be while no job has ended, and the rest at the end."""
    for number, (frame, _) in enumerate(frames()):
        with legs.leg("intake"):
            queue.append([QueuedFrame("enrich-planes", number + 1, frame.size, frame)], -(2**62))
            if number % 8 == 7:
                await queue.sync()
    with legs.leg("hand-over"):
        hand_overs = queue.close(END_OF_TIME_US)
        await queue.sync()
    return hand_overs


def compute(hand_over: wal_pb2.HandOver, directory: str, legs: Legs) -> WindowResults:
    """The results of a hand-over, on the way that they go."""
    program = engine_pb2.Program(keyed=True)
    program.python.target, program.python.directory = "steps.py:plane_day", str(FLIGHTS)
    with legs.leg("request"):
        request = engine_pb2.RunRequest(
            program=program, directory=directory, windows=WindowTable.of_hand_over(hand_over).message(), vertex="planes"
        )
        message = engine_pb2.RunRequest.FromString(request.SerializeToString())
        manifest = manifest_of(JobWindows.of([windows_of(message)]), 1, whole_windows=True)
        manifest = pickle.loads(pickle.dumps(manifest))
    with legs.leg("function"):
        batches = list(reduced_groups(manifest, program.SerializeToString(deterministic=True), [_TASKS]))
    with legs.leg("results back"):
        table = pa.Table.from_batches(batches).select(RESULT_SCHEMA.names)
        return WindowResults(decoded_rows(list(encoded_rows(table)), RESULT_SCHEMA))


async def run(legs: Legs) -> int:
    """Sessions that were computed."""
    maker = UnitMaker(
        Router([Route("out", 1, None)]),
        RetryPolicy(Backoff(interval_s=0.1), OnFailure.STOP),
        "here",
        late_to_edge=False,
        milestones=None,
    )
    sessions = 0
    with tempfile.TemporaryDirectory(prefix="millstream-sessions-") as name:
        identity = LogIdentity("flights", "planes", 0, 1, "ledger-1")
        async with open_queue(Path(name), identity, make_windowing(CONFIG), mark_pb2.ReduceProgress()) as queue:
            progress = mark_pb2.ReduceProgress()
            for hand_over in await take_in(queue, legs):
                computed = await asyncio.to_thread(compute, hand_over, name, legs)
                with legs.leg("frames"):
                    origin = queue.origin_of(hand_over, 0)
                    units = maker.of_results(hand_over, computed, 0, origin, 0)
                with legs.leg("let go"):
                    progress.hand_over = hand_over.number
                    await queue.committed(progress)
                sessions += sum(unit.account.outputs for unit in units)
    return sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--profile", default="", metavar="LEG", help="where the time of a leg goes")
    options = parser.parse_args()
    if not options.json:
        print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    prepare = "import demo; demo.prepare()"
    subprocess.run([sys.executable, "-c", prepare], cwd=FLIGHTS, check=True)
    legs = Legs(options.profile)
    sessions = asyncio.run(run(legs))
    if options.profile:
        pstats.Stats(legs.profile).sort_stats("tottime").print_stats(25)
    total = sum(legs.seconds.values())
    if options.json:
        print(json.dumps({"sessions": sessions, "legs": legs.seconds, "all": total}))
        return
    for name, seconds in legs.seconds.items():
        print(f"{name:<14} {seconds:6.2f} processor s   {seconds / sessions * 1e6:6.1f} µs a session")
    print(f"{'all':<14} {total:6.2f} processor s for {sessions:,} sessions")


if __name__ == "__main__":
    main()
