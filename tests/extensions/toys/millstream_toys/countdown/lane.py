"""A lane of the `countdown` source. Its position is the last number that it gave."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream import codes
from millstream.clock import Clock
from millstream.errors import DamageError
from millstream.frame import build_frame
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane
from millstream_toys.countdown.connector import CountdownSource


class _CountdownLane:
    def __init__(self, last: int, per_second: int, clock: Clock) -> None:
        self._last = last
        self._per_second = per_second
        self._clock = clock

    @property
    def replayable(self) -> bool:
        return True

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        numbers = range(self._last - 1, max(0, self._last - 1 - min(records_max, self._per_second // 10 or 1)), -1)
        await asyncio.sleep(min(timeout_s, len(numbers) / self._per_second))
        now_us = self._clock.now_us()
        values = [str(number).encode() for number in numbers]
        frame = build_frame(values, array("q", [now_us] * len(values)), ingest_time_us=now_us) if values else None
        self._last -= len(values)
        return SourceBatch(frame, str(self._last).encode(), ended=self._last == 1)

    async def committed(self, position: bytes) -> None:
        """There is nothing to acknowledge."""

    def pending(self) -> int | None:
        return self._last - 1

    async def drain(self) -> None:
        """What is made here can wait."""


@asynccontextmanager
async def open_countdown(settings: CountdownSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """Goes on below the number in `owner.position`."""
    last = settings.start + 1
    if owner.position:
        try:
            last = int(owner.position)
        except ValueError as error:
            what = f"lane {owner.lane}: {owner.position[:80]!r} is not a number of a countdown"
            raise DamageError(codes.POSITION_UNREADABLE, what) from error
    yield _CountdownLane(last, settings.per_second, owner.clock)
