"""What it costs to cut, split, join and check a frame, in C and in Python.

    python benchmarks/frames.py [--records 4096] [--size 100] [--rounds 9] [--json]

In one process and in turns, so that other load falls on both alike: the median of the rounds of each, in milliseconds
of processor time, and how many times faster C is. The records have one key each, of 1,000. Exits with 1 where the SDK
was installed without a C compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.frame import Frame, build_frame, join_frames
from millstream_udf import columns
from millstream_writer.routing import Route, Router

KEYS = 1000
PARTITIONS = 4


def operations(records: int, size: int) -> dict[str, Callable[[], object]]:
    """By name, on one frame."""
    keys = [[b"key-%06d" % (number % KEYS)] for number in range(records)]
    frame = build_frame([bytes(size)] * records, array("q", range(records)), ingest_time_us=1, keys=keys)
    halves = frame.slice(0, records // 2), frame.slice(records // 2, records)
    every_other = range(0, records, 2)
    router = Router([Route("edge", PARTITIONS, None)])
    encoded, values = frame.encode(), frame.values()
    return {
        f"route by key into {PARTITIONS}": lambda: router.route(frame, None),
        "slice one half": lambda: frame.slice(0, records // 2),
        "take every other": lambda: frame.take(every_other),
        "join two halves": lambda: join_frames(halves),
        "check": frame.check,
        "unpack the values": frame.values,
        "pack the values": lambda: columns.pack_bytes(values),
        "encode": frame.encode,
        "decode": lambda: Frame.decode(encoded),
    }


@contextmanager
def in_python() -> Iterator[None]:
    """Inside, C is not used."""
    compiled = columns._compiled
    columns._compiled = None
    try:
        yield
    finally:
        columns._compiled = compiled


def milliseconds(operation: Callable[[], object]) -> float:
    """Of processor time, of one of ten."""
    started = time.process_time()
    for _ in range(10):
        operation()
    return (time.process_time() - started) * 100


def measure(records: int, size: int, rounds: int) -> dict[str, dict[str, float]]:
    """By operation the medians of both, and how they compare."""
    found = {}
    for name, operation in operations(records, size).items():
        pairs = []
        for _ in range(rounds):
            compiled = milliseconds(operation)
            with in_python():
                pairs.append((compiled, milliseconds(operation)))
        c, python = (statistics.median(side) for side in zip(*pairs, strict=True))
        found[name] = {"c_ms": round(c, 4), "python_ms": round(python, 4), "times": round(python / c, 1)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4096)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if not columns.is_compiled():
        print("frames.py: the SDK was installed without a C compiler: there is nothing to compare", file=sys.stderr)
        return 1
    found = measure(given.records, given.size, given.rounds)
    if given.json:
        print(json.dumps(found))
        return 0
    print(f"{'':<24}{'C, ms':>10}{'Python, ms':>12}{'times':>8}")
    for name, figures in found.items():
        print(f"{name:<24}{figures['c_ms']:>10.3f}{figures['python_ms']:>12.3f}{figures['times']:>8.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
