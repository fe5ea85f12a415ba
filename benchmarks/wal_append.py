"""How fast a reduce lane's queue takes records in, beside what the disk can do at all, in one run; and how fast it is
there again after a crash.

    python benchmarks/wal_append.py [--records N] [--size BYTES] [--keys K] [--windows KIND] [--disorder SHARE] [--busy]
                                    [--frame-records N] [--frames-per-entry N] [--directory PATH] [--json]

Takes decoded frames in with `append`, while `sync` runs again and again, as a lane does. Then writes the same bytes
into files of the same size with an fsync at the same places and nothing else: the raw append limit. Then opens the
queue again, as after a `kill -9`. `--busy` keeps a second core at work all the while, as Spark would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from millstream.frame import Frame, build_frame
from millstream.limits import FRAME_RECORDS_MAX, LOG_SEGMENT_BYTES, MIB
from millstream.wire.ledger.v1 import mark_pb2
from millstream_reduce.log.files import Files
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import Queue, QueuedFrame, QueueLimits, open_queue
from millstream_reduce.windows import WindowConfig, make_windowing

SECOND_US = 1_000_000
RECORD_US = 10
"""Event time between two records: 100,000 of them are one second."""
KINDS = {
    "fixed": WindowConfig("fixed", length_us=60 * SECOND_US),
    "small": WindowConfig("fixed", length_us=SECOND_US // 10),
    "sliding": WindowConfig("sliding", length_us=60 * SECOND_US, slide_us=10 * SECOND_US),
    "session": WindowConfig("session", timeout_us=SECOND_US, keyed=True),
}
TEMPLATES = 64
"""Different frames; the same ones are used again under later sequences, so that memory holds the input."""


class CountingFiles(Files):
    """The real operations; notes how many bytes were written before each fsync."""

    def __init__(self) -> None:
        self.flushes: list[int] = []
        self._bytes = 0

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        written = super().write(descriptor, buffers, offset)
        self._bytes += written
        return written

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        if self._bytes:
            self.flushes.append(self._bytes)
            self._bytes = 0


@dataclass(frozen=True)
class Ingested:
    seconds: float
    cpu_seconds: float
    flushes: list[int]

    @property
    def bytes(self) -> int:
        return sum(self.flushes)


def make_frames(options: argparse.Namespace) -> list[Frame]:
    rng = random.Random(1)
    size, count = options.size, options.frame_records
    frames = []
    for number in range(TEMPLATES):
        data = rng.randbytes(size * count)
        times = [(number * count + index) * RECORD_US for index in range(count)]
        if options.disorder:
            times = [t - rng.randrange(2 * SECOND_US) if rng.random() < options.disorder else t for t in times]
        keys = [[b"key-%d" % rng.randrange(options.keys)] for _ in times] if options.keys else None
        values = [data[begin : begin + size] for begin in range(0, size * count, size)]
        frames.append(build_frame(values, array("q", times), ingest_time_us=1, keys=keys))
    return frames


async def ingest(queue: Queue, frames: Sequence[Frame], options: argparse.Namespace, files: CountingFiles) -> Ingested:
    total = options.records // options.frame_records
    wanted, ended = asyncio.Event(), False

    async def sync() -> None:
        while not ended or queue.statistics().log.unsynced_entries:
            await wanted.wait()
            wanted.clear()
            await queue.sync()

    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sync())
        for first in range(0, total, options.frames_per_entry):
            await queue.room()
            numbers = range(first, min(total, first + options.frames_per_entry))
            queue.append([QueuedFrame("in", n + 1, 1, frames[n % TEMPLATES]) for n in numbers], 0)
            wanted.set()
            await asyncio.sleep(0)
        ended = True
        wanted.set()
    return Ingested(time.perf_counter() - start_s, time.process_time() - start_cpu_s, files.flushes)


def append_raw(directory: Path, flushes: Sequence[int]) -> float:
    """Seconds for the same bytes in the same portions, in files of the same size."""
    data = memoryview(os.urandom(MIB) * (max(flushes) // MIB + 1))
    start_s = time.perf_counter()
    number, offset, descriptor = 0, LOG_SEGMENT_BYTES, -1
    for size in flushes:
        if offset >= LOG_SEGMENT_BYTES:
            if descriptor >= 0:
                os.close(descriptor)
            number, offset = number + 1, 0
            descriptor = os.open(directory / f"{number}.raw", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        offset += os.pwritev(descriptor, [data[:size]], offset)
        os.fdatasync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - start_s


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Another process that never rests."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def run(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    frames = make_frames(options)
    config = KINDS[options.windows]
    limits = QueueLimits(log_bytes_max=10 * options.records * (options.size + 64) + 2**30)
    progress, files = mark_pb2.ReduceProgress(), CountingFiles()
    log = directory / "log"
    with busy(options.busy):
        identity = LogIdentity("bench", "sum", 0, 1, "ledger")
        async with open_queue(log, identity, make_windowing(config), progress, limits=limits, files=files) as queue:
            done = await ingest(queue, frames, options, files)
            statistics = queue.statistics()
        raw_seconds = append_raw(directory, done.flushes)
        for path in directory.glob("*.raw"):
            path.unlink()
        start_s = time.perf_counter()
        identity = LogIdentity("bench", "sum", 0, 2, "ledger")
        async with open_queue(log, identity, make_windowing(config), progress, limits=limits) as queue:
            recovery_s = time.perf_counter() - start_s
            recovered = queue.statistics()
    assert recovered.open_rows == statistics.open_rows
    records = options.records // options.frame_records * options.frame_records
    return {
        "ingest_records_per_s": round(records / done.seconds),
        "raw_limit_records_per_s": round(records / raw_seconds),
        "share_of_append_limit": round(raw_seconds / done.seconds, 3),
        "ingest_mb_per_s": round(done.bytes / 1e6 / done.seconds, 1),
        "cpu_us_per_record": round(done.cpu_seconds / records * 1e6, 3),
        "fsyncs": len(done.flushes),
        "fsync_mean_ms": round(statistics.log.sync_s / max(1, statistics.log.syncs) * 1e3, 2),
        "bytes_per_record": round(done.bytes / records, 1),
        "recovery_s": round(recovery_s, 2),
        "recovered_records_per_s": round(recovered.open_rows / recovery_s),
        "recovered_gb_per_s": round(done.bytes / 1e9 / recovery_s, 2),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--keys", type=int, default=0, help="different keys; 0: records have none")
    parser.add_argument("--windows", choices=sorted(KINDS), default="fixed")
    parser.add_argument("--disorder", type=float, default=0.0, help="share of records that are up to 2 s too old")
    parser.add_argument("--frame-records", type=int, default=FRAME_RECORDS_MAX, help="records in a frame")
    parser.add_argument("--frames-per-entry", type=int, default=8, help="frames that are appended together")
    parser.add_argument("--busy", action="store_true", help="keep a second core at work")
    parser.add_argument("--directory", type=Path, help="where to write; default: a new temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="wal-append-", dir=options.directory))
    try:
        result = uvloop.run(run(directory, options))
    finally:
        shutil.rmtree(directory)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:28}{value:>16,}")


if __name__ == "__main__":
    main()
