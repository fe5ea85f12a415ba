"""What a record costs on its way from a function with types into the windows of an SQL reduce.

    python benchmarks/typed_windows.py [--records N] [--rounds N] [--json]
    python benchmarks/compare.py --base REV --times 3 -- $PWD/benchmarks/typed_windows.py --json

file (lines of 120 bytes) → price → sums of each customer, in Spark → blackhole, with `millstream run` as it is. The
function has types (a dataclass, whose objects become JSON that Spark's workers parse) or takes Arrow's columns with a
schema. Figures are processor seconds of all processes for a million records, above those of a run with half a million
records, in which Spark starts and the JVM compiles what it needs; medians of the rounds, in turns. The functions are
those of `typed_chain.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from typed_chain import HEAD, KINDS, seconds_of

FEW = 500_000
WINDOWS = (
    HEAD
    + """\
    - {name: price, udf: {python: "functions.py:price"}}
    - name: sums
      udf:
        groupBy: {window: {fixed: {length: 60s}}}
        sql:
          query: >
            SELECT value.customer AS customer, count(*) AS orders, sum(value.total) AS total
            FROM window GROUP BY value.customer
          value: {format: json, fields: "customer STRING, total DOUBLE"}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: price}
    - {from: price, to: sums}
    - {from: sums, to: out}
"""
)


def measure(records: int, rounds: int) -> dict[str, float]:
    """For a million records, by kind of function."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind in KINDS:
            with tempfile.TemporaryDirectory(prefix="millstream-typed-") as name:
                few = seconds_of(Path(name, "few"), kind, WINDOWS, FEW)
                many = seconds_of(Path(name, "many"), kind, WINDOWS, records)
            found.setdefault(kind, []).append((many - few) / (records - FEW) * 1e6)
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    if not options.json:
        print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    found = measure(options.records, options.rounds)
    if options.json:
        print(json.dumps({"benchmark": "typed_windows", **found}))
        return
    for name, each in found.items():
        print(f"  {each:6.2f} processor s for a million records: {name}")


if __name__ == "__main__":
    main()
