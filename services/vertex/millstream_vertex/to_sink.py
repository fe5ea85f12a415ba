"""The output of a chain that ends in a sink: passes records to it, and commits when the target has them.

    units, in order ─┬─ target keeps a position ─► PREPARE: the next mark, in this one ─► delivery ─► COMMIT: that mark
                     └─ it keeps none ───────────► delivery ─► COMMIT, while the next records are delivered

A target that keeps a position stores the number and the name of a delivery. A process that dies leaves a mark in which
a delivery may be prepared. The next owner asks the target. If the target has that delivery, the owner commits the
prepared mark; otherwise, the delivery never counts. So another attempt need not be identical: the source may return
other records, and functions may give other answers.

A delivery that ends the process of the sink's function is made in halves, until the record that is the cause has a
delivery of its own. Meanwhile, the mark keeps the records, because whoever makes the other half might get other ones:

    delivery of several records ends the process ─► KEEP: the next mark, with the records ─┐
      ┌────────────────────────────────────────────────────────────────────────────────────┘
      └─► the first half: PREPARE ─► delivery ─► COMMIT: that many fewer are left ─► the other half ─► ...

Above it: the lane, for which this commits. Below it: the committer and the delivery. It does not depend on sources.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream import codes
from millstream.account import Account
from millstream.background import open_tasks
from millstream.clock import MICROSECONDS, Clock
from millstream.durable import step
from millstream.errors import DamageError, UdfError
from millstream.frame import Frame
from millstream.limits import (
    COMMIT_AHEAD_BYTES_MAX,
    COMMIT_BYTES_MAX,
    COMMIT_FRAMES_MAX,
    OT_PUBLISH_INTERVAL_S,
    PREPARED_BYTES_MAX,
    SINK_AHEAD_BYTES_MAX,
)
from millstream.plurals import counted
from millstream.record import LaneId, Position
from millstream.telemetry.telemetry import Telemetry
from millstream_udf import columns
from millstream_vertex.core import LaneCore
from millstream_vertex.lineage import Lineage
from millstream_vertex.outputs import Committed, WatermarkAfter
from millstream_vertex.publishing import LaneCounters
from millstream_writer.committer import (
    Committer,
    DeliveryMark,
    MemberCounts,
    SinkRecords,
    Unit,
    records_of,
    size_of,
    split_at,
)
from millstream_writer.delivery import Delivery
from millstream_writer.routing import Tags, cut
from millstream_writer.sink import DivideDeliveryError, DividingLane, RefusedLateError, SinkFrame, WholeLane

TICK_S = 0.5
"""Interval at which a sink may act by time while nothing arrives."""
_HELD_UNITS_MAX = 4096
"""Maximum number of held units. The sink has their records, so only their accounts and positions are left."""


@dataclass(frozen=True, slots=True)
class ChainSink:
    """The open sink of a vertex, with the lane, telemetry and counters of that vertex."""

    lane: LaneId
    """The lane; of a vertex at the end of a chain, the lane that it would have without the chain."""
    delivery: Delivery
    kept: WholeLane | None
    """The sink's lane if the target keeps a position and takes whole deliveries; None otherwise."""
    telemetry: Telemetry
    counters: LaneCounters
    clock: Clock

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> Account:
        """Deliver records. See `Delivery.write`."""
        started_s = self.clock.monotonic_s()
        with self.telemetry.span(
            "millstream.sink.write",
            parent=frames[0].frame.traceparent,
            lane=self.lane.key,
            records=sum(one.frame.records for one in frames),
            sequence=frames[-1].sequence,
        ):
            account = await self.delivery.write(frames, end)
        seconds = self.clock.monotonic_s() - started_s
        self.telemetry.observe_processing("sink", seconds)
        self.counters.busy_s += seconds
        now_us = self.clock.now_us()
        for one in frames:
            latency_s = (now_us - one.frame.ingest_time_us) / MICROSECONDS
            self.telemetry.observe_latency(latency_s, one.frame.records)
        return account

    def count(self) -> None:
        """Bring the counters of the vertex up to date."""
        statistics = self.delivery.statistics()
        self.counters.retries, self.counters.udf_errors = statistics.retries, statistics.errors


def held_instead(committer: Committer) -> Callable[[int, str], Awaitable[str | None]]:
    """Answers whether the lane has made a delivery with a given number and name, in the form that sinks expect."""

    async def answer(sequence: int, name: str) -> str | None:
        mark = committer.mark
        known = {(one.delivered, one.delivery) for one in (mark, mark.prepared.mark) if one.delivered}
        return None if (sequence, name) in known else f"no delivery {name}"

    return answer


async def recover(committer: Committer, reached: Position, where: str) -> None:
    """Commit what a former owner had prepared, if the target has it. `reached`: the target's position.

    Raises `DamageError` if the target is neither before nor after that delivery.
    """
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
    """Delivers and commits for one lane that is a chain. Used by one task."""

    takes_arrow = False

    def __init__(self, core: LaneCore, target: ChainSink) -> None:
        self.units = core.units
        self._core = core
        self._target = target
        self._prompt = False
        self._frames = core.committer.mark.delivered
        self._name = ""
        self._held: list[Unit] = []
        """The units whose records the sink has taken."""
        self._held_bytes = self._held_records = self._delivered_bytes = 0
        self._committing: asyncio.Task[None] | None = None
        """The commit of records that a target without a position has."""
        self._committing_bytes = 0
        """Bytes of these records. A kill repeats them together with those that were delivered since."""
        self._waiting: asyncio.Timeout | None = None
        self._committed_s = core.clock.monotonic_s()
        divides = isinstance(target.kept, DividingLane) and target.kept.divides
        self._bytes_max = PREPARED_BYTES_MAX if divides else COMMIT_BYTES_MAX
        """Bytes that are written at once, unless the outputs of one record are more."""

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken is committed."""
        kept = self._core.committer.mark.undelivered_records
        return not self._held and self._committing is None and not kept

    @property
    def ahead_bytes_max(self) -> int:
        """See `Output`."""
        return COMMIT_AHEAD_BYTES_MAX if self._target.kept is not None else SINK_AHEAD_BYTES_MAX

    @property
    def passed(self) -> Sequence[MemberCounts]:
        return (MemberCounts(),)

    @property
    def delivered(self) -> list[SinkRecords] | None:
        return []

    def take(self, unit: Unit, frame: Frame, tags: Tags | None, lineage: Lineage, watermark_us: int) -> int:
        """`tags` has no effect: it is for edges with conditions, and this edge has none."""
        prefix = lineage.origin(self._target.lane).id_prefix
        account = Account(input_bytes=frame.size, late=frame.late_records(watermark_us))
        unit.passed[-1].add(MemberCounts(frame.records, frame.size, account))
        unit.delivered = [*(unit.delivered or ()), *_delivered(frame, lineage, prefix)]
        return 0

    def leave(self) -> None:
        self._core.leave()

    def count(self) -> None:
        self._target.count()

    async def run(self, watermark_after: WatermarkAfter, committed: Committed, *, prompt: bool) -> None:
        """See `Output`."""
        self._prompt = prompt
        async with open_tasks() as tasks:
            await self._commit_all(tasks, watermark_after, committed)

    async def _commit_all(
        self,
        tasks: asyncio.TaskGroup,
        watermark_after: WatermarkAfter,
        committed: Committed,
    ) -> None:
        core, waiting = self._core, deque[Unit]()
        kept = self._target.kept
        if undelivered := core.committer.undelivered():
            # A former owner has not delivered them.
            await self._deliver_undelivered([undelivered], core.committer.mark.watermark_us)
        while True:
            if not waiting:
                units = await self._ready()
                if units is not None and not units:
                    break
                waiting.extend(units or ())
            if core.leaving:
                await core.give_up(waiting)
            elif waiting:
                batch = self._take(waiting)
                if kept is not None and not kept.collects:
                    await self._deliver_kept(batch, watermark_after, committed)
                    continue
                if kept is None:
                    await self._make_room(batch, tasks, watermark_after, committed)
                await self._hand_over(batch)
            else:
                await self._target.delivery.tick()
            if self._is_due():
                await self._settle(tasks, watermark_after, committed)
        # What the sink has taken is made durable, even if the lane leaves.
        if self._held:
            await self._settle(tasks, watermark_after, committed)

    async def _ready(self) -> Sequence[Unit] | None:
        """Finished units; an empty list if all were taken, None if it is time to check the sink."""
        wait_s = TICK_S
        if self._held and self._target.kept is None and self._committing is None:
            wait_s = self._committed_s + OT_PUBLISH_INTERVAL_S - self._core.clock.monotonic_s()
        try:
            async with asyncio.timeout(max(0.0, wait_s)) as self._waiting:
                return [unit for units in await self._core.units.ready() for unit in units]
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def _take(self, waiting: deque[Unit]) -> list[Unit]:
        """Take the units to write at once, at least one."""
        kept, taken = self._target.kept, list[Unit]()
        size = frames = records = written = 0
        while waiting:
            unit = waiting[0]
            size += unit.size
            frames += len(unit.frames)
            written += _size(unit)
            records += records_of(unit.delivered)
            if taken and (
                size > self._bytes_max
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
        watermark_after: WatermarkAfter,
        committed: Committed,
    ) -> None:
        """Deliver and commit a batch, if the target has the delivery when the write returns."""
        core = self._core
        delivered = [one for unit in batch for one in unit.delivered or ()]
        watermark_us = core.publisher.promise(watermark_after(batch))
        if not delivered:
            await self._commit(batch, watermark_us, committed, None, self._frames)
        elif left := await self._deliver_whole(batch, delivered, watermark_us, committed):
            await self._keep(batch, left)
            await committed(batch)
            await self._deliver_undelivered(_halves(left), watermark_us)
        # Only now: the watermark of a lane that has nothing in flight may pass what it has read.
        await core.tracker.finish(sum(unit.pieces for unit in batch))

    async def _deliver_whole(
        self,
        units: Sequence[Unit],
        delivered: Sequence[SinkRecords],
        watermark_us: int,
        committed: Committed,
        undelivered: int = 0,
    ) -> Sequence[SinkRecords]:
        """Make one delivery, and commit these units with it. `undelivered`: how many of the records that the mark keeps
        are left then. Returns nothing.

        If the delivery has to be divided, nothing is delivered and committed, and those of its records are returned
        that are for the sink. The account of the units then has the others, which were set aside.
        """
        delivery, frames = self._target.delivery, self._frames
        passed, before = units[-1].passed[-1], units[-1].passed[-1].account
        self._begin()
        made = DeliveryMark(frames + len(delivered), self._name, undelivered)
        expected = Account(inputs=records_of(delivered))
        expected.processed = expected.inputs
        passed.account = _sum(before, expected)
        await self._prepare(units, watermark_us, made)
        while True:
            account = Account()
            try:
                account = await self._write(delivered)
                if account != expected:
                    # Records were set aside, so nothing is in the target before the flush.
                    passed.account = _sum(before, account)
                    await self._prepare(units, watermark_us, made)
                await delivery.flush()
                break
            except RefusedLateError:
                self._frames = frames
            except DivideDeliveryError as error:
                self._frames, self._name = frames, ""
                left = _left(delivered, delivery.set_aside)
                if size_of(left) > PREPARED_BYTES_MAX:
                    raise self._too_large(left, error) from error
                passed.account = _sum(before, _without(account, records_of(left)))
                return left
        delivery.take_settled()
        kept = self._target.kept is not None
        await self._commit(units, watermark_us, committed, made if kept else None, self._frames)
        return ()

    async def _keep(self, units: Sequence[Unit], records: Sequence[SinkRecords]) -> None:
        """Commit units without a delivery. The mark keeps their records for the sink, with those that it has kept."""
        committer = self._core.committer
        mark = committer.mark
        made = DeliveryMark(mark.delivered, mark.delivery, records_of(records))
        with step("chain.keep", self._target.lane.vertex):
            await committer.commit(units, watermark_us=mark.watermark_us, delivery=made, undelivered=records)

    async def _deliver_undelivered(self, parts: Sequence[Sequence[SinkRecords]], watermark_us: int) -> None:
        """Deliver the records that the mark keeps, each of these parts in a delivery of its own, or in several.
        `watermark_us`: after all of them."""
        committer, waiting = self._core.committer, deque(parts)
        while waiting:
            part = waiting.popleft()
            unit = Unit(passed=[MemberCounts() for _ in committer.members], pieces=0)
            after_us = committer.mark.watermark_us if waiting else watermark_us
            undelivered = sum(records_of(one) for one in waiting)
            left = await self._deliver_whole([unit], part, after_us, _nothing_to_acknowledge, undelivered)
            if left and records_of(left) < records_of(part):
                await self._keep([unit], [*left, *(one for other in waiting for one in other)])
            waiting.extendleft(reversed(_halves(left)))

    def _too_large(self, records: Sequence[SinkRecords], error: DivideDeliveryError) -> UdfError:
        frames = [SinkFrame(one.frame, 0, one.first, one.prefix) for one in (records[0], records[-1])]
        return UdfError(
            codes.SINK_FUNCTION_FAILED,
            f"{self._target.lane}: {error}, in a transaction of {counted(records_of(records), 'record')}, from "
            f"{frames[0].record_ids()[0]} to {frames[1].record_ids()[-1]}. Nothing of it is in the target. It is not "
            f"made in halves, because the lane's mark would have to keep {size_of(records):,} bytes, and takes "
            f"{PREPARED_BYTES_MAX:,}. Fix the function and start again",
        )

    async def _make_room(
        self,
        batch: Sequence[Unit],
        tasks: asyncio.TaskGroup,
        watermark_after: WatermarkAfter,
        committed: Committed,
    ) -> None:
        """Commit until a kill would repeat no more than the bound with this batch, or than the batch if it is larger.

        Half of the bound may be delivered while the other half is committed.
        """
        size = sum(size_of(unit.delivered) for unit in batch)
        if self._held and self._delivered_bytes + size > COMMIT_AHEAD_BYTES_MAX // 2:
            await self._settle(tasks, watermark_after, committed)
        if (
            self._committing is not None
            and self._committing_bytes + self._delivered_bytes + size > COMMIT_AHEAD_BYTES_MAX
        ):
            await asyncio.wait([self._committing])

    async def _hand_over(self, batch: Sequence[Unit]) -> None:
        """Write a batch's records to the sink; `_settle` commits them."""
        delivered = [one for unit in batch for one in unit.delivered or ()]
        if delivered:
            self._begin()
            batch[-1].passed[-1].account.add(await self._write(delivered))
        self._delivered_bytes += size_of(delivered)
        for unit in batch:
            self._held.append(unit)
            self._held_bytes += _size(unit)
            unit.delivered = ()
        self._held_records += records_of(delivered)
        await self._core.tracker.finish(sum(unit.pieces for unit in batch))

    def _is_due(self) -> bool:
        if not self._held:
            return False
        full = self._held_bytes > PREPARED_BYTES_MAX // 2 or len(self._held) >= _HELD_UNITS_MAX
        frames = sum(len(unit.frames) for unit in self._held)
        if self._committing is not None:
            return full or frames > COMMIT_FRAMES_MAX // 2
        if full or self._prompt or frames > COMMIT_FRAMES_MAX // 2:
            return True
        kept = self._target.kept
        if kept is not None and self._held_records:
            return kept.is_ripe
        return self._core.clock.monotonic_s() >= self._committed_s + OT_PUBLISH_INTERVAL_S

    async def _settle(
        self,
        tasks: asyncio.TaskGroup,
        watermark_after: WatermarkAfter,
        committed: Committed,
    ) -> None:
        """Make what the sink has taken durable, and commit it. If the target keeps no position, the commit is made
        while the sink takes more."""
        if self._committing is not None:
            await asyncio.wait([self._committing])
        units = self._held
        core, delivery, made = self._core, self._target.delivery, None
        watermark_us = core.publisher.promise(watermark_after(units))
        if self._target.kept is not None and self._name:
            made = DeliveryMark(self._frames, self._name)
            await self._prepare(units, watermark_us, made)
        await delivery.flush()
        delivery.take_settled()
        committing = self._commit(units, watermark_us, committed, made, self._frames)
        if self._target.kept is not None:
            await committing
        else:
            self._committing = tasks.create_task(committing, name=f"commit {core.lane}")
            self._committing.add_done_callback(self._on_committed)
            self._committing_bytes = self._delivered_bytes
        self._held, self._held_bytes, self._held_records, self._delivered_bytes = [], 0, 0, 0

    def _on_committed(self, commit: asyncio.Task[None]) -> None:
        self._committing, self._committing_bytes = None, 0
        if self._waiting is not None and not self._waiting.expired():
            # What was delivered meanwhile may be due.
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def _begin(self) -> None:
        """Begin a delivery, unless one is being collected."""
        self._name = self._name or os.urandom(8).hex()

    async def _prepare(self, units: Sequence[Unit], watermark_us: int, made: DeliveryMark) -> None:
        """Store the mark that a delivery leads to, before it is made. If the target keeps no position, it would have no
        use."""
        if self._target.kept is None:
            return
        with step("chain.prepare", self._target.lane.vertex):
            await self._core.committer.prepare(units, watermark_us=watermark_us, delivery=made)

    async def _write(self, delivered: Sequence[SinkRecords]) -> Account:
        target, frames = self._target, []
        for one in delivered:
            self._frames += 1
            frames.append(SinkFrame(one.frame, self._frames, one.first, one.prefix, name=self._name))
        return await target.write(frames, Position(self._frames))

    async def _commit(
        self,
        units: Sequence[Unit],
        watermark_us: int,
        committed: Committed,
        made: DeliveryMark | None,
        delivered: int,
    ) -> None:
        """Commit units after the target has taken their records, the last of which is frame number `delivered`."""
        core, self._name = self._core, ""
        begun_s = core.clock.monotonic_s()
        with step("chain.commit", self._target.lane.vertex):
            if made is not None:
                await core.committer.commit_prepared()
            else:
                frames = DeliveryMark(delivered, core.committer.mark.delivery)
                await core.committer.commit(units, watermark_us=watermark_us, delivery=frames)
        self._committed_s = core.clock.monotonic_s()
        core.telemetry.observe_processing("commit", self._committed_s - begun_s)
        await committed(units)
        core.publisher.publish(watermark_us)


def _size(unit: Unit) -> int:
    """Size in bytes of a unit's ids and of what it writes to buffers."""
    return len(unit.changes.ids) + sum(frame.size for _, frame in unit.frames)


async def _nothing_to_acknowledge(units: Sequence[Unit]) -> None:
    """The input of these records was acknowledged when the mark had them."""


def _left(delivered: Sequence[SinkRecords], set_aside: Mapping[int, Collection[int]]) -> list[SinkRecords]:
    """The records that are left without those at these rows, by index of the frame."""
    left = []
    for number, (frame, prefix, first) in enumerate(delivered):
        rows = [row for row in range(frame.records) if row not in set_aside.get(number, ())]
        if rows:
            # A record keeps its id.
            item = SinkFrame(frame, 0, first, prefix).take(rows)
            left.append(SinkRecords(item.frame, prefix, item.first_index))
    return left


def _halves(delivered: Sequence[SinkRecords]) -> list[list[SinkRecords]]:
    """The first half of the records, and the second one, without those that are empty."""
    return [half for half in split_at(delivered, records_of(delivered) // 2) if half]


def _without(account: Account, left: int) -> Account:
    """The account of a write without so many records that the sink has not got."""
    if not account.inputs:
        return account
    return replace(account, inputs=account.inputs - left, processed=account.processed - left)


def _sum(first: Account, second: Account) -> Account:
    total = Account()
    total.add(first)
    total.add(second)
    return total


def _delivered(frame: Frame, lineage: Lineage, prefix: str) -> Iterator[SinkRecords]:
    """The records of a frame in pieces, each with what names its records."""
    start = 0
    for piece in cut(frame):
        part = lineage.part(start, piece.records)
        start += piece.records
        named = piece
        if part.names is not None and not piece.ids_column:
            ids = columns.pack_bytes([f"{prefix}{name}".encode() for name in part.names])
            named = replace(piece, ids_column=ids)
        yield SinkRecords(named, prefix, part.first)
