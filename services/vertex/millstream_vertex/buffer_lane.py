"""What map and sink lanes share: the input watermark, consumed input, and the end of a lane that reads a buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream.clock import END_OF_TIME_US
from millstream.ledger.witness import newest
from millstream_reader.buffer import BufferReader
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import LaneCore
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit


class BufferLane:
    """The input side of a lane: trims its input after commits, and advances the watermark without commits."""

    def __init__(self, core: LaneCore, reader: BufferReader, lane_input: LaneInput, trimmer: Trimmer) -> None:
        self.core = core
        self.reader = reader
        self.input = lane_input
        self._trimmer = trimmer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        """A task group for the lane's work. On exit, the work is committed, and the lane ends if its input has."""
        # A former owner may have been killed between its commit and its trim.
        self._consumed(0)
        async with asyncio.TaskGroup() as background:
            watermark = background.create_task(self._follow_watermark(), name=f"watermark {self.core.lane}")
            async with asyncio.TaskGroup() as work:
                work.create_task(
                    self.core.commit_all(self._watermark_after, self._committed), name=f"commit {self.core.lane}"
                )
                yield work
                self.core.units.close()
            watermark.cancel()
        # A lane that was stopped leaves unstarted work; it has ended only if everything that was read is committed.
        if self.reader.ended and self.core.committer.mark.sequence >= self.reader.sequence:
            await self.core.end()

    def _watermark_after(self, units: Sequence[Unit]) -> int:
        if self.input.back_edge:
            return END_OF_TIME_US
        # The watermark promises nothing about input that is read but not committed, so use the input's watermark at
        # the last frame that is committed completely.
        last = units[-1].position if units else None
        return self.input.watermark_at(last.sequence if last is not None else self.core.committer.mark.sequence)

    async def _committed(self, units: Sequence[Unit]) -> None:
        self._consumed(sum(unit.account.input_bytes for unit in units))
        self.input.forget(self.core.committer.mark.sequence)
        # Updates that arrived during the commit were evaluated with the previous mark, and no more may follow.
        if self._watermark_after([]) > self.core.watermark_us:
            self.input.changed.set()

    def _consumed(self, size: int) -> None:
        # Keep the newest frame that was read: the next reader checks that it is still the same frame.
        self._trimmer.consumed(self.reader.buffer, newest(self.core.committer.mark.read) - 1, size)

    async def _follow_watermark(self) -> None:
        """Advance the lane's watermark with its input's, even while nothing is committed, and do not let its mark stay
        behind."""
        self.core.publish(self._watermark_after([]))
        while True:
            await self.input.changed.wait()
            self.input.changed.clear()
            watermark_us = self._watermark_after([])
            if watermark_us > self.core.watermark_us:
                self.core.publish(watermark_us, idle=self.core.is_quiet)
            self.core.renew_mark()
