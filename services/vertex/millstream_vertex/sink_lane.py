"""A lane of a sink vertex: reads its buffer, delivers, and commits the position that is durable in the target.

buffer ─► a few frames ahead ─► delivery (retries, fallback) ─► settled? ─► commit: mark
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence

from millstream.account import Account
from millstream.clock import MICROSECONDS
from millstream.ledger.protocol import Witness
from millstream.limits import COMMIT_BYTES_MAX, FRAME_BYTES_MAX, FRAME_RECORDS_MAX
from millstream.pauses import until_next
from millstream.record import Position
from millstream.statistics import LaneStatistics
from millstream_reader.buffer import ReadFrame, late_records
from millstream_reader.tracker import Tracked
from millstream_vertex.buffer_lane import BufferLane
from millstream_writer.committer import Unit
from millstream_writer.delivery import Delivery
from millstream_writer.sink import Guarantee, SinkFrame

TICK_S = 0.5
"""Interval at which a sink may commit by time while nothing arrives."""


class SinkVertexLane:
    """A lane of a sink vertex. `run` returns when its input has ended or `stop` was called; then
    everything that it took is durable."""

    def __init__(self, base: BufferLane, delivery: Delivery) -> None:
        self.core = base.core
        self._base = base
        self._delivery = delivery
        self._read: deque[ReadFrame] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._stopping = False
        self._next_tick: asyncio.TimerHandle | None = None
        # A sink that keeps its own position benefits from large writes. One that gathers gets no more than a large
        # frame at once. With other sinks, the lane checks for a stop after each frame.
        self._batch_bytes_max, self._batch_records_max = 0, sys.maxsize
        if delivery.guarantee is Guarantee.EXACTLY_ONCE_TRANSACTIONAL:
            self._batch_bytes_max = COMMIT_BYTES_MAX
        elif delivery.gathers:
            self._batch_bytes_max, self._batch_records_max = FRAME_BYTES_MAX, FRAME_RECORDS_MAX
        self._unsettled: deque[tuple[Position, Account]] = deque()
        self._witnesses: deque[Witness] = deque()
        """The witnesses of frames that the sink has taken and that are not settled."""
        lane = base.core.lane
        self._id_prefix = f"{lane.vertex}/{lane.input}/{lane.partition}/"

    def stop(self) -> None:
        """Deliver nothing more; what the sink has taken is still made durable."""
        self._stopping = True
        self._base.reader.stop()

    def statistics(self) -> LaneStatistics:
        delivery = self._delivery.statistics()
        self.core.counters.retries = delivery.retries
        self.core.counters.udf_errors = delivery.errors
        return self.core.statistics(pending=None)

    async def run(self) -> None:
        if self.core.committer.mark.ended:
            await self.core.end()
            return
        async with self._base.running() as work:
            delivering = work.create_task(self._deliver_all(), name=f"deliver {self.core.lane}")
            while (read := await self._base.reader.next()) is not None:
                await self.core.tracker.begin(Tracked(read.frame.records, read.frame.size))
                self._read.append(read)
                self._arrived.set()
            self._closed = True
            self._arrived.set()
            await delivering

    async def _deliver_all(self) -> None:
        try:
            await self._deliver_until_closed()
        finally:
            if self._next_tick is not None:
                self._next_tick.cancel()

    async def _deliver_until_closed(self) -> None:
        while True:
            await self._wait_for_frames()
            batch = self._take_batch()
            if batch and self._stopping:
                # The batch is left for the next start: the mark does not pass it.
                await self.core.tracker.finish(len(batch))
            elif batch:
                await self._deliver(batch)
            elif self._closed:
                await self._delivery.flush()
                self._settle()
                return
            await self._delivery.tick()
            self._settle()

    async def _wait_for_frames(self) -> None:
        if self._read or self._closed:
            return
        self._arrived.clear()
        if self._next_tick is None:
            # One timer for many frames; all sinks of a process tick at the same moments.
            self._next_tick = asyncio.get_running_loop().call_later(until_next(TICK_S), self._on_tick)
        await self._arrived.wait()

    def _on_tick(self) -> None:
        self._next_tick = None
        self._arrived.set()

    def _take_batch(self) -> list[ReadFrame]:
        batch: list[ReadFrame] = []
        size = records = 0
        while self._read:
            frame = self._read[0].frame
            size += frame.size
            records += frame.records
            if batch and (size > self._batch_bytes_max or records > self._batch_records_max):
                break
            batch.append(self._read.popleft())
        return batch

    async def _deliver(self, batch: list[ReadFrame]) -> None:
        core = self.core
        frames = [
            SinkFrame(
                read.frame,
                read.sequence,
                read.first_index,
                f"{self._id_prefix}{read.sequence}/",
                name=read.witness.name if read.witness is not None else "",
            )
            for read in batch
        ]
        end = batch[-1].end
        records = sum(read.frame.records for read in batch)
        started = core.clock.monotonic_s()
        with core.telemetry.span(
            "millstream.sink.write",
            parent=batch[0].frame.traceparent,
            lane=core.lane.key,
            records=records,
            sequence=batch[-1].sequence,
        ):
            await self._delivery.write(frames, end)
        core.telemetry.observe_processing("sink", core.clock.monotonic_s() - started)
        now_us = core.clock.now_us()
        extra = Account()
        for read in batch:
            core.telemetry.observe_latency((now_us - read.frame.ingest_time_us) / MICROSECONDS, read.frame.records)
            extra.input_bytes += read.size
            extra.late += late_records(read.frame, read.watermark_us)
            self._witnesses.extend(read.witnesses)
        self._unsettled.append((end, extra))
        # From now on, the sink bounds these frames; the lane's own bound is for frames that the sink has not taken.
        await core.tracker.finish(len(batch))

    def _settle(self) -> None:
        """Pass what has become durable to the commit."""
        settled = self._delivery.take_settled()
        if settled is None:
            return
        account = settled.account
        while self._unsettled and self._unsettled[0][0] <= settled.position:
            account.add(self._unsettled.popleft()[1])
        # A position in the middle of a frame names the sequence before that frame's.
        last = settled.position.sequence + (settled.position.record_index > 0)
        witnesses = [item for item in self._witnesses if item.sequence <= last]
        while self._witnesses and self._witnesses[0].sequence <= settled.position.sequence:
            self._witnesses.popleft()
        units: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
        units.set_result((Unit(settled.position, witnesses, account=account, pieces=0),))
        self.core.units.add(units)
