"""A map in Go against the same map in Python: whole pipelines, one after the other in turns.

    python benchmarks/udf_go.py [--records 4000000] [--rounds 3] [--json]

What `millstream bench map` measures: a generator (records of 100 bytes, as fast as it can), a function that gives back
what it gets, a blackhole. The two take turns, so that what else the machine does falls on both. Figures: records per
second and the CPU seconds of the vertex with its function, of each round; the medians, and how many times Python's Go's
is. Exit code 1 when that is less than 0.9. Needs a Go toolchain.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

from millstream.ledger.protocol import DurabilityLevel
from millstream.telemetry.metrics import LATENCY
from millstream_runner.bench.running import BUFFER_RECORDS, BenchPipeline, Load, Measurement, measure

RECORD_BYTES = 100
SHARE_WANTED = 0.9
GO_EXAMPLE = Path(__file__).parents[1] / "examples" / "udf-go"
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: bench}}
spec:
  limits: {{bufferMaxLength: {buffer}}}
  vertices:
    - name: in
      source: {{generator: {{rpu: 0, records: {records}, msgSize: {size}}}}}
    - name: map
      udf: {udf}
      placement: {{process: own}}
    - name: out
      sink: {{blackhole: {{}}}}
  edges:
    - {{from: in, to: map, chain: false}}
    - {{from: map, to: out}}
"""


async def measured(directory: Path, udf: str, records: int) -> Measurement:
    """One pipeline from its start to its end."""
    directory.mkdir()
    (directory / "identity.py").write_text("def process(value):\n    return value\n")
    text = PIPELINE.format(buffer=BUFFER_RECORDS, records=records, size=RECORD_BYTES, udf=udf)
    pipeline = BenchPipeline(text, ("in-0", "map-0", "out-0"), "out-0", LATENCY)
    return await measure(directory, pipeline, Load(records, RECORD_BYTES), DurabilityLevel.FSYNC)


def measure_all(records: int, rounds: int, go: str) -> dict[str, list[Measurement]]:
    """Each round of each language."""
    figures: dict[str, list[Measurement]] = {"python": [], "go": []}
    with tempfile.TemporaryDirectory(prefix="millstream-udf-go-") as name:
        directory = Path(name)
        binary = directory / "identity"
        subprocess.run([go, "build", "-o", str(binary), "./identity"], cwd=GO_EXAMPLE, check=True)
        udfs = {"python": '{python: "identity.py:process"}', "go": f"{{command: [{json.dumps(str(binary))}]}}"}
        for turn in range(rounds):
            for language, udf in udfs.items():
                one = uvloop.run(measured(directory / f"{language}-{turn}", udf, records))
                figures[language].append(one)
                cpu_s = one.use["map-0"].cpu_s if "map-0" in one.use else 0.0
                print(f"{language:8} {one.records_per_s:12,.0f} records/s   map and function {cpu_s:5.1f} CPU s")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    go = shutil.which("go")
    if go is None:
        sys.exit("benchmarks/udf_go.py: there is no Go toolchain on the PATH")
    figures = measure_all(arguments.records, arguments.rounds, go)
    medians = {name: statistics.median(one.records_per_s for one in some) for name, some in figures.items()}
    share = medians["go"] / medians["python"]
    print(f"medians: python {medians['python']:,.0f}, go {medians['go']:,.0f} records/s: {share:.2f}")
    if arguments.json:
        print(json.dumps({**{name: round(median) for name, median in medians.items()}, "share": round(share, 3)}))
    sys.exit(0 if share >= SHARE_WANTED else 1)


if __name__ == "__main__":
    main()
