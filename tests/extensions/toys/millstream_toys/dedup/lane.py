"""A lane that lets each value through once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from millstream.account import Account
from millstream.record import Position
from millstream.statistics import LaneStatistics
from millstream_reader.buffer import ReadFrame, late_records
from millstream_reader.ids import SeenIds
from millstream_reader.tracker import Tracked
from millstream_vertex.buffer_lane import BufferLane
from millstream_writer.committer import Unit
from millstream_writer.routing import Router


class DedupLane:
    """Reads frame by frame; a frame is one unit, with the digests of the values that are new in it."""

    def __init__(self, base: BufferLane, router: Router, seen: SeenIds) -> None:
        self.core = base.core
        self._base = base
        self._router = router
        self._seen = seen
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take nothing new in; what was begun is still committed."""
        self._stopping.set()
        self._base.reader.stop()

    def statistics(self) -> LaneStatistics:
        return self.core.statistics(pending=None)

    async def run(self) -> None:
        if self.core.committer.mark.ended:
            await self.core.end()
            return
        async with self._base.running():
            while (read := await self._base.reader.next()) is not None and await self._is_room(read):
                await self.core.tracker.begin(Tracked(read.frame.records, read.size))
                done: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
                done.set_result([self._unit(read)])
                self.core.units.add(done)

    async def _is_room(self, read: ReadFrame) -> bool:
        """Wait until the frame's values can be remembered; False when the lane is stopped before that."""
        while not self._seen.has_room(read.frame.values()) and not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self._seen.frees_in_s)
            except TimeoutError:
                continue
        return not self._stopping.is_set()

    def _unit(self, read: ReadFrame) -> Unit:
        # The values serve as ids: what is admitted here counts once the unit is committed.
        new = self._seen.admit(replace(read.frame, ids_column=read.frame.values_column))
        kept = 0 if new.frame is None else new.frame.records
        account = Account(inputs=read.frame.records, processed=kept, filtered=new.repeated, outputs=kept)
        account.input_bytes, account.late = read.size, late_records(read.frame, read.watermark_us)
        unit = Unit(Position(read.sequence, 0), read.witnesses, account=account, ids=new.digests)
        if new.frame is not None:
            routed = self._router.route(replace(new.frame, ids_column=b""), None)
            unit.frames, account.unrouted = routed.frames, routed.unrouted
        unit.size = len(unit.ids) + sum(frame.size for _, frame in unit.frames)
        return unit
