"""The member `udf` of a vertex, which makes it a map or a reduce; and maps, which have a function for each record."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from millstream.spec.kinds import VertexKind
from millstream.spec.problems import Path
from millstream.spec.programs import Udf
from millstream.spec.protocols import FunctionKind
from millstream.statistics import LaneReport
from millstream_worker.kinds.function import UdfKind

if TYPE_CHECKING:
    from millstream_vertex.stage import Stage
    from millstream_worker.opening import StageOpening


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

    def open_stage(self, settings: Udf, opening: StageOpening, *, next_takes_arrow: bool) -> Coroutine[Any, Any, Stage]:
        return opening.map_stage("udf", FunctionKind.MAP, may_return_arrow=next_takes_arrow)


MAP = Map()


class _MapOrReduce(Map):
    """A vertex with `groupBy` is a reduce; one without it is a map."""

    def of(self, given: Collection[str]) -> VertexKind[Any]:
        # Not above: workers that run no reduce do not import it.
        from millstream_worker.kinds.reduce import REDUCE

        return REDUCE if "groupBy" in given else MAP


UDF = _MapOrReduce()
