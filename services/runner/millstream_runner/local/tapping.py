"""What passes an edge, looked at without any effect on it.

    marks of the writers ─► where "now" is ─► frames behind it, as they are stored ─► records
                                                 └─ a number is missing: it was trimmed before it was seen

Nothing is opened in the broker: each look is a read, as `peek` makes it. So nothing is kept for who looks, nothing
waits for it, and a frame that was trimmed between two looks was not seen; it is counted, by the numbers that writers
give their frames, and never passed over in silence. Above it: `millstream tap`. Below it: the ledgers, of any
technology.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredFrame
from millstream.record import BufferId, LaneId, Record
from millstream.spec.graph import Graph
from millstream.spec.lanes import buffers_of, lanes_of, upstream_lanes
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.view import PipelineView

FRAMES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Passed:
    """A record that has passed."""

    partition: int
    sequence: int
    index: int
    record: Record


@dataclass(slots=True)
class _Writer:
    """What one lane has written to a buffer."""

    frames_before: int
    """When the tap began."""
    records_before: int
    frames_told: int
    """Up to here its frames were seen, or are known to be missed."""


@dataclass(slots=True)
class _Buffer:
    """Where the tap is in a buffer."""

    buffer: BufferId
    after: int
    writers: dict[str, _Writer]
    seen: int = 0
    """Records, shown or not."""
    missed_frames: int = 0


@dataclass(slots=True)
class Tap:
    """Looks at an edge. Made by `open_tap`; for one task."""

    graph: Graph
    view: PipelineView
    edge: str
    buffers: list[_Buffer]
    is_whole: bool
    """It looks at all partitions."""

    @property
    def seen(self) -> int:
        """Records that were there to be seen."""
        return sum(buffer.seen for buffer in self.buffers)

    @property
    def missed_frames(self) -> int:
        """Frames that are known to be gone."""
        return sum(buffer.missed_frames for buffer in self.buffers)

    @property
    def records_before(self) -> int:
        """Records that had passed when the tap began, in the partitions that it looks at."""
        return sum(writer.records_before for buffer in self.buffers for writer in buffer.writers.values())

    async def look(self) -> AsyncIterator[Passed]:
        """What has passed since the last look, each partition in its order. Never waits for records."""
        ledger = await self._ledger()
        for buffer in self.buffers:
            frames = await ledger.peek(buffer.buffer, buffer.after, FRAMES_AT_ONCE)
            for frame in frames:
                buffer.after = frame.sequence
                if _is_new(buffer, frame):
                    records = list(decoded(ledger.vertex, buffer.buffer, frame).to_records())
                    buffer.seen += len(records)
                    for index, record in enumerate(records):
                        yield Passed(buffer.buffer.partition, frame.sequence, index, record)

    async def has_ended(self) -> bool:
        """Whether nothing will pass any more, and all that could be seen was."""
        marks = await self.view.marks(self.graph.edge(self.edge).from_)
        lanes = lanes_of(self.graph, self.graph.edge(self.edge).from_)
        return all(lane in marks and marks[lane].ended for lane in lanes) and not await self._behind(marks)

    async def missed(self) -> int:
        """Records that passed and were not seen, counted exactly from what the writers have committed by now."""
        marks = await self.view.marks(self.graph.edge(self.edge).from_)
        while await self._behind(marks):
            async for _ in self.look():
                pass
        passed = sum(written.records for buffer in self.buffers for written in _written(marks, buffer.buffer).values())
        return max(0, passed - self.records_before - self.seen)

    async def _behind(self, marks: Mapping[LaneId, mark_pb2.Mark]) -> bool:
        """Whether frames that these marks tell of lie where they were not looked for yet."""
        ledger = await self._ledger()
        for buffer in self.buffers:
            told = {key: writer.frames_told for key, writer in buffer.writers.items()}
            if all(told.get(key, 0) >= one.frames for key, one in _written(marks, buffer.buffer).items()):
                continue
            if await ledger.peek(buffer.buffer, buffer.after, 1):
                return True
        return False

    async def _ledger(self) -> Ledger:
        return await self.view.ledger_of(self.buffers[0].buffer)


async def open_tap(graph: Graph, view: PipelineView, edge: str, partitions: Sequence[int] | None = None) -> Tap:
    """A tap of these partitions of an edge, or of all, from now on. Raises `RetryLaterError` while nothing was stored
    that it could look at."""
    found = []
    buffers = [one for one in buffers_of(graph, graph.edge(edge)) if partitions is None or one.partition in partitions]
    # Where each buffer ends is asked first: what comes before the marks are read is known by its number.
    ends = {buffer: await (await view.ledger_of(buffer)).last_sequence(buffer) for buffer in buffers}
    marks = await view.marks(graph.edge(edge).from_)
    for buffer in buffers:
        written = _written(marks, buffer)
        writers = {}
        for lane in upstream_lanes(graph, buffer):
            one = written.get(lane.key, mark_pb2.Written())
            writers[lane.key] = _Writer(one.frames, one.records, one.frames)
        found.append(_Buffer(buffer, ends[buffer], writers))
    return Tap(graph, view, edge, found, partitions is None)


def _written(marks: Mapping[LaneId, mark_pb2.Mark], buffer: BufferId) -> dict[str, mark_pb2.Written]:
    """What each lane has written to a buffer, by the lane's key."""
    return {
        lane.key: written
        for lane, mark in marks.items()
        for written in mark.written
        if BufferId(written.edge, written.partition) == buffer
    }


def _is_new(buffer: _Buffer, frame: StoredFrame) -> bool:
    """Whether a frame was committed since the tap began; what is missing before it is counted."""
    witness = frame.witness
    writer = buffer.writers.get(witness.lane) if witness is not None else None
    if witness is None or writer is None:
        return True
    if witness.number <= writer.frames_told:
        return False
    buffer.missed_frames += witness.number - writer.frames_told - 1
    writer.frames_told = witness.number
    return True
