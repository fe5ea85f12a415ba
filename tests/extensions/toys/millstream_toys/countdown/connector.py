"""The `countdown` source, as pipeline files name it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream.spec.values import PositiveCount, SpecModel
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class CountdownSource(SpecModel):
    """Counts down to 1, one number a record."""

    noun = "a countdown"

    start: PositiveCount
    """The first number."""
    per_second: PositiveCount = 1000
    """Numbers a second."""


class Countdown(SourceConnector[CountdownSource]):
    model = CountdownSource
    meaning = "Numbers, counted down."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it counts on from the number of its last commit")
    ends = "at 1"
    has_headers = False

    def bounded(self, settings: CountdownSource) -> bool | None:
        return True

    def open(self, settings: CountdownSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_toys.countdown.lane import open_countdown

        return open_countdown(settings, owner)


COUNTDOWN = Countdown()
