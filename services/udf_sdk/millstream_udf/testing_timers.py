"""Timers in tests: moves the watermark, or the clock, and runs a function on those whose time has come. A part of the
test kit.

Above it: `testing`. Below it: `testing_states`, which keeps what is set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millstream_udf.testing_states import KeptStates
from millstream_udf.timers import Timer

TIMERS_MAX = 4096
"""Timers in a call, as a vertex sends them."""

Fire = Callable[[list[Timer]], Awaitable[set[int]]]
"""Runs the function on timers, and keeps what it has changed. Returns the indexes of those that are to come again."""


async def fire_all(states: KeptStates, watermark_us: int, now_us: int, fire: Fire) -> None:
    """Fire timers in the order in which a vertex would: by event time, then by processing time; by time, key and name.
    Those that fail stay set, and do not come again."""
    failed: list[Timer] = []
    for clock, until_us in (("event", watermark_us), ("processing", now_us)):
        while due := _due(states, clock, until_us, failed):
            taken = states.take_timers(due, watermark_us)
            for index in await fire(taken):
                states.put_timer(due[index])
                failed.append(due[index])


def _due(states: KeptStates, clock: str, until_us: int, failed: list[Timer]) -> list[Timer]:
    """The next timers that are due, at most one of a key: it may move or cancel the others."""
    found: list[Timer] = []
    keys = set()
    for timer in states.timers:
        if timer.clock != clock or timer.at_us > until_us or timer in failed:
            continue
        if timer.keys in keys or len(found) == TIMERS_MAX:
            break
        keys.add(timer.keys)
        found.append(timer)
    return found
