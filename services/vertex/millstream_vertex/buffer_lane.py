"""What map and sink lanes share: the input watermark, what they have consumed, and the end of a lane that reads a
buffer."""

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
    """The input side of a lane: what follows from its commits, and the watermark while there is nothing to commit."""

    def __init__(self, core: LaneCore, reader: BufferReader, lane_input: LaneInput, trimmer: Trimmer) -> None:
        self.core = core
        self.reader = reader
        self.input = lane_input
        self._trimmer = trimmer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        """A group for the lane's work; on leaving, it is committed, and the lane ends if its input has."""
        # An owner before this one may have been killed between its commit and its trim.
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
        # Told to stop, a lane leaves what it has not begun; it has ended only when all that was read is committed.
        if self.reader.ended and self.core.committer.mark.sequence >= self.reader.sequence:
            await self.core.end()

    def _watermark_after(self, units: Sequence[Unit]) -> int:
        if self.input.back_edge:
            return END_OF_TIME_US
        # Of what is read and not committed nothing is promised, so what counts is the input's watermark at the last
        # frame that is committed completely.
        last = units[-1].position if units else None
        return self.input.watermark_at(last.sequence if last is not None else self.core.committer.mark.sequence)

    async def _committed(self, units: Sequence[Unit]) -> None:
        self._consumed(sum(unit.account.input_bytes for unit in units))
        self.input.forget(self.core.committer.mark.sequence)
        # What was heard while the commit was in progress was looked at for the mark before, and may be all there is.
        self.input.changed.set()

    def _consumed(self, size: int) -> None:
        # The newest frame that was read stays: the next to read here checks whether it is still that one.
        self._trimmer.consumed(self.reader.buffer, newest(self.core.committer.mark.read) - 1, size)

    async def _follow_watermark(self) -> None:
        """Move the lane's watermark on with its input's, also while nothing is committed."""
        self.core.publish(self._watermark_after([]))
        while True:
            await self.input.changed.wait()
            self.input.changed.clear()
            watermark_us = self._watermark_after([])
            if watermark_us > self.core.watermark_us:
                self.core.publish(watermark_us, idle=self.core.is_quiet)
