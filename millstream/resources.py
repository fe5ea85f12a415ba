"""How many processors and how much memory there are for this process, and how much memory a process takes. It only
asks the system."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

GROUPS = Path("/proc/self/cgroup")
"""The process's own list of its control groups."""
MOUNTED = Path("/sys/fs/cgroup")
"""The directory of their files."""
_TAKEN = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
"""Lines of the system's report about a process, in KiB. The pages of files that are not its own count for none."""


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


def usable_memory() -> int:
    """The bytes of memory of this machine, or of its control group if the group allows less."""
    return min([psutil.virtual_memory().total, *limits(GROUPS, MOUNTED)])


def limits(groups: Path, mounted: Path) -> Iterator[int]:
    """The limit in bytes of each control group around this process, if the group has one. Arguments: see
    `control_groups`."""
    for group in control_groups("memory", groups, mounted):
        for name in ("memory.max", "memory.limit_in_bytes"):
            # The file of a group without a limit has another word.
            with suppress(OSError, ValueError):
                if limit := int((group / name).read_text()):
                    yield limit


def taken_by(pid: int) -> int | None:
    """The bytes of memory that a process takes, also those that are swapped out; None if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            found = [int(line.split()[1]) for line in status if line.startswith(_TAKEN)]
        return sum(found) * 1024
    except (ProcessLookupError, FileNotFoundError):
        pass
    try:
        # Not Linux.
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def control_groups(controller: str, groups: Path, mounted: Path) -> Iterator[Path]:
    """The directory of each control group around this process that a controller may limit, innermost first.

    `groups`, `mounted`: as `GROUPS` and `MOUNTED`.
    """
    for root, inner in own_groups(controller, groups, mounted):
        # In a container, possibly only its own group is mounted, as the root, although the list has its full path.
        yield inner
        yield from (above for above in inner.parents if above.is_relative_to(root))


def own_groups(controller: str, groups: Path, mounted: Path) -> Iterator[tuple[Path, Path]]:
    """For each tree of control groups that a controller may limit, its root and the group of a process. Arguments: see
    `control_groups`."""
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
        elif controller in controllers.split(","):
            root = mounted / controller
        else:
            continue
        yield root, root / path.strip("/")
