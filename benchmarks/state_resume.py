"""How soon a lane with a large state goes on after `kill -9` of its worker, in a real pipeline.

    python benchmarks/state_resume.py [--keys 900000] [--stores memory disk]

A function remembers 100 bytes for each key of its records, in one lane. When all have been processed, its worker is
killed. Prints, from the log of the next one, the time from its takeover of the lane until the state is there; and how
many bytes the state has, in entries, in the files of the lane's ledger, and in the memory of the worker (RssAnon).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: resume}}
spec:
  vertices:
    - name: in
      source: {{file: {{paths: [in.jsonl], format: jsonl, follow: true}}, keys: [key]}}
    - name: notes
      udf: {{python: "notes.py:Notes", state: {{store: {store}, maxBytes: 2Gi}}}}
    - name: out
      sink: {{blackhole: {{}}}}
  edges:
    - {{from: in, to: notes}}
    - {{from: notes, to: out}}
"""
FUNCTION = """\
import os

import millstream_udf as udf


@udf.map
class Notes:
    note = udf.value(bytes)

    def process(self, record: udf.Record) -> None:
        self.note = os.urandom(100)
"""
ENTRY_BYTES = 100 + 16
LIMIT_S = 900.0


@contextmanager
def running(directory: Path) -> Iterator[None]:
    """The pipeline, which is drained at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millstream_runner", "run", "--quiet", "pipeline.yaml"], cwd=directory
    )
    try:
        yield
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > ends:
            raise SystemExit("it takes too long")
        time.sleep(0.2)


def processed(data: Path) -> int:
    with suppress(OSError, ValueError, KeyError, StopIteration):
        status = json.loads((data / "status.json").read_text(encoding="utf-8"))
        return next(int(one["records"]) for one in status["vertices"] if one["vertex"] == "notes")
    return 0


def worker(data: Path) -> int:
    """The process id of the worker of the vertex."""
    with suppress(OSError, ValueError, StopIteration):
        runtime = json.loads((data / "runtime.json").read_text(encoding="utf-8"))
        return next(
            int(one["identity"]["pid"]) for one in runtime["processes"] if "notes-0" in [one["name"], *one["replicas"]]
        )
    return 0


def log_times(data: Path, text: str) -> list[tuple[datetime, str]]:
    """The log lines with this text."""
    lines = [
        json.loads(line)
        for path in (data / "logs").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [(datetime.fromisoformat(line["time"]), line["message"]) for line in lines if text in line["message"]]


def rss_anon_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def ledger_mib(data: Path) -> float:
    """Bytes of the files of the streams with the vertex's ledger."""
    streams = [path for path in (data / "broker").rglob("streams/*") if path.name == "resume-notes"]
    return sum(path.stat().st_size for stream in streams for path in stream.rglob("*.blk")) / 2**20


def measure(keys: int, store: str) -> None:
    with tempfile.TemporaryDirectory(prefix="state-resume-") as name:
        directory = Path(name)
        data = directory / ".millstream" / "resume"
        (directory / "pipeline.yaml").write_text(PIPELINE.format(store=store), encoding="utf-8")
        (directory / "notes.py").write_text(FUNCTION, encoding="utf-8")
        with (directory / "in.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(f'{{"key": "key-{number:012d}"}}\n' for number in range(keys))
        began = time.monotonic()
        with running(directory):
            until(lambda: processed(data) >= keys)
            taken_s = time.monotonic() - began
            before = worker(data)
            memory_mib, state_mib = rss_anon_mib(before), keys * (16 + ENTRY_BYTES) / 2**20
            os.kill(before, signal.SIGKILL)
            until(lambda: worker(data) not in (0, before) and bool(log_times(data, "of its changelog were read")))
            resumed, taken_over = log_times(data, "of its changelog were read"), log_times(data, "resumes after")
            print(
                f"{store}: {keys:,} keys, {state_mib:.0f} MiB of state, processed in {taken_s:.0f} s: the next worker "
                f"has it {(resumed[-1][0] - taken_over[-1][0]).total_seconds():.2f} s after its takeover "
                f"({resumed[-1][1]}); the ledger has {ledger_mib(data):.0f} MiB, {ledger_mib(data) / state_mib:.2f} "
                f"times the state; RssAnon before {memory_mib:.0f} MiB, after {rss_anon_mib(worker(data)):.0f} MiB"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=900_000)
    parser.add_argument("--stores", nargs="+", default=["memory", "disk"])
    options = parser.parse_args()
    for store in options.stores:
        measure(options.keys, store)


if __name__ == "__main__":
    main()
