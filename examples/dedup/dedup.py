"""Removing duplicates; the output is compared with what it has to be.

    python examples/dedup/dedup.py [--clicks N]

Runs `pipeline.yaml` in a directory of its own on `clicks.jsonl`, or on N clicks that it makes, and removes the
duplicates itself. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WITHIN_S = 600


def make(path: Path, clicks: int) -> None:
    """Every other click repeats one of the last ones; they are a few seconds apart."""
    rng, at = random.Random(clicks), 1_767_603_600
    with path.open("w") as file:
        for number in range(clicks):
            at += rng.randrange(4)
            name = number if number % 2 else max(0, number - rng.randrange(1, 1000))
            file.write(json.dumps({"at": at, "id": f"c-{name}", "page": f"/{name % 9}"}) + "\n")


def expected(clicks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    went_on: dict[str, int] = {}
    rows = []
    for click in clicks:
        if click["at"] - went_on.get(click["id"], -WITHIN_S) >= WITHIN_S:
            went_on[click["id"]] = click["at"]
            rows.append(click)
    return rows


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_order(rows: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return sorted((row["at"], row["id"], row["page"]) for row in rows)


def main(clicks: int | None) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in ("pipeline.yaml", "once.py", "clicks.jsonl"):
            shutil.copy(HERE / file, directory)
        if clicks is not None:
            make(directory / "clicks.jsonl", clicks)
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml"]
        ended = subprocess.run(command, cwd=directory, check=False)
        if ended.returncode != 0:
            return ended.returncode
        given = lines(directory / "clicks.jsonl")
        found = [row for path in sorted((directory / "out").glob("*.jsonl")) for row in lines(path)]
    wanted = expected(given)
    is_right = in_order(found) == in_order(wanted)
    says = "right" if is_right else f"wrong: {len(wanted)} should have"
    print(f"dedup: {len(found)} of {len(given)} clicks went on, which is {says}")
    return int(not is_right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clicks", type=int, help="make so many instead of those of the file")
    sys.exit(main(parser.parse_args().clicks))
