"""How many processors this process may use. It only asks the system."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from millstream.control_groups import GROUPS, MOUNTED, control_groups


def processors() -> int:
    """The number of processors that this process may use at once: those in its affinity mask, but not more than the
    quota of its container or service allows (a quota of 2.5 processors counts as 3)."""
    those = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([those, *map(math.ceil, quotas(GROUPS, MOUNTED))]))


def quotas(groups: Path, mounted: Path) -> Iterator[float]:
    """The quota in processors of each control group around this process, if the group has a limit. Arguments: see
    `control_groups`."""
    for group in control_groups("cpu", groups, mounted):
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
