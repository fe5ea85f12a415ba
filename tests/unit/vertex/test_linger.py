"""How long a commit waits for more, in any pattern of arrivals. No clock: times are given."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.limits import COMMIT_LINGER_BYTES_MAX, COMMIT_LINGER_RECORDS_MAX, COMMIT_LINGER_S
from millstream_vertex.pacing import Linger

COMMIT_S = 0.002
MS = 0.001


@dataclass
class Run:
    """What became of a pattern."""

    commits: int = 0
    units: int = 0
    waited_s: float = 0.0
    longest_s: float = 0.0


def arriving_at(times_s: list[float], *, records: int = 2, linger: Linger | None = None) -> Run:
    """A lane to which units come at those times, whatever it does. A commit takes `COMMIT_S`."""
    linger, run, now_s, index = linger or Linger(), Run(), 0.0, 0
    while index < len(times_s):
        now_s = max(now_s, times_s[index])
        there = sum(time_s <= now_s for time_s in times_s[index:])
        wait_s = linger.begin(now_s, there * records, there * records)
        in_all = sum(time_s <= now_s + wait_s for time_s in times_s[index:])
        now_s += wait_s
        linger.end(now_s, in_all, wait_s, in_all - there)
        run.commits, run.units = run.commits + 1, run.units + in_all
        run.waited_s, run.longest_s = run.waited_s + wait_s, max(run.longest_s, wait_s)
        now_s, index = now_s + COMMIT_S, index + in_all
    return run


def test_what_comes_seldom_is_committed_at_once() -> None:
    assert arriving_at([number * 0.1 for number in range(200)]).longest_s == 0.0
    assert arriving_at([number * 0.01 for number in range(200)]).longest_s == 0.0


def test_the_first_after_a_pause_is_committed_at_once() -> None:
    linger = Linger()
    assert arriving_at([number * MS for number in range(500)], linger=linger).longest_s == COMMIT_LINGER_S
    assert linger.begin(3.0, 2, 2) == 0.0


def test_what_comes_in_hundreds_a_second_is_joined() -> None:
    run = arriving_at([number * 2 * MS for number in range(2000)])
    assert run.units == 2000
    assert run.commits < 2000 / 3
    assert run.longest_s <= COMMIT_LINGER_S


def test_one_that_comes_late_ends_no_waits_and_two_do() -> None:
    linger = Linger()
    arriving_at([number * 4 * MS for number in range(500)], linger=linger)
    now_s, waits_s = 2.0, []
    for came in (0, 1, 0, 0, 0):
        waits_s.append(linger.begin(now_s, 1, 1))
        now_s += waits_s[-1]
        linger.end(now_s, 1 + came, waits_s[-1], came)
        now_s += COMMIT_S
    # One that is shorter than a unit takes would bring nothing, so there is none.
    assert waits_s == [COMMIT_LINGER_S] * 4 + [0.0]


def test_a_wait_ends_when_the_next_unit_is_not_due_in_it() -> None:
    linger = Linger()
    arriving_at([number * 3 * MS for number in range(500)], linger=linger)
    assert linger.expects_more(4 * MS)
    assert not linger.expects_more(1 * MS)


def test_what_brings_enough_waits_for_nothing() -> None:
    linger = Linger()
    arriving_at([number * MS for number in range(500)], linger=linger)
    assert linger.begin(0.501, COMMIT_LINGER_RECORDS_MAX, 1) == 0.0
    assert linger.begin(0.501, 1, COMMIT_LINGER_BYTES_MAX) == 0.0
    assert linger.begin(0.501, 1, 1) > 0.0


@pytest.mark.parametrize("thinks_s", [0.0, 1 * MS, 2 * MS])
def test_a_sender_that_waits_for_its_answer_hardly_waits_longer(thinks_s: float) -> None:
    # It sends the next record when the one before is committed: no wait ever brings one.
    linger, now_s, waited_s, rounds = Linger(), 0.0, 0.0, 500
    for _ in range(rounds):
        wait_s = linger.begin(now_s, 1, 100)
        waited_s += wait_s
        now_s += wait_s
        linger.end(now_s, 1, wait_s, 0)
        now_s += COMMIT_S + thinks_s
    assert waited_s < 0.1 * rounds * (COMMIT_S + thinks_s)


def test_what_stops_coming_is_not_waited_for_any_longer() -> None:
    linger = Linger()
    arriving_at([number * MS for number in range(500)], linger=linger)
    # From now on each comes after the commit before, as from a sender that waits.
    waits_s, now_s = [], 0.503
    for _ in range(6):
        waits_s.append(linger.begin(now_s, 1, 1))
        now_s += waits_s[-1]
        linger.end(now_s, 1, waits_s[-1], 0)
        now_s += COMMIT_S
    assert waits_s[0] > 0.0
    assert waits_s[-1] == 0.0


@given(st.integers(0, 2**32), st.floats(0.0002, 0.02))
def test_no_wait_is_longer_than_the_limit_and_none_costs_a_unit(seed: int, apart_s: float) -> None:
    rng, at_s, times_s = random.Random(seed), 0.0, []
    for _ in range(100):
        at_s += rng.expovariate(1 / apart_s)
        times_s.append(at_s)
    run = arriving_at(times_s)
    assert run.units == 100
    assert run.longest_s <= COMMIT_LINGER_S
