"""Reaching the server of a source: tried until it answers, said once, and never in the way of those who wait.

Above it: the lanes whose records are on a server. Below it: the pauses between two tries.
"""

from __future__ import annotations

import asyncio
import logging

from millstream.clock import Clock
from millstream.errors import RetryLaterError
from millstream.pauses import Pauses

_AGAIN_FIRST_S, _AGAIN_LAST_S = 0.1, 5.0


class Reaching:
    """Of one lane. While the server is away its reads come back empty, and in time."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._pauses = Pauses(_AGAIN_FIRST_S, _AGAIN_LAST_S)
        self._not_before_s = 0.0

    async def may_try(self, timeout_s: float) -> bool:
        """Whether a try is due. If not, it has waited for one, `timeout_s` seconds or less."""
        left_s = self._not_before_s - self._clock.monotonic_s()
        if left_s <= 0:
            return True
        await asyncio.sleep(min(timeout_s, left_s))
        return False

    def rest(self, seconds: float) -> None:
        """Nothing is to be tried for so long, though the server answers."""
        self._not_before_s = self._clock.monotonic_s() + seconds

    def failed(self, error: Exception) -> None:
        """Have it tried again after a pause. Raises the error where that does not help."""
        if not isinstance(error, RetryLaterError):
            raise error
        if self._pauses.none_yet:
            self._log.warning("%s; retrying", error)
        self._not_before_s = self._clock.monotonic_s() + self._pauses.take()

    def worked(self) -> None:
        """The server has answered: the next failure is news, and its first pause is short."""
        self._pauses.begin_again()
