"""What it costs to start each kind of process: processor seconds (user and system), and what is imported.

    python benchmarks/start.py
    python benchmarks/compare.py --base REV -- benchmarks/start.py --times 9
    python benchmarks/start.py --imports worker

The first form prints the median of each. `--imports` shows where the time of one goes: processor milliseconds of each
import, with everything below it. The time of whole runs until their first record is in `workers.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workers import pipeline

LISTENS = """\
import importlib._bootstrap as imports, sys, time
below, rows, load = [0.0], [], imports._load_unlocked
def timed(spec):
    begun_s = time.process_time()
    below.append(0.0)
    try:
        return load(spec)
    finally:
        took_s = time.process_time() - begun_s
        below.pop()
        rows.append((took_s * 1000, len(below), spec.name))
imports._load_unlocked = timed
exec(sys.argv[1])
for took_ms, depth, name in reversed(rows):
    if took_ms >= 3:
        print(f"{took_ms:8.1f}  {'  ' * depth}{name}")
"""
READS = "from pathlib import Path; from millstream.plan import resolved; resolved.load(Path('p.json').read_text())"
PROGRAMS = {
    "python": "pass",
    "worker": (
        "import millstream_worker.__main__, millstream_worker.lanes; "
        f"import millstream.buffers.jetstream.technology; {READS}"
    ),
    "function": "import millstream_udf.server, millstream_udf.imported",
    "runner": "import millstream_runner.cli.run, millstream_runner.local.run, millstream.buffers.jetstream.technology",
}
COMMANDS = {"version": ["--version"], "validate": ["validate", "pipeline.yaml"], "status": ["status", "pipeline.yaml"]}


def processor_s(command: Sequence[str], directory: Path) -> float:
    """Of one process and what it has started and waited for."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--imports", choices=[*PROGRAMS])
    options = parser.parse_args()
    commands = {name: [sys.executable, "-c", program] for name, program in PROGRAMS.items()}
    commands |= {name: [sys.executable, "-m", "millstream_runner", *command] for name, command in COMMANDS.items()}
    with tempfile.TemporaryDirectory(prefix="millstream-start-") as place:
        directory = Path(place)
        (directory / "pipeline.yaml").write_text(pipeline(3))
        compiled = [sys.executable, "-m", "millstream_runner", "compile", "pipeline.yaml", "--to", "p.json"]
        subprocess.run(compiled, cwd=directory, check=True)
        if options.imports is not None:
            subprocess.run([sys.executable, "-c", LISTENS, PROGRAMS[options.imports]], cwd=directory, check=True)
            return 0
        # The first round makes bytecode. Rounds, so that a busy moment falls on all of them.
        rounds = [
            {name: processor_s(command, directory) for name, command in commands.items()}
            for _ in range(options.times + 1)
        ]
    print(json.dumps({name: round(statistics.median(one[name] for one in rounds[1:]), 3) for name in commands}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
