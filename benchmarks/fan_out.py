"""What it costs that several vertices read the output of one: processor seconds, and what the broker writes.

    python benchmarks/fan_out.py [--records 500000] [--readers 1 2 4]
    python benchmarks/compare.py --base REV --times 3 -- $PWD/benchmarks/fan_out.py

Runs a generator, a map and so many sinks behind the map with `millstream run`, each with fsync, in a directory of its
own. The edges into the sinks have no conditions, so what the map gives is stored once for all of them. The limit to
compare with is the run with one reader: whatever more readers cost beyond reading comes on top of that. What the
broker's process has written to storage is what the system says of it. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from millstream_runner.chaos.plan import Role
from millstream_runner.chaos.processes import processes_of

_LOOK_S = 0.1
_RUN = "import sys; from millstream_runner.cli.main import main; sys.exit(main())"
MIB = 1024 * 1024


def pipeline(records: int, size: int, readers: int) -> str:
    """The pipeline file."""
    names = [f"out{number}" for number in range(readers)]
    lines = [
        *("apiVersion: millstream.io/v1alpha1", "kind: Pipeline", "metadata: {name: fan-out}", "spec:", "  vertices:"),
        f"  - {{name: in, source: {{generator: {{rpu: 10000000, records: {records}, msgSize: {size}}}}}}}",
        "  - {name: map, udf: {builtin: {name: cat}}}",
        *(f"  - {{name: {name}, sink: {{blackhole: {{}}}}}}" for name in names),
        *("  edges:", "  - {from: in, to: map, chain: false}"),
        *(f"  - {{from: map, to: {name}}}" for name in names),
    ]
    return "\n".join(lines) + "\n"


def measure(records: int, size: int, readers: int) -> dict[str, float]:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="fan-out-") as name:
        directory = Path(name)
        (directory / "pipeline.yaml").write_text(pipeline(records, size, readers), encoding="utf-8")
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        with (directory / "output").open("w+b") as output:
            command = [sys.executable, "-c", _RUN, "run", "pipeline.yaml"]
            run = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
            broker: dict[str, float] = {}
            while run.poll() is None:
                for one in processes_of(run.pid):
                    if one.role is Role.BROKER:
                        with suppress(psutil.Error):
                            times, written = one.process.cpu_times(), one.process.io_counters().write_bytes
                            broker = {"broker_s": times.user + times.system, "written_mib": written / MIB}
                time.sleep(_LOOK_S)
            seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
            output.seek(0)
            text = output.read().decode()
        if run.returncode or "BALANCED" not in text:
            raise SystemExit(f"exit code {run.returncode}\n{text}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": seconds, "processor_s": processor, **broker}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of each record (default: 100)")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    found: dict[str, dict[str, float]] = {}
    for readers in options.readers:
        found[str(readers)] = figures = measure(options.records, options.size, readers)
        print(f"{readers} readers: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
