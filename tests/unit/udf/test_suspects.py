"""Which records end the process of their function: found by calls of halves, with real counts and made-up processes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from millstream.udf.answers import Result
from millstream.udf.endings import Ending
from millstream.udf.suspects import DEATHS_MAX, Suspects, outcome_of


def search(records: int, poison: set[int]) -> tuple[list[int], list[int], Counter[int]]:
    """The records that were found, those that were answered, in order, and the ends of the process by size of call."""
    suspects, ends = Suspects(), Counter[int]()
    found: list[int] = []
    answered: list[int] = []
    waiting: deque[Sequence[int]] = deque(suspects.ended(range(records), alone=False))
    while waiting:
        piece = waiting.popleft()
        assert suspects.must_be_alone(piece)
        if poison.isdisjoint(piece):
            suspects.answered(piece)
            answered += piece
            continue
        ends[len(piece)] += 1
        pieces = suspects.ended(piece, alone=True)
        waiting.extendleft(reversed(pieces))
        if not pieces:
            found += piece
    assert not suspects.must_be_alone(answered)
    return found, answered, ends


@given(st.integers(1, 200), st.data())
def test_exactly_the_poisonous_records_are_found_in_order(records: int, data: st.DataObject) -> None:
    poison = set(data.draw(st.lists(st.integers(0, records - 1), max_size=5)))
    found, answered, ends = search(records, poison)
    assert found == sorted(poison)
    assert answered == sorted(set(range(records)) - poison)
    assert ends[1] == DEATHS_MAX * len(poison)
    # A call of all of them, and then of halves.
    assert sum(ends.values()) - ends[1] <= len(poison) * math.ceil(math.log2(max(records, 2)))


def test_a_record_is_the_cause_only_after_several_ends_in_a_row() -> None:
    suspects = Suspects()
    for _ in range(DEATHS_MAX - 1):
        assert suspects.ended([7], alone=True) == [[7]]
    suspects.answered([7])
    assert not suspects.must_be_alone([7])
    for _ in range(DEATHS_MAX - 1):
        assert suspects.ended([7], alone=True) == [[7]]
    assert suspects.ended([7], alone=True) == []
    # Its next attempts put no other call at risk.
    assert suspects.must_be_alone([6, 7])
    assert suspects.ended([7], alone=True) == [[7]]


def test_a_call_with_others_in_flight_is_no_evidence() -> None:
    suspects = Suspects()
    # Nor if another record has ended the process alone.
    assert suspects.ended([3], alone=True) == [[3]]
    for _ in range(10 * DEATHS_MAX):
        assert suspects.ended([7], alone=False) == [[7]]


def test_the_outcome_counts_for_each_of_the_ends() -> None:
    outcome = outcome_of(Ending("exited with code 3", own=True, tail="the last line"), 5)
    assert (outcome.index, outcome.result, outcome.attempts) == (5, Result.ERROR, DEATHS_MAX)
    assert "exited with code 3, 3 times in a row" in outcome.reason
    assert outcome.detail == "the last line"
