"""What the function of the built-in pipeline `state` must put out and remember, computed from its documented behaviour.
Pure.

Record n is of 1 ms after record n - 1. Even numbers go to the keys `key-0` to `key-<keys - 1>` in turn, odd ones to a
hundred busy keys `hot-<...>`: ten of them for 400 numbers, then the next ten. A record with n mod 97 = 3 or n mod 1009
= 5 fails, after it has changed everything. Every other one counts, once, in the order of the numbers of its key.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream_runner.chaos.oracle.checks import Check, Result, checked
from millstream_runner.chaos.oracle.sinks import Row

_BUSY = 10
_BUSY_GROUPS = 10
_BUSY_RECORDS = 200
_RECENT = 5
_DIGITS = 7
_SESSION_RECORDS = 1000
"""A session is over so many numbers, of one millisecond each, after the last record of its key."""


def fails(number: int) -> bool:
    """Whether a record is given up."""
    return number % 97 == 3 or number % 1009 == 5


@dataclass(frozen=True, slots=True)
class Deal:
    """Which key a number belongs to."""

    keys: int

    def key(self, number: int) -> str:
        half, odd = divmod(number, 2)
        if not odd:
            return f"key-{half % self.keys}"
        return f"hot-{half // _BUSY_RECORDS % _BUSY_GROUPS * _BUSY + half % _BUSY}"

    def first(self, key: str) -> int:
        """The first number of a key that counts. Raises `ValueError` for a key that there is not."""
        sort, _, text = key.partition("-")
        index = int(text)
        if sort == "key" and 0 <= index < self.keys:
            return self._counts(2 * index)
        if sort == "hot" and 0 <= index < _BUSY * _BUSY_GROUPS:
            return self._counts(2 * (index // _BUSY * _BUSY_RECORDS + index % _BUSY) + 1)
        raise ValueError(f"there is no key {key}")

    def after(self, number: int) -> int:
        """The next number of the same key that counts."""
        return self._counts(self._next(number))

    def _counts(self, number: int) -> int:
        while fails(number):
            number = self._next(number)
        return number

    def _next(self, number: int) -> int:
        half, odd = divmod(number, 2)
        if not odd:
            return number + 2 * self.keys
        if half % _BUSY_RECORDS + _BUSY >= _BUSY_RECORDS:
            # The other groups follow first.
            half += _BUSY_RECORDS * (_BUSY_GROUPS - 1)
        return 2 * (half + _BUSY) + 1


@dataclass(slots=True)
class Total:
    """What is remembered of a key after a number of its records."""

    count: int = 0
    total: int = 0
    number: int = -1
    """Of the last record."""

    def add(self, number: int) -> None:
        self.count += 1
        self.total += number
        self.number = number

    def next(self, deal: Deal, key: str) -> int:
        """The next number of the key."""
        return deal.first(key) if self.number < 0 else deal.after(self.number)

    def advance(self, deal: Deal, key: str, count: int) -> None:
        """Go on to so many records of the key."""
        while self.count < count:
            self.add(self.next(deal, key))


@dataclass(slots=True)
class Busy:
    """What else is remembered of a busy key."""

    digits: Counter[str] = field(default_factory=Counter)
    recent: list[int] = field(default_factory=list)
    session: int | None = 0
    """As the outputs say: when an entry that has expired is removed is not defined. None: it is not known."""
    number: int = -_SESSION_RECORDS

    def add(self, number: int) -> None:
        self.digits[str(number // 2 % _DIGITS)] += 1
        self.recent = [*self.recent, number][-_RECENT:]
        self.session, self.number = None, number

    def take(self, row: Row) -> str | None:
        """What is wrong with the row of its next record, if something is."""
        number, session = row["number"], row["session"]
        before, begins = self.session, number - self.number >= _SESSION_RECORDS
        self.add(number)
        self.session = session
        if before is not None and session != before + 1 and not (begins and session == 1):
            return f"number {number} is {session} in its session, not {before + 1}"
        if row["digits"] != self.digits or row["recent"] != self.recent:
            return f"number {number} found {row['digits']} and {row['recent']}, not {dict(self.digits)}, {self.recent}"
        return None


class _Outputs:
    """What the rows say so far, and what is wrong with them."""

    def __init__(self, deal: Deal) -> None:
        self._deal = deal
        self._busy: defaultdict[str, Busy] = defaultdict(Busy)
        self.totals: defaultdict[str, Total] = defaultdict(Total)
        """By key, up to its last row, with those that it lacks."""
        self.counts: Counter[str] = Counter(lost=0, repeated=0, disagreeing=0)
        self.faults: list[str] = []

    def take(self, row: Row) -> None:
        key, number = row["key"], row["number"]
        total = self.totals[key]
        wanted = total.next(self._deal, key)
        if number < wanted:
            self._fault("repeated", f"key {key} goes on with number {number}, not {wanted}")
            return
        while wanted < number:
            self._fault("lost", f"key {key} goes on with number {number}, not {wanted}")
            total.add(wanted)
            self._busy[key].add(wanted)
            wanted = total.next(self._deal, key)
        total.add(number)
        if (row["count"], row["total"]) != (total.count, total.total):
            said = f"{row['count']} records, total {row['total']}"
            self._fault(
                "disagreeing", f"number {number} of key {key}: {said}; expected {total.count} and {total.total}"
            )
        fault = self._busy[key].take(row) if key.startswith("hot") else None
        if fault is not None:
            self._fault("disagreeing", f"key {key}: {fault}")

    def end(self, wanted: Mapping[str, Total]) -> None:
        """`wanted`: what there is of each key."""
        for key, total in wanted.items():
            if lost := total.count - self.totals[key].count:
                self._fault("lost" if lost > 0 else "repeated", f"key {key} has {-lost:+,} rows", abs(lost))

    def _fault(self, sort: str, what: str, count: int = 1) -> None:
        self.counts[sort] += count
        self.faults.append(what)


def output_check(name: str, deal: Deal, records: int, rows: Iterable[Row]) -> tuple[Check, Mapping[str, Total]]:
    """Each record that counts once, as the next of its key. Also returns what there is of each key."""
    found = _Outputs(deal)
    for row in rows:
        found.take(row)
    found.end(folded(deal, records))
    detail = f"{sum(total.count for total in found.totals.values()):,} records of {len(found.totals):,} keys"
    return checked(name, "each record once, as the next of its key", found.faults, detail, **found.counts), found.totals


def folded(deal: Deal, records: int) -> dict[str, Total]:
    """What is remembered of each key after all records."""
    totals: dict[str, Total] = {}
    for number in range(records):
        if not fails(number):
            totals.setdefault(deal.key(number), Total()).add(number)
    return totals


def refused_check(name: str, records: int, numbers: Iterable[int]) -> Check:
    """Each record that fails is a dead letter once."""
    found = Counter(numbers)
    wanted = {number for number in range(records) if fails(number)}
    lost, foreign = wanted - found.keys(), found.keys() - wanted
    repeated = [number for number, times in found.items() if times > 1]
    faults = [f"number {number} is not there" for number in sorted(lost)]
    faults += [f"number {number} was never to fail" for number in sorted(foreign)]
    faults += [f"number {number} is repeated" for number in sorted(repeated)]
    counts = {"lost": len(lost), "repeated": len(repeated) + len(foreign)}
    return checked(name, "each record that fails is a dead letter", faults, f"{found.total():,} records", **counts)


@dataclass(slots=True)
class Remembered:
    """The state of a key, as it is stored."""

    records: int = 0
    total: int = 0
    last: str = ""
    digits: dict[str, int] = field(default_factory=dict)
    recent: list[int] = field(default_factory=list)
    session: int | None = None


def remembered(entries: Iterable[Mapping[str, Any]]) -> dict[str, Remembered]:
    """By key, from the lines of `millstream state list -o json`. Raises `ValueError` for a state that the function does
    not have."""
    found: dict[str, Remembered] = {}
    for entry in entries:
        (key,) = entry["key"]
        one = found.setdefault(key, Remembered())
        match entry["state"], entry["value"]:
            case "records", value:
                one.records = value
            case "total", value:
                one.total = value
            case "last", value:
                one.last = value
            case "digits", value:
                one.digits[entry["item"]] = value
            case "recent", value:
                one.recent.append(value)
            case "session", value:
                one.session = value
            case state, _:
                raise ValueError(f"the function has no state {state}")
    return found


def state_checks(
    name: str, deal: Deal, records: int, states: Mapping[str, Remembered], outputs: Mapping[str, Total]
) -> list[Check]:
    """The state of each key is the fold of its records, computed here, and what its last output says."""
    wanted = folded(deal, records)
    faults = [f"key {key} is not remembered" for key in sorted(wanted.keys() - states.keys())]
    faults += [f"key {key} is remembered, and has no record" for key in sorted(states.keys() - wanted.keys())]
    last_of_busy = _busy(deal, records)
    differing = 0
    for key in wanted.keys() & states.keys():
        fault = _difference(wanted[key], states[key], last_of_busy.get(key), records)
        if fault:
            differing += 1
            faults.append(f"key {key}: {fault}")
    lost = len(wanted.keys() - states.keys())
    fold = checked(
        name,
        "the state of each key is the fold of its records",
        faults,
        f"{len(states):,} keys",
        lost=lost,
        disagreeing=differing,
    )
    faults = []
    for key, output in outputs.items():
        state = states.get(key, Remembered())
        if (state.records, state.total) != (output.count, output.total):
            said = f"its last output says {output.count} and {output.total}"
            faults.append(f"key {key}: {state.records} records, total {state.total}; {said}")
    faults += [f"key {key} is remembered, and has no output" for key in sorted(states.keys() - outputs.keys())]
    return [fold, checked(name, "outputs and state agree", faults, f"{len(outputs):,} keys", disagreeing=len(faults))]


def _busy(deal: Deal, records: int) -> dict[str, Busy]:
    """Of each busy key, without its session."""
    found: dict[str, Busy] = {}
    for number in range(1, records, 2):
        if not fails(number):
            found.setdefault(deal.key(number), Busy()).add(number)
    return found


def _difference(wanted: Total, state: Remembered, busy: Busy | None, records: int) -> str:
    if (state.records, state.total) != (wanted.count, wanted.total):
        return f"{state.records} records, total {state.total}; expected {wanted.count} and {wanted.total}"
    if json.loads(state.last or "{}").get("number") != wanted.number:
        return f"its last record is {state.last!r}; expected number {wanted.number}"
    if busy is None:
        return "it has states of busy keys" if state.digits or state.recent or state.session is not None else ""
    if state.digits != busy.digits or state.recent != busy.recent:
        return f"{state.digits} and {state.recent}; expected {dict(busy.digits)} and {busy.recent}"
    if state.session is None and wanted.number > records - _SESSION_RECORDS:
        return f"its session is gone, although its last record was number {wanted.number} of {records}"
    return ""


def query_checks(name: str, queries: Sequence[Mapping[str, Any]]) -> list[Check]:
    """What queries saw while the run was disturbed was committed, and never went back."""
    faults = [fault for query in queries for fault in query["faults"]]
    entries = sum(query["keys"] for query in queries)
    what = "what queries saw was committed, and never went back"
    detail = f"{len(queries):,} queries, {entries:,} keys in all"
    if not entries:
        return [Check(name, what, Result.UNCHECKED, "no query had an answer")]
    return [checked(name, what, faults, detail, disagreeing=len(faults))]
