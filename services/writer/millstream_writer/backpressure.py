"""Back-pressure: is there room in a buffer?

What is in a buffer is kept by `BufferFill`; this adds the bounds. They are soft: each writer may pass them by one unit
of its input, and by what it has not heard of the others yet. The hard bound is the server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.record import BufferId, LaneId
from millstream.statistics import BufferStatistics
from millstream.watermark.fetch import BufferFill
from millstream.wire.ledger.v1 import mark_pb2


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Bounds of one buffer."""

    records_max: int
    """`bufferMaxLength`."""
    bytes_max: int
    """`bufferMaxBytes`."""
    records_usable: int
    """The writer stops here: `bufferUsageLimit` of the length."""
    bytes_usable: int
    """The writer stops here: `bufferUsageLimit` of the bytes."""
    writers: int = 1
    """Lanes that write to the buffer."""


class Backpressure:
    """The buffers this process writes, and their bounds."""

    def __init__(self, limits: Mapping[BufferId, BufferLimits]) -> None:
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

    def is_full(self, buffer: BufferId, records: int = 0, size: int = 0) -> bool:
        """The soft bound is reached, or would be with so much more. A buffer that is not an edge's has none."""
        if buffer not in self._limits:
            return False
        fill, limits = self.fills[buffer], self._limits[buffer]
        return fill.records + records >= limits.records_usable or fill.bytes + size >= limits.bytes_usable

    def has_room(self, buffer: BufferId, records: int, size: int) -> bool:
        """Whether a writer may add so much to what it commits at once: it leaves the others their share of what is
        free."""
        if buffer not in self._limits or self._draining:
            return True
        fill, limits = self.fills[buffer], self._limits[buffer]
        return (
            records * limits.writers <= limits.records_usable - fill.records
            and size * limits.writers <= limits.bytes_usable - fill.bytes
        )

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
        """Nothing new is taken in from now on. What is committed until the end is little and may pass the soft bounds:
        the readers of these buffers may have stopped already."""
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
