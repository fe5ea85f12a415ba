"""Timers on the wire: how one is set, and what a function gets when its time has come. Pure.

Above it: `key_states`, `timers` and the test kit; and vertices, which store timers and send those that are due. Below
it: nothing.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

TIMER_NAME_BYTES_MAX = 255
"""Bytes of the name of a timer."""
EVENT, PROCESSING = 1, 2
"""The clocks, as in the protocol (`State.Clock`)."""
CLOCK_NAMES = {EVENT: "event", PROCESSING: "processing"}
CLOCKS = {name: clock for clock, name in CLOCK_NAMES.items()}

_FORM = struct.Struct("<Bqq")
TIMER_BYTES = _FORM.size
_HOLDS = 0x40
"""Added to the clock of a timer that holds the watermark for its outputs."""


class TimerTime(NamedTuple):
    """When a timer fires."""

    clock: int
    at_us: int
    event_us: int = 0
    """By processing time: the event time of the record that set it. If it `holds`: its output time."""
    holds: bool = False
    """Whether the watermark stays at its output time, or below, until it has fired."""


def pack_timer(time: TimerTime) -> bytes:
    """The value of the entry that sets a timer."""
    return _FORM.pack(time.clock | (_HOLDS if time.holds else 0), time.at_us, time.event_us)


def unpack_timer(data: bytes) -> TimerTime:
    """The inverse of `pack_timer`. Raises `ValueError`."""
    if len(data) != TIMER_BYTES or data[0] & ~_HOLDS not in CLOCK_NAMES:
        raise ValueError("a timer has no clock and times: 17 bytes, of which the first one is 1 or 2, or 64 more")
    clock, at_us, event_us = _FORM.unpack(data)
    return TimerTime(clock & ~_HOLDS, at_us, event_us, bool(clock & _HOLDS))


def pack_due(name: str, clock: int, at_us: int) -> bytes:
    """The value of the record that a timer is when its time has come. People read it, too, as a dead letter."""
    return f'{{"timer":{json.dumps(name)},"at_us":{at_us},"clock":"{CLOCK_NAMES[clock]}"}}'.encode()


def unpack_due(value: bytes) -> tuple[str, str, int]:
    """Name, clock and time of such a timer. Raises `ValueError`."""
    try:
        found = json.loads(value)
        return found["timer"], found["clock"], found["at_us"]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"a record of a call of timers is none: {error!r}") from error
