"""Vertices with a function for each record: a map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.spec.problems import Path
from millstream.spec.programs import Udf
from millstream.spec.protocols import FunctionKind
from millstream.statistics import LaneReport
from millstream_worker.kinds.udf import UdfKind

if TYPE_CHECKING:
    from millstream_vertex.map_step import MapStep, Outlet
    from millstream_worker.lanes import LaneOpening, StepOpening, VertexLane


class Map(UdfKind):
    """A map vertex. Its lanes call the function with slices of frames."""

    name = "map"
    may_lead_chain = True
    may_follow_in_chain = True
    reports = frozenset({LaneReport.FUNCTION})

    def concurrency(self, settings: Udf) -> int | None:
        return settings.concurrency

    def notes(self, settings: Udf, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.builtin is not None and settings.concurrency:
            yield (*path, "concurrency"), "`concurrency` has no effect on a built-in"

    async def open_lane(self, settings: Udf, opening: LaneOpening) -> VertexLane:
        from millstream_vertex.map_lane import MapLane

        outlet = await opening.outlet()
        base = await opening.buffer_lane(in_parts=True)
        step = await self.open_step(settings, opening, outlet, 0)
        run = (await opening.upstream()).ledger_id
        piece = opening.core.committer.router.piece
        return MapLane(base, step, piece, slice_records_max=opening.call_records_max, run=run)

    async def open_step(self, settings: Udf, opening: StepOpening, outlet: Outlet, number: int) -> MapStep:
        from millstream_vertex.map_step import MapStep

        return MapStep(
            opening.lane,
            await opening.mapper("udf", FunctionKind.MAP, may_return_arrow=outlet.takes_arrow),
            opening.router,
            outlet,
            telemetry=opening.telemetry,
            counters=opening.counters,
            clock=opening.shared.clock,
            number=number,
        )


MAP = Map()
