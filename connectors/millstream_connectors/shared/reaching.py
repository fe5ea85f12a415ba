"""Connects to the server of a source: tries until it answers, logs a failure once, and does not block readers.

Above it: the lanes whose records are on a server, which are `RemoteLane`s. Below it: the pauses between attempts.
"""

from __future__ import annotations

import asyncio
import logging

from millstream.clock import Clock
from millstream.errors import RetryLaterError
from millstream.pauses import Pauses, RepeatedFailure
from millstream_connectors.shared.positioned_lane import PositionedLane
from millstream_reader.connector import SourceOwner

_AGAIN_FIRST_S, _AGAIN_LAST_S = 0.1, 5.0


class Reaching:
    """The state of one lane. While the server is away, its reads return empty batches in time."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._pauses, self._failure = Pauses(_AGAIN_FIRST_S, _AGAIN_LAST_S), RepeatedFailure()
        self._not_before_s = 0.0
        self.is_away = False
        """Whether the last attempt failed."""

    async def may_try(self, timeout_s: float) -> bool:
        """Whether an attempt is due. If not, has waited for it for up to `timeout_s` seconds."""
        left_s = self._not_before_s - self._clock.monotonic_s()
        if left_s <= 0:
            return True
        await asyncio.sleep(min(timeout_s, left_s))
        return False

    def rest(self, seconds: float) -> None:
        """Make no attempt for this time, although the server answers."""
        self._not_before_s = self._clock.monotonic_s() + seconds

    def failed(self, error: Exception) -> None:
        """Schedule another attempt after a pause. Raises the error if that cannot help."""
        if not isinstance(error, RetryLaterError):
            raise error
        self.is_away = True
        now_s = self._clock.monotonic_s()
        self._failure.warn(self._log, "", f"{error}; retrying", now_s=now_s)
        self._not_before_s = now_s + self._pauses.take()

    def worked(self) -> None:
        """The server has answered: the next failure is logged again, and its first pause is short."""
        self.is_away = False
        self._pauses.begin_again()
        self._failure.over(self._log, "the server answers: ")


class RemoteLane(PositionedLane):
    """A lane whose records are on a server. It is held up while the server is away."""

    def __init__(self, owner: SourceOwner, log: logging.Logger) -> None:
        super().__init__(owner)
        self._reaching = Reaching(owner.clock, log)

    def is_held_up(self) -> bool:
        return self._reaching.is_away
