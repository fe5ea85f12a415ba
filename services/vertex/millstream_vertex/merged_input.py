"""The input of a lane that reads every edge into its vertex: slices of their frames, one edge at a time.

    buffer of one edge ─► frame ───┐
    buffer of another ─► frame ────┴─► the one that begins earlier ─► slices ─► (the lane) ─► committed ─► trims

The frames of an edge stay in order. Between edges, only frames that are there are compared: a quiet edge holds nothing
up. What is there of a table comes before the records of other edges, which also wait until as much of it was read as
its settings say: all of it, to an end that durable facts tell, or a number of records. A table holds no watermark back,
and none of its records is late, because none is put out. A position, the frames that were read last and what may be
trimmed belong to one buffer each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.frame import Frame, join_frames
from millstream.ledger.witness import newest
from millstream.limits import FRAME_BYTES_MAX, FRAME_RECORDS_MAX
from millstream.plurals import counted
from millstream.record import Position
from millstream.spec.tables import TableInput
from millstream.statistics import LaneStatistics
from millstream.wire.ledger.v1 import mark_pb2
from millstream_reader.buffer import BufferReader, ReadFrame
from millstream_vertex.buffer_input import Slice
from millstream_vertex.continued import outside
from millstream_vertex.core import LaneCore
from millstream_vertex.input import LaneInput
from millstream_vertex.lineage import Lineage
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit

_log = logging.getLogger(__name__)

PASSED_OVER_MAX = 16
"""How often a frame that is there may be passed over for frames of other edges that begin earlier, or of tables."""
WAIT_NAMED_S = 10.0
"""After so long, the log names the table that records wait for."""


@dataclass(slots=True)
class MergedBuffer:
    """One buffer of the lane."""

    reader: BufferReader
    lane_input: LaneInput
    trimmer: Trimmer
    run: str = ""
    """Id of the ledger that has the buffer, for dead letters."""
    table: TableInput | None = None
    """The table that it is read as."""
    table_records: int = 0
    """How many of its records were read."""
    passed_over: int = 0
    """How often its next frame was passed over."""

    @property
    def edge(self) -> str:
        return self.reader.buffer.edge

    @property
    def holds_watermark(self) -> bool:
        return self.table is None and not self.lane_input.back_edge

    @property
    def is_awaited(self) -> bool:
        """Whether the records of edges without a table wait for more of it."""
        # A stream that is quiet for now has not ended.
        if self.table is None or self.reader.has_ended():
            return False
        return self.table.wait == "end" or self.table_records < self.table.wait


class MergedInput:
    """Several open buffers, as the input of one lane."""

    prompt = False
    moves_by_itself = True

    def __init__(
        self, core: LaneCore, buffers: Sequence[MergedBuffer], wake: asyncio.Event, changed: asyncio.Event
    ) -> None:
        """`wake`, `changed`: the events that all readers, and all inputs, have in common."""
        self._core = core
        self._buffers = {one.edge: one for one in buffers}
        self._wake = wake
        self._changed = changed
        self._read: tuple[MergedBuffer, ReadFrame] | None = None
        """The frame of which slices are left, and its buffer."""
        self._start = 0
        """Index of the next one in it."""
        self._stopped = False
        self._has_named_wait = False

    async def begin(self, *, ended: bool) -> None:
        # A former owner may have been killed between its commit and its trim.
        if not ended:
            for edge in self._buffers:
                self._consumed(edge, 0)

    async def next(self, records_max: Callable[[], int | None], nothing: Callable[[], None]) -> Slice | None:
        if self._read is None:
            self._read, self._start = await self._next_frame(), 0
        # A slow function may take long for a frame. What is left of it when the lane is stopped is read again.
        if self._read is None or self._stopped:
            return None
        (buffer, read), start = self._read, self._start
        records, wanted = read.frame.records, records_max()
        stop = records if wanted is None else min(records, start + wanted)
        frame, reads = read.frame.slice(start, stop), [read]
        if stop < records:
            self._start = stop
        else:
            self._read = None
            frame = self._joined(buffer, reads, frame, FRAME_RECORDS_MAX if wanted is None else wanted)
        return Slice(reads, start, frame, self._lineage(buffer, reads, start))

    def _joined(self, buffer: MergedBuffer, reads: list[ReadFrame], frame: Frame, records_max: int) -> Frame:
        """The frame with those that are there and follow it, up to so many records; they are added to `reads`. A
        function with states gets one call at a time: if each had one stored frame, and these are small, a lane that has
        fallen behind would stay behind."""
        frames, records, size = [frame], frame.records, frame.size
        while (following := buffer.reader.ready) is not None and self._chosen() is buffer:
            records, size = records + following.records, size + following.size
            if records > records_max or size > FRAME_BYTES_MAX or not _may_join(frame, following):
                break
            frames.append(following)
            reads.append(self._take(buffer))
        return join_frames(frames)

    def _lineage(self, buffer: MergedBuffer, reads: Sequence[ReadFrame], start: int) -> Lineage:
        """The names of records from index `start` of the first of these frames on."""
        mark = self._core.committer.mark
        if len(reads) == 1:
            sequence, first = outside(mark, reads[0].sequence), reads[0].first_index + start
            return Lineage(f"{sequence}/", first, run=buffer.run, edge=buffer.edge)
        names: list[str] = []
        for read in reads:
            sequence, first = outside(mark, read.sequence), read.first_index
            names += map(f"{sequence}/".__add__, map(str, range(first + start, first + read.frame.records)))
            start = 0
        return Lineage(names=names, run=buffer.run, edge=buffer.edge)

    async def _next_frame(self) -> tuple[MergedBuffer, ReadFrame] | None:
        """The next frame of any buffer; None when all have ended, or after `stop`."""
        while not self._stopped:
            watermark_us = self._watermark({edge: one.reader.sequence for edge, one in self._buffers.items()})
            if (chosen := self._chosen()) is not None:
                if chosen.table is not None:
                    watermark_us = START_OF_TIME_US
                return chosen, replace(self._take(chosen), watermark_us=watermark_us)
            awaited = [one for one in self._buffers.values() if one.is_awaited]
            # Each is asked, because it notes that it has ended.
            ended = [one.reader.has_ended() for one in self._buffers.values()]
            if all(ended):
                return None
            self._wake.clear()
            await self._woken(awaited)
        return None

    async def _woken(self, awaited: Sequence[MergedBuffer]) -> None:
        """Wait for something new. `awaited`: what records wait for."""
        is_named = not awaited or self._has_named_wait
        try:
            async with asyncio.timeout(None if is_named else WAIT_NAMED_S):
                await self._wake.wait()
        except TimeoutError:
            if all(one.table is not None or one.reader.ready is None for one in self._buffers.values()):
                return
            self._has_named_wait = True
            for one in awaited:
                assert one.table is not None, "records wait for tables only"
                wait = "its end" if one.table.wait == "end" else counted(one.table.wait, "record")
                _log.warning(
                    "%s: records wait for table %s, whose edge %s has brought %s so far; `waitFor` of the table "
                    "requires %s. A table without records needs `waitFor: 0`",
                    self._core.lane,
                    one.table.name,
                    one.edge,
                    counted(one.table_records, "record"),
                    wait,
                )

    def _ready(self) -> list[tuple[MergedBuffer, Frame]]:
        """The buffers of which a frame may be read now, each with it: while records wait for a table, only those with a
        table."""
        is_waiting = any(one.is_awaited for one in self._buffers.values())
        return [
            (one, frame)
            for one in self._buffers.values()
            if (frame := one.reader.ready) is not None and (one.table is not None or not is_waiting)
        ]

    def _chosen(self) -> MergedBuffer | None:
        """The buffer whose next frame is read next; None if there is no frame for now."""
        ready = self._ready()
        if not ready:
            return None
        waited, _ = max(ready, key=lambda pair: pair[0].passed_over)
        earliest, _ = min(ready, key=lambda pair: (pair[0].table is None, pair[1].event_time_min_us))
        # An edge that always has earlier records, such as old ones that are read for the first time, does not keep the
        # others waiting for ever; and neither does a table that always changes.
        return waited if waited.passed_over >= PASSED_OVER_MAX else earliest

    def _take(self, chosen: MergedBuffer) -> ReadFrame:
        """The next frame of a buffer, for which the others were passed over."""
        for one, _ in self._ready():
            one.passed_over += 1
        chosen.passed_over = 0
        read = chosen.reader.take()
        if chosen.table is not None:
            chosen.table_records += read.frame.records
        return read

    def stop(self) -> None:
        self._stopped = True
        for one in self._buffers.values():
            one.reader.stop()

    @property
    def has_read_all(self) -> bool:
        return all(one.reader.ended for one in self._buffers.values())

    @property
    def ended(self) -> bool:
        return self.has_read_all and all(
            self._done(edge).sequence >= one.reader.sequence for edge, one in self._buffers.items()
        )

    def _done(self, edge: str) -> mark_pb2.InputProgress:
        """What the mark says about an edge."""
        marked = self._core.committer.mark.inputs
        return next((done for done in marked if done.edge == edge), mark_pb2.InputProgress())

    def _watermark(self, sequences: dict[str, int]) -> int:
        """The watermark of all buffers together, for what was read of each."""
        return min(
            (
                one.lane_input.watermark_at(sequences[edge])
                for edge, one in self._buffers.items()
                if one.holds_watermark
            ),
            default=END_OF_TIME_US,
        )

    def watermark_after(self, units: Sequence[Unit]) -> int:
        # As for one buffer: the input's watermark at the last frames that are committed completely.
        sequences = {edge: self._done(edge).sequence for edge in self._buffers}
        positions: dict[str, Position] = {unit.edge: unit.position for unit in units if unit.position is not None}
        sequences.update((edge, position.sequence) for edge, position in positions.items())
        return self._watermark(sequences)

    async def committed(self, units: Sequence[Unit]) -> None:
        sizes = Counter[str]()
        for unit in units:
            if unit.edge:
                sizes[unit.edge] += unit.account.input_bytes
        for edge, size in sizes.items():
            self._consumed(edge, size)
            self._buffers[edge].lane_input.forget(self._done(edge).sequence)
        # Updates that arrived during the commit were evaluated with the previous mark, and no more may follow.
        if self.watermark_after(()) > self._core.watermark_us:
            self._changed.set()

    async def moved(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def advance(self, *, quiet: bool) -> int:
        return self.watermark_after(())

    def statistics(self, numbers: LaneStatistics) -> LaneStatistics:
        return numbers

    def _consumed(self, edge: str, size: int) -> None:
        # Keep the newest frame that was read: the next reader checks that it is still the same frame.
        one = self._buffers[edge]
        one.trimmer.consumed(one.reader.buffer, newest(self._done(edge).read) - 1, size)


def _may_join(first: Frame, following: Frame) -> bool:
    """Whether nothing of these frames is lost if they are one."""
    # Joined, they have ids only if all of them do, and one trace.
    return bool(first.ids_column) is bool(following.ids_column) and not following.traceparent
