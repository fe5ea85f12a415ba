"""A lane of a reduce vertex: reads all its buffers into the queue, has closed windows computed, commits the results.

    buffers ─► queue: log + windows ─► fsync ─► commit: input positions, late records
                        │ watermark
                        ▼
                  hand-over ─► fsync ─► Spark job ─► commit: results + number of the hand-over ─► the log is freed

No position and no hand-over is told before it is durable in the log; only the fenced commit lets input and segments go.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from millstream.account import LATE_REASON, Account
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.durable import step
from millstream.ledger.witness import newest
from millstream.limits import MIB
from millstream.statistics import LaneStatistics, ReduceStatistics
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.inputs import ReduceInputs, Taken
from millstream_reduce.lane.jobs import HandOverJobs, Results
from millstream_reduce.lane.milestones import Retracing, StoredMilestones
from millstream_reduce.lane.state import Computed, EarlyResults, Logged, Totals, check_whole, note_inputs, progress_of
from millstream_reduce.lane.units import ReduceUnit, ResultRouter
from millstream_reduce.queue import Appended, Queue, QueuedFrame
from millstream_vertex.lane import LaneCore
from millstream_writer.committer import Unit

log = logging.getLogger(__name__)

TAKE_BYTES = 4 * MIB
"""Stored bytes that go into one entry of the log, about."""
GATHER_S = 0.05
"""Between two entries of the log, unless there is much or windows close: a small one costs as much as a large one."""
ROOM_WAIT_S = 0.1
"""While the log is full: how often it is looked whether the watermark closes a window."""
HAND_OVERS_IN_FLIGHT_MAX = 2
"""Hand-overs computed at a time. While so many run, windows that close wait, and then go together."""


class ReduceLane:
    """One lane; `run` returns when its inputs have ended and every window is committed, or `stop` was called."""

    def __init__(
        self,
        core: LaneCore,
        inputs: ReduceInputs,
        queue: Queue,
        jobs: HandOverJobs,
        results: ResultRouter,
        *,
        lateness_us: int,
        late_to_edge: bool,
        milestones: StoredMilestones | None,
        retracing: Retracing | None,
        early: EarlyResults | None,
    ) -> None:
        """`milestones`: where the input stays in its buffers until its windows are committed. `retracing`: where the
        log is made anew from it."""
        self.core = core
        self._inputs = inputs
        self._queue = queue
        self._jobs = jobs
        self._results = results
        self._lateness_us = lateness_us
        self._late_to_edge = late_to_edge
        self._milestones = milestones
        self._retracing = retracing
        self._early = early
        self._progress = progress_of(core.committer.mark)
        self._held: deque[Appended] = deque()
        """Where the input is kept: durable in the log behind hand-overs that are not committed."""
        self._logged: deque[Logged] = deque()
        self._closed_us = queue.closed_us
        """Up to where windows were closed for all records that are not durable in the log, now and later."""
        self._sync_wanted = asyncio.Event()
        self._in_flight: dict[int, int] = {}
        """Hand-overs whose results are not committed, by number: the end of the first window."""
        self._due_s: float | None = None  # Since when windows wait to be handed over.
        self._closed_at_s: dict[int, float] = {}
        """When the watermark closed the windows of hand-overs that are not committed."""
        self._computed: dict[int, Computed] = {}
        self._looked_s = 0.0
        """When `_gather` returned last."""
        self._totals = Totals()
        self._stopping = False

    def stop(self) -> None:
        """Take nothing new in and begin no hand-over; what is durable in the log goes on at the next start."""
        self._stopping = True
        self._inputs.stop()

    def statistics(self) -> LaneStatistics:
        queue = self._queue.statistics()
        windows = ReduceStatistics(
            open_windows=queue.open_windows,
            oldest_end_us=queue.oldest_end_us,
            open_records=queue.open_rows,
            pending_hand_overs=queue.pending_hand_overs,
            pending_records=queue.pending_rows,
            log_bytes=queue.log.bytes,
            log_bytes_max=queue.log_bytes_max,
            log_segments=queue.log.segments,
            log_written_bytes=queue.log.written_bytes,
            syncs=queue.log.syncs,
            sync_seconds=queue.log.sync_s,
            hand_overs=self._totals.hand_overs,
            hand_over_windows=self._totals.windows,
            hand_over_records=self._totals.records,
            job_seconds=self._totals.job_s,
        )
        return replace(self.core.statistics(pending=None), reduce=windows)

    async def run(self) -> None:
        if self.core.committer.mark.ended:
            await self.core.end()
            return
        if self._retracing is not None:
            self._inputs.hold_at(self._retracing.gate)
        async with self._inputs.running(), asyncio.TaskGroup() as committing:
            committing.create_task(
                self.core.commit_all(self._watermark_after, self._committed), name=f"commit {self.core.lane}"
            )
            async with asyncio.TaskGroup() as work:
                await self._recover(work)
                checking = work.create_task(self._jobs.check(), name=f"check the program of {self.core.lane}")
                syncing = work.create_task(self._sync_all(work), name=f"sync {self.core.lane}")
                await self._ingest()
                syncing.cancel()
                checking.cancel()
            self.core.units.close()
        if not self._stopping:
            await self.core.end()

    async def _ingest(self) -> None:
        """Move frames into the log and close windows, until everything is durable and computed, or `stop`."""
        while True:
            await self._inputs.wait(self._pause_s())
            await self._gather()
            # Windows are closed also while the queue is full: that may be what makes room.
            has_room = await self._queue.room(ROOM_WAIT_S)
            if self._stopping:
                break
            watermark_us = self._inputs.watermark_us()
            taken = self._inputs.take(TAKE_BYTES) if has_room else []
            appended = self._append(taken, watermark_us) if taken else None
            if self._retracing is not None:
                self._retrace(self._retracing)
                continue
            hand_overs = self._hand_over()
            if appended is not None or hand_overs:
                self._make_durable(appended, hand_overs)
            elif not self._logged:
                self._publish()
            if self._inputs.ended and not self._busy:
                return
        while self._logged:
            await self._inputs.wait(None)

    def _make_durable(self, appended: Appended | None, hand_overs: Sequence[wal_pb2.HandOver]) -> None:
        """Have what is in the log now made durable, and then take effect."""
        self._logged.append(Logged(appended, hand_overs, self._queue.closed_us))
        self._sync_wanted.set()

    def _retrace(self, retracing: Retracing) -> None:
        """Do again what was done at the milestones that are reached. The mark knows of everything up to the last."""
        while self._inputs.at_gate:
            self._queue.retrace(retracing.passed())
            if retracing.has_ended:
                self._retracing = None
                self._queue.retraced()
                check_whole(str(self.core.lane), self._queue, self.core.committer.mark)
                self._inputs.pass_over({done.edge: done.sequence for done in self._progress.inputs})
                self._inputs.hold_at(None)
                self._make_durable(None, self._keep_promise())
                return
            self._inputs.hold_at(retracing.gate)

    async def _gather(self) -> None:
        """Let more records come, when few have since the last entry; no window that could be handed over waits."""
        if self._retracing is not None:
            return
        missing_s = self._looked_s + GATHER_S - self.core.clock.monotonic_s()
        oldest_us = self._queue.oldest_end_us() if missing_s > 0 else None

        def due(watermark_us: int) -> bool:
            if oldest_us is None or watermark_us - oldest_us < self._lateness_us:
                return False
            # Windows that cannot be handed over yet are looked at once: that is since when they wait.
            return self._may_hand_over or self._due_s is None

        await self._inputs.gather(missing_s, TAKE_BYTES, due)
        self._looked_s = self.core.clock.monotonic_s()

    @property
    def _may_hand_over(self) -> bool:
        return sum(number >= self._next_number for number in self._in_flight) < HAND_OVERS_IN_FLIGHT_MAX

    @property
    def _busy(self) -> bool:
        """Something is open, in the log only, or being computed."""
        return bool(self._logged or self._in_flight or self._queue.open_windows)

    def _append(self, taken: Sequence[Taken], watermark_us: int) -> Appended:
        """`watermark_us`: valid before these frames."""
        frames = [
            QueuedFrame(item.edge, item.read.sequence, item.read.size, item.read.frame, item.read.witness)
            for item in taken
        ]
        appended = self._queue.append(frames, watermark_us)
        if self._early is not None:
            self._early.admitted(appended.admitted)
        return appended

    def _hand_over(self) -> list[wal_pb2.HandOver]:
        """Freeze the windows that the watermark has closed, and those whose early results are due."""
        watermark_us = END_OF_TIME_US if self._inputs.ended else self._inputs.watermark_us()
        if not self._may_hand_over:
            oldest_us = self._queue.oldest_end_us()
            if self._due_s is None and oldest_us is not None and watermark_us - oldest_us >= self._lateness_us:
                self._due_s = self.core.clock.monotonic_s()
            return []
        # Records that come in one frame with the end of their window are counted before it closes.
        early = self._early.counted() if self._early is not None else []
        hand_overs = self._queue.close(watermark_us)
        closed_at_s, self._due_s = self._due_s or self.core.clock.monotonic_s(), None
        self._closed_at_s.update((hand_over.number, closed_at_s) for hand_over in hand_overs)
        if not hand_overs and self._early is not None:
            early += self._early.elapsed(self.core.clock.monotonic_s())
        self._note_in_flight([*early, *hand_overs])
        return [*early, *hand_overs]

    def _note_in_flight(self, hand_overs: Sequence[wal_pb2.HandOver]) -> None:
        for hand_over in hand_overs:
            self._in_flight[hand_over.number] = min(window.end_us for window in hand_over.windows)

    def _pause_s(self) -> float | None:
        """How long nothing need be looked at when nothing happens."""
        if self._early is None or self._retracing is not None:
            return None
        pause_s = self._early.pause_s(self.core.clock.monotonic_s())
        return None if pause_s is None else max(0.001, pause_s)

    async def _sync_all(self, work: asyncio.TaskGroup) -> None:
        """Make what is logged durable, all of it at a time; only then it has consequences."""
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            logged = len(self._logged)
            await self._queue.sync()
            for _ in range(logged):
                item = self._logged[0]
                self._closed_us = item.closed_us
                if item.appended is not None:
                    self._take_in(item.appended, item.closed_us)
                for hand_over in item.hand_overs:
                    self._begin(hand_over, work)
                self._logged.popleft()
            self._inputs.wake()

    def _take_in(self, appended: Appended, closed_us: int) -> None:
        """Records are durable in the log: have the mark say so."""
        if self._milestones is not None:
            self._held.append(appended)
            self._tell_held()
        else:
            self._tell(appended, closed_us)

    def _tell_held(self) -> None:
        """Where the input is kept, the mark alone must say what becomes of a record that is read again. So it follows
        the log: it tells of nothing that came behind a hand-over before that is committed."""
        while self._held and self._held[0].hand_over <= self._progress.hand_over:
            appended = self._held.popleft()
            self._tell(appended, appended.closed_us)

    def _tell(self, appended: Appended, closed_us: int) -> None:
        unit = ReduceUnit(pieces=0, account=self._account_of(appended))
        unit.frames = [pair for frame in appended.late_frames for pair in self._results.route_late(frame)]
        self._add_milestone(unit, appended.milestone)
        unit.size = sum(frame.size for _, frame in unit.frames)
        note_inputs(self._progress, appended.inputs)
        self._progress.closed_us = max(self._progress.closed_us, closed_us)
        self._add([unit])

    def _add_milestone(self, unit: ReduceUnit, milestone: wal_pb2.Milestone | None) -> None:
        if self._milestones is not None and milestone is not None:
            unit.milestone = milestone
            unit.frames.append(self._milestones.frame(milestone, self.core.clock.now_us()))

    def _account_of(self, appended: Appended) -> Account:
        account = Account(
            inputs=appended.records,
            input_bytes=appended.bytes,
            filtered=appended.outside,
            late=appended.late + appended.late_admitted,
            open=appended.admitted,
        )
        if self._late_to_edge:
            account.diverted = appended.late
        elif appended.late:
            account.drop(LATE_REASON, appended.late)
        return account

    def _begin(self, hand_over: wal_pb2.HandOver, work: asyncio.TaskGroup) -> None:
        if not self._stopping:
            work.create_task(self._compute(hand_over), name=f"hand-over {hand_over.number} of {self.core.lane}")

    async def _compute(self, hand_over: wal_pb2.HandOver) -> None:
        core = self.core
        rows = sum(window.rows for window in hand_over.windows)
        started = core.clock.monotonic_s()
        origin = self._queue.origin_of(hand_over, core.clock.now_us())
        with (
            core.telemetry.span(
                "millstream.reduce.hand_over",
                parent=origin.first_traceparent,
                links=origin.traceparents[1:],
                lane=core.lane.key,
                records=rows,
                sequence=hand_over.number,
            ) as span,
            step("reduce.compute", core.lane.vertex),
        ):
            results = await self._jobs.compute(hand_over, span.traceparent)
            span.tell("millstream.spark.job_tags", results.job_tags)
        core.telemetry.observe_processing("reduce", core.clock.monotonic_s() - started)
        self._totals.add(len(hand_over.windows), rows, results.job_s)
        core.counters.retries += results.retries
        core.counters.udf_errors += results.errors
        self._computed[hand_over.number] = Computed(hand_over, results, 0, origin.within(span.traceparent))
        await self._release()

    async def _release(self) -> None:
        """Send results on their way to the commit, in the order of the hand-overs."""
        while (computed := self._computed.pop(self._next_number, None)) is not None:
            hand_over = computed.hand_over
            units = self._results.units(hand_over, computed.results, computed.committed_rows, computed.origin)
            if len(units) > 1 and not computed.committed_rows:
                # More than one commit: what is begun must be finished with the same results.
                await self._queue.write_result(hand_over.number, computed.results.encode())
            self._commit(hand_over, units, computed.committed_rows)

    @property
    def _next_number(self) -> int:
        return self._progress.hand_over + 1

    def _commit(self, hand_over: wal_pb2.HandOver, units: Sequence[ReduceUnit], committed_rows: int) -> None:
        for unit in units[:-1]:
            committed_rows += unit.account.outputs
            self._progress.result_records = committed_rows
            self._stamp(unit)
        self._progress.result_records = 0
        self._progress.hand_over = hand_over.number
        self._progress.closing = hand_over.more
        self._progress.closed_us = max(self._progress.closed_us, hand_over.closed_us)
        if hand_over.HasField("milestone"):
            self._add_milestone(units[-1], hand_over.milestone)
        self._stamp(units[-1])
        self._add_stamped(units)
        self._tell_held()
        self._inputs.wake()

    def _add(self, units: Sequence[ReduceUnit]) -> None:
        for unit in units:
            self._stamp(unit)
        self._add_stamped(units)

    def _stamp(self, unit: ReduceUnit) -> None:
        """Where the lane stands after this unit."""
        unit.reduce = mark_pb2.ReduceProgress()
        unit.reduce.CopyFrom(self._progress)
        unit.watermark_us = self._watermark(self._progress.hand_over)

    def _add_stamped(self, units: Sequence[Unit]) -> None:
        done: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
        done.set_result(units)
        self.core.units.add(done)

    def _watermark(self, committed: int) -> int:
        """No result older than this will follow, once those of all hand-overs up to number `committed` are: a result
        has the last microsecond of its window.

        It holds for records that are read again, too. Where they were in windows before, they may be alone: a session
        that had grown on the strength of records that are not durable may begin anew as several.
        """
        ends = [first_end_us for number, first_end_us in self._in_flight.items() if number > committed]
        oldest = self._queue.oldest_end_us()
        if oldest is not None:
            ends.append(oldest)
        closed_us = self._closed_us
        if START_OF_TIME_US < closed_us < END_OF_TIME_US:
            closed_us = max(START_OF_TIME_US, closed_us - self._lateness_us)
        return min([closed_us, *(end - 1 for end in ends)])

    def _watermark_after(self, units: Sequence[Unit]) -> int:
        last = units[-1]
        assert isinstance(last, ReduceUnit)
        return last.watermark_us

    def _publish(self) -> None:
        """Tell how far the lane is, while everything it has taken in is durable."""
        self._closed_us = self._queue.closed_us
        if (watermark_us := self._watermark(self.core.committer.mark.reduce.hand_over)) > self.core.watermark_us:
            self.core.publish(watermark_us, idle=not self._queue.open_windows)

    async def _committed(self, units: Sequence[Unit]) -> None:
        progress = self.core.committer.mark.reduce
        committed = [number for number in self._in_flight if number <= progress.hand_over]
        for number in committed:
            if (closed_at_s := self._closed_at_s.pop(number, None)) is not None:
                self.core.telemetry.observe_processing("close", self.core.clock.monotonic_s() - closed_at_s)
        await self._queue.committed(progress)  # It deletes files, which takes a while where windows are large.
        for number in committed:
            del self._in_flight[number]
        if self._milestones is not None:
            done = [unit.milestone for unit in units if isinstance(unit, ReduceUnit)]
            self._milestones.committed(filter(None, done), self.core.committer.sequences)
        self._release_inputs()
        self._inputs.wake()

    def _release_inputs(self) -> None:
        """Let what is committed be trimmed, or, where the input is kept, what no open window needs."""
        inputs = self.core.committer.mark.reduce.inputs
        done = {position.edge: position.sequence for position in inputs}
        # The newest frame that was read stays: the next to read here looks whether it is still that one.
        before_newest = {position.edge: newest(position.read) - 1 for position in inputs}
        kept: Mapping[str, int] = done
        if self._milestones is not None:
            kept = self._queue.releasable()
            self._milestones.release(kept)
        for item in self._inputs.inputs:
            edge = item.buffer.edge
            item.committed(done.get(edge, 0), trim_through=min(kept.get(edge, 0), before_newest.get(edge, 0)))

    async def _recover(self, work: asyncio.TaskGroup) -> None:
        """Go on with what the log holds beyond the mark."""
        if self._milestones is not None and self._retracing is None:
            check_whole(str(self.core.lane), self._queue, self.core.committer.mark)
        pending = self._queue.pending()
        self._note_in_flight(pending)
        for appended in self._queue.unacknowledged():
            self._take_in(appended, appended.closed_us)
        first, rows = self._next_number, self._progress.result_records
        for hand_over in pending:
            data = await self._queue.read_result(hand_over.number) if rows and hand_over.number == first else None
            if data is None:
                self._begin(hand_over, work)
            else:
                results, origin = Results.decode(data), self._queue.origin_of(hand_over, self.core.clock.now_us())
                self._computed[hand_over.number] = Computed(hand_over, results, rows, origin)
                work.create_task(self._release(), name=f"rest of hand-over {hand_over.number} of {self.core.lane}")
        if self._retracing is not None:
            self._inputs.wake()
        elif hand_overs := self._keep_promise():
            self._make_durable(None, hand_overs)
        self._closed_us = self._queue.closed_us
        # How far it has read may not have been told before the end of the process before: who fills the buffers waits
        # for it.
        self.core.publish(self._watermark(self.core.committer.mark.reduce.hand_over))
        self._release_inputs()

    def _keep_promise(self) -> list[wal_pb2.HandOver]:
        """What was promised downstream holds also where the log does not know of it: nothing older may come.

        Windows that were open held the watermark back. But of those that closed together, in several hand-overs, the
        log may have the first only: the others are handed over now.
        """
        if not START_OF_TIME_US < self.core.watermark_us < END_OF_TIME_US:
            return []
        hand_overs = self._queue.close(self.core.watermark_us + self._lateness_us)
        self._note_in_flight(hand_overs)
        return hand_overs
