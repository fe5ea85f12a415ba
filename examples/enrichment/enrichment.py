"""Payments joined with a changing table of customers; every row is checked.

    python examples/enrichment/enrichment.py [--payments N]

Runs `pipeline.yaml` in a directory of its own on `payments.jsonl` and `customers.jsonl`, or on N payments and changes
that it makes. Each payment has to be in the output once, with one of the cities that its customer had, and those of a
customer in the order in which it moved. `millstream state` has to show the last city of each, and the payments that
wait for customers whom nobody knows. Exit code 1 when anything differs.
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
FILES = ("pipeline.yaml", "enrich.py", "payments.jsonl", "customers.jsonl")
USERS, UNKNOWN = 100, 3
Row = dict[str, Any]


def make(directory: Path, payments: int) -> None:
    rng = random.Random(payments)
    with (directory / "payments.jsonl").open("w") as file:
        for number in range(payments):
            user = f"user {rng.randrange(USERS + UNKNOWN)}"
            file.write(json.dumps({"at": 1000 + number, "user": user, "number": number, "cents": 100}) + "\n")
    with (directory / "customers.jsonl").open("w") as file:
        for number in range(USERS + payments // 10):
            user = f"user {number if number < USERS else rng.randrange(USERS)}"
            at = 1000 + 10 * max(0, number - USERS)
            file.write(json.dumps({"at": at, "user": user, "name": user.title(), "city": f"city {number}"}) + "\n")


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wrong_rows(payments: list[Row], customers: list[Row], written: list[Row]) -> list[str]:
    """The users whose rows are not right."""
    cities, paid, found = (defaultdict[str, list[Any]](list) for _ in range(3))
    for customer in customers:
        cities[customer["user"]].append(customer["city"])
    for payment in payments:
        paid[payment["user"]].append(payment["number"])
    for row in written:
        found[row["user"]].append(row)
    wrong = []
    for user, numbers in paid.items():
        rows = found.pop(user, [])
        places = [cities[user].index(row["city"]) if row["city"] in cities[user] else -1 for row in rows]
        right = numbers if user in cities else []
        if [row["number"] for row in rows] != right or places != sorted(places) or -1 in places:
            wrong.append(user)
    return wrong + list(found)


def main(payments: int | None) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in FILES:
            shutil.copy(HERE / file, directory)
        if payments is not None:
            make(directory, payments)
        ended = subprocess.run([*MILLSTREAM, "run", "pipeline.yaml"], cwd=directory, check=False)
        if ended.returncode != 0:
            return ended.returncode
        command = [*MILLSTREAM, "state", "list", "enrich", "--count", "0", "-o", "json"]
        shown = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout
        given, table = lines(directory / "payments.jsonl"), lines(directory / "customers.jsonl")
        written = [row for path in sorted((directory / "out").glob("*.jsonl")) for row in lines(path)]

    wrong = wrong_rows(given, table, written)
    entries = [json.loads(line) for line in shown.splitlines()]
    kept = {entry["key"][0]: entry["value"]["city"] for entry in entries if entry["state"] == "customer"}
    last = {row["user"]: row["city"] for row in table}
    forgotten = [user for user, city in last.items() if kept.pop(user, "") != city]
    waiting = sorted(entry["value"]["number"] for entry in entries if entry["state"] == "waiting")
    unknown = sorted(row["number"] for row in given if row["user"] not in last)
    print(f"enrichment: {len(written)} rows, {len(wrong)} users with wrong rows, ", end="")
    print(f"{len(forgotten) + len(kept)} remembered wrongly, {len(waiting)} payments of unknown customers")
    return int(bool(wrong or forgotten or kept or waiting != unknown))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payments", type=int, help="make so many instead of those of the files")
    sys.exit(main(parser.parse_args().payments))
