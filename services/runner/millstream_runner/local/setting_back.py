"""`millstream watermark`: how far event time has come, and setting it back after a record has moved it ahead.

    each lane: taken over ─► a reduce's log: closed only up to there ─► its mark ─► its OT entry is removed

Every step is durable by itself and has no effect alone: a lane that is not set back yet moves the others ahead again
when the pipeline runs. So a command that was killed can be repeated.

Above it: the command line. Below it: ledgers, OT stores and logs of a pipeline that is not running.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.clock import END_OF_TIME_US
from millstream.errors import UserError
from millstream.importing import started
from millstream.ledger.protocol import Ledger
from millstream.ledger.rewriting import rewritten
from millstream.record import LaneId
from millstream.spec.models import GroupBy
from millstream.watermark.store import OtUpdate
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.stored import StoredPipeline

OWNER = "watermark"


@dataclass(frozen=True, slots=True)
class SetBackPoint:
    """The point to which a lane is set back."""

    end_us: int
    """Its watermark. A reduce's windows that end by then stay closed."""
    closed_us: int
    """The same, including the allowed lateness."""


@dataclass(frozen=True, slots=True)
class LaneTime:
    """The event time of a lane."""

    lane: LaneId
    watermark_us: int
    """Its watermark: that of its mark, or of its entry in the OT store if that is later."""
    closed_us: int | None
    """For a lane of a reduce: windows that ended by then, including lateness, are closed."""
    open_records: int
    """Records in windows that are not committed."""
    ended: bool

    def is_beyond(self, target: SetBackPoint) -> bool:
        """Whether it has to be set back."""
        if self.ended or END_OF_TIME_US in (self.watermark_us, self.closed_us):
            return False
        return self.watermark_us > target.end_us or (self.closed_us or target.closed_us) > target.closed_us


class Watermarks:
    """The watermarks of one pipeline that is not running."""

    def __init__(self, stored: StoredPipeline, windows: Path) -> None:
        self._stored = stored
        self._windows = windows

    async def lanes(self) -> Sequence[LaneTime]:
        """Every lane that has committed something, sources first."""
        found = []
        published: dict[str, Mapping[str, OtUpdate]] = {}
        for lane in self._stored.plan.all_lanes():
            stored = await self._stored.mark(await self._stored.ledger(lane.vertex), lane)
            if stored is None:
                continue
            if lane.vertex not in published:
                published[lane.vertex] = await self._stored.all_published(lane.vertex)
            mark, update = stored.mark, published[lane.vertex].get(lane.key)
            closed_us = mark.reduce.closed_us if mark.HasField("reduce") else None
            watermark_us = mark.watermark_us if update is None else max(mark.watermark_us, update.entry.watermark_us)
            found.append(LaneTime(lane, watermark_us, closed_us, mark.account.open, mark.ended))
        return found

    def targets(self, time_us: int) -> Mapping[str, SetBackPoint]:
        """The watermark that each vertex may have at most: the given time, or after a reduce the end of the windows
        that contain it.

        Raises `UserError` if lanes cannot be set back.
        """
        plan = self._stored.plan
        kept = [vertex.name for vertex in plan.reduces if plan.keeps_input(vertex.name)]
        if kept:
            raise UserError(
                codes.NOT_SET_BACK,
                f"the watermark of a pipeline cannot be set back if a reduce has `keepInput` ({', '.join(kept)}): a "
                "log that is lost later could not be rebuilt from the input. Start the pipeline over with --fresh",
            )
        targets: dict[str, SetBackPoint] = {}
        for vertex in plan.vertices:
            before = [
                targets[edge.from_].end_us
                for edge in plan.edges_in[vertex.name]
                if edge.name not in plan.back_edges and edge.from_ in targets
            ]
            at_us = max(before, default=time_us)
            group_by = vertex.group_by
            targets[vertex.name] = SetBackPoint(at_us, at_us) if group_by is None else _behind_windows(at_us, group_by)
        return targets

    async def set_back(self, lane: LaneId, target: SetBackPoint) -> None:
        """Make the lane continue as if it had come only that far."""
        ledger = await self._stored.ledger(lane.vertex)
        assert ledger is not None, "it has a mark there"
        async with rewritten(ledger, lane, OWNER) as mark:
            if mark.HasField("reduce"):
                await started(self._reopen, ledger, lane, mark, target)
                mark.reduce.closed_us = min(mark.reduce.closed_us, target.closed_us)
            mark.watermark_us = min(mark.watermark_us, target.end_us)
        # What was published since then would still count as a watermark.
        await self._stored.forget(lane)

    def _reopen(
        self, ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, target: SetBackPoint
    ) -> Coroutine[Any, Any, None]:
        """Make the lane's log say up to which time windows are closed, and leave everything else unchanged."""
        # The code for windows takes a while to import, and a pipeline without windows does not need it.
        from millstream_reduce.config import window_config
        from millstream_reduce.lane.progress import progress_of
        from millstream_reduce.log.segments import LogIdentity
        from millstream_reduce.setting_back import set_log_back

        group_by = self._stored.plan.vertex(lane.vertex).group_by
        assert group_by is not None, "its mark speaks of windows"
        identity = LogIdentity(
            self._stored.plan.pipeline.name, lane.vertex, lane.partition, mark.epoch, ledger.ledger_id
        )
        directory = self._windows / lane.vertex / str(lane.partition)
        return set_log_back(directory, identity, window_config(group_by), progress_of(mark), target.closed_us)


def _behind_windows(time_us: int, group_by: GroupBy) -> SetBackPoint:
    from millstream_reduce.config import window_config
    from millstream_reduce.setting_back import closed_by

    return SetBackPoint(*closed_by(time_us, window_config(group_by)))
