"""Whether the end of a function's process is its own doing. Pure, except for the kernel's counts.

    exit, crash signal, out-of-memory kill, time limit     the function's own doing: a record may be the cause
    SIGKILL, SIGTERM, ... from elsewhere                   says nothing about the records

Above it: the supervisor of the process (`sidecar.py`). Below it: the control groups of processes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

from millstream.processes import exit_text
from millstream.resources import MOUNTED, own_groups
from millstream.udf.endings import Ending

_CRASHES = frozenset(
    (
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
        # Limits, and timers that a program sets for itself.
        *(signal.SIGXCPU, signal.SIGXFSZ, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGPIPE),
    )
)
"""Signals by which a program ends itself. All others come from outside."""
_KILLED_CHILD = frozenset((128 + signal.SIGKILL, 128 + signal.SIGTERM))
"""Exit codes of a shell whose program was killed."""
LOOK_INTERVAL_S = 1.0
"""Time between two checks of the kernel's count."""


def ending_of(exit_code: int, *, out_of_memory: bool, tail: str) -> Ending:
    """The ending of a process that nothing here has ended. `out_of_memory`: the kernel killed a process in its cgroup
    because the memory was full, at about the same time."""
    why = f"exited with {exit_text(exit_code)}"
    if exit_code >= 0:
        return Ending(why, exit_code not in _KILLED_CHILD, maybe_asked=exit_code == 0, tail=tail)
    if -exit_code == signal.SIGKILL and out_of_memory:
        return Ending("was killed by the kernel because the memory of its cgroup was full", own=True, tail=tail)
    return Ending(why, -exit_code in _CRASHES, tail=tail)


class OomKills:
    """The kernel's count of processes in the cgroup of a process that it killed because memory was full.

    It counts the processes of the cgroup, not those of a function. So it has to be read every second, and a SIGKILL is
    one for lack of memory only if the count has just risen. Without a count, every SIGKILL comes from outside.
    """

    def __init__(self, counter: Path | None) -> None:
        self._counter = counter
        self._count = self._read()
        self._risen_s: float | None = None
        """When the count was last seen to have risen."""

    @property
    def known(self) -> bool:
        return self._count is not None

    def look(self, now_s: float) -> None:
        before, now = self._count, self._read()
        if now is None:
            return
        if before is not None and now > before:
            self._risen_s = now_s
        self._count = now

    def have_risen(self, now_s: float) -> bool:
        """Whether the kernel has killed a process just now."""
        self.look(now_s)
        return self._risen_s is not None and now_s - self._risen_s <= 2 * LOOK_INTERVAL_S

    def _read(self) -> int | None:
        if self._counter is None:
            return None
        try:
            lines = self._counter.read_text().splitlines()
        except (OSError, ValueError):
            return None
        counts = (line.removeprefix("oom_kill ") for line in lines if line.startswith("oom_kill "))
        return next((int(count) for count in counts if count.isdecimal()), None)


def oom_kills_of(pid: int) -> OomKills:
    """The count for the cgroup of a process."""
    found = counters(Path(f"/proc/{pid}/cgroup"), MOUNTED)
    return OomKills(next((path for path in found if path.is_file()), None))


def counters(groups: Path, mounted: Path) -> Iterator[Path]:
    """The files that may have the count. Arguments: see `control_groups`."""
    for _, group in own_groups("memory", groups, mounted):
        yield from (group / "memory.events", group / "memory.oom_control")
