"""How often, and after which pauses, a failing record is retried. Plain values; no I/O and no clock.

Shared by functions and sinks. Attempts are counted from 0: attempt 0 is the first try, attempt 1 the first retry.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

DELAY_MAX_S = 3600.0
"""The longest pause, whatever the factor."""


class OnFailure(Enum):
    """What happens to a record when its attempts are used up, or when a retry cannot help."""

    RETRY = "retry"
    """Retry forever, with the longest pause. Nothing is lost; the lane waits."""
    FALLBACK = "fallback"
    """Hand it to the fallback sink."""
    DEAD_LETTER = "deadLetter"
    """Send it to the dead-letter edge with its reason."""
    DROP = "drop"
    """Drop it, and count it with its reason."""
    STOP = "stop"
    """Stop the lane with an error that names the record."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by a factor, with random jitter so that lanes do not retry in step."""

    interval_s: float
    """Pause before the first retry."""
    steps: int | None = None
    """Total attempts, including the first one; None for no limit."""
    factor: float = 1.0
    """Each pause is this many times as long as the previous one; at least 1."""
    cap_s: float = DELAY_MAX_S
    """Longest pause, before jitter is added."""
    jitter: float = 0.0
    """Up to this share of the pause is added at random; 0 to 1."""

    def allows(self, attempt: int) -> bool:
        """Whether attempt number `attempt` (0 is the first try) may be made."""
        return self.steps is None or attempt < self.steps

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Pause before attempt number `attempt`; 0 for the first try."""
        if attempt < 1:
            return 0.0
        cap_s = min(self.cap_s, DELAY_MAX_S)
        try:
            delay_s = min(self.interval_s * self.factor ** (attempt - 1), cap_s)
        except OverflowError:
            delay_s = cap_s
        return delay_s * (1.0 + self.jitter * rng.random())


ASKED_MAX = 1000
"""How often a function may ask to see a record again, unless its spec says otherwise: about a quarter of an hour, with
one request a second."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A spec's `retryStrategy`, as plain values."""

    backoff: Backoff
    on_failure: OnFailure
    asked_max: int = ASKED_MAX
    """How often a function may ask, by `Retry`, to see a record again before `on_failure` decides; `RETRY` has no
    limit."""


@dataclass(slots=True)
class RepeatedAsking:
    """How long a function has been asking to see one record again, and when to report that."""

    times: int = 0
    """How often it has asked."""
    waited_s: float = 0.0
    """The total of the pauses that it asked for."""
    _next_times: int = 10
    _next_s: float = 10.0

    def again(self, delay_s: float) -> bool:
        """Counts one more request to see the record again after a pause. Returns whether it deserves a warning: first
        after ten times or ten seconds, then at each doubling."""
        self.times += 1
        self.waited_s += delay_s
        if self.times < self._next_times and self.waited_s < self._next_s:
            return False
        self._next_times, self._next_s = 2 * max(self.times, 10), 2 * max(self.waited_s, 10.0)
        return True
