"""A lane of a reduce vertex: reads all its buffers into the queue, lets closed windows be computed, commits the
results.

    buffers ─► INTAKE: log + windows ─► fsync ─► commit: input positions, late records
                        │ watermark
                        ▼
               CLOSING: hand-over ─► fsync ─► RESULTS: job ─► commit: results + number of the hand-over ─► log is freed

No position and no hand-over is passed on before it is durable in the log; only the fenced commit releases input and
segments. The lane connects its three parts and decides nothing else; what they report is combined in its progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from millstream.statistics import LaneStatistics
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.closing import Closing, EarlyResults
from millstream_reduce.lane.inputs import ReduceInputs
from millstream_reduce.lane.intake import Intake
from millstream_reduce.lane.jobs import HandOverJobs
from millstream_reduce.lane.milestones import Retracing
from millstream_reduce.lane.progress import LaneProgress, check_records_known
from millstream_reduce.lane.results import Results
from millstream_reduce.lane.units import UnitMaker
from millstream_reduce.queue import Queue
from millstream_vertex.core import LaneCore
from millstream_writer.committer import Unit


class ReduceLane:
    """One lane; `run` returns when its inputs have ended and every window is committed, or `stop` was called."""

    def __init__(
        self,
        core: LaneCore,
        inputs: ReduceInputs,
        queue: Queue,
        jobs: HandOverJobs,
        maker: UnitMaker,
        *,
        lateness_us: int,
        retracing: Retracing | None,
        early: EarlyResults,
    ) -> None:
        """`retracing`: given if the log is rebuilt from the input."""
        self.core = core
        self._queue = queue
        self._retracing = retracing
        self._input_is_kept = maker.milestones is not None
        self._progress = LaneProgress(core, queue, maker, lateness_us=lateness_us)
        self._intake = Intake(inputs, queue, self._progress, maker.milestones)
        self._closing = Closing(queue, self._progress, early, lateness_us=lateness_us)
        self._results = Results(jobs, queue, maker, self._progress, inputs.wake)

    def stop(self) -> None:
        """Stop reading, and begin no hand-over; what is durable in the log is continued after the next start."""
        self._intake.inputs.stop()

    def statistics(self) -> LaneStatistics:
        return replace(self.core.statistics(pending=None), reduce=self._results.statistics())

    async def run(self) -> None:
        if self.core.committer.mark.ended:
            await self.core.end()
            return
        inputs = self._intake.inputs
        if self._retracing is not None:
            inputs.hold_at(self._retracing.gate)
        async with inputs.running(), asyncio.TaskGroup() as committing:
            committing.create_task(
                self.core.commit_all(lambda units: units[-1].holds_us, self._committed), name=f"commit {self.core.lane}"
            )
            async with asyncio.TaskGroup() as work:

                def begin(hand_over: wal_pb2.HandOver) -> None:
                    self._begin(hand_over, work)

                await self._recover(work)
                # In this group, so that no hand-over begins once one has failed.
                others = [
                    work.create_task(self._results.jobs.check(), name=f"check the program of {self.core.lane}"),
                    work.create_task(self._intake.sync_all(begin), name=f"sync {self.core.lane}"),
                ]
                await self._work()
                for other in others:
                    other.cancel()
            self.core.units.close()
        if not self._intake.has_stopped():
            await self.core.end()

    async def _work(self) -> None:
        """Move frames into the log and close windows, until everything is durable and computed, or `stop`."""
        intake, closing = self._intake, self._closing
        if self._retracing is not None and (rows := await intake.retrace(self._retracing)) is not None:
            closing.admitted(rows)
            intake.make_durable(None, closing.keep_promise())
        while not intake.has_stopped():
            appended = await intake.take_in(closing.pause_s(), closing.when_due)
            if intake.has_stopped():
                break
            if appended is not None:
                closing.admitted(appended.message.rows)
            hand_overs = closing.hand_over(intake.watermark_us())
            if appended is not None or hand_overs:
                intake.make_durable(appended, hand_overs)
            elif intake.is_empty:
                self._progress.publish()
            if intake.inputs.ended and not self._busy:
                return
        await intake.drain()

    @property
    def _busy(self) -> bool:
        """Whether something is open, only in the log, or being computed."""
        return bool(not self._intake.is_empty or self._progress.uncommitted or self._queue.open_windows)

    def _begin(self, hand_over: wal_pb2.HandOver, work: asyncio.TaskGroup) -> None:
        if not self._intake.has_stopped():
            work.create_task(self._results.compute(hand_over), name=f"hand-over {hand_over.number} of {self.core.lane}")

    async def _committed(self, units: Sequence[Unit]) -> None:
        await self._results.committed()
        self._intake.committed(units)
        self._intake.inputs.wake()

    async def _recover(self, work: asyncio.TaskGroup) -> None:
        """Continue with what the log contains beyond the mark."""
        if self._input_is_kept and self._retracing is None:
            check_records_known(
                str(self.core.lane), self._queue.directory, self._queue.records_known(), self.core.committer.mark
            )
        pending = self._queue.pending()
        self._progress.handed_over(pending)
        for appended in self._queue.unacknowledged():
            self._progress.add_records(appended, appended.message.closed_us)
        for hand_over in pending:
            if await self._results.take_up(hand_over):
                rest = self._results.release()
                work.create_task(rest, name=f"rest of hand-over {hand_over.number} of {self.core.lane}")
            else:
                self._begin(hand_over, work)
        if self._retracing is not None:
            self._intake.inputs.wake()
        elif hand_overs := self._closing.keep_promise():
            self._intake.make_durable(None, hand_overs)
        self._progress.publish_recovered()
        self._intake.release()
