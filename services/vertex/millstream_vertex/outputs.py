"""Where the records of a lane go when they have passed its stages, and who commits them.

    stages ─► take: routed to buffers │ collected for a sink ─► units, in order ─► run: commit │ target and commit

Above it: the lane. Below it: the lane's core. `to_sink` has the outputs whose records go to a sink.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from millstream.frame import Frame
from millstream.limits import COMMIT_AHEAD_BYTES_MAX
from millstream_vertex.core import LaneCore
from millstream_vertex.in_order import InOrder
from millstream_vertex.lineage import Lineage
from millstream_writer.committer import MemberCounts, SinkRecords, Unit
from millstream_writer.routing import Router, Tags

WatermarkAfter = Callable[[Sequence[Unit]], int]
"""The lane's watermark once these units are done; called once per commit, in order."""
Committed = Callable[[Sequence[Unit]], Awaitable[None]]
"""Called when units are durable."""


class Output(Protocol):
    """The end of a lane."""

    units: InOrder[Sequence[Unit]]
    """The lane's finished work. The output ends once this is closed and empty."""

    @property
    def takes_arrow(self) -> bool:
        """Whether frames may have Arrow columns in place of values."""

    @property
    def passed(self) -> Sequence[MemberCounts]:
        """New counts for the vertex of the output, if it has one: a sink at the end of a chain."""

    @property
    def delivered(self) -> list[SinkRecords] | None:
        """A new list for the records of a unit, if they go to a sink."""

    def take(self, unit: Unit, frame: Frame, tags: Tags | None, lineage: Lineage, watermark_us: int) -> int:
        """Add records to a unit. Returns how many matched no edge's condition."""

    async def run(self, watermark_after: WatermarkAfter, committed: Committed, *, prompt: bool) -> None:
        """Commit units as they become ready. `prompt`: an external system waits for each commit."""

    def leave(self) -> None:
        """Commit nothing more that has no effect yet: the next owner of the lane can read its input again."""

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken from `units` is committed."""

    @property
    def ahead_bytes_max(self) -> int:
        """Bytes that may be answered by functions and not taken."""

    def count(self) -> None:
        """Bring the counters of the output's vertex up to date."""


class ToBuffers:
    """Routes records to buffers."""

    passed: Sequence[MemberCounts] = ()
    delivered = None
    is_empty = True
    ahead_bytes_max = COMMIT_AHEAD_BYTES_MAX

    def __init__(self, core: LaneCore, router: Router, *, takes_arrow: bool = False) -> None:
        """`router`: of the last vertex in the lane. `takes_arrow`: whether the buffers may hold frames with Arrow
        columns, and their readers take them."""
        self.units = core.units
        self._core = core
        self._router = router
        self.takes_arrow = takes_arrow

    def take(self, unit: Unit, frame: Frame, tags: Tags | None, lineage: Lineage, watermark_us: int) -> int:
        """Raises `UdfError` for Arrow columns that cannot be read: what is stored can be."""
        frame.check_arrow()
        routed = self._router.route(frame, tags)
        unit.frames.extend(routed.frames)
        return routed.unrouted

    async def run(self, watermark_after: WatermarkAfter, committed: Committed, *, prompt: bool) -> None:
        await self._core.commit_all(watermark_after, committed)

    def leave(self) -> None:
        self._core.leave()

    def count(self) -> None:
        """Buffers are not counted by the lane."""
