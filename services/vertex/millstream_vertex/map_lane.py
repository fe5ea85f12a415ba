"""A lane of a map vertex, or of a chain of them: reads its buffer, calls the UDF, and commits.

buffer ─► slices ─► step: UDF or UDFs, routing (several slices at once) ─► InOrder ─► commit: frames + mark
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.limits import FRAME_RECORDS_MAX, SLICE_TARGET_S
from millstream.record import Position
from millstream.statistics import LaneStatistics
from millstream_reader.buffer import ReadFrame
from millstream_reader.tracker import Tracked
from millstream_vertex.buffer_lane import BufferLane
from millstream_vertex.in_flight import bound_by
from millstream_vertex.map_step import Lineage, MapStep
from millstream_vertex.slicing import Slicer
from millstream_writer.committer import Unit, size_of
from millstream_writer.routing import FrameLimits


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive records of one read frame."""

    read: ReadFrame
    start: int
    """Index in `read.frame`."""
    stop: int

    @property
    def records(self) -> int:
        return self.stop - self.start

    @property
    def completes(self) -> bool:
        """Whether the slice reaches the end of the stored frame."""
        return self.stop == self.read.frame.records

    @property
    def end(self) -> Position:
        """The lane's position after the slice."""
        if self.completes and self.read.last:
            return Position(self.read.sequence, 0)
        return Position.within(self.read.sequence, self.read.first_index + self.stop)

    def halves(self) -> tuple[Slice, Slice]:
        """The halves of a slice that has more than one record."""
        middle = (self.start + self.stop) // 2
        return Slice(self.read, self.start, middle), Slice(self.read, middle, self.stop)


class MapLane:
    """A lane of a map vertex. `run` returns when its input has ended or `stop` was called."""

    def __init__(
        self, base: BufferLane, step: MapStep, piece: FrameLimits, *, slice_records_max: int | None, run: str = ""
    ) -> None:
        """`step`: the map, with the chain that follows it. `piece`: the most that its buffers should get at once.
        `run`: id of the ledger that the lane reads, for dead letters."""
        self.core = base.core
        self._base = base
        self._step = step
        # The output of a call is committed together. If a buffer is small, calls are small, so that several fit.
        if piece.records < FRAME_RECORDS_MAX:
            slice_records_max = min(piece.records, slice_records_max or piece.records)
        self._run = run
        bound_by(base.core.tracker, step.concurrencies, base.core.deliverer)
        self._slicer = Slicer(target_s=SLICE_TARGET_S, records_max=slice_records_max)
        self._first_answer = asyncio.Event()
        self._stopping = False

    def stop(self) -> None:
        """Start no more calls; those in progress are still finished."""
        self._stopping = True
        self._base.reader.stop()

    def statistics(self) -> LaneStatistics:
        return self.core.statistics(pending=None)

    async def run(self) -> None:
        if self.core.committer.mark.ended:
            await self.core.end()
            return
        async with self._base.running() as work:
            while (read := await self._base.reader.next()) is not None:
                await self._begin(read, work)

    async def _begin(self, read: ReadFrame, work: asyncio.TaskGroup) -> None:
        start, records = 0, read.frame.records
        # A slow function may take long for a frame. Slices not started when the lane is stopped are left for later.
        while start < records and not self._stopping:
            piece = Slice(read, start, min(records, start + self._slicer.records()))
            size = read.frame.size * piece.records // records
            tracked = Tracked(piece.records, size)
            await self.core.tracker.begin(tracked, records_max=self._slicer.records_in_flight_max())
            self.core.units.add(work.create_task(self._map_tracked(piece, tracked)))
            if not self._slicer.learned:
                # The first call shows how fast the function is; the rest is cut only after that.
                await self._first_answer.wait()
            start = piece.stop

    async def _map_tracked(self, piece: Slice, tracked: Tracked) -> Sequence[Unit]:
        """The units of a slice, which is answered then."""
        units = await self._map(piece)
        await self.core.tracker.answered(tracked)
        return units

    async def _map(self, piece: Slice) -> Sequence[Unit]:
        """The units of a slice: one, unless its output is too large for one commit."""
        unit = await self._call(piece)
        if unit.fits_a_commit or piece.records == 1:
            return [unit]
        # The call has had no effect, so both halves may be passed to the function again, as parts of the input.
        units = [unit for half in piece.halves() for unit in await self._map(half)]
        for unit in units[:-1]:
            unit.pieces = 0
        return units

    async def _call(self, piece: Slice) -> Unit:
        read = piece.read
        frame = read.frame.slice(piece.start, piece.stop)
        ahead = self.core.tracker.records
        lineage = Lineage(f"{read.sequence}/", read.first_index + piece.start, run=self._run)
        done = await self._step.take(frame, lineage, watermark_us=read.watermark_us, sequence=read.sequence)
        self._slicer.answered(max(ahead, piece.records), done.seconds)
        self._first_answer.set()
        unit = Unit(
            position=piece.end,
            witnesses=read.witnesses,
            frames=done.frames,
            account=done.account,
            passed=done.passed,
            delivered=done.delivered,
        )
        unit.size = sum(frame.size for _, frame in unit.frames) + size_of(unit.delivered)
        self._slicer.gave(piece.records, unit.size)
        if piece.completes:
            unit.account.input_bytes = read.size
        return unit
