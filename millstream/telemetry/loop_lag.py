"""How late the event loop of this process is: what whatever is ready waits for its turn.

Replicas that share a worker share its loop, so one that keeps the loop busy is felt by the others here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.clock import Clock

INTERVAL_S = 0.5
"""Between two samples: each wakes the process up, and is counted for every replica in it."""


async def measure_loop_lag(observe: Callable[[float], None], clock: Clock) -> None:
    """Hand `observe` the lag of the loop in seconds, for every `INTERVAL_S` of time, until cancelled.

    While the loop stands still no sample is taken. So a long lag is followed by those that would have been seen
    meanwhile: two seconds without a turn count as four samples, as they would for four events that became ready then.
    """
    while True:
        due_s = clock.monotonic_s() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        lag_s = max(0.0, clock.monotonic_s() - due_s)
        observe(lag_s)
        while (lag_s := lag_s - INTERVAL_S) > 0:
            observe(lag_s)
