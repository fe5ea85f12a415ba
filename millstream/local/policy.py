"""What becomes of a run when one of its processes ends. Pure.

Above it: the supervisors of the broker and of the vertices. Below it: nothing.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from millstream import limits
from millstream.errors import DamageError, EnvironmentFault, MillstreamError, UdfError, UserError

KILLS_MAX = 10
"""Times in a row a process may be ended from outside without any progress before the run gives up on it."""
FAILURES_MAX = 4
"""The same for a process that ends by itself (a port taken, a defect): that is seldom different a second later."""
STEADY_S = 30.0
"""A process that has run this long was well, whether it had something to do or not."""

_FATAL = {UserError.exit_code, UdfError.exit_code, DamageError.exit_code}


@dataclass(frozen=True, slots=True)
class Finished:
    """It has done all there was to do."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """The run cannot go on."""

    exit_code: int
    reason: str
    """Why, in words that follow the name of the process."""


Verdict = Finished | Restart | StopRun


@dataclass(slots=True)
class RestartPolicy:
    """Judges the ends of one process, one after another."""

    failures: int = 0
    """Ends in a row without progress."""

    def judge(self, exit_code: int, *, lanes_ended: bool, progressed: bool, ran_s: float) -> Verdict:
        """The process has ended without having been told to by the runner.

        1. Exit code 0 and its lanes have ended: it has done its work. Exit code 0 alone means that somebody else has
           told it to stop; it is treated like a signal.
        2. The user's fault, or damage: another start would find the same. The run stops.
        3. Anything else (a signal, lost lanes, a fault of the environment, a defect) may be different next time: start
           again, at once after progress, else after longer and longer, and give up in the end.
        """
        if exit_code == 0 and lanes_ended:
            return Finished()
        if exit_code in _FATAL:
            return StopRun(exit_code, describe_exit(exit_code))
        if progressed or ran_s >= STEADY_S:
            self.failures = 0
        self.failures += 1
        from_outside = exit_code <= 0
        if self.failures >= (KILLS_MAX if from_outside else FAILURES_MAX):
            environment = exit_code == EnvironmentFault.exit_code
            code = EnvironmentFault.exit_code if environment else MillstreamError.exit_code
            return StopRun(code, f"{describe_exit(exit_code)}, {self.failures} times in a row without any progress")
        return Restart(backoff_s(self.failures))


def backoff_s(failures: int) -> float:
    """Pause after the n-th failure in a row: the first, then double, up to the last."""
    return float(min(limits.SIDECAR_BACKOFF_FIRST_S * 2.0 ** (failures - 1), limits.SIDECAR_BACKOFF_LAST_S))


def describe_exit(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code < 0:
        try:
            return f"was ended by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code}" if exit_code else "ended before its lanes had"
