"""What a pipeline's processes cost: how many there are, their memory, and how soon a record has come through.

    python benchmarks/workers.py --vertices 3 30 --workers 1 3 31

Runs a source, built-in maps and a sink, as many vertices as asked, with `millstream run`, until the sink has written a
record; then counts the run's processes and their memory (PSS: pages that processes share are divided among them).
Figures are of one run each. Compare with another commit by running it there, without `--workers`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from millstream.limits import MIB

LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run."""

    vertices: int
    workers: int | None
    first_record_s: float
    """From the start of the command until the sink has written a record."""
    cpu_s: float
    """Of all processes up to then."""
    processes: int
    """The runner and the broker among them."""
    pss_mib: float


def pipeline(vertices: int) -> str:
    names = ["in", *(f"m{number}" for number in range(vertices - 2)), "out"]
    lines = ["apiVersion: millstream.io/v1alpha1", "kind: Pipeline", "metadata: {name: cost}", "spec:", "  vertices:"]
    lines.append("    - {name: in, source: {generator: {rpu: 100, msgSize: 40}}}")
    lines += [f"    - {{name: {name}, udf: {{builtin: {{name: cat}}}}}}" for name in names[1:-1]]
    lines += ["    - {name: out, sink: {log: {}}}", "  edges:"]
    lines += [f"    - {{from: {start}, to: {end}, chain: false}}" for start, end in pairwise(names)]
    return "\n".join([*lines, ""])


async def measure(vertices: int, workers: int | None) -> Cost:
    with tempfile.TemporaryDirectory(prefix="millstream-workers-") as place:
        directory = Path(place)
        (directory / "pipeline.yaml").write_text(pipeline(vertices))
        options = [] if workers is None else ["--workers", str(workers)]
        begun_s = time.monotonic()
        run = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "millstream_runner",
            "run",
            "pipeline.yaml",
            "--quiet",
            *options,
            cwd=directory,
            stdout=asyncio.subprocess.PIPE,
        )
        assert run.stdout is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                if not await run.stdout.readline():
                    raise RuntimeError(f"the run of {vertices} vertices ended without a record")
            first_record_s = time.monotonic() - begun_s
            processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            cpu_s = sum(times.user + times.system for times in (one.cpu_times() for one in processes))
            pss = sum(one.memory_full_info().pss for one in processes)
            return Cost(vertices, workers, first_record_s, cpu_s, len(processes), pss / MIB)
        finally:
            run.send_signal(signal.SIGINT)
            await run.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, nargs="+", default=[3, 30])
    parser.add_argument("--workers", type=int, nargs="+", help="default: what `millstream run` takes by itself")
    options = parser.parse_args()
    print("vertices  workers  first record  processor time  processes  memory (PSS)")
    for vertices in options.vertices:
        for workers in options.workers or [None]:
            cost = asyncio.run(measure(vertices, workers))
            print(
                f"{cost.vertices:8}  {cost.workers or 'default':>7}  {cost.first_record_s:10.1f} s  "
                f"{cost.cpu_s:12.1f} s  {cost.processes:9}  {cost.pss_mib:8.0f} MiB",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
