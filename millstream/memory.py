"""How much memory there is for this process, and how much a process takes. It only asks the system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from millstream.control_groups import GROUPS, MOUNTED, control_groups

_TAKEN = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
"""Lines of the system's report about a process, in KiB. The pages of files that are not its own count for none."""


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
