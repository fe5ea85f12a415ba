"""A runner of a pipeline with a reduce that is killed and started again: when is there a new result?

    python benchmarks/runner_recovery.py [--kills N] [--json]

A generator, windows of a second, a query, the log sink. `millstream run` is killed (SIGKILL) and started again at once;
measured is the time from the kill until the sink has written the result of a window that ended after it, so that it was
computed by the new run. The phases are moments after the kill: when each process was started, when Spark's JVM said its
first line, and when Spark was ready. The processor time is that of all processes of the new run until then: on a busy
machine it tells more than the clock does.
Without Spark's start-up cache (`millstream spark prepare`) it takes longer, which is said first.
Exit code 1 when the median takes longer than 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from observed_run import machine

from millstream import codes
from millstream.errors import MillstreamError
from millstream_reduce.spark import aot
from millstream_runner.local.directory import DataDirectory

NEW_RESULT_MAX_S = 15.0
_RESULT_TIMEOUT_S = 180.0
_LOOK_INTERVAL_S = 0.05
_JVM = "JVM"

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: recovery}
spec:
  vertices:
    - name: in
      source: {generator: {rpu: 100, keyCount: 10}}
    - name: sum
      udf:
        groupBy: {window: {fixed: {length: 1s}}, keyed: true}
        sql: {query: "SELECT key, count(*) AS n FROM window GROUP BY key"}
    - name: out
      sink: {log: {}}
  edges:
    - {from: in, to: sum}
    - {from: sum, to: out}
"""


class Run:
    """`millstream run`, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = DataDirectory(directory / "state")
        self._process: subprocess.Popen[bytes] | None = None
        self._runs = 0

    def start(self) -> None:
        self._runs += 1
        with self._output.open("wb") as output, (self._directory / "messages").open("ab") as messages:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millstream_runner", "run", "--data-dir", "state", "pipeline.yaml"],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=messages,
            )

    def kill(self) -> None:
        """What it has started ends with it."""
        assert self._process is not None, "it was started"
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait_for_result(self, ended_after_s: float) -> float:
        """When the result of a window that ended after a moment was there; both since 1970."""
        assert self._process is not None, "it was started"
        until_s = time.monotonic() + _RESULT_TIMEOUT_S
        while time.monotonic() < until_s and self._process.poll() is None:
            if self._last_window_end_s() > ended_after_s:
                return time.time()
            time.sleep(_LOOK_INTERVAL_S)
        raise MillstreamError(
            codes.EXPERIMENT_FAILED, f"no result:\n{(self._directory / 'messages').read_text()[-3000:]}"
        )

    def moments(self) -> dict[str, float]:
        """When each process of this run was started, and how far Spark was when, since 1970."""
        assert self._process is not None, "it was started"
        runtime = self._data.read_runtime()
        assert runtime is not None, "it runs"
        found = {one.name: one.identity.created for one in runtime.processes}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.name() == "java":
                    found[_JVM] = process.create_time()
        for line in (self._data.logs / "spark.jsonl").read_text().splitlines():
            entry = json.loads(line)
            at_s = datetime.fromisoformat(entry["time"]).timestamp()
            if at_s > found["spark"] and "jvm" in entry["logger"]:
                found.setdefault("JVM's first line", at_s)
            if at_s > found["spark"] and "is ready after" in entry["message"]:
                found["Spark ready"] = at_s
        return found

    def processor_s(self) -> float:
        """Of the runner and all it has started, those that have ended included."""
        assert self._process is not None, "it was started"
        runner = psutil.Process(self._process.pid)
        total = 0.0
        for process in [runner, *runner.children(recursive=True)]:
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    @property
    def _output(self) -> Path:
        return self._directory / f"results-{self._runs}"

    def _last_window_end_s(self) -> float:
        lines = self._output.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines[-2:] if line.endswith(b"\n") and line.startswith(b"{")]
        if not whole:
            return 0.0
        end: str = json.loads(whole[-1])["headers"]["window-end"]
        return datetime.fromisoformat(end).timestamp()


def measure(directory: Path, kills: int) -> list[dict[str, Any]]:
    """Kill it so many times. Gives seconds after each kill."""
    (directory / "pipeline.yaml").write_text(PIPELINE)
    run = Run(directory)
    found = []
    try:
        run.start()
        run.wait_for_result(0.0)
        for _ in range(kills):
            run.kill()
            killed_s = time.time()
            run.start()
            result_s = run.wait_for_result(killed_s)
            processor_s = run.processor_s()
            phases = {name: round(at_s - killed_s, 2) for name, at_s in run.moments().items()}
            phases["result"] = round(result_s - killed_s, 2)
            found.append({"phases_s": phases, "processor_s": round(processor_s, 1), "load": os.getloadavg()[0]})
            print(_line(found[-1]), file=sys.stderr, flush=True)
    finally:
        run.kill()
    return found


def _line(kill: Mapping[str, Any]) -> str:
    phases = ", ".join(f"{name} {at_s:.1f}" for name, at_s in sorted(kill["phases_s"].items(), key=lambda one: one[1]))
    return f"{phases} s; {kill['processor_s']:.1f} s of processors; load {kill['load']:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    place = machine()
    without_cache = aot.advice()
    if without_cache:
        print(without_cache, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="millstream-benchmark-") as name:
        kills = measure(Path(name), options.kills)
    times_s = [kill["phases_s"]["result"] for kill in kills]
    median_s, max_s = statistics.median(times_s), max(times_s)
    processor_s = statistics.median(kill["processor_s"] for kill in kills)
    if options.json:
        result = {"benchmark": "runner_recovery", "kills": kills, "median_s": median_s, "max_s": max_s}
        result["start_up_cache"] = not without_cache
        print(json.dumps({**result, "passed": median_s <= NEW_RESULT_MAX_S, "machine": place}))
    else:
        print(
            f"a new result after {median_s:.1f} s (median of {len(kills)}; at most {max_s:.1f} s), "
            f"{processor_s:.1f} s of processors ({place})"
        )
    return 0 if median_s <= NEW_RESULT_MAX_S else 1


if __name__ == "__main__":
    sys.exit(main())
