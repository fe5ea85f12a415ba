"""Pauses between tries and between looks."""

from __future__ import annotations

import asyncio

import pytest

from millstream.pauses import Pauses, until_next


async def test_each_is_twice_as_long_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pauses = Pauses(0.02, 0.1)
    assert pauses.none_yet
    for _ in range(5):
        await pauses.wait()
        assert not pauses.none_yet
    assert slept == [0.02, 0.04, 0.08, 0.1, 0.1]
    assert pauses.next_s == 0.1
    pauses.begin_again()
    assert pauses.none_yet
    await pauses.wait()
    assert slept[-1] == 0.02


@pytest.mark.parametrize(("now_s", "left_s"), [(12.0, 0.5), (12.3, 0.2), (12.499, 0.001), (12.5, 0.5)])
async def test_what_looks_as_often_looks_at_the_same_moments(
    now_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    assert until_next(0.5) == pytest.approx(left_s)
