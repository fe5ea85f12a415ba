"""Vertices with a function for each window: a reduce."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from millstream import codes
from millstream.record import WINDOW_INPUT
from millstream.spec.kinds import PlacedProgram
from millstream.spec.problems import Finding, Path
from millstream.spec.programs import Sql, Udf
from millstream.spec.values import ShapeProblem
from millstream.spec.windows import GroupBy
from millstream.statistics import LaneReport
from millstream_worker.kinds.function import UdfKind

if TYPE_CHECKING:
    from millstream_worker.opening import LaneOpening, VertexLane


class Reduce(UdfKind):
    """A reduce vertex. Each of its lanes reads one partition of all its inputs."""

    name = "reduce"
    has_windows = True
    lane_input = WINDOW_INPUT
    is_paced = True
    reports = frozenset({LaneReport.WINDOWS})
    drawn = ("[[", "]]")

    def programs(self, settings: Udf) -> Iterator[PlacedProgram]:
        # A function named as Python or SQL runs in Spark, and one with an address is served elsewhere.
        beside = settings.command is not None or settings.container is not None
        yield PlacedProgram("udf", (), settings, beside)

    def group_by(self, settings: Udf) -> GroupBy | None:
        return settings.group_by

    def sql(self, settings: Udf) -> Sql | None:
        return settings.sql

    def takes_arrow(self, settings: Udf) -> bool:
        value = settings.sql.value if settings.sql is not None else None
        # Late records go to an edge as values, and are larger then than what was taken in.
        late_to_edge = settings.group_by is not None and settings.group_by.on_late == "edge"
        return value is not None and value.format == "json" and not late_to_edge

    def late_asked(self, written: Mapping[str, Any]) -> Path | None:
        group_by = written.get("groupBy")
        asked = isinstance(group_by, Mapping) and group_by.get("onLate") == "edge"
        return ("groupBy", "onLate") if asked else None

    def sharing_problems(self, settings: Udf, partitions: int, replicas: int) -> Iterator[ShapeProblem]:
        if settings.group_by is not None:
            yield from settings.group_by.sharing_problems(partitions, replicas)

    def local_findings(self, settings: Udf, path: Path) -> Iterator[Finding]:
        if find_spec("pyspark") is None:
            what = "windows are computed by Spark, but the package pyspark is not installed"
            yield Finding(codes.EXTRA_NEEDED, (*path, "groupBy"), what, "`pip install 'millstream[reduce]'`")

    def notes(self, settings: Udf, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.sql is not None and settings.sql.unsafe:
            what = (
                "`unsafe` lets the query do everything that the runner's user may do: call Java, read files and "
                "other tables"
            )
            yield (*path, "sql", "unsafe"), what

    def open_lane(self, settings: Udf, opening: LaneOpening) -> Coroutine[Any, Any, VertexLane]:
        # The window engine takes half a second to import, and other vertices do not need it.
        from millstream_worker.kinds.reduce_lane import open_reduce_lane

        return open_reduce_lane(opening)


REDUCE = Reduce()
