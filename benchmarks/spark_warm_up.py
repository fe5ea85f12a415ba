"""What a small Spark job costs after so many others: processor seconds of the driver and its JVM, and time.

    python benchmarks/spark_warm_up.py
    python benchmarks/spark_warm_up.py --jobs 600

A driver runs jobs like these in its gaps until they cost hardly less (`JOBS` of millstream_reduce.spark.preparing).
Processor seconds say more than time on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from millstream_reduce.spark import preparing
from millstream_reduce.spark.session import open_session
from millstream_reduce.spark.settings import SparkSettings

STEPS = (1, 20, 40, 60, 80, 100, 150, 200, 250, 300)


def processor_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def measure(jobs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="millstream-warm-up-") as place:
        windows = preparing.write_windows(Path(place) / "windows")
        async with open_session(SparkSettings(Path(place) / "scratch")) as session:
            this = psutil.Process()
            processes = [this, *this.children(recursive=True)]
            print("  jobs  processor ms a job  median ms")
            for first, last in itertools.pairwise((0, *(step for step in STEPS if step < jobs), jobs)):
                before_s = processor_s(processes)
                times_s = []
                for _ in range(first, last):
                    begun_s = time.monotonic()
                    await session.run(preparing.warm_up, windows)
                    times_s.append(time.monotonic() - begun_s)
                spent_s = processor_s(processes) - before_s
                a_job_ms = spent_s / (last - first) * 1000
                print(f"{last:6}  {a_job_ms:18.0f}  {statistics.median(times_s) * 1000:9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300, help="how many in all (default: %(default)s)")
    asyncio.run(measure(parser.parse_args().jobs))


if __name__ == "__main__":
    main()
