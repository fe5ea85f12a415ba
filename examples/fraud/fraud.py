"""Cases of fraud, opened by payments and closed by timers; the output is compared with what it has to be.

    python examples/fraud/fraud.py [--payments N]

Runs `pipeline.yaml` in a directory of its own on `payments.jsonl`, or on N payments that it makes, and finds the cases
itself. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WITHIN_S, OPEN_FOR_S = 60, 600


def make(path: Path, payments: int) -> None:
    """Most cards pay now and then; one in ten is used again and again for a while."""
    rng, at = random.Random(payments), 1_767_603_600
    with path.open("w") as file:
        for _ in range(payments):
            at += rng.randrange(4)
            card = rng.randrange(20) if rng.random() < 0.5 else 20 + rng.randrange(2000)
            file.write(json.dumps({"at": at, "card": f"c-{card}", "cents": rng.randrange(100, 90_000)}) + "\n")


def expected(payments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    recent: dict[str, list[int]] = defaultdict(list)
    cases: dict[str, dict[str, Any]] = {}
    for payment in payments:
        card, at = payment["card"], payment["at"]
        if card in cases and at < cases[card]["at"]:
            cases[card]["payments"] += 1
            continue
        times = recent[card] = [*recent[card], at][-3:]
        if len(times) == 3 and at - times[0] <= WITHIN_S:
            recent[card] = []
            cases[card] = {"card": card, "case": "closed", "at": at + OPEN_FOR_S, "payments": 3}
            rows += [{"card": card, "case": "opened", "at": at}, cases[card]]
    return rows


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def main(payments: int | None) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in ("pipeline.yaml", "fraud_cases.py", "payments.jsonl"):
            shutil.copy(HERE / file, directory)
        if payments is not None:
            make(directory / "payments.jsonl", payments)
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml"]
        ended = subprocess.run(command, cwd=directory, check=False)
        if ended.returncode != 0:
            return ended.returncode
        given = lines(directory / "payments.jsonl")
        found = [row for path in sorted((directory / "out").glob("*.jsonl")) for row in lines(path)]
    is_right = in_order(found) == in_order(expected(given))
    opened = sum(row["case"] == "opened" for row in found)
    says = "right" if is_right else "wrong"
    print(f"fraud: {len(given)} payments, {opened} cases opened, {len(found) - opened} closed, which is {says}")
    return int(not is_right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payments", type=int, help="make so many instead of those of the file")
    sys.exit(main(parser.parse_args().payments))
