"""What all kinds of lanes share: committing finished units in order, and publishing progress in the OT store.

begin ─► work (concurrently) ─► InOrder ─► commit ─► OT entry, trim, external ack
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from millstream.account import account_of, consumed, progress
from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US, Clock
from millstream.limits import BARE_COMMIT_INTERVAL_S, MARK_BEHIND_BYTES_MAX
from millstream.record import LaneId
from millstream.statistics import LaneStatistics
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import OtStore
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1 import ot_pb2
from millstream_reader.tracker import Tracker
from millstream_vertex.in_order import InOrder
from millstream_vertex.linger import Linger, enough
from millstream_vertex.little import NOTHING_IS_LITTLE, Little
from millstream_writer.committer import Committer, Unit


@dataclass(slots=True)
class LaneCounters:
    """Counts since this process started."""

    retries: int = 0
    udf_errors: int = 0
    busy_s: float = 0.0
    """Time of calls to the function or target, summed over concurrent calls."""


class Deliverer(Protocol):
    """Commits for a lane whose chain ends in a sink."""

    prompt: bool
    """Whether deliveries are committed immediately, because an external system waits for the commit."""

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken is committed."""

    @property
    def ahead_bytes_max(self) -> int:
        """Bytes that may be answered by functions and not taken."""

    async def commit_all(
        self,
        watermark_after: Callable[[Sequence[Unit]], int],
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
    ) -> None:
        """See `LaneCore.commit_all`."""


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
        commit_interval_s: float = 0.0,
        linger: Linger | None = None,
        little: Little = NOTHING_IS_LITTLE,
    ) -> None:
        """`published_us`: the lane's watermark in the OT store, which may be later than its mark's, because it also
        advances without commits. `commit_interval_s`: the minimum time between two commits while no reader may wait
        for output; with output, `linger` decides. `little`: how much progress may be published later."""
        self.lane = lane
        self.committer = committer
        self.tracker = tracker
        self.telemetry = telemetry
        self.clock = clock
        self.units: InOrder[Sequence[Unit]] = InOrder()
        self.counters = LaneCounters()
        self.followers: dict[LaneId, LaneCounters] = {}
        """The counters of the vertices that follow in the chain, by the lane that each would have without the chain."""
        self._ot = ot
        self.watermarks = watermarks
        self._commit_interval_s = commit_interval_s
        tracker.on_crowd = self._hurry
        self._linger = linger or Linger()
        self._little = little
        self._last_published: tuple[int, int] | None = None
        """Records and bytes, taken and written, as of the last entry that was published soon."""
        self._gathering: asyncio.Timeout | None = None
        self._hurried = False
        self._renewing = False
        self._leaving = False
        self.left = False
        """Whether something that was read was not committed."""
        self.deliverer: Deliverer | None = None
        """Commits for a lane whose chain ends in a sink; None for other lanes."""
        self._watermark_us = max(committer.mark.watermark_us, published_us)
        self._idle = False

    async def commit_all(
        self,
        watermark_after: Callable[[Sequence[Unit]], int],
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
    ) -> None:
        """Commit units as they become ready, until `units` is closed and empty. If the chain ends in a sink, the
        deliverer does that.

        `watermark_after(units)`: the lane's watermark once those units are done; called once per commit, in order.
        `committed(units)`: called when they are durable.
        """
        if self.deliverer is not None:
            await self.deliverer.commit_all(watermark_after, committed)
            return
        waiting: deque[Unit] = deque()
        begun_s = -math.inf
        while True:
            if not waiting:
                waiting.extend(unit for units in await self.units.ready() for unit in units)
                if not waiting:
                    return
            if not self._leaving:
                await self._gather(waiting, begun_s)
            if self._leaving:
                await self.tracker.finish(sum(unit.pieces for unit in waiting))
                waiting.clear()
                self.left = True
                continue
            begun_s = self.clock.monotonic_s()
            batch = self.committer.take(waiting)
            watermark_us = self.promise(watermark_after(batch))
            with self.telemetry.span(
                "millstream.commit", parent=_traceparent(batch), lane=self.lane.key, records=_records(batch)
            ):
                await self.committer.commit(batch, watermark_us=watermark_us)
            self.telemetry.observe_processing("commit", self.clock.monotonic_s() - begun_s)
            self._renewing = False
            await self.tracker.finish(sum(unit.pieces for unit in batch))
            await committed(batch)
            self.publish(watermark_us)

    async def _gather(self, waiting: deque[Unit], committed_s: float) -> None:
        """Wait for more units: without output, until an interval after the last commit; with output, while this pays
        off."""
        begun_s: float | None = None
        until_s, there = 0.0, 0
        self._hurried = False
        while True:
            now_s = self.clock.monotonic_s()
            if begun_s is None:
                until_s = committed_s + self._bare_interval_s(waiting)
            records = sum(frame.records for unit in waiting for _, frame in unit.frames)
            size = sum(unit.size for unit in waiting)
            if begun_s is None and records:
                begun_s, there = now_s, len(waiting)
                until_s = now_s + self._linger.begin(now_s, records, size)
            if now_s >= until_s or self._leaving or (records and (self.tracker.crowded or enough(records, size))):
                break
            try:
                async with asyncio.timeout(until_s - now_s) as self._gathering:
                    ready = await self.units.ready()
            except TimeoutError:
                if self._hurried:
                    break
                # The event loop's timers may fire a millisecond early, and the wait may be as short as that.
                continue
            finally:
                self._gathering = None
            if not ready:
                break
            waiting.extend(unit for units in ready for unit in units)
            if begun_s is not None and not self._linger.expects_more(until_s - self.clock.monotonic_s()):
                break
        if begun_s is not None:
            now_s = self.clock.monotonic_s()
            self._linger.end(now_s, len(waiting), now_s - begun_s, len(waiting) - there)

    def _bare_interval_s(self, waiting: Sequence[Unit]) -> float:
        """The minimum time between two commits without output."""
        if not self._commit_interval_s:
            return 0.0
        accounts = [unit.account for unit in waiting]
        little = self._little.covers(
            sum(account.inputs for account in accounts), sum(account.input_bytes for account in accounts)
        )
        return BARE_COMMIT_INTERVAL_S if little else self._commit_interval_s

    def _hurry(self) -> None:
        """Stop waiting for more units: a longer wait gains nothing."""
        self._hurried = True
        if self._gathering is not None and not self._gathering.expired():
            self._gathering.reschedule(asyncio.get_running_loop().time())

    @property
    def leaving(self) -> bool:
        """Whether the lane commits nothing more: the next owner can read its input again."""
        return self._leaving

    @leaving.setter
    def leaving(self, leaving: bool) -> None:
        self._leaving = leaving
        self._hurry()

    async def end(self) -> None:
        """End the lane with its last commit and its last OT entry: nothing will follow."""
        if not self.committer.mark.ended:
            await self.committer.commit([], watermark_us=END_OF_TIME_US, ended=True)
        self.publish(END_OF_TIME_US)
        await self._ot.flush()
        # After this, no writer would notice that the ledger lacks data.
        await self.committer.confirm()

    def renew_mark(self) -> None:
        """Commit the mark again if the lane has nothing to commit and other lanes have written much since its last
        commit. The mark would be the first message of the ledger, and what is removed behind it would keep its place
        (docs/decisions/0108-trims-let-the-broker-remove-whole-files.md)."""
        if self._renewing or self._leaving or self.deliverer is not None or not self.is_quiet or len(self.units):
            return
        if self.committer.behind_bytes >= MARK_BEHIND_BYTES_MAX:
            self._renewing = True
            self.units.add_done([Unit(pieces=0)])

    def publish(self, watermark_us: int, *, idle: bool = False) -> None:
        """Publish the lane's state in the OT store. The watermark never goes back."""
        before_us, was_idle = self._watermark_us, self._idle
        self._watermark_us = max(self._watermark_us, self.promise(watermark_us))
        self._idle = idle
        promised = not self._little.watermark and (self._watermark_us, idle) != (before_us, was_idle)
        # This runs at each commit, but the OT store makes and puts one entry for many commits. Everything in the entry
        # is committed when it is made, and its watermark is never ahead of that.
        self._ot.publish(self.lane, self._entry, soon=self._is_news() or promised)

    def _entry(self) -> ot_pb2.OtEntry:
        """The lane's current state."""
        mark = self.committer.mark
        entry = ot_pb2.OtEntry(
            epoch=mark.epoch,
            # The entry may be made after the last commit, before `end` publishes the watermark of that commit.
            watermark_us=END_OF_TIME_US if mark.ended else self._watermark_us,
            idle=self._idle,
            ended=mark.ended,
            published_us=self.clock.now_us(),
        )
        for done in consumed(self.lane, mark):
            entry.inputs.add(
                edge=done.buffer.edge,
                partition=done.buffer.partition,
                sequence=done.position.sequence,
                records=done.records,
                bytes=done.bytes,
            )
        totals = {(written.edge, written.partition): written for written in mark.written}
        for buffer, sequence in self.committer.sequences.items():
            written = totals.get((buffer.edge, buffer.partition))
            entry.outputs.add(
                edge=buffer.edge,
                partition=buffer.partition,
                sequence=sequence,
                records=written.records if written is not None else 0,
                bytes=written.bytes if written is not None else 0,
            )
        for member in mark.members:
            handed = totals.get((member.edge, self.lane.partition), mark_pb2.Written())
            entry.outputs.add(
                edge=member.edge, partition=self.lane.partition, records=handed.records, bytes=handed.bytes
            )
        if self.followers:
            entry.held_up_us = int(self.tracker.held_up_s * MICROSECONDS)
            for lane, counters in ((self.lane, self.counters), *self.followers.items()):
                entry.busy.add(vertex=lane.vertex, us=int(counters.busy_s * MICROSECONDS))
        return entry

    def _is_news(self) -> bool:
        """Whether the next entry is the first or last, or adds more than a little to the last one published soon."""
        mark = self.committer.mark
        records, size = progress(mark)
        before = self._last_published
        if before is not None and not mark.ended and self._little.covers(records - before[0], size - before[1]):
            return False
        self._last_published = (records, size)
        return True

    async def publish_last(self) -> None:
        """Return when the newest OT entry is stored.

        A drain stops the readers of this lane as soon as they have read what is published as written. If the last entry
        never arrived, they would leave the rest unread.
        """
        await self._ot.flush()

    def promise(self, watermark_us: int) -> int:
        """The watermark to publish; with watermarks disabled, the start of time until the lane has ended."""
        return watermark_us if self.watermarks or self.committer.mark.ended else START_OF_TIME_US

    @property
    def watermark_us(self) -> int:
        """The newest watermark that was published, or that a former owner committed."""
        return max(self._watermark_us, self.committer.mark.watermark_us)

    @property
    def is_quiet(self) -> bool:
        """Whether everything that was read is committed."""
        return len(self.tracker) == 0 and (self.deliverer is None or self.deliverer.is_empty)

    def statistics(self, pending: int | None) -> LaneStatistics:
        numbers = self._statistics(self.lane, self.counters)
        return replace(
            numbers,
            frames_in_flight=len(self.tracker),
            records_in_flight=self.tracker.records,
            bytes_in_flight=self.tracker.size,
            pending=pending,
        )

    def statistics_of(self, vertex: str) -> LaneStatistics:
        """The statistics of a vertex that follows in the chain. The first vertex counts the records in flight."""
        lane, counters = next((lane, counters) for lane, counters in self.followers.items() if lane.vertex == vertex)
        return self._statistics(lane, counters)

    def _statistics(self, lane: LaneId, counters: LaneCounters) -> LaneStatistics:
        mark = self.committer.mark
        account = account_of(lane.vertex, self.lane, mark)
        return LaneStatistics(
            lane=lane,
            epoch=mark.epoch,
            watermark_us=self._watermark_us,
            idle=self._idle,
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
        )


def _traceparent(units: Sequence[Unit]) -> str:
    """The traceparent of the first sampled frame in the commit; empty if there is none."""
    return next((frame.traceparent for unit in units for _, frame in unit.frames if frame.traceparent), "")


def _records(units: Sequence[Unit]) -> int:
    return sum(unit.account.inputs for unit in units)
