"""What becomes of a run when one of its processes ends. Pure.

Above it: the supervisors of the broker and of the vertices. Below it: nothing.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import DamageError, FencedError, InfrastructureError, MillstreamError, UdfError, UserError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.processes import exit_text

KILLS_MAX = 30
"""Times in a row a process may be ended from outside without any progress before the run gives up on it: some two
minutes."""
HANGS_MAX = 5
"""The same for a process that hangs, which takes longer each time."""
FAILURES_MAX = 4
"""The same for a process that ends by itself (a port taken, a defect): that is seldom different a second later."""
STEADY_S = 30.0
"""A process that has been well for this long counts as having made progress, even if it had nothing to do."""

_FATAL = {UserError.exit_code, UdfError.exit_code, DamageError.exit_code}
# What people, systems and a machine that runs out of memory send. Any other signal is the process's own crash.
_FROM_OUTSIDE = {0, *(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))}
# Codes of errors that say more than "a defect" when a process ends with them again and again.
_TELLING = {InfrastructureError.exit_code, FencedError.exit_code}


def restart_pauses() -> Pauses:
    """Before a process that has ended is started again."""
    return Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended that the runner had not told to."""

    exit_code: int
    """Negative: the signal that ended it."""
    hung: str = ""
    """The runner killed it because it hung: what was wrong, in words that follow its name."""

    @property
    def text(self) -> str:
        """In words that follow the name of the process."""
        if self.hung:
            return f"{self.hung}: it was killed"
        if self.exit_code == 0:
            return "ended before its lanes had ended"
        if self.exit_code > 0:
            return f"ended with exit code {self.exit_code}"
        if -self.exit_code == signal.SIGKILL:
            return "was killed from outside (SIGKILL; was the machine out of memory?)"
        return f"was ended {'from outside ' if self.from_outside else ''}by {exit_text(self.exit_code)}"

    @property
    def from_outside(self) -> bool:
        """Neither itself nor the runner has ended it."""
        return not self.hung and self.exit_code in _FROM_OUTSIDE

    @property
    def attempts_max(self) -> int:
        """So often in a row, without progress, it may end in such a way."""
        if self.hung:
            return HANGS_MAX
        return KILLS_MAX if self.from_outside else FAILURES_MAX

    def is_like(self, other: Ending) -> bool:
        """Whether both say the same of the process."""
        return (bool(self.hung), self.from_outside) == (bool(other.hung), other.from_outside)

    @property
    def run_exit_code(self) -> int:
        """That of a run which gives up over it."""
        if self.exit_code in _TELLING:
            return self.exit_code
        return InfrastructureError.exit_code if self.from_outside else MillstreamError.exit_code

    @property
    def code(self) -> Code | None:
        """Of the error, where the process has said none itself."""
        if self.hung:
            return codes.PROCESS_HANGS
        if self.from_outside:
            return codes.PROCESS_KILLED
        return codes.PROCESS_CRASHES if self.run_exit_code == MillstreamError.exit_code else None


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
    code: Code | None
    """As `Ending.code`."""


Verdict = Finished | Restart | StopRun


@dataclass(slots=True)
class RestartPolicy:
    """Judges the ends of one process, one after another."""

    failures: list[Ending] = field(default_factory=list)
    """In a row, without progress between them."""
    pauses: Pauses = field(default_factory=restart_pauses)
    """After them."""

    def judge(self, ending: Ending, *, lanes_ended: bool, progressed: bool, well_s: float) -> Verdict:
        """The process has ended without having been asked to by the runner.

        1. Exit code 0 and its lanes have ended: it has done its work. Exit code 0 alone means that another owner has
           told it to stop; it is treated like a signal.
        2. The user's fault, or damage: another start would find the same. The run stops.
        3. Anything else (a signal, a hang, lost lanes, a fault of the environment, a defect) may be different next
           time: start again, at once after progress, else after longer and longer, and give up in the end. How often
           depends on how it ended last: one failure among kills is not given up for the kills.
        """
        if ending.exit_code == 0 and lanes_ended:
            return Finished()
        if ending.exit_code in _FATAL:
            return StopRun(ending.exit_code, ending.text, None)
        if progressed or well_s >= STEADY_S:
            self.failures.clear()
            self.pauses.begin_again()
        self.failures.append(ending)
        alike = sum(map(ending.is_like, self.failures))
        if alike >= ending.attempts_max:
            reason = f"{ending.text}, {alike} times without any progress in between"
            return StopRun(ending.run_exit_code, reason, ending.code)
        return Restart(self.pauses.take())
