"""Back-pressure: is there room in a buffer?

What is in a buffer is kept by `BufferFill`; this adds the bounds. They are soft: several writers may overshoot them by
what they have in flight. The hard bound is the server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.record import BufferId, LaneId
from millstream.statistics import BufferStatistics
from millstream.watermark.fetch import BufferFill
from millstream.wire.ledger.v1 import mark_pb2


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Bounds of one buffer."""

    records_max: int
    """`bufferMaxLength`."""
    bytes_max: int
    """`bufferMaxBytes`."""
    records_usable: int
    """The writer stops here: `bufferUsageLimit` of the length."""
    bytes_usable: int
    """The writer stops here: `bufferUsageLimit` of the bytes."""


class Room:
    """The buffers this process writes, and their bounds."""

    def __init__(self, limits: Mapping[BufferId, RoomLimits]) -> None:
        self._limits = dict(limits)
        self.fills: Mapping[BufferId, BufferFill] = {buffer: BufferFill(buffer) for buffer in limits}
        self._waiting: dict[BufferId, int] = dict.fromkeys(limits, 0)
        self._draining = False

    def written(self, lane: LaneId, totals: Iterable[mark_pb2.Written]) -> None:
        """What an own lane has written in all, from its mark."""
        for entry in totals:
            fill = self.fills.get(BufferId(entry.edge, entry.partition))
            if fill is not None:
                fill.wrote(lane.key, entry.records, entry.bytes)

    def is_full(self, buffer: BufferId) -> bool:
        """The soft bound is reached. A buffer that is no edge's has none."""
        if buffer not in self._limits:
            return False
        fill, limits = self.fills[buffer], self._limits[buffer]
        return fill.records >= limits.records_usable or fill.bytes >= limits.bytes_usable

    async def wait(self, buffer: BufferId) -> None:
        """Return once the buffer is below its soft bound, or the vertex drains."""
        news = self.fills[buffer].news
        self._waiting[buffer] += 1
        try:
            while self.is_full(buffer) and not self._draining:
                # Nothing can set it between the question and here. Several lanes may wait: one `set` wakes them all.
                news.clear()
                await news.wait()
        finally:
            self._waiting[buffer] -= 1

    def drain(self) -> None:
        """Nothing new is taken in from now on. What is in flight is little and may pass the soft bounds: whoever reads
        these buffers may have stopped already."""
        self._draining = True
        for fill in self.fills.values():
            fill.news.set()

    def statistics(self) -> Sequence[BufferStatistics]:
        return [
            BufferStatistics(
                buffer=buffer,
                records=fill.records,
                bytes=fill.bytes,
                records_max=self._limits[buffer].records_max,
                bytes_max=self._limits[buffer].bytes_max,
                full=self._waiting[buffer] > 0 or self.is_full(buffer),
                written_records=fill.written.records,
                written_bytes=fill.written.bytes,
            )
            for buffer, fill in self.fills.items()
        ]
