"""The jobs of the how-tos on moving, run by what they were written for and by Millstream: both have to give the same.

    python benchmarks/moved_jobs.py
    python benchmarks/moved_jobs.py from-quix --kafka 127.0.0.1:9092

Each program is installed into an environment of its own in a temporary directory, and runs the files of its page as
they are. `from-quix` needs a Kafka, and makes its topics there. Exit code 1 when two results differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.how_to import HOW_TO, files_of, write  # noqa: E402

LIMIT_S = 600

NUMAFLOW = """
import json
from datetime import datetime, timezone
from before_numaflow import even_odd
from pynumaflow.mapper import Datum

now = datetime.now(timezone.utc)
for number in range(5):
    value = json.dumps({"lane": 0, "number": number}, separators=(",", ":"))
    for message in even_odd([], Datum([], value.encode(), now, now)):
        print(*message.tags, message.value.decode())
"""
QUIX = """
import json
import os

import before_quix
from confluent_kafka import Consumer, Producer

broker = {"bootstrap.servers": os.environ["KAFKA"]}
producer = Producer({**broker, "enable.idempotence": True})
for line in open("readings.jsonl"):
    producer.produce("readings", line.strip().encode())
producer.flush()
before_quix.app.run(count=2, timeout=60)
consumer = Consumer({**broker, "group.id": str(os.getpid()), "auto.offset.reset": "earliest"})
consumer.subscribe(["alarms"])
for message in consumer.consume(2, timeout=60):
    print(json.dumps(json.loads(message.value())))
"""

Rows = list[str]


def ran(directory: Path, *words: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def written(directory: Path, *sinks: str) -> Rows:
    files = [path for sink in sinks for path in sorted((directory / sink).glob("*.jsonl"))]
    return sorted(line for path in files for line in path.read_text().splitlines())


def bytewax(python: Path, directory: Path) -> Rows:
    ran(directory, python, "-m", "bytewax.run", "before_bytewax")
    return sorted((directory / "means.jsonl").read_text().splitlines())


def numaflow(python: Path, directory: Path) -> Rows:
    lines = [line.split(" ", 1) for line in ran(directory, python, "-c", NUMAFLOW).splitlines()]
    assert all(kind == ("odd" if json.loads(value)["number"] % 2 else "even") for kind, value in lines)
    return sorted(value for _, value in lines)


def quix(python: Path, directory: Path) -> Rows:
    return sorted(line for line in ran(directory, python, "-c", QUIX).splitlines() if line.startswith("{"))


JOBS: dict[str, tuple[str, Callable[[Path, Path], Rows], tuple[str, ...]]] = {
    "from-bytewax": ("bytewax", bytewax, ("out",)),
    "from-numaflow": ("pynumaflow", numaflow, ("even", "odd")),
    "from-quix": ("quixstreams", quix, ("alarms",)),
}


def compared(page: str, directory: Path, kafka: str) -> bool:
    requirement, before, sinks = JOBS[page]
    ran(directory, sys.executable, "-m", "venv", directory / "venv")
    ran(directory, directory / "venv" / "bin" / "pip", "install", "-q", requirement)
    for file in files_of(HOW_TO / f"{page}.md"):
        path = write(file, directory)
        path.write_text(path.read_text().replace("localhost:9092", kafka or "localhost:9092"))
    theirs = before(directory / "venv" / "bin" / "python", directory)
    ran(directory, sys.executable, "-m", "millstream_runner", "run", "--quiet", "pipeline.yaml")
    ours = written(directory, *sinks)
    same = theirs == ours
    print(f"{page}: {len(ours)} rows, " + ("the same from both" if same else f"which differ:\n{theirs}\n{ours}"))
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"any of {', '.join(JOBS)}; default: all")
    parser.add_argument("--kafka", default="", help="HOST:PORT of a Kafka, without which from-quix is left out")
    arguments = parser.parse_args()
    os.environ["KAFKA"] = arguments.kafka
    if unknown := set(arguments.pages) - set(JOBS):
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    same = True
    for page in arguments.pages or JOBS:
        if page == "from-quix" and not arguments.kafka:
            print(f"{page}: left out, it needs --kafka")
            continue
        with tempfile.TemporaryDirectory(prefix=f"{page}-", dir=os.environ.get("TMPDIR")) as directory:
            same &= compared(page, Path(directory), arguments.kafka)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
