"""The output that the built-in pipelines must have, computed from the documented behaviour of their sources.

Pure, except that it reads files.

Record n of a generator is number n, keyed `key-<n modulo keyCount>`, its event time n steps after the start.

Of records that were sent from outside, an acknowledged one takes effect once in every sink. One that was attempted and
never acknowledged may take effect once or not at all, but the same in all sinks. There may be no other records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream_runner.chaos.oracle.checks import Check, checked
from millstream_runner.chaos.oracle.sinks import Row

_US = 1_000_000


def _numbered(rows: Iterable[Row]) -> tuple[dict[int, str], list[int]]:
    """The ids of the numbered rows of one sink, and the numbers that are repeated."""
    ids: dict[int, str] = {}
    repeated: list[int] = []
    for row in rows:
        number = int(row["number"])
        if number in ids:
            repeated.append(number)
        ids[number] = row["id"]
    return ids, repeated


def _same_ids(name: str, other: str, faults: Sequence[str], count: int) -> Check:
    """`faults`: one for each number that has different ids in two sinks."""
    what = f"the same id for each number as in {other}"
    return checked(name, what, faults, f"{count:,} numbers", disagreeing=len(faults))


def mesh_checks(records: int, sinks: Mapping[str, Iterable[Row]]) -> list[Check]:
    """Each number once in each sink, with the same id in all of them."""
    checks: list[Check] = []
    first: tuple[str, dict[int, str]] | None = None
    for name, rows in sinks.items():
        ids, repeated = _numbered(rows)
        lost = [number for number in range(records) if number not in ids]
        foreign = [number for number in ids if not 0 <= number < records]
        faults = [f"{len(lost):,} numbers are missing, the first is {lost[0]}"] if lost else []
        faults += [f"{len(foreign):,} numbers were never made, such as {foreign[0]}"] if foreign else []
        faults += [f"number {number} is repeated" for number in repeated]
        counts = {"lost": len(lost), "repeated": len(repeated) + len(foreign)}
        checks.append(checked(name, "each number once", faults, f"{len(ids):,} numbers", **counts))
        if first is None:
            first = name, ids
            continue
        both = first[1].keys() & ids.keys()
        differing = sorted(number for number in both if first[1][number] != ids[number])
        faults = [f"number {number} has a different id than in {first[0]}" for number in differing]
        checks.append(_same_ids(name, first[0], faults, len(both)))
    return checks


@dataclass(frozen=True, slots=True)
class Series:
    """The records of a generator with a start and a step."""

    records: int
    keys: int
    start_us: int
    step_us: float

    @classmethod
    def of(cls, generator: Mapping[str, Any]) -> Series:
        start = datetime.fromisoformat(generator["start"])
        return cls(
            generator["records"],
            generator["keyCount"],
            round(start.timestamp() * _US),
            # The stored pipeline has seconds, as a number or as a text with a unit.
            _duration_us(generator["eventTimeStep"]),
        )

    def __iter__(self) -> Iterator[tuple[int, str, int]]:
        """Number, key and event time of every record."""
        for number in range(self.records):
            yield number, f"key-{number % self.keys}", self.start_us + int(number * self.step_us)


def _duration_us(text: object) -> float:
    if isinstance(text, int | float):
        return text * _US
    units = {"us": 1.0, "ms": 1e3, "s": 1e6}
    unit = next(unit for unit in units if str(text).endswith(unit))
    return float(str(text).removesuffix(unit)) * units[unit]


def window_sums(series: Series, length_us: int) -> dict[tuple[str, int], tuple[int, int]]:
    """For each key and window start: how many records there are after the function, and the sum of their numbers."""
    counts: Counter[tuple[str, int]] = Counter()
    totals: Counter[tuple[str, int]] = Counter()
    for number, key, at_us in series:
        group = key, at_us - at_us % length_us
        copies = number % 3
        if copies:
            counts[group] += copies
            totals[group] += copies * number
    return {group: (counts[group], totals[group]) for group in counts}


def windows_checks(series: Series, name: str, rows: Iterable[Row]) -> list[Check]:
    """One result for each key and window, with the count and the sum of its records."""
    wanted = window_sums(series, _US)
    found: dict[tuple[str, int], tuple[int, int]] = {}
    repeated: list[str] = []
    for row in rows:
        group = row["key"], _start_us(row["start"])
        if group in found:
            repeated.append(f"key {group[0]} has another result for the window from {row['start']}")
        found[group] = row["n"], row["total"]
    lost = sorted(wanted.keys() - found.keys())
    foreign = sorted(found.keys() - wanted.keys())
    wrong = sorted(group for group in wanted.keys() & found.keys() if wanted[group] != found[group])
    faults = [f"key {key} has no result for the window from {_text(at)}" for key, at in lost]
    faults += repeated + [
        f"key {key} has a result for a window without records, from {_text(at)}" for key, at in foreign
    ]
    faults += [f"key {key}, window from {_text(at)}: {found[key, at]}, expected {wanted[key, at]}" for key, at in wrong]
    counts = {"lost": len(lost), "repeated": len(repeated) + len(foreign), "disagreeing": len(wrong)}
    what = "one result for each key and window, over exactly its records"
    return [checked(name, what, faults, f"{len(found):,} results", **counts)]


def _start_us(at: datetime | str) -> int:
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * _US)


def _text(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / _US, UTC).isoformat()


# Sent from outside: what the feeder attempted, and what was acknowledged


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
        checks.append(_same_ids(name, first[0], faults, len(ids)))
    return checks
