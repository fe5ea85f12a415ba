"""Vertices with a function for each record: a map."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from millstream.importing import started
from millstream.spec.problems import Path
from millstream.spec.programs import Udf
from millstream.spec.protocols import FunctionKind
from millstream.statistics import LaneReport
from millstream_worker.kinds.function import UdfKind

if TYPE_CHECKING:
    from millstream_vertex.map_step import MapStep, Outlet
    from millstream_worker.opening import LaneOpening, StepOpening, VertexLane


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

    def open_lane(self, settings: Udf, opening: LaneOpening) -> Coroutine[Any, Any, VertexLane]:
        from millstream_vertex.map_lane import MapLane

        async def lane() -> VertexLane:
            outlet = await opening.outlet()
            base = await opening.buffer_lane(in_parts=True)
            step = await started(self.open_step, settings, opening, outlet, 0)
            run = (await opening.upstream()).ledger_id
            piece = opening.core.committer.router.piece
            return MapLane(base, step, piece, slice_records_max=opening.call_records_max, run=run)

        return lane()

    def open_step(
        self, settings: Udf, opening: StepOpening, outlet: Outlet, number: int
    ) -> Coroutine[Any, Any, MapStep]:
        from millstream_vertex.map_step import MapStep

        async def step() -> MapStep:
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

        return step()


MAP = Map()
