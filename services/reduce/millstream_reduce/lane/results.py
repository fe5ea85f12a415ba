"""The results of a reduce lane: hand-overs are computed concurrently, and committed in order.

Above it: the reduce lane. Below it: the jobs, the queue, which keeps results, and the progress, which sends them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.durable import step
from millstream.statistics import ReduceStatistics
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.jobs import HandOverJobs, WindowResults
from millstream_reduce.lane.progress import LaneProgress
from millstream_reduce.lane.units import UnitMaker
from millstream_reduce.origins import HandOverOrigin
from millstream_reduce.queue import Queue
from millstream_reduce.values import WindowTable


@dataclass(frozen=True, slots=True)
class WaitingResults:
    """Results that wait for those of an earlier hand-over."""

    hand_over: wal_pb2.HandOver
    computed: WindowResults
    committed_rows: int
    """How many of them were committed before the lane's last restart."""
    origin: HandOverOrigin
    """Origin of the records in them; the first trace is the one that the results belong to."""


@dataclass(slots=True)
class Totals:
    """What was computed since this process started."""

    hand_overs: int = 0
    windows: int = 0
    records: int = 0
    job_s: float = 0.0


class Results:
    """What becomes of a hand-over that is durable in the log:

        HANDED OVER ──► computed ──► WAITING ──► its turn ──► kept, if it needs several commits ──► sent ──► COMMITTED
             kept before a restart ────┘

    A hand-over may be computed any number of times until its first commit; what is kept is never computed again.
    """

    def __init__(
        self, jobs: HandOverJobs, queue: Queue, maker: UnitMaker, progress: LaneProgress, wake: Callable[[], None]
    ) -> None:
        """`wake`: called when results were sent or committed."""
        self.jobs = jobs
        self._queue = queue
        self._maker = maker
        self._progress = progress
        self._wake = wake
        self._waiting: dict[int, WaitingResults] = {}
        """By number of the hand-over."""
        self._totals = Totals()

    async def take_up(self, hand_over: wal_pb2.HandOver) -> bool:
        """Whether results of a hand-over were stored before the restart, and now wait for `release`."""
        rows = self._progress.stands.result_records
        if not rows or hand_over.number != self._progress.next_number:
            return False
        data = await self._queue.read_result(hand_over.number)
        if data is None:
            return False
        origin = self._queue.origin_of(hand_over, self._progress.core.clock.now_us())
        self._waiting[hand_over.number] = WaitingResults(hand_over, WindowResults.decode(data), rows, origin)
        return True

    async def compute(self, hand_over: wal_pb2.HandOver) -> None:
        """Compute the windows of a hand-over, and pass the results on in their turn."""
        core = self._progress.core
        windows = WindowTable.of_hand_over(hand_over)
        rows = int(windows.rows.sum())
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
            computed = await self.jobs.compute(hand_over, span.traceparent)
            span.tell("millstream.spark.job_tags", computed.job_tags)
        core.telemetry.observe_processing("reduce", core.clock.monotonic_s() - started)
        self._totals.hand_overs += 1
        self._totals.windows += len(windows)
        self._totals.records += rows
        self._totals.job_s += computed.job_s
        core.counters.retries += computed.retries
        core.counters.udf_errors += computed.errors
        self._waiting[hand_over.number] = WaitingResults(hand_over, computed, 0, origin.within(span.traceparent))
        await self.release()

    async def release(self) -> None:
        """Send the results whose turn it is."""
        while (waiting := self._waiting.pop(self._progress.next_number, None)) is not None:
            hand_over, computed, committed_rows = waiting.hand_over, waiting.computed, waiting.committed_rows
            now_us = self._progress.core.clock.now_us()
            units = self._maker.of_results(hand_over, computed, committed_rows, waiting.origin, now_us)
            if len(units) > 1 and not committed_rows:
                # More than one commit: one that is begun must be completed with the same results.
                await self._queue.write_result(hand_over.number, computed.encode())
            self._progress.add_results(hand_over, units, committed_rows)
            self._wake()

    async def committed(self) -> None:
        """The lane's mark has advanced: release the hand-overs that it counts."""
        core, uncommitted = self._progress.core, self._progress.uncommitted
        mark = core.committer.mark.reduce
        committed = [number for number in uncommitted if number <= mark.hand_over]
        for number in committed:
            if (closed_at_s := uncommitted[number].closed_at_s) is not None:
                core.telemetry.observe_processing("close", core.clock.monotonic_s() - closed_at_s)
        await self._queue.committed(mark)  # It deletes files, which takes a while if windows are large.
        for number in committed:
            del uncommitted[number]

    def statistics(self) -> ReduceStatistics:
        """Statistics of the lane's windows, from the log to their commit."""
        queue = self._queue.statistics()
        return ReduceStatistics(
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
