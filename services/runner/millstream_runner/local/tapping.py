"""Shows the records that pass an edge, without affecting them.

    watch begins ─► marks of the writers: where "now" is ─► frames after it, as a reader gets them ─► queue ─► records
                                                               └─ a number is missing: trimmed before it was seen

A tap watches each buffer as a reader does, but has no position in it: no mark, and nothing that a trim or an owner
would wait for. It gets only committed frames. If it falls behind by more than its queue and a reader's prefetch, frames
are trimmed before it gets them. They are counted, by the numbers that writers give their frames, and never skipped
silently. Above it: `millstream tap`. Below it: the ledgers, of any technology.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from millstream.background import beside
from millstream.errors import MillstreamError
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredFrame
from millstream.limits import MIB
from millstream.plan.plan import Plan
from millstream.record import BufferId, LaneId, Record
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.view import PipelineView

FRAMES_HELD_MAX = 64
BYTES_HELD_MAX = 32 * MIB
"""Frames in the queue of a tap, and their bytes. What has arrived there is shown even if the broker has ended."""


@dataclass(frozen=True, slots=True)
class TappedRecord:
    """A record that has passed."""

    partition: int
    sequence: int
    index: int
    record: Record


@dataclass(slots=True)
class _Writer:
    """What one lane has written to a buffer."""

    records_before: int
    """At the time when the tap began."""
    frames_before_tap: int
    """Up to this number its frames were seen, or are known to be missed."""


@dataclass(slots=True)
class WatchedBuffer:
    """The position of the tap in a buffer."""

    buffer: BufferId
    ledger: Ledger
    after: int
    writers: dict[str, _Writer] = field(default_factory=dict)
    seen: int = 0
    """Records, shown or not."""
    missed_frames: int = 0


class TapQueue:
    """The queue of a tap: few frames, and few bytes unless one frame has more. For several tasks that put."""

    def __init__(self, frames_max: int = FRAMES_HELD_MAX, bytes_max: int = BYTES_HELD_MAX) -> None:
        self._frames: asyncio.Queue[tuple[WatchedBuffer, StoredFrame | MillstreamError]] = asyncio.Queue(frames_max)
        self._bytes_max = bytes_max
        self._bytes = 0
        self._room = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return self._frames.empty()

    async def put(self, buffer: WatchedBuffer, frame: StoredFrame | MillstreamError) -> None:
        """Wait until there is room."""
        size = _size(frame)
        while self._bytes and self._bytes + size > self._bytes_max:
            self._room.clear()
            await self._room.wait()
        self._bytes += size
        await self._frames.put((buffer, frame))

    async def get(self) -> tuple[WatchedBuffer, StoredFrame | MillstreamError]:
        """Wait for the next one."""
        return self._taken(*await self._frames.get())

    def get_all(self) -> Iterator[tuple[WatchedBuffer, StoredFrame | MillstreamError]]:
        """Those that are there, without waiting."""
        while not self._frames.empty():
            yield self._taken(*self._frames.get_nowait())

    def _taken(
        self, buffer: WatchedBuffer, frame: StoredFrame | MillstreamError
    ) -> tuple[WatchedBuffer, StoredFrame | MillstreamError]:
        self._bytes -= _size(frame)
        self._room.set()
        return buffer, frame


@dataclass(slots=True)
class Tap:
    """A tap on an edge. Created by `open_tap`; for one task."""

    plan: Plan
    view: PipelineView
    edge: str
    buffers: list[WatchedBuffer]
    is_whole: bool
    """Whether it watches all partitions."""
    _arrived: TapQueue = field(default_factory=TapQueue)

    @property
    def seen(self) -> int:
        """Records that could be shown."""
        return sum(buffer.seen for buffer in self.buffers)

    @property
    def missed_frames(self) -> int:
        """Frames that are known to be gone."""
        return sum(buffer.missed_frames for buffer in self.buffers)

    @property
    def records_before(self) -> int:
        """Records that had passed when the tap began, in the partitions that it watches."""
        return sum(writer.records_before for buffer in self.buffers for writer in buffer.writers.values())

    async def look(self, wait_s: float) -> Sequence[TappedRecord]:
        """Records of the next frame that passes, in the order of its partition; empty if none arrives within
        `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                arrived = await self._arrived.get()
        except TimeoutError:
            return []
        return self._taken(*arrived)

    def held(self) -> Iterator[Sequence[TappedRecord]]:
        """Records that have arrived and were not taken yet, frame by frame."""
        for arrived in self._arrived.get_all():
            yield self._taken(*arrived)

    async def has_ended(self) -> bool:
        """Whether no more records will pass, and all that could be seen were."""
        marks = await self.view.marks(self.plan.edge(self.edge).from_)
        lanes = self.plan.lanes_of(self.plan.edge(self.edge).from_)
        return all(lane in marks and marks[lane].ended for lane in lanes) and not await self._behind(marks)

    async def missed(self) -> int:
        """Records that passed and were not seen, counted exactly from what the writers have committed by now. For an
        edge that has ended."""
        marks = await self.view.marks(self.plan.edge(self.edge).from_)
        passed = sum(written.records for buffer in self.buffers for written in _written(marks, buffer.buffer).values())
        return max(0, passed - self.records_before - self.seen)

    def _taken(self, buffer: WatchedBuffer, frame: StoredFrame | MillstreamError) -> Sequence[TappedRecord]:
        if isinstance(frame, MillstreamError):
            raise frame
        buffer.after = frame.sequence
        if not _is_new(buffer, frame):
            return []
        records = list(decoded(buffer.ledger.vertex, buffer.buffer, frame).to_records())
        buffer.seen += len(records)
        return [
            TappedRecord(buffer.buffer.partition, frame.sequence, index, record) for index, record in enumerate(records)
        ]

    async def _behind(self, marks: Mapping[LaneId, mark_pb2.Mark]) -> bool:
        """Whether frames that these marks name have not been taken yet, and still can be."""
        for buffer in self.buffers:
            told = {key: writer.frames_before_tap for key, writer in buffer.writers.items()}
            if all(told.get(key, 0) >= one.frames for key, one in _written(marks, buffer.buffer).items()):
                continue
            if not self._arrived.is_empty or await buffer.ledger.peek(buffer.buffer, buffer.after, 1):
                return True
        return False

    async def _watch(self, buffer: WatchedBuffer, frames: AsyncIterator[StoredFrame]) -> None:
        """Put passing frames into the queue. Errors are raised where the queue is read."""
        try:
            async for frame in frames:
                await self._arrived.put(buffer, frame)
        except MillstreamError as error:
            await self._arrived.put(buffer, error)


@asynccontextmanager
async def open_tap(
    plan: Plan, view: PipelineView, edge: str, partitions: Sequence[int] | None = None
) -> AsyncIterator[Tap]:
    """A tap of these partitions of an edge, or of all, from now on. Raises `RetryLaterError` until something is stored
    that it could watch."""
    buffers = [one for one in plan.buffers_of(plan.edge(edge)) if partitions is None or one.partition in partitions]
    ledgers = {buffer: await view.ledger_of(buffer) for buffer in buffers}
    found = [WatchedBuffer(buffer, ledger, await ledger.last_sequence(buffer)) for buffer, ledger in ledgers.items()]
    tap = Tap(plan, view, edge, found, partitions is None)
    async with AsyncExitStack() as stack:
        watched = [(one, await stack.enter_async_context(one.ledger.watch(one.buffer, one.after))) for one in found]
        # From here on nothing passes unseen. What passed before, or passes before the marks are read, is known by its
        # number.
        marks = await view.marks(plan.edge(edge).from_)
        for one in found:
            written = _written(marks, one.buffer)
            for lane in plan.upstream_lanes(one.buffer):
                before = written.get(lane.key, mark_pb2.Written())
                one.writers[lane.key] = _Writer(before.records, before.frames)
        for one, frames in watched:
            await stack.enter_async_context(beside(tap._watch(one, frames), f"watch {one.buffer}"))
        yield tap


def _written(marks: Mapping[LaneId, mark_pb2.Mark], buffer: BufferId) -> dict[str, mark_pb2.Written]:
    """What each lane has written to a buffer, by the key of the lane."""
    return {
        lane.key: written
        for lane, mark in marks.items()
        for written in mark.written
        if BufferId(written.edge, written.partition) == buffer
    }


def _size(frame: StoredFrame | MillstreamError) -> int:
    return len(frame.data) if isinstance(frame, StoredFrame) else 0


def _is_new(buffer: WatchedBuffer, frame: StoredFrame) -> bool:
    """Whether a frame was committed after the tap began; frames missing before it are counted."""
    witness = frame.witness
    writer = buffer.writers.get(witness.lane) if witness is not None else None
    if witness is None or writer is None:
        return True
    if witness.number <= writer.frames_before_tap:
        return False
    buffer.missed_frames += witness.number - writer.frames_before_tap - 1
    writer.frames_before_tap = witness.number
    return True
