"""Publishes a lane's progress in its OT store.

Above it: the lane's core. Below it: the committer's mark and the OT store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.account import consumed, progress
from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US, Clock
from millstream.record import LaneId
from millstream.watermark.store import OtStore
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1 import ot_pb2
from millstream_reader.tracker import Tracker
from millstream_vertex.pacing import NOTHING_IS_LITTLE, Little
from millstream_writer.committer import Committer


@dataclass(slots=True)
class LaneCounters:
    """Counts of one vertex in a lane since this process started."""

    retries: int = 0
    udf_errors: int = 0
    state_reads: int = 0
    busy_s: float = 0.0
    """Time of calls to the function or target, summed over concurrent calls."""


class Publisher:
    """The progress of one lane, as others see it."""

    def __init__(
        self,
        lane: LaneId,
        committer: Committer,
        ot: OtStore,
        clock: Clock,
        tracker: Tracker,
        counters: Mapping[LaneId, LaneCounters],
        *,
        watermarks: bool,
        published_us: int = START_OF_TIME_US,
        little: Little = NOTHING_IS_LITTLE,
    ) -> None:
        """`counters`: of every vertex of the lane, by the lane that each would have without the chain. `watermarks`:
        whether the pipeline has any. `published_us`: the lane's watermark in the OT store, which may be later than its
        mark's, because it also advances without commits. `little`: how much progress may be published later."""
        self._lane = lane
        self._committer = committer
        self._ot = ot
        self._clock = clock
        self._tracker = tracker
        self._counters = counters
        self._watermarks = watermarks
        self._little = little
        self._last_published: tuple[int, int] | None = None
        """Records and bytes, taken and written, as of the last entry that was published soon."""
        self.watermark_us = max(committer.mark.watermark_us, published_us)
        """The newest watermark that was published."""
        self.idle = False

    def publish(self, watermark_us: int, *, idle: bool = False) -> None:
        """Publish the lane's state. The watermark never goes back."""
        before_us, was_idle = self.watermark_us, self.idle
        self.watermark_us = max(self.watermark_us, self.promise(watermark_us))
        self.idle = idle
        promised = not self._little.watermark and (self.watermark_us, idle) != (before_us, was_idle)
        # This runs at each commit, but the OT store makes and puts one entry for many commits. Everything in the entry
        # is committed when it is made, and its watermark is never ahead of that.
        self._ot.publish(self._lane, self._entry, soon=self._is_news() or promised)

    def promise(self, watermark_us: int) -> int:
        """The watermark to publish; with watermarks disabled, the start of time until the lane has ended."""
        return watermark_us if self._watermarks or self._committer.mark.ended else START_OF_TIME_US

    async def flush(self) -> None:
        """Return when the newest entry is stored.

        A drain stops the readers of this lane as soon as they have read what is published as written. If the last entry
        never arrived, they would leave the rest unread.
        """
        await self._ot.flush()

    def _entry(self) -> ot_pb2.OtEntry:
        """The lane's current state."""
        lane, mark = self._lane, self._committer.mark
        entry = ot_pb2.OtEntry(
            epoch=mark.epoch,
            # The entry may be made after the last commit, before the watermark of that commit is published.
            watermark_us=END_OF_TIME_US if mark.ended else self.watermark_us,
            idle=self.idle,
            ended=mark.ended,
            published_us=self._clock.now_us(),
        )
        for done in consumed(lane, mark):
            entry.inputs.add(
                edge=done.buffer.edge,
                partition=done.buffer.partition,
                sequence=done.position.sequence,
                records=done.records,
                bytes=done.bytes,
            )
        totals = {(written.edge, written.partition): written for written in mark.written}
        for buffer, sequence in self._committer.sequences.items():
            written = totals.get((buffer.edge, buffer.partition))
            entry.outputs.add(
                edge=buffer.edge,
                partition=buffer.partition,
                sequence=sequence,
                records=written.records if written is not None else 0,
                bytes=written.bytes if written is not None else 0,
            )
        for member in mark.members:
            passed = totals.get((member.edge, lane.partition), mark_pb2.Written())
            entry.outputs.add(edge=member.edge, partition=lane.partition, records=passed.records, bytes=passed.bytes)
        if len(self._counters) > 1:
            entry.held_up_us = int(self._tracker.held_up_s * MICROSECONDS)
            for one, counters in self._counters.items():
                entry.busy.add(vertex=one.vertex, us=int(counters.busy_s * MICROSECONDS))
        return entry

    def _is_news(self) -> bool:
        """Whether the next entry is the first or last, or adds more than a little to the last one published soon."""
        mark = self._committer.mark
        records, size = progress(mark)
        before = self._last_published
        if before is not None and not mark.ended and self._little.covers(records - before[0], size - before[1]):
            return False
        self._last_published = (records, size)
        return True
