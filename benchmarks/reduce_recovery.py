"""A reduce that is killed with millions of records in open windows: when does it read again, and what memory has it?

    python benchmarks/reduce_recovery.py [--records N] [--json]

Generator to a reduce with windows of a day, so that all records stay in open windows, in the lane's log. The vertex
process is killed (SIGKILL) when they are all there; the time until the lane takes records in again is measured from the
outside, the runner's restart of the process included. Its memory before the kill is given beside the bytes of the log.
Exit code 1 when it takes longer than 5 s, or when memory is more than a tenth of the log.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from observed_run import MIB, disk_bytes, machine, open_run

from millstream_runner.local.directory import DataDirectory

READS_AGAIN_MAX_S = 5.0
RECORD_BYTES = 100

PIPELINE = f"""\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: recovery}}
spec:
  vertices:
    - name: in
      source: {{generator: {{rpu: 0, msgSize: {RECORD_BYTES}, keyCount: 10000}}}}
    - name: sum
      udf:
        groupBy: {{window: {{fixed: {{length: 24h}}}}, keyed: true}}
        sql: {{query: "SELECT key, count(*) AS n FROM window GROUP BY key"}}
      placement: {{process: own}}
    - name: out
      sink: {{blackhole: {{}}}}
  edges:
    - {{from: in, to: sum}}
    - {{from: sum, to: out}}
"""


async def measure(directory: Path, records: int) -> dict[str, object]:
    """Kill it once, and watch it come back."""
    async with open_run(directory, {"pipeline.yaml": PIPELINE}) as run:
        begun_s = run.now_s()
        await run.until(lambda: run.records("sum") >= records, f"{records} records in windows", timeout_s=600.0)
        ingest_per_s = run.steady_records_per_s("sum", begun_s, run.now_s())
        rss = run.sample().rss_bytes["sum-0"]
        log_bytes = disk_bytes(DataDirectory(directory / "state").windows)
        runtime = DataDirectory(directory / "state").read_runtime()
        assert runtime is not None, "it runs"
        process = next(one for one in runtime.processes if one.name == "sum-0")
        os.kill(process.identity.pid, signal.SIGKILL)
        killed_s = time.monotonic()

        def is_restarted() -> bool:
            now = DataDirectory(directory / "state").read_runtime()
            return now is not None and any(
                one.name == "sum-0" and one.identity != process.identity for one in now.processes
            )

        await run.until(is_restarted, "a new process", timeout_s=60.0)
        # By now all is heard that the killed one has told.
        before = run.records("sum")
        await run.until(lambda: run.records("sum") > before, "reading again", timeout_s=120.0)
        reads_again_s = time.monotonic() - killed_s
    return {
        "benchmark": "reduce_recovery",
        "records_in_windows": before,
        "log_mib": round(log_bytes / MIB, 1),
        "ingest_records_per_s": round(ingest_per_s),
        "rss_before_kill_mib": round(rss / MIB, 1),
        "rss_share_of_log": round(rss / log_bytes, 4),
        "reads_again_s": round(reads_again_s, 2),
        "passed": reads_again_s <= READS_AGAIN_MAX_S and rss <= log_bytes / 10,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000_000, help="in open windows (default: 20000000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    place = machine()
    with tempfile.TemporaryDirectory(prefix="millstream-benchmark-") as name:
        result = uvloop.run(measure(Path(name), options.records))
    if options.json:
        print(json.dumps({**result, "machine": place}))
    else:
        print(f"{result['records_in_windows']:,} records in open windows, a log of {result['log_mib']} MiB")
        print(
            f"memory of the vertex: {result['rss_before_kill_mib']} MiB; reads again {result['reads_again_s']} s after"
        )
        print(f"SIGKILL; while it filled: {result['ingest_records_per_s']:,} records/s ({place})")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
