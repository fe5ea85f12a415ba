"""Memory and disk of every process of a pipeline at full rate, over minutes: do they stay flat?

    python benchmarks/memory.py [--minutes M] [--json]

Generator without a limit, a Python function, blackhole. After a warm-up, a line is laid through the samples of each
process (least squares) and of the data directory. A process is flat when its line rises by no more than 5 % of its
mean, or 4 MiB where that is more, over all that was measured; the data directory, whose size depends on what is in the
buffers, when it stays below what the buffers may hold. Exit code 1 when one is not flat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from observed_run import MIB, Sample, machine, mib, open_run, raw_limit

from millstream import codes
from millstream.errors import MillstreamError

RECORD_BYTES = 100
BUFFER_RECORDS = 1_000_000
"""Of each buffer: the default."""
DISK_BYTES_MAX = 2 * 2 * BUFFER_RECORDS * (RECORD_BYTES + 28)
"""Two buffers, with the columns beside the values, and as much again that is trimmed and not yet given back."""
SAMPLE_INTERVAL_S = 2.0
WARM_UP_S = 30.0
"""Or a quarter of the time, where that is less."""
RISE_SHARE_MAX = 0.05
RISE_BYTES_MAX = 4 * MIB

PIPELINE = f"""\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: memory}}
spec:
  limits: {{bufferMaxLength: {BUFFER_RECORDS}}}
  vertices:
    - name: in
      source: {{generator: {{rpu: 0, msgSize: {RECORD_BYTES}}}}}
    - name: map
      udf: {{python: "identity.py:process"}}
    - name: out
      sink: {{blackhole: {{}}}}
  edges:
    - {{from: in, to: map}}
    - {{from: map, to: out}}
"""
FUNCTION = "def process(value: bytes) -> bytes:\n    return value\n"
DISK = "data directory"


@dataclass(frozen=True, slots=True)
class Course:
    """How one size went, from the end of the warm-up on."""

    name: str
    first: int
    last: int
    highest: int
    bytes_per_min: float
    flat: bool


def course_of(name: str, points: Sequence[tuple[float, int]]) -> Course:
    """Judge (seconds, bytes) samples. Pure."""
    times, sizes = zip(*points, strict=True)
    slope = statistics.linear_regression(times, sizes).slope
    if name == DISK:
        flat = max(sizes) <= DISK_BYTES_MAX
    else:
        flat = slope * (times[-1] - times[0]) <= max(RISE_BYTES_MAX, RISE_SHARE_MAX * statistics.fmean(sizes))
    return Course(name, sizes[0], sizes[-1], max(sizes), slope * 60, flat)


async def measure(directory: Path, minutes: float) -> tuple[float, list[Course]]:
    """Records per second, and the course of every process and of the disk."""
    samples: list[Sample] = []
    warm_up_s = min(WARM_UP_S, minutes * 15)
    async with open_run(directory, {"pipeline.yaml": PIPELINE, "identity.py": FUNCTION}) as run:
        await run.until(lambda: run.records("out") > 0, "a record at the sink")
        await run.watch(warm_up_s, lambda sample: None)
        began_s = run.now_s()
        await run.watch(minutes * 60 - warm_up_s, samples.append, SAMPLE_INTERVAL_S)
        rate = run.steady_records_per_s("out", began_s, run.now_s())
        ended = await run.stop()
        if not ended.balanced:
            raise MillstreamError(codes.EXPERIMENT_FAILED, f"the account does not balance\n{ended.output}")
    courses = [
        course_of(name, [(sample.at_s, sample.rss_bytes[name]) for sample in samples if name in sample.rss_bytes])
        for name in sorted(samples[0].rss_bytes)
    ]
    return rate, [*courses, course_of(DISK, [(sample.at_s, sample.disk_bytes) for sample in samples])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="millstream-memory-") as directory:
        path = Path(directory)
        try:
            rate, courses = uvloop.run(measure(path, options.minutes))
        except (MillstreamError, ExceptionGroup) as error:
            print(error, file=sys.stderr)
            return 1
        raw = uvloop.run(raw_limit(path, RECORD_BYTES))
    flat = all(course.flat for course in courses)
    print(f"{options.minutes:g} minutes at {rate:,.0f} records/s; the broker alone: {raw:,.0f} records/s")
    print(f"{'':18}{'first':>12}{'last':>12}{'maximum':>12}{'slope':>16}")
    for course in courses:
        sizes = "".join(f"{mib(size):>12}" for size in (course.first, course.last, course.highest))
        verdict = "" if course.flat else "  NOT FLAT"
        print(f"{course.name:18}{sizes}{course.bytes_per_min / MIB:>+9.2f} MiB/min{verdict}")
    print("flat" if flat else "not flat")
    if options.json:
        print(
            json.dumps(
                {
                    "minutes": options.minutes,
                    "records_per_s": round(rate),
                    "raw_limit_records_per_s": round(raw),
                    "flat": flat,
                    "mib_per_min": {course.name: round(course.bytes_per_min / MIB, 3) for course in courses},
                    "mib_max": {course.name: round(course.highest / MIB, 1) for course in courses},
                }
            )
        )
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
