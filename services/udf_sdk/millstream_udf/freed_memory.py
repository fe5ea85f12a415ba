"""Memory that was freed is used again, instead of given back to the system and asked for again.

Messages of half a megabyte come and go hundreds of times a second. glibc gives such pieces back at once, and the system
fills each page with zeros when it is asked for again: that took longer than all that is done with the message.

Above it: what starts a process, a function's or a pipeline's. Below it: the C library; another one than glibc is left
alone.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 16 * 1024 * 1024
"""Freed memory that an arena keeps, at most."""
MAPPED_BYTES = 4 * 1024 * 1024
"""From here on a piece has pages of its own, which go when it is freed."""


def keep() -> None:
    """From now on, in this process. To be called before it has more than one thread."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        # Threads take turns in Python anyway: with an arena each, each would keep memory of its own.
        mallopt(_M_ARENA_MAX, 1)
