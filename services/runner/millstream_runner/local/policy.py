"""Decides what happens to a run when one of its processes ends. Pure.

Above it: the supervisors of the broker and of the vertices. Below it: nothing.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import DamageError, FencedError, InfrastructureError, MillstreamError, UdfError, UserError
from millstream.limits import KILLS_MAX, SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.processes import exit_text

HANGS_MAX = 5
"""The same for a process that hangs, which takes longer each time."""
FAILURES_MAX = 4
"""The same for a process that exits by itself (a port taken, a defect), which rarely changes within a second."""
STEADY_S = 30.0
"""A process that has run well for this long counts as having made progress, even if it had nothing to do."""

_FATAL = {UserError.exit_code, UdfError.exit_code, DamageError.exit_code}
# The signals that people, systems and a machine that is out of memory send. Any other signal is a crash of the process.
_FROM_OUTSIDE = {0, *(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))}
_TOO_LARGE = (
    "something that it reads takes much more memory when it is decompressed or loaded (docs/security.md names what "
    "may). Nothing was committed of it. Remove it from the source, or set a higher limit with --worker-memory"
)
# Codes that say more than "a defect" when a process repeatedly exits with them.
_TELLING = {InfrastructureError.exit_code, FencedError.exit_code}


def restart_pauses() -> Pauses:
    """The pauses before a process that has ended is restarted."""
    return Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)


@dataclass(frozen=True, slots=True)
class ProcessEnding:
    """How a process ended that the runner had not asked to end."""

    exit_code: int
    """Negative: the signal that ended it."""
    hung: str = ""
    """Set if the runner killed it because it hung: what was wrong, in words that follow its name."""
    oversize: str = ""
    """How it ended, if that was because of its memory, in words that follow its name."""

    @property
    def text(self) -> str:
        """How it ended, in words that follow the name of the process."""
        if self.oversize:
            return self.oversize
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
        """Whether it was ended neither by itself nor by the runner."""
        return not self.hung and not self.oversize and self.exit_code in _FROM_OUTSIDE

    @property
    def attempts_max(self) -> int:
        """How often in a row, without progress, it may end like this."""
        if self.hung:
            return HANGS_MAX
        return KILLS_MAX if self.from_outside else FAILURES_MAX

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Equal for endings that mean the same about the process."""
        return bool(self.hung), bool(self.oversize), self.from_outside

    @property
    def run_exit_code(self) -> int:
        """The exit code of a run that gives up because of it."""
        if self.exit_code in _TELLING:
            return self.exit_code
        is_outside = self.from_outside or self.oversize
        return InfrastructureError.exit_code if is_outside else MillstreamError.exit_code

    @property
    def code(self) -> Code | None:
        """The code of the error if the process has not logged one."""
        if self.hung:
            return codes.PROCESS_HANGS
        if self.oversize:
            return codes.PROCESS_TOO_LARGE
        if self.from_outside:
            return codes.PROCESS_KILLED
        return codes.PROCESS_CRASHES if self.run_exit_code == MillstreamError.exit_code else None


@dataclass(frozen=True, slots=True)
class Completion:
    """It has done all its work."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart it."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """The run cannot continue."""

    exit_code: int
    reason: str
    """Why, in words that follow the name of the process."""
    code: Code | None
    """As `ProcessEnding.code`."""
    advice: str = ""
    """What to do, if the process could not say anything about its end."""


Verdict = Completion | Restart | StopRun


@dataclass(slots=True)
class RestartPolicy:
    """Judges the ends of one process, one after another."""

    failures: list[ProcessEnding] = field(default_factory=list)
    """The failures in a row, without progress between them."""
    pauses: Pauses = field(default_factory=restart_pauses)
    """The pauses after them."""

    def judge(self, ending: ProcessEnding, *, lanes_ended: bool, progressed: bool, well_s: float) -> Verdict:
        """The process ended without being asked to by the runner.

        1. Exit code 0 and its lanes have ended: it has done its work. Exit code 0 alone means that another owner
           made it stop; it is treated like a signal.
        2. A user error, or damage: a restart would find the same. The run stops.
        3. Anything else (a signal, a hang, lost lanes, a fault of the environment, a defect) may be different next
           time: restart it, at once after progress, otherwise after increasing pauses, and give up in the end. The
           number of attempts depends on how it ended last: kills before a single failure do not count against it.
           Progress does not count for a process that takes too much memory soon after its start: that may be the
           progress of another lane, while one reads the same data again.
        """
        if ending.exit_code == 0 and lanes_ended:
            return Completion()
        if ending.exit_code in _FATAL:
            return StopRun(ending.exit_code, ending.text, None)
        if (progressed and not ending.oversize) or well_s >= STEADY_S:
            self.failures.clear()
            self.pauses.begin_again()
        self.failures.append(ending)
        alike = sum(failure.kind == ending.kind for failure in self.failures)
        if alike >= ending.attempts_max:
            if ending.oversize:
                return StopRun(ending.run_exit_code, f"{ending.text}, {alike} times in a row", ending.code, _TOO_LARGE)
            reason = f"{ending.text}, {alike} times without any progress in between"
            return StopRun(ending.run_exit_code, reason, ending.code)
        return Restart(self.pauses.take())
