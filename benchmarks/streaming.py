"""What `streaming: true` gives a function that makes many outputs of a record: `python benchmarks/streaming.py`.

A record becomes N outputs of 100 bytes, one after the other, with a pause where the function would wait for its data.
The next function of the chain writes down when it has the first one. Alternately without and with streaming, each in a
run of its own (`millstream run`, JetStream, fsync). Printed are, from the moment at which the first function begins:
when the second one has its first record, and when the first one has made its last; and the most memory that the process
of the first function had, less what it had before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  vertices:
    - {{name: in, source: {{file: {{paths: [in.jsonl], format: jsonl}}}}}}
    - {{name: expand, udf: {{python: "functions.py:expand", streaming: {streaming}}}}}
    - {{name: seen, udf: {{python: "functions.py:Seen"}}}}
    - {{name: out, sink: {{blackhole: {{}}}}}}
  edges:
    - {{from: in, to: expand}}
    - {{from: expand, to: seen, chain: true}}
    - {{from: seen, to: out}}
"""
FUNCTIONS = """\
import json, time

def memory():
    with open("/proc/self/status") as status:
        found = dict(line.split(":", 1) for line in status)
    return int(found["VmRSS"].split()[0]), int(found["VmHWM"].split()[0])

def note(**what):
    with open("notes", "a") as file:
        file.write(json.dumps(what) + chr(10))

def expand(value):
    asked = json.loads(value)
    note(began_s=time.monotonic(), rss_kib=memory()[0])
    for number in range(asked["outputs"]):
        if number % (asked["outputs"] // 100) == 0:
            time.sleep(asked["pause_s"] / 100)
        yield b"%0100d" % number
    note(made_s=time.monotonic())

class Seen:
    is_first = True

    def process(self, value):
        if self.is_first:
            self.is_first = False
            note(seen_s=time.monotonic())
        return value
"""


def measured(outputs: int, pause_s: float, *, streaming: bool) -> tuple[float, float, float]:
    """Seconds to the first record in the second function, seconds to the last output, and MiB."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "pipeline.yaml").write_text(PIPELINE.format(streaming=json.dumps(streaming)))
        # What a process has when it ends is not known then, so the next record asks what the last one has left behind.
        (place / "functions.py").write_text(
            FUNCTIONS.replace(
                "    note(began_s", '    note(peak_kib=memory()[1]) if asked["last"] else None\n    note(began_s'
            )
        )
        records = [
            {"outputs": outputs, "pause_s": pause_s, "last": False},
            {"outputs": 100, "pause_s": 0, "last": True},
        ]
        (place / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--quiet"]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, float] = {}
        for line in (place / "notes").read_text().splitlines():
            # The first of each: of the first record.
            found = json.loads(line) | found
    mebibytes = (found["peak_kib"] - found["rss_kib"]) / 1024
    return found["seen_s"] - found["began_s"], found["made_s"] - found["began_s"], mebibytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=400_000)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds that the function waits in all")
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for _ in range(asked.pairs):
        for streaming, rows in found.items():
            rows.append(measured(asked.outputs, asked.pause, streaming=streaming))
    for streaming, rows in found.items():
        seen_s, made_s, mebibytes = map(statistics.median, zip(*rows, strict=True))
        print(
            f"{'streaming' if streaming else 'whole':10} first record in the next function {seen_s:6.2f} s, "
            f"last output made {made_s:6.2f} s, memory of the first function +{mebibytes:6.1f} MiB"
        )


if __name__ == "__main__":
    main()
