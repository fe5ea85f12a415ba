"""A lane of a map vertex: reads its buffer, has the UDF called, routes and commits.

buffer ─► slices ─► UDF (several calls at once) ─► InOrder ─► commit: frames + mark
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.limits import FRAME_RECORDS_MAX, SLICE_TARGET_S
from millstream.naming import Origin
from millstream.record import Position
from millstream.statistics import LaneStatistics
from millstream_reader.buffer import ReadFrame, late_records
from millstream_reader.tracker import Tracked
from millstream_vertex.buffer_lane import BufferLane
from millstream_vertex.mapping import Mapper
from millstream_vertex.slicing import Slicer
from millstream_writer.committer import Unit
from millstream_writer.routing import Router


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
        self, base: BufferLane, mapper: Mapper, router: Router, *, slice_records_max: int | None, run: str = ""
    ) -> None:
        """`run`: id of the ledger that the lane reads, for dead letters."""
        self.core = base.core
        self._base = base
        self._mapper = mapper
        self._router = router
        # What a call gives is committed together, and a small buffer takes it in several pieces.
        piece = router.piece.records
        if piece < FRAME_RECORDS_MAX:
            slice_records_max = min(piece, slice_records_max or piece)
        self._run = run
        lane = base.core.lane
        self._id_prefix = f"{lane.vertex}/{lane.input}/{lane.partition}/"
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
        core, read = self.core, piece.read
        frame = read.frame.slice(piece.start, piece.stop)
        ahead = core.tracker.records
        started = core.clock.monotonic_s()
        with core.telemetry.span(
            "millstream.map",
            parent=frame.traceparent,
            lane=core.lane.key,
            records=frame.records,
            sequence=read.sequence,
        ) as span:
            origin = Origin(f"{self._id_prefix}{read.sequence}/", read.first_index + piece.start, run=self._run)
            mapped = await self._mapper.map(
                frame, watermark_us=read.watermark_us, traceparent=span.traceparent, origin=origin
            )
        seconds = core.clock.monotonic_s() - started
        core.telemetry.observe_processing("udf", seconds)
        self._slicer.answered(max(ahead, piece.records), seconds)
        self._first_answer.set()
        core.counters.retries += mapped.retries
        core.counters.udf_errors += mapped.errors
        unit = Unit(position=piece.end, witnesses=read.witnesses, account=mapped.account)
        unit.account.late = late_records(frame, read.watermark_us)
        if mapped.frame is not None:
            output = mapped.frame.traced(span.traceparent) if span.traceparent else mapped.frame
            routed = self._router.route(output, mapped.tags)
            unit.frames, unit.account.unrouted = routed.frames, routed.unrouted
        if mapped.dead_letters is not None:
            unit.frames = unit.frames + self._router.route_dead_letter(mapped.dead_letters).frames
        unit.size = sum(frame.size for _, frame in unit.frames)
        self._slicer.gave(piece.records, unit.size)
        if piece.completes:
            unit.account.input_bytes = read.size
        return unit
