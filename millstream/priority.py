"""Which processes of a pipeline wait when the machine has too little for all.

Above it: the processes themselves, at their start. Below it: the operating system.

Sources wait: what they would read meanwhile could only queue up before the vertices that are behind, and every record
that is on its way already would be later for it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SOURCE_NICENESS = 10
"""A tenth of the processor time of a process that wants as much, and its turn comes after the other's."""

_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(niceness: int) -> None:
    """Let other processes go first from now on; to be called before there are threads. Best effort."""
    with contextlib.suppress(OSError):
        os.nice(niceness)
        # Where Linux groups processes by their sessions, niceness counts inside a group only, and a group has its own.
        # Written by anybody but root it is refused when another group's was written in the last 100 ms.
        _AUTOGROUP.write_text(str(niceness))
