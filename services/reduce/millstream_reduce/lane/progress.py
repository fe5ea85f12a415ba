"""The progress of a reduce lane: what its next mark will say, and the watermark that may be published with it.

Above it: intake, closing and results, which report to it. Below it: the units that the lane commits in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.errors import REPAIR, DamageError
from millstream.ledger.witness import from_messages, merged
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.units import UnitMaker
from millstream_reduce.queue import AppendResult, Queue
from millstream_reduce.values import WindowTable
from millstream_vertex.core import LaneCore
from millstream_writer.committer import Unit


@dataclass(frozen=True, slots=True)
class UncommittedHandOver:
    """A hand-over whose results are not committed."""

    first_end_us: int
    """End of its first window."""
    closed_at_s: float | None
    """When the watermark closed its windows, by the monotonic clock; None: not in this process, or early results."""


class LaneProgress:
    """Stamps every unit with where the lane stands after it, and sends it to the commit.

        records, durable in the log ─────────────────────────────────────────┬─► sent ─► committed
             └─ where the input is kept: HELD until the hand-overs before ───┤
        results, computed, in the order of their hand-overs ─────────────────┘

    A hand-over is UNCOMMITTED from the moment it is written to the log until a mark counts it.
    """

    def __init__(self, core: LaneCore, queue: Queue, maker: UnitMaker, *, lateness_us: int) -> None:
        self.core = core
        self._queue = queue
        self._maker = maker
        self._lateness_us = lateness_us
        self.stands = progress_of(core.committer.mark)
        """What the mark says once everything that was sent is committed."""
        self.closed_us = queue.closed_us
        """Up to which time windows were closed for all records that are not durable in the log, now and later."""
        self.uncommitted: dict[int, UncommittedHandOver] = {}
        """By number."""
        self._held: deque[AppendResult] = deque()
        """Records that are durable in the log after uncommitted hand-overs, if the input is kept."""

    @property
    def next_number(self) -> int:
        """Number of the hand-over whose results are sent next."""
        return self.stands.hand_over + 1

    @property
    def awaited(self) -> int:
        """Number of hand-overs whose results have not been sent."""
        return sum(number >= self.next_number for number in self.uncommitted)

    def handed_over(self, hand_overs: Sequence[wal_pb2.HandOver], closed_at_s: float | None = None) -> None:
        """They are in the log, and from now on their windows hold the watermark back."""
        for hand_over in hand_overs:
            first_end_us = int(WindowTable.of_hand_over(hand_over).ends.min())
            self.uncommitted[hand_over.number] = UncommittedHandOver(first_end_us, closed_at_s)

    def add_records(self, appended: AppendResult, closed_us: int) -> None:
        """They are durable in the log: the mark may count them, at once or after the hand-overs before them."""
        if self._maker.milestones is not None:
            self._held.append(appended)
            self._release_held()
        else:
            self._send_records(appended, closed_us)

    def add_results(self, hand_over: wal_pb2.HandOver, units: Sequence[Unit], committed_rows: int) -> None:
        """`units`: those of the next hand-over, without its first `committed_rows` rows, which are committed."""
        for unit in units[:-1]:
            committed_rows += unit.account.outputs
            self.stands.result_records = committed_rows
            self._stamp(unit)
        self.stands.result_records = 0
        self.stands.hand_over = hand_over.number
        self.stands.closing = hand_over.more
        self.stands.closed_us = max(self.stands.closed_us, hand_over.closed_us)
        self._stamp(units[-1])
        self._send(units)
        self._release_held()

    def publish(self) -> None:
        """Publish the lane's progress, while everything that it has read is durable."""
        self.closed_us = self._queue.closed_us
        if (watermark_us := self._watermark(self.core.committer.mark.reduce.hand_over)) > self.core.watermark_us:
            self.core.publisher.publish(watermark_us, idle=not self._queue.open_windows)

    def publish_recovered(self) -> None:
        """Publish how far the lane has read, which the previous process may not have done before it ended: the writers
        of its buffers wait for that."""
        self.closed_us = self._queue.closed_us
        self.core.publisher.publish(self._watermark(self.core.committer.mark.reduce.hand_over))

    def _release_held(self) -> None:
        """If the input is kept, the mark alone must determine what happens to a record that is read again. So it
        follows the log: it counts nothing that came after a hand-over until that is committed."""
        while self._held and self._held[0].message.hand_over <= self.stands.hand_over:
            appended = self._held.popleft()
            self._send_records(appended, appended.message.closed_us)

    def _send_records(self, appended: AppendResult, closed_us: int) -> None:
        unit = self._maker.of_records(appended, self.core.clock.now_us())
        note_inputs(self.stands, appended.message.inputs)
        self.stands.closed_us = max(self.stands.closed_us, closed_us)
        self._stamp(unit)
        self._send([unit])

    def _stamp(self, unit: Unit) -> None:
        """Stamp the unit with the position of the lane after it."""
        unit.changes.windows = deepcopy(self.stands)
        unit.holds_us = self._watermark(self.stands.hand_over)

    def _send(self, units: Sequence[Unit]) -> None:
        done: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
        done.set_result(units)
        self.core.units.add(done)

    def _watermark(self, committed: int) -> int:
        """No result older than this will follow, once those of all hand-overs up to number `committed` are: a result
        has the last microsecond of its window.

        It holds for records that are read again, too. Where they were in windows before, they may be alone: a session
        that had grown on the strength of records that are not durable may begin again as several.
        """
        ends = [item.first_end_us for number, item in self.uncommitted.items() if number > committed]
        oldest = self._queue.oldest_end_us()
        if oldest is not None:
            ends.append(oldest)
        closed_us = self.closed_us
        if START_OF_TIME_US < closed_us < END_OF_TIME_US:
            closed_us = max(START_OF_TIME_US, closed_us - self._lateness_us)
        return min([closed_us, *(end - 1 for end in ends)])


def progress_of(mark: mark_pb2.Mark) -> mark_pb2.ReduceProgress:
    """A copy of what a lane's mark says about its windows; before its first commit none are closed."""
    return deepcopy(mark.reduce) if mark.HasField("reduce") else mark_pb2.ReduceProgress(closed_us=START_OF_TIME_US)


def note_inputs(progress: mark_pb2.ReduceProgress, inputs: Sequence[wal_pb2.InputPosition]) -> None:
    """These records are durable in the log."""
    before = {done.edge: done for done in progress.inputs}
    for position in inputs:
        done = before.get(position.edge) or progress.inputs.add(edge=position.edge)
        done.sequence = position.sequence
        done.records += position.records
        done.bytes += position.bytes
        read = merged(done.read, from_messages(position.read))
        del done.read[:]
        done.read.extend(read)


def check_records_known(where: str, directory: Path, found: int, mark: mark_pb2.Mark) -> None:
    """Raises `DamageError` unless the log, which holds `found` of the records that the mark counts as open, has them
    all.

    For lanes that keep their input: a rebuilt log lacks records when they did not keep it all the time.
    """
    if found != mark.account.open:
        raise DamageError(
            codes.LOG_BEHIND_LEDGER,
            f"{where}: the log in {directory} holds {found:,} records of windows that are not committed, and the "
            f"lane's mark in the ledger counts {mark.account.open:,}: a log that is rebuilt from the input lacks "
            f"what was read before `keepInput` was set, or what the input has lost. {REPAIR}",
        )
