"""Reuses freed memory, instead of returning it to the system and requesting it again.

Messages of half a megabyte are created and freed hundreds of times a second. glibc returns such blocks immediately, and
the system fills each page with zeros when it is requested again, which took longer than everything else that is done
with the message.

Above it: the start of processes of functions and pipelines. Below it: the C library; it does nothing without glibc.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 16 * 1024 * 1024
"""Maximum bytes of freed memory that an arena keeps."""
MAPPED_BYTES = 4 * 1024 * 1024
"""Size from which a block has its own pages, which are returned when it is freed."""


def keep() -> None:
    """Enable it in this process. Must be called before the process has more than one thread."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        # Python's threads take turns anyway: with separate arenas, each would keep its own memory.
        mallopt(_M_ARENA_MAX, 1)
