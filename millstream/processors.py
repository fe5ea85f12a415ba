"""How many processors there are for this process. It asks the system and nothing else."""

from __future__ import annotations

import os


def processors() -> int:
    """Those that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
