"""Running totals per user; every output is compared with what it has to be.

    python examples/totals/totals.py [--payments N]

Runs `pipeline.yaml` in a directory of its own on `payments.jsonl`, or on N payments that it makes, adds them up itself,
and also compares what `millstream state` shows. Exit code 1 when anything differs.
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
MILLSTREAM = [sys.executable, "-m", "millstream_runner"]


def make(path: Path, payments: int) -> None:
    rng = random.Random(payments)
    with path.open("w") as file:
        for _ in range(payments):
            file.write(json.dumps({"user": f"user {rng.randrange(100)}", "cents": rng.randrange(9000)}) + "\n")


def expected(payments: list[dict[str, Any]]) -> dict[str, list[tuple[int, int, int]]]:
    """For each user, number, total and largest payment after each of them."""
    paid: dict[str, list[int]] = defaultdict(list)
    rows: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for payment in payments:
        if payment["cents"] > 0:
            mine = paid[payment["user"]]
            mine.append(payment["cents"])
            rows[payment["user"]].append((len(mine), sum(mine), max(mine)))
    return rows


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(payments: int | None) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in ("pipeline.yaml", "account.py", "payments.jsonl"):
            shutil.copy(HERE / file, directory)
        if payments is not None:
            make(directory / "payments.jsonl", payments)
        ended = subprocess.run([*MILLSTREAM, "run", "pipeline.yaml"], cwd=directory, check=False)
        if ended.returncode != 0:
            return ended.returncode
        command = [*MILLSTREAM, "state", "list", "account", "--count", "0", "-o", "json"]
        shown = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout
        wanted = expected(lines(directory / "payments.jsonl"))
        written = [row for path in sorted((directory / "out").glob("*.jsonl")) for row in lines(path)]

    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in written:
        found[row["user"]].append((row["payment"], row["total"], row["largest"]))
    remembered: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in map(json.loads, shown.splitlines()):
        remembered[entry["key"][0]][entry["state"]] = entry["value"]
    last = {user: dict(zip(("payments", "total", "largest"), rows[-1], strict=True)) for user, rows in wanted.items()}
    wrong = [user for user in wanted.keys() | found.keys() if found[user] != wanted[user]]
    forgotten = [user for user in last.keys() | remembered.keys() if remembered[user] != last.get(user)]
    print(f"totals: {len(written)} rows of {len(wanted)} users, {len(wrong)} users with wrong rows, ", end="")
    print(f"{len(forgotten)} remembered wrongly")
    return int(bool(wrong or forgotten))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payments", type=int, help="make so many instead of those of the file")
    sys.exit(main(parser.parse_args().payments))
