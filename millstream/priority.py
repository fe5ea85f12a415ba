"""Decides which processes of a pipeline wait when the machine is overloaded.

Above it: the processes themselves, when they have started. Below it: the operating system.

Sources wait: records that they read in the meantime would only queue up in front of slower vertices, and delay every
record that is already in the pipeline. Sources keep their share of the processors, whatever else the machine has to do:
they only let processes go first that have just become runnable.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


def give_way() -> None:
    """From now on, other processes go before this one, its threads and everything that it has started. Best effort."""
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        for thread in _threads(process.pid):
            # Only Linux has scheduling classes. A thread that an operator has put into another class stays there.
            with suppress(OSError, AttributeError):
                if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                    os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads(process: int) -> list[int]:
    """The ids of a process's threads. On Linux each thread has its own class, and the first has the process's id."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return [process]
