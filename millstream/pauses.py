"""Pauses between attempts at something, and between checks of something that sends no events.

They are for things that are tried until they work (a server is away, a disk is full). `retry` has the retries of a
user's records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import TypeVar

_T = TypeVar("_T")
_FailureT = TypeVar("_FailureT", bound=Exception)


class Pauses:
    """The pauses between the attempts at one thing."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self.next_s = first_s
        """How long the next pause is."""

    @property
    def none_yet(self) -> bool:
        """Whether this is the first failure, which deserves a line in the log."""
        return self.next_s == self._first_s

    def take(self) -> float:
        """Returns the length of the next pause, for a caller that waits itself."""
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self._last_s)
        return pause_s

    async def wait(self, *, unless: asyncio.Event | None = None) -> None:
        """Waits for the next pause. It ends early when the event happens."""
        await pause(self.take(), unless=unless)

    def begin_again(self) -> None:
        """Starts again with the shortest pause, because an attempt has succeeded."""
        self.next_s = self._first_s


REPEATED_AFTER_S = 30.0
"""A failure that is repeated for this long is reported again."""


WAIT = "wait"
"""Field of the log lines about a failure that has been repeated for a while: its number in this process."""
WAITS_FOR = "waits_for"
"""Field of the same: its reason; empty in the line that says that it is over."""
_numbers = count(1)


class RepeatedFailure:
    """A failure that is repeated, and when it deserves a line in the log: at first, when its reason is another one, and
    after half a minute, a minute, two minutes and so on. The runner shows those that last, by the fields of the
    lines."""

    def __init__(self) -> None:
        self._why = ""
        self._since_s: float | None = None
        self._again_s = 0.0
        self._number = 0
        """0 until it has lasted for a while."""

    @property
    def lasts(self) -> bool:
        """Whether it has been repeated for a while."""
        return self._number > 0

    def line(self, why: str, now_s: float | None = None) -> str:
        """Notes one more failure at this time of a monotonic clock, by default the event loop's. Returns the text to
        log, which says how long this has been going on; empty if that was said a short while ago."""
        now_s = asyncio.get_running_loop().time() if now_s is None else now_s
        if self._since_s is None:
            self._since_s, self._again_s = now_s, now_s + REPEATED_AFTER_S
            self._why = why
            return why
        waited_s = now_s - self._since_s
        if now_s >= self._again_s:
            self._again_s = now_s + max(waited_s, REPEATED_AFTER_S)
            self._number = self._number or next(_numbers)
        elif why == self._why:
            return ""
        self._why = why
        return f"{why} (for {_duration(waited_s)} so far)" if waited_s >= 1.0 else why

    def warn(self, log: logging.Logger, where: str, why: str, *, now_s: float | None = None) -> None:
        """Notes one more failure, and logs it if that is due. `where` precedes the reason."""
        if line := self.line(why, now_s):
            log.warning("%s", f"{where}{line}", extra={WAIT: self._number, WAITS_FOR: why} if self._number else None)

    def over(self, log: logging.Logger, where: str) -> None:
        """An attempt has succeeded."""
        if self._number:
            log.info("%s", f"{where}continues", extra={WAIT: self._number, WAITS_FOR: ""})
        self._since_s, self._number = None, 0


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


async def until_done(
    attempt: Callable[[], Awaitable[_T]],
    failure: type[_FailureT],
    report: Callable[[_FailureT], None],
    pauses: Pauses,
) -> _T:
    """The result of the first attempt that does not raise `failure`. `report` gets the error of each of the others; an
    error that it raises ends the attempts."""
    while True:
        try:
            return await attempt()
        except failure as error:
            report(error)
        await pauses.wait()


async def pause(seconds: float, *, unless: asyncio.Event | None = None) -> None:
    """Waits for that time, or until the event has happened."""
    if unless is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await unless.wait()


def until_next(interval_s: float, loop: asyncio.AbstractEventLoop | None = None) -> float:
    """How long it is until the next check, at most `interval_s`. `loop`: None for the running one.

    All checks with the same interval happen at the same moments. So an idle process wakes up once for all of them. The
    wake-up is what costs time: the checks themselves take less.
    """
    return interval_s - (loop or asyncio.get_running_loop()).time() % interval_s
