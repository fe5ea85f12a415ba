"""How fast a windowing takes rows in and closes windows, next to what limits it, measured in the same run.

    python benchmarks/windows.py [--rows N] [--json]

Rows come in batches of 8,192, in the order of a stream that is up to a second out of order; each batch is sorted,
added, and followed by a close at the watermark. The limit is reading the column of times once (its least and its
greatest), which every kind has to do. The last line of the table is a million open sessions: what they weigh, how long
a checkpoint of them takes, and how long it takes to close them all. Seconds are those of the CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import psutil

from millstream.clock import END_OF_TIME_US, MICROSECONDS
from millstream_reduce.values import Location
from millstream_reduce.windowing import Keys, Windowing
from millstream_reduce.windows import WindowConfig, make_windowing

BATCH_ROWS = 8192
ROWS_PER_SECOND = 100_000
"""Of event time."""
DISORDER_US = MICROSECONDS
SESSIONS = 1_000_000

Batch = tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Keys]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of windows."""

    name: str
    config: WindowConfig
    keys: int


CASES = (
    Case("fixed, 1 minute", WindowConfig("fixed", length_us=60 * MICROSECONDS), 100),
    Case("fixed, 100 ms", WindowConfig("fixed", length_us=MICROSECONDS // 10), 100),
    Case("sliding, 1 minute by 7 s", WindowConfig("sliding", length_us=60 * MICROSECONDS, slide_us=7_000_000), 100),
    Case("sessions, 100 keys", WindowConfig("session", timeout_us=30 * MICROSECONDS, keyed=True), 100),
    Case("sessions, 10,000 keys", WindowConfig("session", timeout_us=30 * MICROSECONDS, keyed=True), 10_000),
    Case("sessions, no keys", WindowConfig("session", timeout_us=30 * MICROSECONDS), 100),
    Case("global, every 10 s", WindowConfig("global", every_us=10 * MICROSECONDS, keyed=True), 100),
    Case("global, 1,000 rows", WindowConfig("global", count=1000, keyed=True), 100),
)


def batches(rows: int, keys: int) -> list[Batch]:
    """The rows of a stream, its keys encoded batch by batch."""
    random = np.random.default_rng(1)
    names = [b"key-%08d" % number for number in range(keys)]
    made: list[Batch] = []
    for first in range(0, rows, BATCH_ROWS):
        times = np.arange(first, first + BATCH_ROWS) * MICROSECONDS // ROWS_PER_SECOND
        times -= random.integers(0, DISORDER_US, BATCH_ROWS)
        used, codes = np.unique(random.integers(0, keys, BATCH_ROWS), return_inverse=True)
        made.append((times, Keys(codes.astype(np.int32), [names[key] for key in used.tolist()])))
    return made


def take_in(windowing: Windowing, stream: list[Batch]) -> Iterator[int]:
    """Sort, add and close, batch by batch; gives how many windows closed."""
    for number, (times, keys) in enumerate(stream):
        watermark_us = int(times.max()) - DISORDER_US
        order = windowing.sort(times, keys).order
        rows = slice(None) if order is None else order
        windowing.add(times[rows], Keys(keys.codes[rows], keys.values), Location(number // 100, number * 64, 64))
        yield len(windowing.close(watermark_us))


def cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(case: Case, rows: int) -> dict[str, object]:
    stream = batches(rows, case.keys)
    windowing = make_windowing(case.config)
    closed: list[int] = []
    seconds = cpu_seconds(lambda: closed.extend(take_in(windowing, stream)))
    limit = cpu_seconds(lambda: [(times.min(), times.max()) for times, _ in stream])
    taken = len(stream) * BATCH_ROWS
    return {
        "name": case.name,
        "rows_per_s": round(taken / seconds),
        "limit_rows_per_s": round(taken / max(limit, 1e-9)),
        "windows_closed": sum(closed),
    }


def measure_many() -> dict[str, object]:
    """A million open sessions."""
    process = psutil.Process()
    before = process.memory_info().rss
    windowing = make_windowing(WindowConfig("session", timeout_us=30 * MICROSECONDS, keyed=True))
    for first in range(0, SESSIONS, BATCH_ROWS):
        count = min(BATCH_ROWS, SESSIONS - first)
        keys = Keys(np.arange(count, dtype=np.int32), [b"key-%08d" % (first + row) for row in range(count)])
        windowing.add(np.arange(first, first + count), keys, Location(0, first * 64, 64))
    held = process.memory_info().rss - before
    checkpoint = cpu_seconds(windowing.checkpoint)

    def close_all() -> None:
        while windowing.close(END_OF_TIME_US, 10_000):
            pass

    return {
        "name": f"{SESSIONS:,} open sessions",
        "megabytes": round(held / 1e6),
        "checkpoint_s": round(checkpoint, 2),
        "close_s": round(cpu_seconds(close_all), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    arguments = parser.parse_args()
    results = []
    for case in CASES:
        result = measure(case, arguments.rows)
        results.append(result)
        print(
            f"{case.name:26} {result['rows_per_s']:13,} rows/s   limit {result['limit_rows_per_s']:15,}"
            f"   {result['windows_closed']:6,} windows closed"
        )
    many = measure_many()
    results.append(many)
    print(
        f"{many['name']:26} {many['megabytes']:6,} MB   checkpoint {many['checkpoint_s']} s   closed in"
        f" {many['close_s']} s"
    )
    if arguments.json:
        print(json.dumps({"windows": results}))


if __name__ == "__main__":
    main()
