"""The bound of event time: how far ahead of the clock a record may be.

A watermark follows the newest event time and never goes back, so one record from the far future would make every later
record late. Records beyond the bound do not move the watermark; the spec's `onFuture` says what happens to them.

Above it: the lanes of sources and their transformers, which act on the decisions made here. Below it: the clock.
"""

from __future__ import annotations

import logging

from millstream.clock import MICROSECONDS, Clock
from millstream.dead_letter import time_text
from millstream.frame import Frame
from millstream.limits import FUTURE_REPORTED_EVERY_S
from millstream.retry import OnFailure

DROPPED = "event time beyond maxFuture"
"""The reason under which dropped records are counted."""

_log = logging.getLogger(__name__)


class FutureBound:
    """The bound of one lane of a source."""

    def __init__(self, clock: Clock, max_future_s: float, on_future: OnFailure, *, where: str) -> None:
        """`on_future`: dead letter, drop or stop. `where` names the lane in messages."""
        self._clock = clock
        self._max_future_us = round(max_future_s * MICROSECONDS)
        self.on_future = on_future
        self._where = where
        self._reported_s: float | None = None
        self._count = 0

    @property
    def latest_us(self) -> int:
        """The latest event time that a record may have now."""
        return self._clock.now_us() + self._max_future_us

    def beyond(self, frame: Frame) -> list[int]:
        """Indexes of the records beyond the bound."""
        latest_us = self.latest_us
        if frame.event_time_max_us <= latest_us:
            return []
        return [index for index, time_us in enumerate(frame.event_times_us()) if time_us > latest_us]

    def reason(self, time_us: int) -> str:
        """Why a record with this event time is held back."""
        ahead_s = self._max_future_us / MICROSECONDS
        return (
            f"event time {time_text(time_us)} is more than {ahead_s:,.0f} s ahead of the clock, which is at "
            f"{time_text(self._clock.now_us())} (`watermark.maxFuture`)"
        )

    def passed(self, watermark_us: int) -> str:
        """The message for a lane whose watermark is beyond the bound."""
        return (
            f"the watermark is at {time_text(watermark_us)}, beyond `watermark.maxFuture`, so records with earlier "
            "event times are late. `millstream watermark` says what it costs to set it back"
        )

    def stopped(self, time_us: int, named: str) -> str:
        """The message that ends a lane on a record."""
        return (
            f"{self._where}: {self.reason(time_us)}: {named}\n"
            "Correct its time and start again (nothing was lost), raise watermark.maxFuture, or set "
            "watermark.onFuture to drop or deadLetter."
        )

    def held_back(self, count: int, time_us: int) -> None:
        """Count held-back records, and log them from time to time. `time_us`: the event time of one of them."""
        self._count += count
        now_s = self._clock.monotonic_s()
        if self._reported_s is not None and now_s < self._reported_s + FUTURE_REPORTED_EVERY_S:
            return
        what = "dropped" if self.on_future is OnFailure.DROP else "dead-lettered"
        _log.warning("%s: %d records were %s: %s", self._where, self._count, what, self.reason(time_us))
        self._reported_s, self._count = now_s, 0
