"""The member `udf` of a vertex, which makes it a map or a reduce; and maps, which have a function for each record."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from millstream import codes
from millstream.record import ALL_INPUTS
from millstream.spec.kinds import VertexKind, VertexUse
from millstream.spec.needs import needed_by, not_installed
from millstream.spec.problems import Finding, Path
from millstream.spec.programs import Table, Udf
from millstream.spec.protocols import FunctionKind
from millstream.spec.values import ShapeProblem
from millstream.statistics import LaneReport
from millstream_worker.kinds.function import UdfKind

if TYPE_CHECKING:
    from millstream_vertex.stage import Stage
    from millstream_worker.opening import LaneOpening, StageOpening


class Map(UdfKind):
    """A map vertex. Its lanes call the function with slices of frames."""

    name = "map"
    may_lead_chain = True
    may_follow_in_chain = True
    reports = frozenset({LaneReport.FUNCTION})

    def concurrency(self, settings: Udf) -> int | None:
        return settings.concurrency

    def may_give_keys(self, settings: Udf) -> bool | None:
        # Built-ins leave keys as they are.
        return None if settings.builtin is not None else True

    def notes(self, settings: Udf, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.builtin is not None and settings.concurrency:
            yield (*path, "concurrency"), "`concurrency` has no effect on a built-in"

    def open_stage(self, settings: Udf, opening: StageOpening, *, next_takes_arrow: bool) -> Coroutine[Any, Any, Stage]:
        return opening.map_stage("udf", FunctionKind.MAP, may_return_arrow=next_takes_arrow)


class KeyedMap(Map):
    """A map vertex whose function remembers something for the keys of its records, or reads tables. The changelog is in
    its own ledger, and its records are distributed by key, so there is a buffer before it. A partition has one lane,
    which reads all edges, so that what is remembered for a key is the same whichever edge its records come by, and each
    record is processed with one version of every table."""

    name = "keyed map"
    stored_as = "map"
    lane_input = ALL_INPUTS
    may_follow_in_chain = False

    def use_problems(self, settings: Udf, use: VertexUse) -> Iterator[ShapeProblem]:
        if use.partitions > 1 and settings.state is not None and settings.state.scope == "key":
            for source in use.keyless:
                what = (
                    f"records of `{source}` come without keys, so each of {use.partitions} partitions gets some of them"
                )
                expected = (
                    f"`keys: [<member>]` in the `source` of `{source}`; or `partitions: 1`; or `state: {{scope: lane}}`"
                )
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("udf", "state"), what, expected)

    def local_findings(self, settings: Udf, path: Path) -> Iterator[Finding]:
        for one in not_installed(needed_by(settings.state, (*path, "state"))):
            yield Finding(codes.EXTRA_NEEDED, one.loc, f"the store {one.what}", one.remedy)

    def remembers(self, settings: Udf) -> str:
        # Tables are the same in every lane, so they can be in any number of them.
        return "key" if settings.state is None else settings.state.scope

    def has_state(self, settings: Udf) -> bool:
        return settings.state is not None

    def kept_bytes(self, settings: Udf) -> int:
        return settings.kept_bytes_max * 11 // 5

    def tables(self, settings: Udf) -> Mapping[str, Table]:
        return settings.tables or {}

    def open_stage(self, settings: Udf, opening: StageOpening, *, next_takes_arrow: bool) -> Coroutine[Any, Any, Stage]:
        from millstream_worker.keyed import open_keyed_stage

        # It never follows in a chain.
        return open_keyed_stage(cast("LaneOpening", opening), settings)


class _MapOrReduce(Map):
    """A vertex with `groupBy` is a reduce; one without it is a map, with or without `state` and `tables`."""

    def of(self, given: Collection[str]) -> VertexKind[Any]:
        if "groupBy" in given:
            # Not above: workers that run no reduce do not import it.
            from millstream_worker.kinds.reduce import REDUCE

            return REDUCE
        return MAP if {"state", "tables"}.isdisjoint(given) else KEYED_MAP


MAP = Map()
KEYED_MAP = KeyedMap()
UDF = _MapOrReduce()
