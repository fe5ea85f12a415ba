"""Which processes of a pipeline wait when the machine has too little for all.

Above it: the processes themselves, when they have started. Below it: the operating system.

Sources wait: what they would read meanwhile could only queue up before the vertices that are behind, and every record
that is on its way already would be later for it. They keep their share of the processors, whatever else the machine has
to do: they only let others go first who have just got something to do.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


def give_way() -> None:
    """Let other processes go before this one from now on, with all its threads and all it has started. Best effort."""
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        for thread in _threads(process.pid):
            # Only Linux has it. Who was given another class by an operator keeps it.
            with suppress(OSError, AttributeError):
                if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                    os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads(process: int) -> list[int]:
    """On Linux each thread has a class of its own, and the first one goes by the number of the process."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return [process]
