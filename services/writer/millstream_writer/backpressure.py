"""Back-pressure: is there space in a buffer?

`BufferFill` tracks the contents of a buffer; this adds the bounds. They are soft: each writer may exceed them by one
unit of its input, and by writes of others that it does not know of yet. The server enforces the hard bound.
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
    """Number of records at which the writer stops: `bufferUsageLimit` of the length."""
    bytes_usable: int
    """Bytes at which the writer stops: `bufferUsageLimit` of the bytes."""
    writers: int = 1
    """Number of lanes that write to the buffer."""


class Backpressure:
    """The buffers that this process writes to, and their bounds."""

    def __init__(self, limits: Mapping[BufferId, BufferLimits]) -> None:
        self._limits = dict(limits)
        self.fills: Mapping[BufferId, BufferFill] = {buffer: BufferFill(buffer) for buffer in limits}
        self._waiting: dict[BufferId, int] = dict.fromkeys(limits, 0)
        self._draining = False

    def written(self, lane: LaneId, totals: Iterable[mark_pb2.Written]) -> None:
        """The total that one of this process's lanes has written, from its mark."""
        for entry in totals:
            fill = self.fills.get(BufferId(entry.edge, entry.partition))
            if fill is not None:
                fill.wrote(lane.key, entry.records, entry.bytes)

    def is_full(self, buffer: BufferId, records: int = 0, size: int = 0) -> bool:
        """Whether the soft bound is reached, or would be with that much more. A buffer without an edge has none."""
        if buffer not in self._limits:
            return False
        fill, limits = self.fills[buffer], self._limits[buffer]
        return fill.records + records >= limits.records_usable or fill.bytes + size >= limits.bytes_usable

    def has_room(self, buffer: BufferId, records: int, size: int) -> bool:
        """Whether a writer may add that much to one commit: it leaves the others their share of the free space."""
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
                # No other task runs between the check and this line. Several lanes may wait: one `set` wakes them all.
                news.clear()
                await news.wait()
        finally:
            self._waiting[buffer] -= 1

    def drain(self) -> None:
        """The vertex reads no new input from now on. The remaining commits are small and may exceed the soft bounds,
        because the readers of these buffers may have stopped already."""
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
