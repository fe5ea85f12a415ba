"""How long a function has had its oldest call, and what follows from that.

    in flight ─► 10 s without an answer: reported, with the records ─► 20 s, 40 s, ...: again
                 └─► the limit of the spec: the process is ended, as if it had crashed

A server that answers health checks while its function hangs looks well, so this is measured by calls. The oldest call
is the one that was sent first of those without an answer. It is measured from the moment at which it became the
oldest: until then, the function may have worked on those before it.

Above it: the supervisor of the process (`sidecar.py`), and `function.py` for processes that others supervise. Below it:
`lives.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from millstream.pauses import until_next
from millstream.udf.lives import InFlight, Lives

SLOW_AFTER_S = 10.0
"""A call that has no answer for this long is reported."""
_LOOK_INTERVAL_S = 1.0
_LOOK_COUNTS_S = 2 * _LOOK_INTERVAL_S
"""The most time that one check may add: if more has passed, this process did not run meanwhile."""


class OldestCall:
    """The age of the oldest call, and when it deserves a message. Pure."""

    def __init__(self) -> None:
        self.call: InFlight | None = None
        self.seconds = 0.0
        self.is_slow = False
        """Whether the oldest call has had no answer for long."""
        self._life = 0
        self._checked_at_s = 0.0
        self._next_s = SLOW_AFTER_S

    def look(self, call: InFlight | None, life: int, now_s: float) -> bool:
        """`call`: the oldest one now; `life`: the number of the process that has it. Returns whether to report it. The
        limit doubles with each report, so that a function whose calls are always slow is not reported each time."""
        if life != self._life:
            self._next_s = SLOW_AFTER_S
        if call is None or call is not self.call or life != self._life:
            self.call, self._life, self.seconds = call, life, 0.0
        else:
            self.seconds += min(now_s - self._checked_at_s, _LOOK_COUNTS_S)
        self._checked_at_s = now_s
        self.is_slow = self.seconds >= SLOW_AFTER_S
        if self.seconds < self._next_s:
            return False
        self._next_s = 2 * max(self._next_s, self.seconds)
        return True


async def watch_calls(
    lives: Lives,
    oldest: OldestCall,
    *,
    report: Callable[[str], None],
    on_slow: Callable[[bool], None] = lambda is_slow: None,
    timeout_s: float | None = None,
    end: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Looks at the oldest call every second. `report` gets messages; `on_slow` whether a call is slow. After
    `timeout_s`, `end` has to end the process."""
    while True:
        await asyncio.sleep(until_next(_LOOK_INTERVAL_S))
        was_slow = oldest.is_slow
        if oldest.look(lives.oldest, lives.number, time.monotonic()) and oldest.call is not None:
            limit = "" if timeout_s is None else f"; the process is ended after {timeout_s:g} s"
            report(f"has had {oldest.call.what} for {oldest.seconds:.0f} s without an answer{limit}")
        if oldest.is_slow is not was_slow:
            on_slow(oldest.is_slow)
        if timeout_s is not None and end is not None and oldest.seconds >= timeout_s:
            await end()
