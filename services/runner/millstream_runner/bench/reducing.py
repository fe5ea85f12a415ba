"""Measures a reduce on this machine: how fast its queue accepts records, how soon a closed window's results are
committed, and how long Spark alone takes for such a window.

Above it: `millstream bench reduce`. Below it: the lane's queue, in its own directory; the runner, observed through the
reduce's metrics; and its own Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.clock import END_OF_TIME_US, MICROSECONDS
from millstream.errors import UserError
from millstream.files import open_private
from millstream.frame import Frame, build_frame
from millstream.ledger.protocol import DurabilityLevel
from millstream.limits import FRAME_RECORDS_MAX, MIB
from millstream.telemetry.metrics import CLOSE_TIME
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.log.log import LogStatistics
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import QueuedFrame, QueueLimits, open_queue
from millstream_reduce.spark import jobs
from millstream_reduce.spark.manifest import WindowsOrigin
from millstream_reduce.spark.session import open_session
from millstream_reduce.spark.settings import SparkSettings
from millstream_reduce.values import WindowTable
from millstream_reduce.windows import WindowConfig, make_windowing
from millstream_runner.bench.running import BenchPipeline, Load, Measurement, measure

_FRAMES_PER_S = 100
"""Frames that an unhurried generator makes."""
_ENTRY_FRAMES = 5
"""Frames in one entry of the log, as the lane collects them."""
_APPEND_BYTES = 4 * MIB
"""Stored bytes of an entry, as the lane writes them."""
START_S = 15
"""Time for Spark to start; the windows that close meanwhile are handed over in few hand-overs."""
WARM_UP_S = 80
"""Time after that until Java has compiled the code that runs often."""
_WARM_UP_HAND_OVERS_MIN = 5
_WARM_UP_JOBS = 60
_TIMED_JOBS = 20
QUERY = "SELECT key, count(*) AS n, min(event_time) AS first, max(event_time) AS last FROM window GROUP BY key"
_PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata:
  name: bench
spec:
  vertices:
    - name: in
      source:
        generator: {{rpu: {rate}, records: {records}, msgSize: {size}, keyCount: {keys}}}
    - name: sum
      udf:
        groupBy: {{window: {{fixed: {{length: {length_us}us}}}}, keyed: true}}
        sql: {{query: {query}}}
    - name: out
      sink:
        blackhole: {{}}
  edges:
    - {{from: in, to: sum}}
    - {{from: sum, to: out}}
"""


@dataclass(frozen=True, slots=True)
class Ingest:
    """How fast records go into the queue, and bytes onto the disk."""

    records_per_s: float
    limit_records_per_s: float
    """The same bytes in the same portions, each followed by the same fsync, without anything else."""


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """The load on the pipeline."""

    records_per_window: int
    keys: int
    rate: int
    windows: int
    record_bytes: int
    query: str = QUERY

    @property
    def length_us(self) -> int:
        """Length of a window."""
        return self.records_per_window * MICROSECONDS // self.rate


async def measure_ingest(directory: Path, *, records: int, record_bytes: int) -> Ingest:
    """Append `records` records to a lane's queue, fsynced, and then as many bytes to a file."""
    begun = time.perf_counter()
    written = await _fill_queue(directory / "queue", records, record_bytes)
    queue_s = time.perf_counter() - begun
    limit_s = await asyncio.to_thread(_fill_file, directory / "file", written.written_bytes, written.syncs)
    return Ingest(records / queue_s, records / limit_s)


async def _fill_queue(directory: Path, records: int, record_bytes: int) -> LogStatistics:
    identity = LogIdentity("bench", "sum", 0, 1, "bench")
    windowing = make_windowing(WindowConfig("fixed", length_us=60_000_000))
    limits = QueueLimits(log_bytes_max=1 << 40)
    async with open_queue(directory, identity, windowing, mark_pb2.ReduceProgress(), limits=limits) as queue:
        async with asyncio.TaskGroup() as tasks:
            syncing: asyncio.Task[None] | None = None
            for frames in _portions(records, record_bytes):
                await queue.room()
                queue.append(frames, 0)
                if syncing is None or syncing.done():
                    syncing = tasks.create_task(queue.sync())
                await asyncio.sleep(0)
        await queue.sync()
        return queue.statistics().log


def _portions(records: int, record_bytes: int) -> Iterator[list[QueuedFrame]]:
    """Frames as a reader returns them, decoded again each time."""
    encoded = _frame(record_bytes, FRAME_RECORDS_MAX, keys=100).encode()
    portion: list[QueuedFrame] = []
    for sequence in range(1, -(-records // FRAME_RECORDS_MAX) + 1):
        portion.append(QueuedFrame("in-sum", sequence, len(encoded), Frame.decode(encoded)))
        if len(portion) * len(encoded) >= _APPEND_BYTES:
            yield portion
            portion = []
    if portion:
        yield portion


def _frame(record_bytes: int, count: int, *, keys: int, first: int = 0) -> Frame:
    """Records numbered from `first` on, with their event times and with keys in turn."""
    numbers = range(first, first + count)
    return build_frame(
        [os.urandom(record_bytes) for _ in numbers],
        array("q", numbers),
        ingest_time_us=0,
        keys=[[b"key-%d" % (number % keys)] for number in numbers],
    )


def _fill_file(path: Path, size: int, syncs: int) -> float:
    """Seconds that it takes to write this many bytes in this many portions, each made durable."""
    data = memoryview(os.urandom(size // max(1, syncs) + 1))
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
    try:
        begun = time.perf_counter()
        for _ in range(syncs):
            rest = data
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)
        return time.perf_counter() - begun
    finally:
        os.close(descriptor)


async def measure_windows(
    directory: Path, load: WindowLoad, durability: DurabilityLevel, workers: int | None = None
) -> Measurement:
    """Run the pipeline; `latency` is the time from the watermark that closes windows to the commit of their results."""
    closed_at_start = START_S * load.rate // load.records_per_window
    warm_up = max(_WARM_UP_HAND_OVERS_MIN, WARM_UP_S * load.rate // load.records_per_window)
    records = load.records_per_window * (closed_at_start + warm_up + load.windows)
    text = _PIPELINE.format(
        rate=load.rate,
        records=records,
        size=load.record_bytes,
        keys=load.keys,
        length_us=load.length_us,
        query=json.dumps(load.query),
    )
    pipeline = BenchPipeline(text, ("in-0", "sum-0", "out-0"), "sum-0", CLOSE_TIME, passes_on=False)
    load_of_run = Load(records, load.record_bytes, load.rate, warm_up_count=warm_up)
    return await measure(directory, pipeline, load_of_run, durability, workers)


async def measure_spark(directory: Path, load: WindowLoad) -> float:
    """Median time in seconds of a job over one such window, warmed up, while nothing else runs."""
    windows = await _window_in_log(directory / "log", load)
    program = engine_pb2.Program(
        sql=engine_pb2.SqlProgram(query=load.query, value=engine_pb2.ValueSchema(format="raw")), keyed=True
    )
    times_s = []
    async with open_session(SparkSettings(directory / "spark")) as session:
        for _ in range(_WARM_UP_JOBS + _TIMED_JOBS):
            begun_s = time.perf_counter()
            result = await session.run(jobs.run, program, windows)
            times_s.append(time.perf_counter() - begun_s)
            if result.failures:
                raise UserError(codes.OPTION_VALUE, f"--query: {result.failures[0].reason}")
    return statistics.median(times_s[_WARM_UP_JOBS:])


async def _window_in_log(directory: Path, load: WindowLoad) -> jobs.JobWindows:
    """A window of the load, in a log as the lane would write it."""
    identity = LogIdentity("bench", "sum", 0, 1, "bench")
    windowing = make_windowing(WindowConfig("fixed", length_us=load.records_per_window))
    async with open_queue(directory, identity, windowing, mark_pb2.ReduceProgress()) as queue:
        per_frame = max(1, min(FRAME_RECORDS_MAX, load.rate // _FRAMES_PER_S))
        frames = []
        for sequence, first in enumerate(range(0, load.records_per_window, per_frame), start=1):
            count = min(per_frame, load.records_per_window - first)
            frame = _frame(load.record_bytes, count, keys=load.keys, first=first)
            frames.append(QueuedFrame("in-sum", sequence, frame.size, frame))
        for first in range(0, len(frames), _ENTRY_FRAMES):
            queue.append(frames[first : first + _ENTRY_FRAMES], 0)
        hand_overs = queue.close(END_OF_TIME_US)
        await queue.sync()
        tables = [WindowTable.of_hand_over(hand_over) for hand_over in hand_overs]
        return jobs.JobWindows.of([(str(queue.directory), table, WindowsOrigin()) for table in tables])
