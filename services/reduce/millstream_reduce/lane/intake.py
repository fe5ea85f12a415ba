"""The intake of a reduce lane: from frames that were read to records that are durable in the log.

Above it: the reduce lane. Below it: the inputs, the queue, and the progress, to which it reports what is durable. It
does not know how windows are computed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream.clock import END_OF_TIME_US
from millstream.ledger.witness import newest
from millstream.limits import MIB
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.inputs import ReduceInputs
from millstream_reduce.lane.milestones import Retracing, StoredMilestones
from millstream_reduce.lane.progress import LaneProgress, check_records_known
from millstream_reduce.queue import AppendResult, Queue
from millstream_writer.committer import Unit

TAKE_BYTES = 4 * MIB
"""About how many bytes of frames go into one entry of the log."""
GATHER_S = 0.05
"""Time between two entries of the log, unless there is much to write or windows close: a small entry costs as much as a
large one."""
ROOM_WAIT_S = 0.1
"""While the log is full: how often the lane checks whether the watermark closes a window."""

IsDue = Callable[[int], bool]
"""Whether windows would be handed over at a watermark."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """What has been written to the log together and is not known to be durable yet."""

    appended: AppendResult | None
    hand_overs: Sequence[wal_pb2.HandOver]
    closed_us: int
    """Windows that ended up to this time are closed for whatever is appended next."""


class Intake:
    """What becomes of a frame, and of a hand-over:

        READ ──► in the log ──► LOGGED ──► fsync ──► DURABLE ──► counted by a mark ──► its input is RELEASED
        hand-over in the log ─────┘                     └──► its windows are computed

    Nothing takes effect before it is durable; everything that is logged becomes durable together, in order.
    """

    def __init__(
        self, inputs: ReduceInputs, queue: Queue, progress: LaneProgress, milestones: StoredMilestones | None
    ) -> None:
        """`milestones`: given if the input stays in its buffers until its windows are committed."""
        self.inputs = inputs
        self._queue = queue
        self._progress = progress
        self._milestones = milestones
        self._logged: deque[LogBatch] = deque()
        self._sync_wanted = asyncio.Event()
        self._checked_at_s = 0.0
        """When the inputs were last checked, by the monotonic clock."""

    @property
    def is_empty(self) -> bool:
        """Whether everything in the log is durable."""
        return not self._logged

    def has_stopped(self) -> bool:
        """Whether reading has stopped."""
        return self.inputs.stopped

    def watermark_us(self) -> int:
        """The watermark of all inputs together, after the frames that were taken; the end of time if nothing will
        follow them."""
        return END_OF_TIME_US if self.inputs.ended else self.inputs.watermark_us()

    async def take_in(self, pause_s: float | None, when_due: Callable[[], IsDue]) -> AppendResult | None:
        """The next records, which are in the log then; None when a watermark has moved instead, or nothing has
        happened for `pause_s`, or the log is full, or the lane stops.

        Lets more records come, when few have since the last entry; no window that could be handed over waits.
        """
        await self.inputs.wait(pause_s)
        clock = self._progress.core.clock
        missing_s = self._checked_at_s + GATHER_S - clock.monotonic_s()
        if missing_s > 0 and not self.inputs.left_other_form:
            await self.inputs.gather(missing_s, TAKE_BYTES, when_due())
        self._checked_at_s = clock.monotonic_s()
        return await self._append()

    async def retrace(self, retracing: Retracing) -> int | None:
        """Rebuild a lost log: take the input in again and do what was done at the milestones that are reached. The
        mark counts everything up to the last. Records that were taken in; None when the lane stops."""
        admitted = 0
        while True:
            await self.inputs.wait(None)
            appended = await self._append()
            if self.has_stopped():
                return None
            admitted += appended.message.rows if appended is not None else 0
            while self.inputs.at_gate:
                self._queue.retrace(retracing.passed())
                if retracing.has_ended:
                    self._end_retracing()
                    return admitted
                self.inputs.hold_at(retracing.gate)

    def _end_retracing(self) -> None:
        core = self._progress.core
        self._queue.retraced()
        check_records_known(str(core.lane), self._queue.directory, self._queue.records_known(), core.committer.mark)
        self.inputs.pass_over({done.edge: done.sequence for done in self._progress.stands.inputs})
        self.inputs.hold_at(None)

    async def _append(self) -> AppendResult | None:
        # Windows are closed even while the queue is full, because that may free space.
        has_room = await self._queue.room(ROOM_WAIT_S)
        if self.has_stopped() or not has_room:
            return None
        watermark_us = self.inputs.watermark_us()  # Valid before the frames that are taken.
        taken = self.inputs.take(TAKE_BYTES)
        if not taken:
            return None
        return self._queue.append(taken, watermark_us)

    def make_durable(self, appended: AppendResult | None, hand_overs: Sequence[wal_pb2.HandOver]) -> None:
        """Make what is in the log now durable, so that it can take effect."""
        self._logged.append(LogBatch(appended, hand_overs, self._queue.closed_us))
        self._sync_wanted.set()

    async def sync_all(self, begin: Callable[[wal_pb2.HandOver], None]) -> None:
        """Make everything that is logged durable, one batch at a time; only then does it take effect. `begin`: starts
        the computation of a hand-over. Runs until it is cancelled."""
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            logged = len(self._logged)
            await self._queue.sync()
            for _ in range(logged):
                item = self._logged[0]
                self._progress.closed_us = item.closed_us
                if item.appended is not None:
                    self._progress.add_records(item.appended, item.closed_us)
                for hand_over in item.hand_overs:
                    begin(hand_over)
                self._logged.popleft()
            self.inputs.wake()

    async def drain(self) -> None:
        """Wait until everything that is logged is durable."""
        while self._logged:
            await self.inputs.wait(None)

    def committed(self, units: Sequence[Unit]) -> None:
        """Units have been committed, and the lane's mark counts them."""
        if self._milestones is not None:
            self._milestones.committed(units, self._progress.core.committer.sequences)
        self.release()

    def release(self) -> None:
        """Allow what is committed to be trimmed, or, if the input is kept, what no open window needs."""
        inputs = self._progress.core.committer.mark.reduce.inputs
        done = {position.edge: position.sequence for position in inputs}
        # The newest frame that was read stays: the next reader checks whether it is still the same one.
        before_newest = {position.edge: newest(position.read) - 1 for position in inputs}
        kept: Mapping[str, int] = done
        if self._milestones is not None:
            kept = self._queue.releasable()
            self._milestones.release(kept)
        for item in self.inputs.inputs:
            edge = item.buffer.edge
            item.committed(done.get(edge, 0), trim_through=min(kept.get(edge, 0), before_newest.get(edge, 0)))
