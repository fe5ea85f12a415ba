"""Clocks, which are passed in so that tests and the simulation can set the time."""

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
        """The wall clock, in microseconds since the epoch, UTC. It may jump."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start. It never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()
