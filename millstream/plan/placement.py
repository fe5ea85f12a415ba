"""Which replicas share a process: the workers of a pipeline on one machine. Pure.

Sources share with sources, because a worker with sources yields to all others (docs/decisions/0015). The rest is
distributed kind by kind, so that no worker has all heavy vertices. Within a kind, neighbours are in different workers,
so that a vertex and the next one each have a processor, as long as there are enough.

The same plan and number of workers always give the same placement.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.plan.plan import Plan
from millstream.record import ReplicaId

_HEAVIEST_FIRST = {"reduce": 0, "map": 1}
"""Kinds that are distributed before the rest."""


def replicas_of(plan: Plan) -> tuple[ReplicaId, ...]:
    """All replicas of all vertices, in topological order of the vertices; those of a chain are its first vertex's."""
    return tuple(ReplicaId(name, number) for name in plan.order for number in range(plan.vertex(name).replicas))


def place(plan: Plan, workers: int) -> tuple[tuple[ReplicaId, ...], ...]:
    """The replicas of each worker. At most `workers` workers are shared; if there are as many as replicas, each replica
    has its own. A replica of a vertex with `process: own` has an additional worker."""
    replicas = replicas_of(plan)
    alone = [one for one in replicas if plan.vertex(one.vertex).placement.process == "own"]
    shared = [one for one in replicas if one not in alone]
    sources = [one for one in shared if not plan.vertex(one.vertex).definition.has_input]
    others = [one for one in shared if one not in sources]
    others.sort(key=lambda one: _HEAVIEST_FIRST.get(plan.vertex(one.vertex).kind, len(_HEAVIEST_FIRST)))
    if workers == 1 or workers >= len(shared) or not sources or not others:
        return (*_dealt(shared, workers), *((one,) for one in alone))
    for_sources = max(1, (workers - 1) * len(sources) // len(shared))
    return (
        *_dealt(sources, for_sources),
        *_dealt(others, workers - for_sources),
        *((one,) for one in alone),
    )


def _dealt(replicas: Sequence[ReplicaId], workers: int) -> Sequence[tuple[ReplicaId, ...]]:
    """Distributed in turn; no worker is empty."""
    return [tuple(replicas[first::workers]) for first in range(min(workers, len(replicas)))]
