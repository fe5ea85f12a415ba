"""The output of a sink vertex: delivers what is read from its buffer, and commits the position that is durable in the
target.

units, in order ─► a few frames ahead ─► delivery (retries, fallback) ─► settled? ─► commit: mark
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence

from millstream.account import Account
from millstream.frame import Frame
from millstream.ledger.protocol import Witness
from millstream.limits import BYTES_IN_FLIGHT_MAX, COMMIT_BYTES_MAX, FRAME_BYTES_MAX, FRAME_RECORDS_MAX
from millstream.pauses import until_next
from millstream.record import Position
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex.continued import outside, position_inside, position_outside
from millstream_vertex.core import LaneCore
from millstream_vertex.in_order import InOrder
from millstream_vertex.lineage import Lineage
from millstream_vertex.outputs import Committed, WatermarkAfter
from millstream_vertex.to_sink import TICK_S, ChainSink
from millstream_writer.committer import MemberCounts, SinkRecords, Unit
from millstream_writer.routing import Tags
from millstream_writer.sink import Guarantee, SinkFrame, frame_at


class SinkOutput:
    """Delivers for one lane. The lane commits what is settled while more is delivered."""

    takes_arrow = False
    passed: Sequence[MemberCounts] = ()
    is_empty = True
    ahead_bytes_max = BYTES_IN_FLIGHT_MAX

    def __init__(self, core: LaneCore, target: ChainSink) -> None:
        self.units: InOrder[Sequence[Unit]] = InOrder()
        self._core = core
        self._target = target
        self._delivery = target.delivery
        self._waiting: deque[Unit] = deque()
        self._stopping = False
        # A sink that keeps its own position benefits from large writes. One that gathers gets no more than a large
        # frame at once. With other sinks, the lane checks for a stop after each frame.
        self._batch_bytes_max, self._batch_records_max = 0, sys.maxsize
        if self._delivery.guarantee is Guarantee.EXACTLY_ONCE_TRANSACTIONAL:
            self._batch_bytes_max = COMMIT_BYTES_MAX
        elif self._delivery.gathers:
            self._batch_bytes_max, self._batch_records_max = FRAME_BYTES_MAX, FRAME_RECORDS_MAX
        self._unsettled: deque[tuple[Position, Account]] = deque()
        self._witnesses: deque[Witness] = deque()
        """The witnesses of frames that the sink has taken and that are not settled."""

    @property
    def delivered(self) -> list[SinkRecords] | None:
        return []

    def take(self, unit: Unit, frame: Frame, tags: Tags | None, lineage: Lineage, watermark_us: int) -> int:
        unit.account.late = frame.late_records(watermark_us)
        unit.delivered = [SinkRecords(frame, lineage.origin(self._core.lane).id_prefix, lineage.first)]
        return 0

    def leave(self) -> None:
        """Deliver nothing more; what the sink has taken is still made durable."""
        self._stopping = True

    def count(self) -> None:
        self._target.count()

    async def run(self, watermark_after: WatermarkAfter, committed: Committed, *, prompt: bool) -> None:
        core = self._core
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(core.commit_all(watermark_after, committed), name=f"commit {core.lane}")
            await self._deliver_all()
            core.units.close()

    async def _deliver_all(self) -> None:
        while True:
            self._waiting.extend(unit for units in self.units.done() for unit in units)
            closed = not self._waiting and await self._wait_for_units()
            batch = self._take_batch()
            if batch and self._stopping:
                # The batch is left for the next start: the mark does not pass it.
                await self._core.give_up(deque(batch))
            elif batch:
                await self._deliver(batch)
            elif closed:
                await self._delivery.flush()
                self._settle()
                return
            await self._delivery.tick()
            self._settle()

    async def _wait_for_units(self) -> bool:
        """Wait for units, or until it is time to check the sink. Returns whether there will be none."""
        try:
            # All sinks of a process tick at the same moments.
            async with asyncio.timeout(until_next(TICK_S)):
                ready = await self.units.ready()
        except TimeoutError:
            return False
        self._waiting.extend(unit for units in ready for unit in units)
        return not ready

    def _take_batch(self) -> list[Unit]:
        batch: list[Unit] = []
        size = records = 0
        while self._waiting:
            for one in self._waiting[0].delivered or ():
                size += one.frame.size
                records += one.frame.records
            if batch and (size > self._batch_bytes_max or records > self._batch_records_max):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _deliver(self, batch: Sequence[Unit]) -> None:
        frames = [sink_frame for unit in batch for sink_frame in _sink_frames(self._mark, unit)]
        end = batch[-1].position
        assert end is not None, "it was read from a buffer"
        await self._target.write(frames, position_outside(self._mark, end))
        account = Account()
        for unit in batch:
            account.add(unit.account)
            self._witnesses.extend(unit.witnesses)
        self._unsettled.append((end, account))
        # From now on, the sink bounds these frames; the lane's own bound is for frames that the sink has not taken.
        await self._core.tracker.finish(len(batch))

    def _settle(self) -> None:
        """Pass what has become durable to the commit."""
        settled = self._delivery.take_settled()
        if settled is None:
            return
        account, position = settled.account, position_inside(self._mark, settled.position)
        while self._unsettled and self._unsettled[0][0] <= position:
            account.add(self._unsettled.popleft()[1])
        # A position in the middle of a frame names the sequence before that frame's.
        last = frame_at(position)
        witnesses = [item for item in self._witnesses if item.sequence <= last]
        while self._witnesses and self._witnesses[0].sequence <= position.sequence:
            self._witnesses.popleft()
        self._core.units.add_done((Unit(position, witnesses, account=account, pieces=0),))

    @property
    def _mark(self) -> mark_pb2.Mark:
        return self._core.committer.mark


def _sink_frames(mark: mark_pb2.Mark, unit: Unit) -> list[SinkFrame]:
    assert unit.position is not None, "it was read from a buffer"
    name = unit.witnesses[-1].name if unit.witnesses else ""
    sequence = outside(mark, frame_at(unit.position))
    return [SinkFrame(one.frame, sequence, one.first, one.prefix, name=name) for one in unit.delivered or ()]
