"""Pauses grow, stop growing, and differ by chance no more than allowed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.retry import DELAY_MAX_S, Backoff


def test_pauses_grow_by_the_factor_up_to_the_cap() -> None:
    backoff = Backoff(interval_s=0.1, factor=2.0, cap_s=0.5)
    assert [backoff.delay_s(attempt, random.Random(1)) for attempt in range(5)] == pytest.approx(
        [0, 0.1, 0.2, 0.4, 0.5]
    )


def test_steps_count_the_first_attempt() -> None:
    backoff = Backoff(interval_s=0.1, steps=3)
    assert [backoff.allows(attempt) for attempt in range(4)] == [True, True, True, False]
    assert Backoff(interval_s=0.1).allows(10**9)


@given(attempt=st.integers(1, 10**6), factor=st.floats(1, 100), jitter=st.floats(0, 1), seed=st.integers())
def test_no_pause_overflows_or_leaves_its_bounds(attempt: int, factor: float, jitter: float, seed: int) -> None:
    backoff = Backoff(interval_s=0.001, factor=factor, jitter=jitter)
    delay_s = backoff.delay_s(attempt, random.Random(seed))
    assert 0.001 <= delay_s <= DELAY_MAX_S * (1 + jitter)
