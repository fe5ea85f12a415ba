"""Measures how late the event loop of this process is: how long a task that is ready waits for its turn.

Replicas that share a worker share its loop, so a replica that keeps the loop busy delays the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.clock import Clock

INTERVAL_S = 0.5
"""Time between two samples: each sample wakes up the process, and counts for every replica in it."""


async def measure_loop_lag(observe: Callable[[float], None], clock: Clock) -> None:
    """Passes the lag of the loop in seconds to `observe`, for every `INTERVAL_S` of time, until cancelled.

    While the loop is blocked, no samples are taken. So a long lag is followed by the samples that are missing: two
    seconds without a turn count as four samples, as they would for four events that became ready in that time.
    """
    while True:
        due_s = clock.monotonic_s() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        lag_s = max(0.0, clock.monotonic_s() - due_s)
        observe(lag_s)
        while (lag_s := lag_s - INTERVAL_S) > 0:
            observe(lag_s)
