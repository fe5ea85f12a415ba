"""The input of a lane that reads a buffer: slices of its frames, its watermark, and its trimming.

buffer ─► frame ─► slices ─► (the lane) ─► committed ─► trim
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.clock import END_OF_TIME_US
from millstream.frame import Frame
from millstream.ledger.protocol import Witness
from millstream.ledger.witness import newest
from millstream.record import Position
from millstream.statistics import LaneStatistics
from millstream_reader.buffer import BufferReader, ReadFrame
from millstream_reader.tracker import WorkInFlight
from millstream_vertex.continued import outside
from millstream_vertex.core import LaneCore
from millstream_vertex.input import LaneInput
from millstream_vertex.lineage import Lineage
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive records of one read frame, or of several that follow each other in a buffer."""

    reads: Sequence[ReadFrame]
    start: int
    """Index in the first of these frames. Several are read to their ends."""
    frame: Frame
    lineage: Lineage

    @property
    def watermark_us(self) -> int:
        return self.reads[0].watermark_us

    @property
    def sequence(self) -> int:
        return self.reads[0].sequence

    @property
    def tracked(self) -> WorkInFlight:
        read = sum(one.frame.records for one in self.reads)
        return WorkInFlight(self.frame.records, sum(one.frame.size for one in self.reads) * self.frame.records // read)

    def finish(self, parts: Sequence[tuple[int, Unit]]) -> Sequence[Unit]:
        """Set the position of the lane after each unit."""
        left = deque(self.reads)
        # Where the first frame that is left begins.
        begin = -self.start
        for stop, unit in parts:
            witnesses: list[Witness] = []
            unit.edge = self.lineage.edge
            unit.account.input_bytes = 0
            while left and begin < stop:
                read, size = left[0], left[0].frame.records
                witnesses += read.witnesses
                unit.position = Position.within(read.sequence, read.first_index + stop - begin)
                if begin + size > stop:
                    break
                unit.account.input_bytes += read.size
                unit.position = read.end
                begin += size
                left.popleft()
            unit.witnesses = witnesses
        return [unit for _, unit in parts]


class BufferInput:
    """An open buffer, as the input of one lane."""

    prompt = False
    moves_by_itself = True

    def __init__(
        self, core: LaneCore, reader: BufferReader, lane_input: LaneInput, trimmer: Trimmer, *, run: str = ""
    ) -> None:
        """`run`: id of the ledger that has the buffer, for dead letters."""
        self._core = core
        self._reader = reader
        self._lane_input = lane_input
        self._trimmer = trimmer
        self._run = run
        self._read: ReadFrame | None = None
        """The frame of which slices are left."""
        self._start = 0
        """Index of the next one in it."""
        self._stopped = False

    async def begin(self, *, ended: bool) -> None:
        # A former owner may have been killed between its commit and its trim.
        if not ended:
            self._consumed(0)

    async def next(self, records_max: Callable[[], int | None], nothing: Callable[[], None]) -> Slice | None:
        if self._read is None:
            self._read, self._start = await self._reader.next(), 0
        read, start = self._read, self._start
        # A slow function may take long for a frame. What is left of it when the lane is stopped is read again.
        if read is None or self._stopped:
            return None
        records, wanted = read.frame.records, records_max()
        stop = records if wanted is None else min(records, start + wanted)
        self._read, self._start = (read, stop) if stop < records else (None, 0)
        sequence = outside(self._core.committer.mark, read.sequence)
        lineage = Lineage(f"{sequence}/", read.first_index + start, run=self._run)
        return Slice((read,), start, read.frame.slice(start, stop), lineage)

    def stop(self) -> None:
        self._stopped = True
        self._reader.stop()

    @property
    def has_read_all(self) -> bool:
        return self._reader.ended

    @property
    def ended(self) -> bool:
        return self._reader.ended and self._core.committer.mark.sequence >= self._reader.sequence

    def watermark_after(self, units: Sequence[Unit]) -> int:
        if self._lane_input.back_edge:
            return END_OF_TIME_US
        # The watermark promises nothing about input that is read but not committed, so use the input's watermark at
        # the last frame that is committed completely.
        last = next((unit.position for unit in reversed(units) if unit.position is not None), None)
        sequence = last.sequence if last is not None else self._core.committer.mark.sequence
        return self._lane_input.watermark_at(sequence)

    async def committed(self, units: Sequence[Unit]) -> None:
        self._consumed(sum(unit.account.input_bytes for unit in units))
        self._lane_input.forget(self._core.committer.mark.sequence)
        # Updates that arrived during the commit were evaluated with the previous mark, and no more may follow.
        if self.watermark_after(()) > self._core.watermark_us:
            self._lane_input.changed.set()

    async def moved(self) -> None:
        changed = self._lane_input.changed
        await changed.wait()
        changed.clear()

    def advance(self, *, quiet: bool) -> int:
        return self.watermark_after(())

    def statistics(self, numbers: LaneStatistics) -> LaneStatistics:
        return numbers

    def _consumed(self, size: int) -> None:
        # Keep the newest frame that was read: the next reader checks that it is still the same frame.
        self._trimmer.consumed(self._reader.buffer, newest(self._core.committer.mark.read) - 1, size)
