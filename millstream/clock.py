"""Time, passed in so that tests and the simulation can set it."""

from __future__ import annotations

import time
from typing import Protocol

MICROSECONDS = 1_000_000
"""Microseconds in a second."""

END_OF_TIME_US = 2**63 - 1
"""Watermark of a lane that has ended: nothing will follow."""

START_OF_TIME_US = -(2**63)
"""Watermark of a lane that has promised nothing yet."""


class Clock(Protocol):
    """Two clocks: one for people and event time, one for measuring."""

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch, UTC. May jump."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start. Never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()
