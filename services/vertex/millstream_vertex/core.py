"""What all lanes share: committing finished units in order, publishing progress, and counting.

begin ─► work (concurrently) ─► InOrder ─► commit ─► OT entry, trim, external ack
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from millstream.account import account_of
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US, Clock
from millstream.record import LaneId
from millstream.statistics import LaneStatistics
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import OtStore
from millstream_reader.tracker import Tracker
from millstream_vertex.gathering import AS_USUAL, Gatherer, Pace
from millstream_vertex.in_order import InOrder
from millstream_vertex.publishing import LaneCounters, Publisher
from millstream_writer.committer import Committer, Unit


class LaneCore:
    """Commits for one lane and publishes its progress. Made when the lane is taken over."""

    def __init__(
        self,
        lane: LaneId,
        committer: Committer,
        ot: OtStore,
        telemetry: Telemetry,
        clock: Clock,
        tracker: Tracker,
        *,
        watermarks: bool,
        published_us: int = START_OF_TIME_US,
        pace: Pace = AS_USUAL,
    ) -> None:
        """`watermarks`, `published_us`: see `Publisher`."""
        self.lane = lane
        self.committer = committer
        self.tracker = tracker
        self.telemetry = telemetry
        self.clock = clock
        self.units: InOrder[Sequence[Unit]] = InOrder()
        self.counters = LaneCounters()
        self._all_counters = {lane: self.counters}
        self.publisher = Publisher(
            lane,
            committer,
            ot,
            clock,
            tracker,
            self._all_counters,
            watermarks=watermarks,
            published_us=published_us,
            little=pace.little,
        )
        self._gatherer = Gatherer(self.units, tracker, clock, pace)
        self.leaving = False
        """Whether the lane commits nothing more."""
        self.left = False
        """Whether something that was read was not committed."""

    def counters_of(self, lane: LaneId) -> LaneCounters:
        """The counters of a vertex that runs in this lane. `lane`: the lane that it would have without the chain."""
        return self._all_counters.setdefault(lane, LaneCounters())

    async def commit_all(
        self,
        watermark_after: Callable[[Sequence[Unit]], int],
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
    ) -> None:
        """Commit units as they become ready, until `units` is closed and empty.

        `watermark_after(units)`: the lane's watermark once those units are done; called once per commit, in order.
        `committed(units)`: called when they are durable.
        """
        waiting: deque[Unit] = deque()
        begun_s = -math.inf
        while True:
            if not waiting:
                waiting.extend(unit for units in await self.units.ready() for unit in units)
                if not waiting:
                    return
            if not self.leaving:
                await self._gatherer.gather(waiting, begun_s)
            if self.leaving:
                await self.give_up(waiting)
                continue
            begun_s = self.clock.monotonic_s()
            batch = self.committer.take(waiting)
            watermark_us = self.publisher.promise(watermark_after(batch))
            with self.telemetry.span(
                "millstream.commit", parent=_traceparent(batch), lane=self.lane.key, records=_records(batch)
            ):
                await self.committer.commit(batch, watermark_us=watermark_us)
            self.telemetry.observe_processing("commit", self.clock.monotonic_s() - begun_s)
            await self.tracker.finish(sum(unit.pieces for unit in batch))
            await committed(batch)
            self.publisher.publish(watermark_us)

    async def give_up(self, waiting: deque[Unit]) -> None:
        """Forget units that will not be committed: the next owner reads their input again."""
        await self.tracker.finish(sum(unit.pieces for unit in waiting))
        self.left = self.left or bool(waiting)
        waiting.clear()

    def leave(self) -> None:
        """Commit nothing more: the next owner can read the input again."""
        self.leaving = True
        self._gatherer.hurry()

    async def end(self) -> None:
        """End the lane with its last commit and its last OT entry: nothing will follow."""
        if not self.committer.mark.ended:
            await self.committer.commit([], watermark_us=END_OF_TIME_US, ended=True)
        self.publisher.publish(END_OF_TIME_US)
        await self.publisher.flush()
        # After this, no writer would notice that the ledger lacks data.
        await self.committer.confirm()

    @property
    def watermark_us(self) -> int:
        """The newest watermark that was published, or that a former owner committed."""
        return max(self.publisher.watermark_us, self.committer.mark.watermark_us)

    def statistics(self, pending: int | None) -> LaneStatistics:
        return replace(
            self._statistics(self.lane, self.counters),
            frames_in_flight=len(self.tracker),
            records_in_flight=self.tracker.records,
            bytes_in_flight=self.tracker.size,
            pending=pending,
        )

    def statistics_of(self, vertex: str) -> LaneStatistics:
        """The statistics of a vertex that follows in the chain. The first vertex counts the records in flight."""
        lane, counters = next((lane, counts) for lane, counts in self._all_counters.items() if lane.vertex == vertex)
        return self._statistics(lane, counters)

    def _statistics(self, lane: LaneId, counters: LaneCounters) -> LaneStatistics:
        mark = self.committer.mark
        account = account_of(lane.vertex, self.lane, mark)
        return LaneStatistics(
            lane=lane,
            epoch=mark.epoch,
            watermark_us=self.publisher.watermark_us,
            idle=self.publisher.idle,
            ended=mark.ended,
            inputs=account.inputs,
            input_bytes=account.input_bytes,
            processed=account.processed,
            filtered=account.filtered,
            dead_lettered=account.dead_lettered,
            dropped=account.dropped,
            outputs=account.outputs,
            unrouted=account.unrouted,
            discarded=account.discarded,
            late=account.late,
            fallback=account.fallback,
            repeated_ids=account.repeated_ids,
            diverted=account.diverted,
            open=account.open,
            retries=counters.retries,
            udf_errors=counters.udf_errors,
            state_reads=counters.state_reads,
        )


def _traceparent(units: Sequence[Unit]) -> str:
    """The traceparent of the first sampled frame in the commit; empty if there is none."""
    return next((frame.traceparent for unit in units for _, frame in unit.frames if frame.traceparent), "")


def _records(units: Sequence[Unit]) -> int:
    return sum(unit.account.inputs for unit in units)
