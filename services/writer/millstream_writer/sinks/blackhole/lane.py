"""The blackhole sink: takes every record and keeps none. For measuring and for records that are not wanted.

Above it: the delivery. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream.record import Position
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, WriteResult


class _BlackholeLane:
    @property
    def guarantee(self) -> Guarantee:
        # The account in the lane's mark is all there is of a record here, and the mark counts it once.
        return Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return None

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return WriteResult()

    async def flush(self) -> None:
        return None

    async def tick(self) -> None:
        return None


@asynccontextmanager
async def open_blackhole_sink() -> AsyncIterator[SinkLane]:
    yield _BlackholeLane()
