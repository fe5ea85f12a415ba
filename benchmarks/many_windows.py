"""Thousands of small windows closing every second: does a reduce keep up?

    python benchmarks/many_windows.py [--seconds S] [--json]

Generator (20,000 records/s) to a reduce with two partitions and windows of one millisecond: 2,000 windows of ten
records close every second. It keeps up when the windows' results come at that rate, and the records whose results have
not come are no more in the second half of the run than in the first, but for a tenth. Exit code 1 when it falls behind.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import uvloop
from observed_run import ObservedRun, Sample, machine, open_run

RATE = 20_000
WINDOWS_PER_S = 2_000
WARM_UP_S = 20.0
"""Spark starts, and compiles what it runs often."""
RECORDS_PER_WINDOW = RATE // WINDOWS_PER_S
WAITING_MAX_S = 1.0
"""Of records at the generator's rate: so many may always be without a result."""

PIPELINE = f"""\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: many-windows}}
spec:
  vertices:
    - name: in
      source: {{generator: {{rpu: {RATE}, msgSize: 100, keyCount: 1000}}}}
    - name: sum
      partitions: 2
      udf:
        groupBy: {{window: {{fixed: {{length: 1ms}}}}, keyed: true}}
        sql: {{query: "SELECT count(*) AS n, min(length(value)) AS shortest FROM window"}}
    - name: out
      sink: {{blackhole: {{}}}}
  edges:
    - {{from: in, to: sum}}
    - {{from: sum, to: out}}
"""


async def half(run: ObservedRun, seconds: float) -> tuple[float, int]:
    """Results a second, and the most records that were without a result."""
    begun_s, begun = run.now_s(), run.records("out")
    waiting = 0

    def look(_: Sample) -> None:
        nonlocal waiting
        waiting = max(waiting, run.records("in") - run.records("out") * RECORDS_PER_WINDOW)

    await run.watch(seconds, look, interval_s=0.2)
    return (run.records("out") - begun) / (run.now_s() - begun_s), waiting


async def measure(directory: Path, seconds: float) -> dict[str, object]:
    """The rate of windows, and what waited, in the two halves of the time after the warm-up."""
    async with open_run(directory, {"pipeline.yaml": PIPELINE}) as run:
        await run.until(lambda: run.records("out") > 0, "first results", timeout_s=120.0)
        await run.watch(WARM_UP_S, lambda _: None)
        halves = [await half(run, seconds / 2) for _ in range(2)]
        ended = await run.stop()
    (first_per_s, first_behind), (last_per_s, last_behind) = halves
    keeps_up = last_behind <= max(first_behind * 1.1, WAITING_MAX_S * RATE) and last_per_s >= 0.95 * WINDOWS_PER_S
    return {
        "benchmark": "many_windows",
        "windows_per_s": round(last_per_s),
        "windows_per_s_first_half": round(first_per_s),
        "share_of_wanted": round(last_per_s / WINDOWS_PER_S, 3),
        "records_behind_max": [first_behind, last_behind],
        "balanced": ended.balanced,
        "keeps_up": keeps_up and ended.balanced,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="to measure, after the warm-up (default: 40)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    place = machine()
    with tempfile.TemporaryDirectory(prefix="millstream-benchmark-") as name:
        result = uvloop.run(measure(Path(name), options.seconds))
    if options.json:
        print(json.dumps({**result, "machine": place}))
    else:
        print(f"{result['windows_per_s']} windows/s of {WINDOWS_PER_S} wanted; behind by at most")
        print(f"{result['records_behind_max']} records in the two halves; keeps up: {result['keeps_up']} ({place})")
    return 0 if result["keeps_up"] else 1


if __name__ == "__main__":
    sys.exit(main())
