"""Pauses between tries and between looks."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.pauses import WAIT, WAITS_FOR, Pauses, RepeatedFailure, until_next


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


def test_a_failure_that_is_repeated_is_logged_with_its_time_and_not_each_time() -> None:
    failure = RepeatedFailure()
    lines = {now_s: line for now_s in range(1000) if (line := failure.line("it is away", float(now_s)))}
    assert lines == {
        0: "it is away",
        30: "it is away (for 30 s so far)",
        60: "it is away (for 1 min 0 s so far)",
        120: "it is away (for 2 min 0 s so far)",
        240: "it is away (for 4 min 0 s so far)",
        480: "it is away (for 8 min 0 s so far)",
        960: "it is away (for 16 min 0 s so far)",
    }
    assert failure.line("it refuses", 1001.0) == "it refuses (for 16 min 41 s so far)"
    assert not failure.line("it refuses", 1002.0)
    failure.over(logging.getLogger("test"), "")
    assert failure.line("it refuses", 9000.0) == "it refuses"


def test_lines_about_a_failure_that_lasts_say_which_one_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    failure, log = RepeatedFailure(), logging.getLogger("test")
    for now_s in (0.0, 10.0, 30.0):
        failure.warn(log, "p/out: ", "it is away", now_s=now_s)
    failure.over(log, "p/out: ")
    failure.over(log, "p/out: ")
    first, lasts, over = caplog.records
    assert not hasattr(first, WAIT)
    assert (getattr(lasts, WAIT), getattr(lasts, WAITS_FOR)) == (getattr(over, WAIT), "it is away")
    assert getattr(over, WAITS_FOR) == ""
    assert [record.getMessage() for record in caplog.records] == [
        "p/out: it is away",
        "p/out: it is away (for 30 s so far)",
        "p/out: continues",
    ]
