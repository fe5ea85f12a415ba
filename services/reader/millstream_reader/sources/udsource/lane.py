"""A source of the user's own, behind the source protocol of a sidecar.

Above it: a source lane. Below it: the stream to the function (`millstream.udf.protocol`), which has checked that what
the function gave fits together. It knows nothing of processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.clock import Clock
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.limits import SIDECAR_BACKOFF_FIRST_S
from millstream.record import LaneId
from millstream.udf.protocol import SourceStream, StreamName, UdfClient
from millstream_reader.source import SourceBatch
from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2

_log = logging.getLogger(__name__)

_FAILED_READS_MAX = 5
"""Reads in a row that may fail before the lane stops: 0.1 + 0.2 + 0.4 + 0.8 s of pauses between them."""


@asynccontextmanager
async def open_user_defined(
    client: UdfClient,
    name: StreamName,
    lane: LaneId,
    partitions: int,
    position: bytes,
    *,
    clock: Clock,
) -> AsyncIterator[UserDefinedLane]:
    """A lane of the function behind `client`, going on at `position`."""
    async with client.open_source(name, position=position, partition=lane.partition, partitions=partitions) as stream:
        yield UserDefinedLane(stream, lane, position, clock)


class UserDefinedLane:
    """One lane of a user-defined source. See `SourceLane`."""

    def __init__(self, stream: SourceStream, lane: LaneId, position: bytes, clock: Clock) -> None:
        self._stream = stream
        self._lane = lane
        self._position = position
        self._clock = clock
        self._gives_ids = False
        self._pending: int | None = None
        self._failed_reads = 0
        self._ended = False
        self._draining = False

    @property
    def replayable(self) -> bool:
        """A function that gives ids says with them that it may repeat itself; any other goes by its positions."""
        return not self._gives_ids

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        """One read of the function. A read it reports as failed is tried again later, a few times."""
        if self._draining or self._ended:
            return SourceBatch(None, self._position, self._ended)
        batch = await self._stream.read(records_max, bytes_max, timeout_s)
        if batch.error:
            await self._bear_failed_read(batch.error)
            return SourceBatch(None, self._position)
        self._failed_reads = 0
        self._pending = batch.pending if batch.HasField("pending") else None
        frame = frame_of_batch(batch.frame, self._clock.now_us()) if batch.HasField("frame") else None
        self._gives_ids = self._gives_ids or bool(frame is not None and frame.ids_column)
        self._position = batch.position
        self._ended = batch.ended
        return SourceBatch(frame, self._position, self._ended)

    async def committed(self, position: bytes) -> None:
        await self._stream.committed(position)

    def pending(self) -> int | None:
        return self._pending

    async def drain(self) -> None:
        self._draining = True

    async def _bear_failed_read(self, reason: str) -> None:
        self._failed_reads += 1
        if self._failed_reads >= _FAILED_READS_MAX:
            raise UdfError(
                f"lane {self._lane}: the source function failed {self._failed_reads} reads in a row: {reason}. "
                "Correct the function, or what it reads from; nothing was lost"
            )
        pause_s = SIDECAR_BACKOFF_FIRST_S * 2 ** (self._failed_reads - 1)
        _log.warning(
            "lane %s: the source function failed a read, next try in %.1f s: %s",
            self._lane,
            pause_s,
            reason,
        )
        await asyncio.sleep(pause_s)


def frame_of_batch(frame: frame_pb2.Frame, now_us: int) -> Frame | None:
    """The function's columns, with the frame's own figures filled in; None without records."""
    sealed = frame_pb2.SealedFrame.FromString(frame.SerializeToString())
    times = columns.unpack_times(sealed.event_times_us)
    if not times:
        return None
    return Frame(
        records=len(times),
        event_time_min_us=min(times),
        event_time_max_us=max(times),
        ingest_time_us=sealed.info.ingest_time_us or now_us,
        values_column=sealed.values,
        event_times_column=sealed.event_times_us,
        keys_column=sealed.keys,
        headers_column=sealed.headers,
        ids_column=sealed.ids,
        traceparent=sealed.info.traceparent,
    )
