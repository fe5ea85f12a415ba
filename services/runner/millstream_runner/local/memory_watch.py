"""Ends a process that takes more memory than it may.

What a stranger sends is bounded before it becomes large wherever Millstream decodes it. Some libraries decompress or
list before Millstream sees anything, so the memory of the whole process is bounded, too. A limit of the system
(RLIMIT_DATA) counts what is reserved: the stacks of threads alone, of which a lane of Kafka has several, may be more
than all memory. And a library that gets no memory does whatever its authors thought of. So the supervisor looks at
what the process really takes.

Above it: the supervisor. Below it: what the system says about a process.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable

from millstream.pauses import until_next
from millstream.resources import taken_by, usable_memory

SHARE_OF_MEMORY = 0.75
"""The default limit of a process, as a share of the memory of this machine or its control group."""
GROWTH_BYTES_PER_S = 8 << 30
"""How fast a process may grow: the next look is before it could reach the limit. Filling fresh memory takes a processor
some 0.4 s for each GiB."""
LOOK_S = 0.02
"""Shortest time between two looks. With the growth above, a process exceeds its limit by at most 160 MiB."""
LOOK_LATER_S = 1.0
"""Longest time between two looks."""
_GIB = 1 << 30
_DENIED = re.compile(r"std::bad_alloc|memory allocation of \d+ bytes failed|(?i:out of memory|cannot allocate memory)")
"""What C++, Rust and others print then."""


def default_limit() -> int:
    """The bytes of memory that a process may take if the user has not said it."""
    return int(usable_memory() * SHARE_OF_MEMORY)


async def until_exceeded(pid: int, limit: int, taken: Callable[[int], int | None] = taken_by) -> str:
    """Returns when the process takes more than `limit` bytes: how it has exceeded the limit, worded to follow its name.
    Never returns if it ends before."""
    while True:
        size = taken(pid)
        if size is not None and size > limit:
            return f"took {shown(size)} of memory, more than its limit of {shown(limit)}: it was killed"
        await asyncio.sleep(pause_s(limit - (size or 0)))


def pause_s(left: int) -> float:
    """The time until the next look at a process that may take `left` more bytes."""
    pause = max(LOOK_S, left / GROWTH_BYTES_PER_S)
    # All that is done every second is done at once, so that the processor can sleep.
    return pause if pause < LOOK_LATER_S else until_next(LOOK_LATER_S)


def shown(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size >> 20} MiB"


def denied(exit_code: int, last_lines: str) -> str:
    """How a process ended to which the system gave no more memory, worded to follow its name; empty if it ended for
    another reason. A library that asks for more than there is aborts the process, and says so."""
    if exit_code != -signal.SIGABRT or _DENIED.search(last_lines) is None:
        return ""
    return "asked for more memory than the system gives it, and was ended by a library that it uses"
