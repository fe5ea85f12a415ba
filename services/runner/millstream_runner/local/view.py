"""A view of the broker's contents: watermarks for the screen, marks for the summary, frames for `peek`.

Above it: the runner and the command line. Below it: the ledgers and the OT stores. It owns no lane and commits nothing
while any lane runs; it can remove what a removed vertex has stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from millstream import codes
from millstream.account import consumed
from millstream.buffers.placed import placed
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.errors import DamageError, RetryLaterError
from millstream.ledger.frames import decoded_parts
from millstream.ledger.protocol import Broker, Durability, DurabilityLevel, Ledger, StoredFrame
from millstream.limits import BUFFER_BYTES_MAX
from millstream.plan.plan import Plan
from millstream.record import BufferId, LaneId, Position
from millstream.watermark.store import OtStore, OtStores, newest
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.progress import PipelineProgress
from millstream_runner.local.summary import Summary, summarize, waiting_in_marks
from millstream_vertex.shared_copies import leave, leaving
from millstream_vertex.taking_over import check_not_older

PARTS = 4
"""Parts in which the vertices of a quiet pipeline are asked."""
PAGE_FRAMES = 4
"""Frames that are requested, and held, at once. Packs have up to 4 MiB each."""
COUNTED_FRAMES_MAX = 1000
COUNTED_BYTES_MAX = 2 * BUFFER_BYTES_MAX
"""A buffer with more frames than this after a drain, or more bytes, is not counted, because that would take long."""


class PipelineView:
    """What is visible of one pipeline. Created by `open_view`."""

    def __init__(self, plan: Plan, broker: Broker, stores: OtStores) -> None:
        self._plan = plan
        self._broker = broker
        self._stores = stores
        self._open_stores: dict[str, OtStore] = {}
        self._ledgers: dict[str, Ledger] = {}

    async def update(self, progress: PipelineProgress, part: int | None = None) -> None:
        """Pass on what all lanes last published. `part`: instead, only lanes of sources, and those of one of `PARTS`
        parts of the other vertices. Raises `RetryLaterError` while the broker does not answer."""
        for vertex in self._plan.order:
            if vertex not in self._open_stores:
                self._open_stores[vertex] = await self._stores.store(vertex)
        # Readers are asked before writers, so that hardly any lane appears to have read what was not written. All are
        # asked at once, which is one message to the broker instead of one for each.
        asked = self._plan.order if part is None else self._part(part)
        stores = [(vertex, self._open_stores[vertex]) for vertex in reversed(asked)]
        answers = await asyncio.gather(*(store.get_all() for _, store in stores), return_exceptions=True)
        for (vertex, _), answer in zip(stores, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for key, update in answer.items():
                progress.observe(vertex, key, update.entry)

    def _part(self, number: int) -> Sequence[str]:
        """Sources, because most news begins there, and a part of the other vertices, in the order of the plan."""
        sources = {vertex.name for vertex in self._plan.sources}
        others = [vertex for vertex in self._plan.order if vertex not in sources]
        chosen = sources.union(others[number % PARTS :: PARTS])
        return [vertex for vertex in self._plan.order if vertex in chosen]

    async def durability(self) -> Durability | None:
        """What the broker guarantees; None until there is a ledger to ask about."""
        for vertex in self._plan.order:
            ledger = await self._ledger(vertex)
            if ledger is not None:
                return ledger.durability
        return None

    async def ledger_ids(self) -> dict[str, str]:
        """The existing ledgers, by vertex."""
        ledgers = {vertex: await self._ledger(vertex) for vertex in self._plan.order}
        return {vertex: ledger.ledger_id for vertex, ledger in ledgers.items() if ledger is not None}

    async def separate_edges(self) -> None:
        """Have edges that no longer carry the same frames leave the copies that they share. For the runner, before it
        starts a vertex. Raises `UserError` where records wait in them."""
        for vertex in self._plan.order:
            ledger = await self._ledger(vertex)
            if ledger is not None and (edges := leaving(self._plan, vertex, ledger.sharing)):
                await leave(self._plan, vertex, edges, self._ledger)

    async def marks(self, vertex: str | None = None) -> dict[LaneId, mark_pb2.Mark]:
        """The mark of every lane that has one, of one vertex or of all."""
        found: dict[LaneId, mark_pb2.Mark] = {}
        for lane in self._plan.all_lanes() if vertex is None else self._plan.lanes_of(vertex):
            ledger = await self._ledger(lane.vertex)
            stored = await ledger.mark(lane) if ledger is not None else None
            if stored is not None:
                found[lane] = stored.mark
        return found

    async def waiting(self) -> dict[BufferId, int]:
        """Records that are stored in each buffer and not read yet, counted one by one; without buffers that would take
        too long. Also those that wait for the sink at the end of a chain, by the edge inside the chain."""
        marks = await self.marks()
        found, read = waiting_in_marks(self._plan.graph, marks), _read(marks)
        for buffer in (buffer for edge in self._plan.edges for buffer in self._plan.buffers_of(edge)):
            ledger = await self._ledger(self._plan.edge(buffer.edge).from_)
            if ledger is None:
                continue
            records = await _records_after(ledger, buffer, read.get(buffer, Position(0)))
            if records is not None:
                found[buffer] = records
        return found

    async def summary(self) -> Summary:
        """The account of the pipeline; if it does not balance, with the damage that was found."""
        found = summarize(self._plan.graph, await self.marks(), await self.waiting())
        return found if found.balanced else replace(found, damage=await self.damage())

    async def damage(self) -> list[str]:
        """The visible damage of ledgers and marks while nothing is written."""
        found: list[str] = []
        for vertex in self._plan.order:
            published = await newest(await self._stores.store(vertex))
            try:
                ledger = await self._broker.existing_ledger(vertex)
                for lane in self._plan.lanes_of(vertex):
                    if lane.key in published:
                        stored = await ledger.mark(lane) if ledger is not None else None
                        check_not_older(lane, stored, published[lane.key].entry)
            except DamageError as error:
                found.append(str(error))
        return found

    async def consumed(self, buffer: BufferId) -> int:
        """Sequence of the last frame of the buffer that its reader has completed; 0 if there is none."""
        return _read(await self.marks(self._plan.edge(buffer.edge).to)).get(buffer, Position(0)).sequence

    async def ledger_of(self, buffer: BufferId) -> Ledger:
        """The ledger that contains a buffer. Raises `RetryLaterError` until it exists."""
        upstream = self._plan.edge(buffer.edge).from_
        ledger = await self._ledger(upstream)
        if ledger is None:
            raise RetryLaterError(
                codes.BROKER_AWAY, f"vertex {upstream} has not stored anything yet, so buffer {buffer} does not exist"
            )
        return ledger

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        """The ledger of a vertex; None until it exists."""
        return await self._ledger(vertex)

    async def _ledger(self, vertex: str) -> Ledger | None:
        ledger = self._ledgers.get(vertex) or await self._broker.existing_ledger(vertex)
        if ledger is not None:
            self._ledgers[vertex] = ledger
        return ledger


def _read(marks: Mapping[LaneId, mark_pb2.Mark]) -> dict[BufferId, Position]:
    """How far each buffer is read and committed."""
    return {done.buffer: done.position for lane, mark in marks.items() for done in consumed(lane, mark)}


async def stored_frames(ledger: Ledger, buffer: BufferId, after: int) -> AsyncIterator[StoredFrame]:
    """The frames of a buffer after sequence `after`, in order, up to the last one that is stored.

    A frame may be as large as a message of the broker, and a buffer may have many, so what is done with a frame is done
    before the next ones are requested.
    """
    is_last = False
    while not is_last:
        page = deque(await ledger.peek(buffer, after, PAGE_FRAMES))
        is_last = len(page) < PAGE_FRAMES
        while page:
            after = page[0].sequence
            yield page.popleft()


async def _records_after(ledger: Ledger, buffer: BufferId, position: Position) -> int | None:
    """Records that are stored after a position; None if it would take too long to count them."""
    records = frames = size = 0
    async for stored in stored_frames(ledger, buffer, position.sequence):
        frames, size = frames + 1, size + len(stored.data)
        if frames >= COUNTED_FRAMES_MAX or size > COUNTED_BYTES_MAX:
            return None
        records += sum(frame.records for frame in decoded_parts(ledger.vertex, buffer, stored))
    return records - (position.record_index if frames else 0)


@asynccontextmanager
async def open_view(
    plan: Plan, access: Access, require: DurabilityLevel = DurabilityLevel.MEMORY
) -> AsyncIterator[PipelineView]:
    """A view of a pipeline in a running broker."""
    async with technology_of(plan.pipeline).open(access, plan.pipeline.name, name="view", require=require) as buffer:
        yield PipelineView(plan, placed(buffer, plan).broker, buffer.stores)
