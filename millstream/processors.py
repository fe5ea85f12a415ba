"""How many processors this process may use. It only asks the system."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def processors() -> int:
    """The number of processors that this process may use at once: those in its affinity mask, but not more than the
    quota of its container or service allows (a quota of 2.5 processors counts as 3)."""
    those = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([those, *map(math.ceil, quotas(_GROUPS, _MOUNTED))]))


def quotas(groups: Path, mounted: Path) -> Iterator[float]:
    """The quota in processors of each control group around this process, if the group has a limit.

    `groups`: the process's own list of its control groups. `mounted`: the directory of their files.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # Version 2 of control groups has one tree; version 1 has one for each set of controllers.
        if number == "0" and not controllers:
            root = mounted
        elif "cpu" in controllers.split(","):
            root = mounted / "cpu"
        else:
            continue
        # In a container, possibly only its own group is mounted, as the root, although the list has its full path.
        inner = root / path.strip("/")
        for group in (inner, *(above for above in inner.parents if above.is_relative_to(root))):
            quota = _quota(group)
            if quota is not None:
                yield quota


def _quota(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        # "max" and -1 say that there is no limit.
        return int(quota) / int(period) if quota.isdigit() else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
