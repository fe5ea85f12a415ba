"""The member `udf` of a vertex, which makes it a map or a reduce."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from millstream.spec.kinds import VertexKind
from millstream_worker.kinds.map import MAP, Map


class _MapOrReduce(Map):
    """A vertex with `groupBy` is a reduce; one without it is a map."""

    def of(self, given: Collection[str]) -> VertexKind[Any]:
        # Not above: workers that run no reduce do not import it.
        from millstream_worker.kinds.reduce import REDUCE

        return REDUCE if "groupBy" in given else MAP


UDF = _MapOrReduce()
