"""What JSON costs: lines of 300 bytes are parsed, enriched and written again by a plain function, in a whole pipeline.

    python benchmarks/json_map.py [--records N] [--json]
    python benchmarks/compare.py --base REV --times 3 -- benchmarks/json_map.py --json

file (lines) → map (a plain Python function: json.loads, three fields more, json.dumps) → blackhole, with `millstream
run` as it is. Figures are processor seconds of all processes for a million records, above those of a run with few
records, which are its start; and by process. The limit is the same function in a bare loop over the same file, in the
same run. Processor seconds, since what else the machine does is left out of them as far as it can be.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from demo_cost import Seen

FEW = 2_000
RECORD_BYTES = 300
_LOOK_S = 0.1
FUNCTION = '''\
"""Parse, enrich, write."""

import json

CITIES = {f"c{number}": f"City {number}" for number in range(50)}


def process(value: bytes) -> str:
    order = json.loads(value)
    order["city"] = CITIES.get(order["place"], "")
    order["total"] = round(order["amount"] * order["count"], 2)
    order["large"] = order["total"] > 100
    return json.dumps(order)
'''
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: json}
spec:
  vertices:
    - {name: in, source: {file: {paths: [orders.txt]}}}
    - {name: enrich, udf: {python: "enrich.py:process"}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: enrich}
    - {from: enrich, to: out}
"""


def line(number: int) -> str:
    order: dict[str, Any] = {
        "id": number,
        "at": f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "who": {"name": f"user-{number % 1000}", "mail": f"user-{number % 1000}@example.org"},
        "place": f"c{number % 60}",
        "amount": number % 97 + 0.25,
        "count": number % 5 + 1,
        "tags": ["new", "web"],
        "note": "",
    }
    order["note"] = "x" * (RECORD_BYTES - len(json.dumps(order)))
    return json.dumps(order) + "\n"


def write(directory: Path, records: int) -> None:
    directory.mkdir()
    with (directory / "orders.txt").open("w") as file:
        file.writelines(line(number) for number in range(records))
    (directory / "enrich.py").write_text(FUNCTION)
    (directory / "pipeline.yaml").write_text(PIPELINE)


def bare_loop_s(directory: Path) -> float:
    """Processor seconds of the function alone over the lines of the file."""
    spec = importlib.util.spec_from_file_location("enrich", directory / "enrich.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    begun_s = time.process_time()
    with (directory / "orders.txt").open("rb") as file:
        for text in file:
            module.process(text[:-1])
    return time.process_time() - begun_s


def run(directory: Path) -> tuple[float, dict[str, float]]:
    """Processor seconds of a whole run, and of each of its processes, as far as it was looked at."""
    command = [sys.executable, "-m", "millstream_runner", "run", "--fresh", "--data-dir", "state", "pipeline.yaml"]
    seen, before = Seen(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with (directory / "output").open("wb") as output:
        started = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        while started.poll() is None:
            with suppress(psutil.Error):
                seen.look(started.pid, directory / "state", 0, 0.0, memory=False)
            with suppress(subprocess.TimeoutExpired):
                started.wait(_LOOK_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if started.returncode:
        sys.exit((directory / "output").read_text()[-4000:])
    of_process: dict[str, float] = {}
    for name, seconds in seen.seconds.values():
        of_process[name] = of_process.get(name, 0.0) + seconds
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, of_process


def measure(records: int) -> dict[str, Any]:
    """For a million records."""
    millions = (records - FEW) / 1e6
    with tempfile.TemporaryDirectory(prefix="millstream-json-") as name:
        few, many = Path(name, "few"), Path(name, "many")
        write(few, FEW)
        write(many, records)
        start_s, of_start = run(few)
        bare_s = bare_loop_s(many) / (records / 1e6)
        whole_s, of_whole = run(many)
    of_process = {name: (seconds - of_start.get(name, 0.0)) / millions for name, seconds in sorted(of_whole.items())}
    return {
        "benchmark": "json_map",
        "pipeline s": (whole_s - start_s) / millions,
        "bare loop s": bare_s,
        "start s": start_s,
        "of process": of_process,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    if not options.json:
        print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    found = measure(options.records)
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"{found['pipeline s']:.1f} processor s for a million records, above {found['start s']:.1f} s to start;"
        f" {found['bare loop s']:.1f} in a bare loop: {found['pipeline s'] / found['bare loop s']:.2f} times"
    )
    for name, seconds in found["of process"].items():
        print(f"  {seconds:6.2f}  {name}")


if __name__ == "__main__":
    main()
