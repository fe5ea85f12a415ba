"""Continues the data directories of another version, killed with records waiting: nothing is lost or repeated.

    python benchmarks/earlier_data.py --base REV
    python benchmarks/earlier_data.py --base REV --only reduce

Each pipeline is begun by the other commit and killed, all processes at once, begun by it again and killed again, and
finished by this checkout. One line for each says how many of the numbers were in the files before that, and how many
are lost or repeated in the end. Exit code 1 if any is.
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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compare import ROOT, add_compiled, checkout, interpreter, python_arguments

NUMBERS = 6000
ENDS_WITHIN_S = 300.0

SOURCE = f"- name: in\n  source: {{generator: {{records: {NUMBERS}, rpu: 500, duration: 1s, keyCount: 8}}}}\n"
SLOW = """
import time

def slow(value: bytes) -> bytes:
    time.sleep(0.004)
    return value
"""
MAP = "- name: {name}\n  udf: {{python: 'functions:slow'}}\n"
OUT = "- name: out\n  sink: {file: {path: out, rolling: {maxRecords: 100}}}\n"
COUNTS = """- name: sum
  udf:
    groupBy: {window: {fixed: {length: 1s}}, keyed: true}
    sql: {query: 'SELECT key, count(*) AS c FROM window GROUP BY key'}
- name: numbers
  sink: {file: {path: numbers, rolling: {maxRecords: 100}}}
"""
PIPELINES = {
    "buffers": (SOURCE + MAP.format(name="map") + "  partitions: 2\n" + OUT, "in -> map", "map -> out"),
    "chain": (
        SOURCE + MAP.format(name="first") + MAP.format(name="map") + OUT,
        "{from: in, to: first, chain: false}",
        "{from: first, to: map, chain: true}",
        "{from: map, to: out, chain: false}",
    ),
    "unbuffered": (
        SOURCE + MAP.format(name="map") + OUT,
        "{from: in, to: map, chain: true}",
        "{from: map, to: out, chain: true}",
    ),
    "reduce": (SOURCE + COUNTS + OUT, "in -> sum", "sum -> out", "in -> numbers"),
}


def edge(text: str) -> str:
    """An edge in YAML; `a -> b` has a buffer."""
    if text.startswith("{"):
        return text
    before, after = text.split(" -> ")
    return f"{{from: {before}, to: {after}, chain: false}}"


def write(directory: Path, vertices: str, edges: Sequence[str], ledger: str) -> None:
    """The pipeline and its function."""
    (directory / "functions.py").write_text(SLOW)
    (directory / "pipeline.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: earlier}\nspec:\n"
        f"  interStepBuffer: {{{ledger}: {{}}}}\n  vertices:\n"
        + "".join(f"  {line}\n" for line in vertices.splitlines())
        + "  edges:\n"
        + "".join(f"  - {edge(text)}\n" for text in edges)
    )


def begin(side: tuple[Path, Path], directory: Path) -> subprocess.Popen[bytes]:
    python, checked_out = side
    command = [*python_arguments(checked_out, ["millstream"]), "run", "pipeline.yaml", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with (directory / "messages").open("ab") as messages:
        return subprocess.Popen(
            [python, *command], cwd=directory, env=environment, stdout=messages, stderr=messages, start_new_session=True
        )


def kill_at(count: int, process: subprocess.Popen[bytes], directory: Path, files: str) -> None:
    """Kill the runner and everything that it has started, at once, when so many numbers are in the files."""
    until_s = time.monotonic() + ENDS_WITHIN_S
    while sum(numbers_in(directory, files).values()) < count:
        if process.poll() is not None or time.monotonic() > until_s:
            raise SystemExit(f"it has ended or stands:\n{(directory / 'messages').read_text()[-3000:]}")
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Its children die with it. What they held is free when they are gone.
    time.sleep(2)


def numbers_in(directory: Path, name: str) -> Counter[int]:
    files = sorted((directory / name).glob("**/*.jsonl")) if (directory / name).is_dir() else []
    return Counter(json.loads(line)["number"] for file in files for line in file.read_text().splitlines())


def counts_in(directory: Path) -> Counter[str]:
    """How many records the results of the windows stand for, by key."""
    counted: Counter[str] = Counter()
    for file in sorted((directory / "out").glob("**/*.jsonl")):
        for line in file.read_text().splitlines():
            result = json.loads(line)
            counted[result["key"]] += result["c"]
    return counted


def tried(name: str, ledger: str, sides: dict[str, tuple[Path, Path]]) -> bool:
    """Whether one pipeline continues. Prints what it found."""
    vertices, *edges = PIPELINES[name]
    with tempfile.TemporaryDirectory(prefix="earlier-") as made:
        directory = Path(made)
        write(directory, vertices, edges, ledger)
        files = "numbers" if name == "reduce" else "out"
        for count in (NUMBERS // 10, NUMBERS // 3):
            kill_at(count, begin(sides["base"], directory), directory, files)
        before = sum(numbers_in(directory, files).values())
        code = begin(sides["here"], directory).wait(ENDS_WITHIN_S)
        found = numbers_in(directory, files)
        lost, repeated = NUMBERS - len(found), sum(found.values()) - len(found)
        if name == "reduce":
            lost += abs(NUMBERS - sum(counts_in(directory).values()))
        print(f"{name} on {ledger}: {before} of {NUMBERS} before, exit code {code}, {lost} lost, {repeated} repeated")
        fits = code == 0 and not lost and not repeated and 0 < before < NUMBERS
        if not fits:
            print((directory / "messages").read_text()[-3000:])
        return fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="the commit that begins")
    parser.add_argument("--only", choices=sorted(PIPELINES), help="one pipeline (default: all)")
    options = parser.parse_args()
    with checkout(options.base) as base:
        add_compiled(base)
        sides = {"base": (interpreter(base), base), "here": (Path(sys.executable), ROOT)}
        wanted = [options.only] if options.only else list(PIPELINES)
        results = [tried(name, ledger, sides) for name in wanted for ledger in ("jetstream", "redis")]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
