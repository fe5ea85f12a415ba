"""Pauses: between tries of one thing, and between looks at what sends no event.

For what is tried until it works (a server away, a full disk). How a user's records are tried again is in `retry`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Pauses:
    """Of one thing that is tried again."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self.next_s = first_s
        """How long the next pause is."""

    @property
    def none_yet(self) -> bool:
        """Whether this is the first failure: the one that is worth a line in the log."""
        return self.next_s == self._first_s

    def take(self) -> float:
        """How long the next pause is, for one that makes it itself."""
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self._last_s)
        return pause_s

    async def wait(self, *, unless: asyncio.Event | None = None) -> None:
        """Make the next pause. It ends early when that event happens."""
        await pause(self.take(), unless=unless)

    def begin_again(self) -> None:
        """It has worked meanwhile."""
        self.next_s = self._first_s


async def pause(seconds: float, *, unless: asyncio.Event | None = None) -> None:
    """Wait so long, or until that event has happened."""
    if unless is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await unless.wait()


def until_next(interval_s: float) -> float:
    """How long it is until the next look, at most `interval_s`.

    All that look as often do so at the same moments. A process that has nothing to do is woken up once for all of them,
    which is what it costs: the looks themselves take less.
    """
    return interval_s - asyncio.get_running_loop().time() % interval_s
