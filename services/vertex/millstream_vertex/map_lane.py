"""A lane of a map vertex, or of a chain of them: reads its buffer, has the UDF called, and commits.

buffer ─► slices ─► step: UDF, routing; or UDF, UDF, ..., routing (several slices at once) ─► InOrder ─► commit: frames
+ mark
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
        """Nothing of the stored frame is left after it."""
        return self.stop == self.read.frame.records

    @property
    def end(self) -> Position:
        """Where the lane stands after it."""
        if self.completes:
            return Position(self.read.sequence, 0)
        return Position.within(self.read.sequence, self.read.first_index + self.stop)

    def halves(self) -> tuple[Slice, Slice]:
        """Of a slice of more than one record."""
        middle = (self.start + self.stop) // 2
        return Slice(self.read, self.start, middle), Slice(self.read, middle, self.stop)


class MapLane:
    """One lane; `run` returns when its input has ended or `stop` was called."""

    def __init__(
        self, base: BufferLane, step: MapStep, piece: FrameLimits, *, slice_records_max: int | None, run: str = ""
    ) -> None:
        """`step`: the map, and the chain behind it. `piece`: the most that its buffers should get at once. `run`: id of
        the ledger that the lane reads, for dead letters."""
        self.core = base.core
        self._base = base
        self._step = step
        # What a call gives is committed together, and a small buffer takes it in several pieces.
        if piece.records < FRAME_RECORDS_MAX:
            slice_records_max = min(piece.records, slice_records_max or piece.records)
        self._run = run
        self._slicer = Slicer(target_s=SLICE_TARGET_S, records_max=slice_records_max)
        self._first_answer = asyncio.Event()
        self._stopping = False

    def stop(self) -> None:
        """Begin nothing more; what was begun is still finished."""
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
        # A frame may take a slow function long: what is not begun when the lane is asked to stop is left for later.
        while start < records and not self._stopping:
            piece = Slice(read, start, min(records, start + self._slicer.records()))
            size = read.size * piece.records // records
            await self.core.tracker.begin(
                Tracked(piece.records, size), records_max=self._slicer.records_in_flight_max()
            )
            self.core.units.add(work.create_task(self._map(piece)))
            if not self._slicer.learned:
                # One call tells how fast the function is; only then the rest is cut.
                await self._first_answer.wait()
            start = piece.stop

    async def _map(self, piece: Slice) -> Sequence[Unit]:
        """The units of a slice: one, unless what its records became is too much for one commit."""
        unit = await self._call(piece)
        if unit.fits_a_commit or piece.records == 1:
            return [unit]
        # Nothing of it has had an effect, so both halves may be handed over again, as parts of the lane's input.
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
