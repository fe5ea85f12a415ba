"""What came out against what was expected."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.dead_letter import Envelope
from millstream_runner.cases.case import ExpectedRecord
from millstream_runner.cases.comparing import differences


def came(*values: Any) -> list[Envelope]:
    return [Envelope(json.dumps(value).encode(), event_time_us=number) for number, value in enumerate(values)]


def lines(expected: Sequence[ExpectedRecord], records: Sequence[Envelope], *, in_order: bool = False) -> list[str]:
    return differences(expected, records, in_order=in_order)


def test_any_order_is_fine_unless_it_is_asked_for() -> None:
    expected = [ExpectedRecord(1, json=1), ExpectedRecord(2, json=2)]
    assert lines(expected, came(2, 1)) == []
    assert lines(expected, came(1, 2), in_order=True) == []
    assert lines(expected, came(2, 1), in_order=True)[0] == "1 of 2 expected records came, and 1 other"


def test_a_record_answers_to_one_expectation() -> None:
    assert lines([ExpectedRecord(1, json=1), ExpectedRecord(2, json=1)], came(1))[0] == "1 of 2 expected records came"
    assert lines([ExpectedRecord(1, json=1)], came(1, 1))[0] == "1 of 1 expected records came, and 1 other"


@given(
    st.lists(st.sets(st.sampled_from("abcd"), min_size=1), max_size=5), st.lists(st.sampled_from("abcd"), max_size=5)
)
def test_as_many_are_met_as_can_be(wanted: list[set[str]], values: list[str]) -> None:
    """Against all ways to give each expectation a record: one expects members that several records have."""
    records = [Envelope(json.dumps(dict.fromkeys("abcd", 0) | {value: 1}).encode(), 0) for value in values]
    expected = [
        ExpectedRecord(number, contains=dict.fromkeys(set("abcd") - names, 0)) for number, names in enumerate(wanted)
    ]
    best = 0
    for choice in itertools.product(range(-1, len(values)), repeat=len(wanted)):
        taken = [at for at in choice if at >= 0]
        if len(set(taken)) == len(taken) and all(
            at < 0 or values[at] in wanted[index] for index, at in enumerate(choice)
        ):
            best = max(best, len(taken))
    found = lines(expected, records)
    if not found:
        assert best == len(wanted) == len(values)
    else:
        assert found[0].startswith(f"{best} of {len(wanted)} expected")


def test_differences_are_told_by_member() -> None:
    expected = [ExpectedRecord(7, json={"a": {"b": 1, "c": [1]}, "d": True}, keys=("k",), time_us=5, reason="bad")]
    found = lines(expected, [Envelope(b'{"a": {"b": 2, "c": [2]}, "d": 1, "e": null}', 0, reason="good")])
    assert found == [
        "0 of 1 expected records came, and 1 other",
        (
            '  - line 7: {"a": {"b": 1, "c": [1]}, "d": true}  keys [\'k\']  at 1970-01-01T00:00:00.000005Z  '
            "reason 'bad'"
        ),
        '  + {"a": {"b": 2, "c": [2]}, "d": 1, "e": null}  at 1970-01-01T00:00:00.000000Z  reason \'good\'',
        "      value.a.b: expected 1, got 2",
        "      value.a.c: expected [1], got [2]",
        "      value.d: expected true, got 1",
        "      value.e: unexpected: null",
        "      time: expected 1970-01-01T00:00:00.000005Z, got 1970-01-01T00:00:00.000000Z",
        "      keys: expected ['k'], got []",
        "      reason: expected 'bad', got 'good'",
    ]


@pytest.mark.parametrize(
    ("expected", "value", "fits"),
    [
        (ExpectedRecord(1, raw=b"x"), b"x", True),
        (ExpectedRecord(1, raw=b'{"a":1}'), b'{"a": 1}', False),
        (ExpectedRecord(1, json={"a": 1}), b'{"a":1}', True),
        (ExpectedRecord(1, json=None), b"null", True),
        (ExpectedRecord(1, json=None), b"not json", False),
        (ExpectedRecord(1, contains={"a": {"b": 1}}), b'{"a": {"b": 1, "c": 2}, "d": 3}', True),
        (ExpectedRecord(1, contains={}), b"[]", False),
        (ExpectedRecord(1, keys=()), b"anything", True),
    ],
)
def test_values(expected: ExpectedRecord, value: bytes, fits: bool) -> None:
    assert (lines([expected], [Envelope(value, 0)]) == []) is fits


@pytest.mark.slow
def test_much_that_differs_is_cut() -> None:
    found = lines([ExpectedRecord(n, json=n) for n in range(100)], came(*range(100, 250)))
    assert found[0] == "0 of 100 expected records came, and 150 others"
    assert len(found) < 50
    assert found[-1].endswith(" more")
