"""Inputs that were sent from outside: compares what the feeder attempted, and what was acknowledged, with what the
sinks have. Pure, except that it reads files.

An acknowledged record takes effect once in every sink. One that was attempted and never acknowledged may take effect
once or not at all, but the same in all sinks. There may be no other records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from millstream_runner.chaos.oracle.checks import Check, checked
from millstream_runner.chaos.oracle.sinks import Row


def read_inputs(path: Path) -> tuple[dict[int, str], set[int]]:
    """The nonce of every number that was attempted, and the numbers that were acknowledged."""
    nonces: dict[int, str] = {}
    acknowledged: set[int] = set()
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            nonces[row["number"]] = row["nonce"]
            if row["state"] == "acknowledged":
                acknowledged.add(row["number"])
    return nonces, acknowledged


def received_rows(path: Path) -> Iterator[Row]:
    """The records of every request that was kept."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            for value in json.loads(line).get("body", "").splitlines():
                yield json.loads(value)


def repeats_check(name: str, path: Path) -> Check:
    """A repeated request had the same body, so the receiver could ignore it without comparing."""
    with path.open(encoding="utf-8") as file:
        again = [row for row in map(json.loads, file) if row.get("again")]
    faults = [f"another body under the key {row['key']}" for row in again if not row["same"]]
    return checked(name, "the same request under the same key", faults, f"{len(again):,} repeated requests")


def pushed_checks(nonces: Mapping[int, str], acknowledged: set[int], sinks: Mapping[str, Iterable[Row]]) -> list[Check]:
    """Each acknowledged number once in each sink, as it was sent, and the same in all of them."""
    checks: list[Check] = []
    first: tuple[str, dict[int, str]] | None = None
    for name, rows in sinks.items():
        ids: dict[int, str] = {}
        repeated: list[int] = []
        changed: list[int] = []
        for row in rows:
            number = row["number"]
            if number in ids:
                repeated.append(number)
            if nonces.get(number) != row["nonce"]:
                changed.append(number)
            ids[number] = row["id"]
        lost = sorted(acknowledged - ids.keys())
        faults = [f"{len(lost):,} acknowledged numbers are missing, the first is {lost[0]}"] if lost else []
        faults += [f"number {number} is repeated" for number in repeated]
        faults += [f"number {number} was never sent like this" for number in changed]
        more = len(nonces) - len(acknowledged)
        detail = f"{len(acknowledged):,} acknowledged, {more:,} more attempted, {len(ids):,} found"
        counts = {"lost": len(lost), "repeated": len(repeated) + len(changed)}
        checks.append(checked(name, "each acknowledged number once, as it was sent", faults, detail, **counts))
        if first is None:
            first = name, ids
            continue
        differing = sorted(number for number in first[1].keys() | ids.keys() if first[1].get(number) != ids.get(number))
        faults = [f"number {number} differs from {first[0]}" for number in differing]
        what = f"the same id for each number as in {first[0]}"
        checks.append(checked(name, what, faults, f"{len(ids):,} numbers", disagreeing=len(differing)))
    return checks
