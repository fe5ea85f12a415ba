"""The oracle sees what is wrong with what a function remembers, or puts out, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from millstream_runner.chaos.oracle.checks import Check, Result, verdict
from millstream_runner.chaos.oracle.remembered import (
    Deal,
    Remembered,
    fails,
    output_check,
    query_checks,
    refused_check,
    remembered,
    state_checks,
)
from millstream_runner.chaos.oracle.sinks import Row

RECORDS = 9000
DEAL = Deal(keys=40)
Rows = list[Row]
States = dict[str, Remembered]


def processed() -> tuple[Rows, States]:
    """What the function puts out and remembers, written down as the pipeline's function says it."""
    rows, states = Rows(), States()
    expires: dict[str, int] = {}
    for number in range(RECORDS):
        if fails(number):
            continue
        key = DEAL.key(number)
        state = states.setdefault(key, Remembered())
        state.records, state.total, state.last = state.records + 1, state.total + number, json.dumps({"number": number})
        row = {"key": key, "number": number, "count": state.records, "total": state.total}
        if key.startswith("hot"):
            digit = str(number // 2 % 7)
            state.digits[digit] = state.digits.get(digit, 0) + 1
            state.recent = [*state.recent, number][-5:]
            alive = number < expires.get(key, 0)
            state.session = (state.session or 0) + 1 if alive else 1
            expires[key] = number + 1000
            row |= {"digits": dict(state.digits), "recent": list(state.recent), "session": state.session}
        rows.append(row)
    for key, expired in expires.items():
        if expired < RECORDS:
            states[key].session = None
    return rows, states


def violated(rows: Rows, states: States) -> list[Check]:
    output, totals = output_check("totals", DEAL, RECORDS, rows)
    checks = [output, *state_checks("remember", DEAL, RECORDS, states, totals)]
    return [check for check in checks if check.result is Result.VIOLATED]


def test_the_next_number_of_a_key_is_its_next_number() -> None:
    of_keys: dict[str, list[int]] = {}
    for number in range(RECORDS):
        if not fails(number):
            of_keys.setdefault(DEAL.key(number), []).append(number)

    def numbers(key: str) -> Iterator[int]:
        number = DEAL.first(key)
        while number < RECORDS:
            yield number
            number = DEAL.after(number)

    assert {key: list(numbers(key)) for key in of_keys} == of_keys
    assert len(of_keys) == DEAL.keys + 100
    with pytest.raises(ValueError, match="there is no key key-40"):
        DEAL.first("key-40")


@pytest.mark.slow
def test_what_is_sound_is_sound() -> None:
    rows, states = processed()
    assert not violated(rows, states)
    assert sum(row.get("session") == 1 for row in rows) > 100, "sessions expire"
    # Whether what has expired is removed yet says nothing.
    for key, state in states.items():
        if state.digits:
            states[key] = replace(state, session=3)
    assert not violated(rows, states)


def _one_fewer(rows: Rows) -> None:
    del rows[500]


def _one_twice(rows: Rows) -> None:
    rows.append(rows[-1])


def _out_of_order(rows: Rows) -> None:
    rows.append(rows.pop(500))


def _total(rows: Rows) -> None:
    rows[500]["total"] += 1


def _digits(rows: Rows) -> None:
    row = next(row for row in rows if row["key"] == "hot-13")
    row["digits"] = {}


def _session(rows: Rows) -> None:
    """It expires although its key has had a record a moment ago."""
    row = next(row for row in rows if row.get("session") == 5)
    row["session"] = 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "counts", "word"),
    [
        (_one_fewer, {"lost": 1}, "goes on with number"),
        (_one_twice, {"repeated": 1}, "goes on with number"),
        (_out_of_order, {"lost": 1, "repeated": 1}, "goes on with number"),
        (_total, {"disagreeing": 1}, "expected"),
        (_digits, {"disagreeing": 1}, "found {}"),
        (_session, {"disagreeing": 2}, "in its session, not 5"),
    ],
)
def test_what_is_wrong_with_outputs_is_seen(spoil: Callable[[Rows], None], counts: dict[str, int], word: str) -> None:
    rows, states = processed()
    spoil(rows)
    found = violated(rows, states)
    assert found[0].what == "each record once, as the next of its key"
    assert word in found[0].detail
    assert found[0].counts == {"lost": 0, "repeated": 0, "disagreeing": 0} | counts


def _changed(key: str, **values: Any) -> Callable[[States], None]:
    def spoil(states: States) -> None:
        states[key] = replace(states[key], **values)

    return spoil


def _gone(states: States) -> None:
    del states["key-7"]


def _foreign(states: States) -> None:
    states["key-99"] = states["key-7"]


def _older(states: States) -> None:
    """As after the record before the last one."""
    state = states["key-7"]
    last = json.loads(state.last)["number"]
    states["key-7"] = replace(state, records=state.records - 1, total=state.total - last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "checks", "word"),
    [
        (_gone, 2, "key key-7 is not remembered"),
        (_foreign, 2, "key key-99 is remembered, and has no record"),
        (_older, 2, "expected"),
        (_changed("key-7", last='{"number": 14}'), 1, "its last record is"),
        (_changed("key-7", session=1), 1, "it has states of busy keys"),
        (_changed("hot-99", recent=[1, 2, 3]), 1, "[1, 2, 3]; expected"),
        (_changed("hot-99", digits={}), 1, "{} and"),
        (_changed("hot-29", session=None), 1, "its session is gone"),
    ],
)
def test_what_is_wrong_with_a_state_is_seen(spoil: Callable[[States], None], checks: int, word: str) -> None:
    rows, states = processed()
    spoil(states)
    found = violated(rows, states)
    assert len(found) == checks, found
    assert word in found[0].detail


def test_records_that_fail_are_dead_letters_once() -> None:
    numbers = [number for number in range(RECORDS) if fails(number)]
    assert refused_check("refused", RECORDS, numbers).result is Result.HELD
    for wrong, word in ((numbers[1:], "is not there"), ([*numbers, 3], "repeated"), ([*numbers, 4], "never to fail")):
        check = refused_check("refused", RECORDS, wrong)
        assert check.result is Result.VIOLATED
        assert word in check.detail


def test_states_are_read_from_the_lines_of_the_command() -> None:
    common = {"key": ["hot-1"], "kind": "value", "partition": 0}
    lines = [
        {**common, "state": "records", "value": 2},
        {**common, "state": "total", "value": 12},
        {**common, "state": "last", "value": "x"},
        {**common, "state": "digits", "item": "3", "value": 2},
        {**common, "state": "recent", "item": 0, "value": 5},
        {**common, "state": "recent", "item": 1, "value": 7},
        {**common, "state": "session", "value": 2},
    ]
    assert remembered(lines) == {"hot-1": Remembered(2, 12, "x", {"3": 2}, [5, 7], 2)}
    with pytest.raises(ValueError, match="no state other"):
        remembered([{**common, "state": "other", "value": 1}])


def test_queries_that_went_back_are_seen() -> None:
    sound = [{"keys": 5, "faults": []}, {"keys": 0, "faults": []}]
    assert verdict(query_checks("remember", sound))["sound"]
    assert not verdict(query_checks("remember", [*sound, {"keys": 5, "faults": ["key a went back"]}]))["sound"]
    (unseen,) = query_checks("remember", [])
    assert unseen.result is Result.UNCHECKED
