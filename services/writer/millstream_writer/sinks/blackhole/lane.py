"""The blackhole sink: takes every record and keeps none. For measuring and for records that are not wanted.

Above it: the delivery. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream.record import Position
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, UnkeptLane, WriteResult


class _BlackholeLane(UnkeptLane):
    @property
    def guarantee(self) -> Guarantee:
        # The account in the lane's mark is all there is of a record here, and the mark counts it once.
        return Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return WriteResult()


@asynccontextmanager
async def open_blackhole_sink() -> AsyncIterator[SinkLane]:
    yield _BlackholeLane()
