"""How long another process has been silent, as one sees it that may have been stopped itself, and when it is asked."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextvars import Context
from itertools import pairwise
from typing import Any

from millstream.health import BEAT_INTERVAL_S, LOOK_INTERVAL_S, Health, Patience, Silence
from tests.simulation.loop import Process, SimLoop, Step


def test_silence_lasts_until_something_is_heard() -> None:
    silence = Silence(100.0)
    looks = [silence.look(100.0 + n * LOOK_INTERVAL_S) for n in range(1, 11)]
    assert looks[-1] == 10 * LOOK_INTERVAL_S
    silence.on_answer()
    assert silence.look(100.0 + 11 * LOOK_INTERVAL_S) == LOOK_INTERVAL_S


def test_time_in_which_the_listener_did_not_run_is_not_silence() -> None:
    silence = Silence(100.0)
    silence.look(100.0 + LOOK_INTERVAL_S)
    # The machine was suspended, or the listener stopped.
    assert silence.look(10_000.0) <= 3 * LOOK_INTERVAL_S


class LateLoop(SimLoop):
    """Its timers are a little late, as those of every real loop."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        return super().call_at(when + self._rng.uniform(0.0, 0.001), callback, *args, context=context)


def test_a_process_that_rests_is_asked_again_after_its_rest_however_late_timers_are() -> None:
    rest_s = 4 * BEAT_INTERVAL_S
    asked_s: list[float] = []

    async def main() -> None:
        enough = asyncio.Event()

        async def ask() -> None:
            asked_s.append(asyncio.get_running_loop().time())
            if len(asked_s) == 20:
                enough.set()

        health = Health(os.getpid(), Patience(), report=print, has_answered=True, rest_s=rest_s)
        watching = asyncio.ensure_future(health.until_hung(ask))
        await enough.wait()
        watching.cancel()
        await asyncio.wait((watching,))

    loop = LateLoop(random.Random(1), lambda: 0.0)  # type: ignore[abstract]  # what asyncio does not use is missing
    loop.run(main(), Process("supervisor"), steps_max=10_000)
    pauses = [after - before for before, after in pairwise(asked_s)]
    assert {round(pause, 1) for pause in pauses} == {rest_s + BEAT_INTERVAL_S}
