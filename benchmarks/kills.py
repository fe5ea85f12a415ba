"""Kills any process of a running pipeline at random, many times, and counts what came out.

    python benchmarks/kills.py [--records N] [--kills K] [--seed S] [--json]

A generator numbers the records, a function gives each a fresh random id, and two file sinks get all of them. Whatever
is killed (vertex, sidecar, broker, runner), both sinks must hold each number once, and agree on its id: a function that
ran twice for a record must have counted once. Exit code 1 when they do not.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: kills}}
spec:
  vertices:
    - name: numbers
      source: {{generator: {{records: {records}, rpu: {rate}, duration: 1s, msgSize: 60}}}}
    - name: brand
      udf: {{python: "brand.py:process"}}
    - name: left
      sink: {{file: {{path: left, format: jsonl, rolling: {{maxAge: 1s}}}}}}
    - name: right
      sink: {{file: {{path: right, format: jsonl, rolling: {{maxAge: 2s}}}}}}
  edges:
    - {{from: numbers, to: brand}}
    - {{from: brand, to: left}}
    - {{from: brand, to: right}}
"""

FUNCTION = '''\
"""Gives each record a random id: a second call for the same record gives another."""

import json
import uuid


def process(value: bytes) -> str:
    return json.dumps({"number": json.loads(value)["number"], "id": str(uuid.uuid4())})
'''

ROLES = ("runner", "broker", "vertex", "sidecar")
SECONDS_PER_KILL = 2.0
"""The rate is chosen so that the records last this long for each kill."""
RUN_TIMEOUT_S = 600.0
"""From the last kill until the run must have ended."""


@dataclass
class Outcome:
    """What a run of kills showed."""

    records: int
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    lost: int = 0
    """Numbers missing in a sink, over both."""
    repeated: int = 0
    """Numbers more than once in a sink, over both."""
    disagreeing: int = 0
    """Numbers whose ids differ between the sinks."""

    @property
    def sound(self) -> bool:
        return not (self.lost or self.repeated or self.disagreeing)


class Run:
    """A pipeline in a directory, and its runner."""

    def __init__(self, directory: Path, records: int, rate: int) -> None:
        self.directory = directory
        (directory / "pipeline.yaml").write_text(PIPELINE.format(records=records, rate=rate), encoding="utf-8")
        (directory / "brand.py").write_text(FUNCTION, encoding="utf-8")
        self._log = (directory / "runner.log").open("ab")
        self.runner = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "millstream", "run", "--data-dir", "state", "pipeline.yaml"]
        return subprocess.Popen(command, cwd=self.directory, stdout=self._log, stderr=self._log)

    def victims(self) -> list[tuple[str, psutil.Process]]:
        """Every process of the run that is alive, with its role."""
        found = [("runner", psutil.Process(self.runner.pid))]
        for process in psutil.Process(self.runner.pid).children(recursive=True):
            try:
                command = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if "nats-server" in command:
                found.append(("broker", process))
            elif "millstream_vertex" in command:
                found.append(("vertex", process))
            elif "millstream_udf" in command:
                found.append(("sidecar", process))
        return found

    def kill(self, process: psutil.Process) -> None:
        """SIGKILL; a runner is started again, as its user would."""
        process.kill()
        if process.pid == self.runner.pid:
            self.runner.wait()
            self.runner = self._start()

    def close(self) -> None:
        """End what is left of it."""
        if self.runner.poll() is None:
            self.runner.terminate()
            self.runner.wait(60)
        self._log.close()

    def log_tail(self) -> str:
        return (self.directory / "runner.log").read_text(encoding="utf-8", errors="replace")[-4000:]


def kill_at_random(run: Run, kills: int, rng: random.Random, outcome: Outcome) -> None:
    """Kill `kills` processes, one role as likely as another. Stops early when the run has ended."""
    while sum(outcome.kills.values()) < kills:
        time.sleep(rng.uniform(0.1, 1.5))
        if run.runner.poll() is not None:
            return
        role = rng.choice(ROLES)
        try:
            candidates = [process for known, process in run.victims() if known == role]
            if candidates:
                run.kill(rng.choice(candidates))
                outcome.kills[role] += 1
        except psutil.NoSuchProcess:
            continue


def read_sink(directory: Path) -> tuple[dict[int, str], int]:
    """The id of each number, and how many numbers were there again."""
    ids: dict[int, str] = {}
    repeated = 0
    for path in sorted(directory.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                repeated += row["number"] in ids
                ids[row["number"]] = row["id"]
    return ids, repeated


def measure(directory: Path, records: int, kills: int, seed: int) -> Outcome:
    """One run. Raises `RuntimeError` when it does not end, or ends with an error."""
    outcome = Outcome(records)
    rate = max(1, round(records / (kills * SECONDS_PER_KILL))) if kills else 0
    started = time.monotonic()
    run = Run(directory, records, rate)
    try:
        kill_at_random(run, kills, random.Random(seed), outcome)
        try:
            code = run.runner.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the run did not end within {RUN_TIMEOUT_S:.0f} s\n{run.log_tail()}") from None
        if code != 0:
            raise RuntimeError(f"the run ended with exit code {code}\n{run.log_tail()}")
    finally:
        run.close()
    outcome.seconds = time.monotonic() - started
    (left, left_again), (right, right_again) = read_sink(directory / "left"), read_sink(directory / "right")
    outcome.repeated = left_again + right_again
    outcome.lost = 2 * records - len(left) - len(right)
    outcome.disagreeing = sum(left[number] != right[number] for number in left.keys() & right.keys())
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-kills-") as directory:
        try:
            outcome = measure(Path(directory), options.records, options.kills, options.seed)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
    done = sum(outcome.kills.values())
    faults = {"lost": outcome.lost, "repeated": outcome.repeated, "disagreeing": outcome.disagreeing}
    print(
        f"{outcome.records:,} records, {done} kills ({', '.join(f'{r} {outcome.kills[r]}' for r in ROLES)}) "
        f"in {outcome.seconds:.0f} s: {', '.join(f'{count} {name}' for name, count in faults.items())}"
    )
    if options.json:
        counts = {"records": outcome.records, "kills": dict(outcome.kills), "seconds": round(outcome.seconds, 1)}
        print(json.dumps(counts | faults))
    return 0 if outcome.sound and done == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
