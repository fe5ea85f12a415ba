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
    from millstream_worker.lanes import LaneOpening, VertexLane


class Map(UdfKind):
    """Its lanes call the function with slices of frames."""

    name = "map"
    reports = frozenset({LaneReport.FUNCTION})

    def concurrency(self, settings: Udf) -> int | None:
        return settings.concurrency

    def notes(self, settings: Udf, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.builtin is not None and settings.concurrency:
            yield (*path, "concurrency"), "`concurrency` has no effect on a built-in"

    async def open_lane(self, settings: Udf, opening: LaneOpening) -> VertexLane:
        from millstream_vertex.map_lane import MapLane

        base = await opening.buffer_lane()
        mapper = await opening.mapper("udf", FunctionKind.MAP)
        limits = opening.graph.limits_of(opening.lane.vertex)
        # The default of 500 is Numaflow's; only who sets it wants calls that small.
        batch = limits.read_batch_size if "read_batch_size" in limits.model_fields_set else None
        run = (await opening.upstream()).ledger_id
        return MapLane(base, mapper, opening.router, slice_records_max=batch, run=run)


MAP = Map()
