"""How late an event loop is, sample by sample."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millstream.telemetry.opening import LOOP_LAG_INTERVAL_S, measure_loop_lag


class Moments:
    """A clock that is read as often as there are moments, and then ends the measurement."""

    def __init__(self, moments_s: Sequence[float]) -> None:
        self._moments_s = iter(moments_s)

    def now_us(self) -> int:
        raise AssertionError("no wall clock is needed")

    def monotonic_s(self) -> float:
        moment_s = next(self._moments_s, None)
        if moment_s is None:
            raise asyncio.CancelledError
        return moment_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("woken_s", "expected_s"),
    [
        (LOOP_LAG_INTERVAL_S, [0.0]),
        (LOOP_LAG_INTERVAL_S + 0.03, [0.03]),
        # A timer of the loop is rounded, and may be early by that.
        (LOOP_LAG_INTERVAL_S - 0.001, [0.0]),
        # What became ready in three and a half intervals without a turn.
        (
            4.5 * LOOP_LAG_INTERVAL_S,
            [
                3.5 * LOOP_LAG_INTERVAL_S,
                2.5 * LOOP_LAG_INTERVAL_S,
                1.5 * LOOP_LAG_INTERVAL_S,
                0.5 * LOOP_LAG_INTERVAL_S,
            ],
        ),
    ],
)
async def test_the_samples_are_those_of_every_interval_of_time(woken_s: float, expected_s: list[float]) -> None:
    seen: list[float] = []
    with pytest.raises(asyncio.CancelledError):
        await measure_loop_lag(seen.append, Moments([0.0, woken_s]))
    assert seen == pytest.approx(expected_s)
