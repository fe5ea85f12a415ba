"""From saving a function to the first record that its new code processes, under `millstream run --watch`.

    python benchmarks/reload.py [--changes 20]

A pipeline with 1,000 records a second runs in a temporary directory; the function notes when its code is called first.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: reload}
spec:
  vertices:
    - name: in
      source: {generator: {rpu: 1000, duration: 1s}}
    - name: map
      udf: {python: "function.py:process"}
    - name: out
      sink: {blackhole: {}}
  edges:
    - {from: in, to: map}
    - {from: map, to: out}
"""
FUNCTION = """\
import time
from pathlib import Path

called = False

def process(value):
    global called
    if not called:
        called = True
        Path("called.new").write_text(f"%d {time.time()}")
        Path("called.new").replace("called")
    return value
"""
LIMIT_S = 120


def called(directory: Path, version: int) -> float:
    """When that version was called first; waits for it."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        try:
            found, moment = (directory / "called").read_text().split()
        except FileNotFoundError:
            found, moment = "-1", ""
        if int(found) == version:
            return float(moment)
        threading.Event().wait(0.01)
    raise TimeoutError(f"version {version} was not called within {LIMIT_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20, metavar="N", help="(default: 20)")
    changes = parser.parse_args().changes
    with tempfile.TemporaryDirectory(prefix="millstream-reload-") as name:
        directory = Path(name)
        (directory / "pipeline.yaml").write_text(PIPELINE)
        function = directory / "function.py"
        function.write_text(FUNCTION % 0)
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--watch", "--quiet"]
        with subprocess.Popen(command, cwd=directory) as process:
            try:
                called(directory, 0)
                seconds = []
                for version in range(1, changes + 1):
                    (directory / "saved").write_text(FUNCTION % version)
                    saved = time.time()
                    os.replace(directory / "saved", function)
                    seconds.append(called(directory, version) - saved)
            finally:
                process.send_signal(signal.SIGINT)
    load = os.getloadavg()[0]
    print(
        f"{changes} changes: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s "
        f"from saving to the first record (load of the machine: {load:.1f})"
    )


if __name__ == "__main__":
    main()
