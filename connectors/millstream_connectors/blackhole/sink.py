"""The blackhole sink: accepts every record and keeps none. For measurements and for unwanted records.

Above it: the delivery. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream.record import Position
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, UnkeptLane, WriteResult


class _BlackholeLane(UnkeptLane):
    # Only the account in the lane's mark records the delivery, and the mark counts each record once.
    guarantee = Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return WriteResult()


@asynccontextmanager
async def open_blackhole_sink() -> AsyncIterator[SinkLane]:
    yield _BlackholeLane()
