"""The control groups around this process: where the system says what a container or service may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
"""The process's own list of its control groups."""
MOUNTED = Path("/sys/fs/cgroup")
"""The directory of their files."""


def control_groups(controller: str, groups: Path, mounted: Path) -> Iterator[Path]:
    """The directory of each control group around this process that a controller may limit, innermost first.

    `groups`, `mounted`: as `GROUPS` and `MOUNTED`.
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
        elif controller in controllers.split(","):
            root = mounted / controller
        else:
            continue
        # In a container, possibly only its own group is mounted, as the root, although the list has its full path.
        inner = root / path.strip("/")
        yield inner
        yield from (above for above in inner.parents if above.is_relative_to(root))
