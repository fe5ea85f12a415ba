"""The end of a chain without buffers: passes the output of the chain to a sink, and commits when the target has it.

    units, in order ─┬─ target keeps a position ─► PREPARE: the next mark, in this one ─► delivery ─► COMMIT: that mark
                     └─ it keeps none ───────────► delivery ─► COMMIT

A target that keeps a position stores the number and the name of a delivery. A process that dies leaves a mark in which
a delivery may be prepared. The next owner asks the target. If the target has that delivery, the owner commits the
prepared mark; otherwise, the delivery never counts. So another attempt need not be identical: the source may return
other records, and functions may give other answers.

Above it: the lane, for which this commits. Below it: the committer and the delivery. It does not depend on sources.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millstream import codes
from millstream.account import Account
from millstream.clock import MICROSECONDS
from millstream.durable import step
from millstream.errors import DamageError, RetryLaterError
from millstream.limits import COMMIT_BYTES_MAX, COMMIT_FRAMES_MAX, OT_PUBLISH_INTERVAL_S, PREPARED_BYTES_MAX
from millstream.pauses import Pauses
from millstream.record import LaneId, Position
from millstream.telemetry import Telemetry
from millstream_vertex.lane import LaneCore, LaneCounters
from millstream_writer.committer import Committer, Delivered, Unit
from millstream_writer.committer import Delivery as Made
from millstream_writer.delivery import Delivery
from millstream_writer.sink import SinkFrame, WholeLane

_log = logging.getLogger(__name__)

TICK_S = 0.5
"""Interval at which a sink may act by time while nothing arrives."""
_HELD_UNITS_MAX = 4096
"""Maximum number of held units. The sink has their records, so only their accounts and positions are left."""
_REACH_FIRST_S, _REACH_LAST_S = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """The open sink of a chain, with the lane, telemetry and counters of its vertex."""

    lane: LaneId
    """The lane that the vertex would have without the chain."""
    delivery: Delivery
    kept: WholeLane | None
    """The sink's lane if the target keeps a position; None otherwise."""
    telemetry: Telemetry
    counters: LaneCounters


class _Held(NamedTuple):
    """A unit whose records the sink has taken."""

    unit: Unit
    size: int
    """Size in bytes of the unit's ids and of what it writes to buffers."""


def held_instead(committer: Committer) -> Callable[[int, str], Awaitable[str | None]]:
    """Answers whether the lane has made a delivery with a given number and name, in the form that sinks expect."""

    async def answer(sequence: int, name: str) -> str | None:
        mark = committer.mark
        known = {(one.delivered, one.delivery) for one in (mark, mark.prepared.mark) if one.delivered}
        return None if (sequence, name) in known else f"no delivery {name}"

    return answer


async def recover(committer: Committer, kept: WholeLane, where: str) -> None:
    """Commit what a former owner had prepared, if the target has it; wait while the target is unavailable.

    Raises `DamageError` if the target is neither before nor after that delivery.
    """
    pauses = Pauses(_REACH_FIRST_S, _REACH_LAST_S)
    while True:
        try:
            reached = await kept.reach()
            break
        except RetryLaterError as error:
            _log.warning("%s", error)
            await pauses.wait()
    mark = committer.mark
    if mark.HasField("prepared") and reached == Position(mark.prepared.mark.delivered):
        await committer.commit_prepared()
    elif reached != Position(mark.delivered):
        raise DamageError(
            codes.SINK_AHEAD,
            f"{where}: the target is at delivery {reached.sequence} ({reached.record_index} records after it), but "
            f"the lane has made {mark.delivered}: the pipeline's data is older than the target. Nothing was written "
            "now. Restore the data directory that belongs to the target, or start over with another target",
        )


class ChainDeliverer:
    """Delivers and commits for one lane. Used by one task."""

    def __init__(self, core: LaneCore, target: Target) -> None:
        self._core = core
        self._target = target
        self.prompt = False
        self._frames = core.committer.mark.delivered
        self._name = ""
        self._held: list[_Held] = []
        self._held_bytes = self._held_records = 0
        self._committed_s = core.clock.monotonic_s()
        lane = target.lane
        self._where = f"{lane.vertex}/{lane.input}/{lane.partition}/"

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken is committed."""
        return not self._held

    async def commit_all(
        self,
        watermark_after: Callable[[Sequence[Unit]], int],
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
    ) -> None:
        """See `LaneCore.commit_all`."""
        core, waiting = self._core, deque[Unit]()
        kept = self._target.kept
        while True:
            if not waiting:
                units = await self._ready()
                if units is not None and not units:
                    break
                waiting.extend(units or ())
            if core.leaving:
                await core.tracker.finish(sum(unit.pieces for unit in waiting))
                core.left = core.left or bool(waiting)
                waiting.clear()
                continue
            if waiting:
                batch = self._take(waiting)
                if kept is not None and not kept.collects:
                    await self._deliver_kept(batch, watermark_after, committed)
                    continue
                await self._hand_over(batch)
            else:
                await self._target.delivery.tick()
            if self._is_due():
                await self._settle(watermark_after, committed)
        # What the sink has taken is made durable, even if the lane leaves.
        if self._held:
            await self._settle(watermark_after, committed)

    async def _ready(self) -> Sequence[Unit] | None:
        """Finished units; an empty list if all were taken, None if it is time to check the sink."""
        wait_s = TICK_S
        if self._held and self._target.kept is None:
            wait_s = self._committed_s + OT_PUBLISH_INTERVAL_S - self._core.clock.monotonic_s()
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                return [unit for units in await self._core.units.ready() for unit in units]
        except TimeoutError:
            return None

    def _take(self, waiting: deque[Unit]) -> list[Unit]:
        """Take the units to write at once, at least one."""
        kept, taken = self._target.kept, list[Unit]()
        size = frames = records = written = 0
        while waiting:
            unit = waiting[0]
            size += unit.size
            frames += len(unit.frames)
            written += _size(unit)
            records += sum(one.frame.records for one in unit.delivered or ())
            if taken and (
                size > COMMIT_BYTES_MAX
                or frames > COMMIT_FRAMES_MAX
                or (kept is not None and (records > kept.delivery_records_max or kept.collects))
                or written > PREPARED_BYTES_MAX
            ):
                break
            taken.append(waiting.popleft())
        return taken

    async def _deliver_kept(
        self,
        batch: Sequence[Unit],
        watermark_after: Callable[[Sequence[Unit]], int],
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
    ) -> None:
        """Deliver and commit a batch, if the target has the delivery when the write returns."""
        core, delivery = self._core, self._target.delivery
        delivered = [one for unit in batch for one in unit.delivered or ()]
        watermark_us = core.promise(watermark_after(batch))
        if not delivered:
            await core.tracker.finish(sum(unit.pieces for unit in batch))
            await self._commit(batch, watermark_us, committed, None)
            return
        self._begin()
        expected = Account(inputs=sum(one.frame.records for one in delivered))
        expected.processed = expected.inputs
        before = batch[-1].passed[-1].account
        batch[-1].passed[-1].account = _sum(before, expected)
        made = Made(self._frames + len(delivered), self._name)
        await self._prepare(batch, watermark_us, made)
        account = await self._write(delivered)
        if account != expected:
            # Records were set aside, so nothing is in the target before the flush.
            batch[-1].passed[-1].account = _sum(before, account)
            await self._prepare(batch, watermark_us, made)
        await delivery.flush()
        delivery.take_settled()
        await core.tracker.finish(sum(unit.pieces for unit in batch))
        await self._commit(batch, watermark_us, committed, made)

    async def _hand_over(self, batch: Sequence[Unit]) -> None:
        """Write a batch's records to the sink; `_settle` commits them."""
        delivered = [one for unit in batch for one in unit.delivered or ()]
        if delivered:
            self._begin()
            batch[-1].passed[-1].account.add(await self._write(delivered))
        for unit in batch:
            self._held.append(_Held(unit, _size(unit)))
            self._held_bytes += self._held[-1].size
            unit.delivered = ()
        self._held_records += sum(one.frame.records for one in delivered)
        await self._core.tracker.finish(sum(unit.pieces for unit in batch))

    def _is_due(self) -> bool:
        if not self._held:
            return False
        full = self._held_bytes > PREPARED_BYTES_MAX // 2 or len(self._held) >= _HELD_UNITS_MAX
        frames = sum(len(one.unit.frames) for one in self._held)
        if full or self.prompt or frames > COMMIT_FRAMES_MAX // 2:
            return True
        kept = self._target.kept
        if kept is not None and self._held_records:
            return kept.is_ripe
        return self._core.clock.monotonic_s() >= self._committed_s + OT_PUBLISH_INTERVAL_S

    async def _settle(
        self,
        watermark_after: Callable[[Sequence[Unit]], int],
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
    ) -> None:
        """Make what the sink has taken durable, and commit it."""
        units = [one.unit for one in self._held]
        core, delivery, made = self._core, self._target.delivery, None
        watermark_us = core.promise(watermark_after(units))
        if self._target.kept is not None and self._name:
            made = Made(self._frames, self._name)
            await self._prepare(units, watermark_us, made)
        await delivery.flush()
        delivery.take_settled()
        self._held, self._held_bytes, self._held_records = [], 0, 0
        await self._commit(units, watermark_us, committed, made)

    def _begin(self) -> None:
        """Begin a delivery, unless one is being collected."""
        self._name = self._name or os.urandom(8).hex()

    async def _prepare(self, units: Sequence[Unit], watermark_us: int, made: Made) -> None:
        """Store the mark that a delivery leads to, before it is made."""
        with step("chain.prepare", self._target.lane.vertex):
            await self._core.committer.prepare(units, watermark_us=watermark_us, delivery=made)

    async def _write(self, delivered: Sequence[Delivered]) -> Account:
        core, target = self._core, self._target
        frames = []
        for one in delivered:
            self._frames += 1
            frames.append(SinkFrame(one.frame, self._frames, one.first, one.prefix, name=self._name))
        started_s = core.clock.monotonic_s()
        with target.telemetry.span(
            "millstream.sink.write",
            parent=delivered[0].frame.traceparent,
            lane=target.lane.key,
            records=sum(one.frame.records for one in delivered),
            sequence=self._frames,
        ):
            account = await target.delivery.write(frames, Position(self._frames))
        target.telemetry.observe_processing("sink", core.clock.monotonic_s() - started_s)
        statistics = target.delivery.statistics()
        target.counters.retries, target.counters.udf_errors = statistics.retries, statistics.errors
        now_us = core.clock.now_us()
        for one in delivered:
            latency_s = (now_us - one.frame.ingest_time_us) / MICROSECONDS
            target.telemetry.observe_latency(latency_s, one.frame.records)
        return account

    async def _commit(
        self,
        units: Sequence[Unit],
        watermark_us: int,
        committed: Callable[[Sequence[Unit]], Awaitable[None]],
        made: Made | None,
    ) -> None:
        """Commit units after the target has taken their records."""
        core, self._name = self._core, ""
        begun_s = core.clock.monotonic_s()
        with step("chain.commit", self._target.lane.vertex):
            if made is not None:
                await core.committer.commit_prepared()
            else:
                frames = Made(self._frames, core.committer.mark.delivery)
                await core.committer.commit(units, watermark_us=watermark_us, delivery=frames)
        self._committed_s = core.clock.monotonic_s()
        core.telemetry.observe_processing("commit", self._committed_s - begun_s)
        await committed(units)
        core.publish(watermark_us)


def _size(unit: Unit) -> int:
    """Size in bytes of a unit's ids and of what it writes to buffers."""
    return len(unit.ids) + sum(frame.size for _, frame in unit.frames)


def _sum(first: Account, second: Account) -> Account:
    total = Account()
    total.add(first)
    total.add(second)
    return total
