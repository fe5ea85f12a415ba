"""Which processes of a pipeline wait when the machine has too little for all.

Above it: the processes themselves, when they have started. Below it: the operating system.

Sources wait: what they would read meanwhile could only queue up before the vertices that are behind, and every record
that is on its way already would be later for it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

SOURCE_NICENESS = 10
"""A tenth of the processor time of a process that wants as much, and its turn comes after the other's."""


def give_way(niceness: int) -> None:
    """Let other processes go before this one from now on, with all its threads and all it has started. Best effort."""
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        for thread in _threads(process.pid):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
        # Where Linux groups processes by their sessions, niceness counts inside a group only, and a group has its own.
        # A write by any user but root is refused when another group's was written in the last 100 ms.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(niceness))


def _threads(process: int) -> list[int]:
    """On Linux each thread has a niceness of its own, and the first one goes by the number of the process."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return [process]
