"""Which replicas share a process: the workers of a pipeline on one machine. Pure.

Sources share with sources, because a worker with sources yields to all others (docs/decisions/0015). The rest is
distributed kind by kind, so that no worker has all heavy vertices. Within a kind, neighbours are in different workers,
so that a vertex and the next one each have a processor, as long as there are enough.

The same graph and number of workers always give the same placement.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.record import ReplicaId
from millstream.spec.graph import Graph

_HEAVIEST_FIRST = {"reduce": 0, "map": 1}
"""Kinds that are distributed before the rest."""


def replicas_of(graph: Graph) -> tuple[ReplicaId, ...]:
    """All replicas of all vertices, in topological order of the vertices; those of a chain are its first vertex's."""
    return tuple(
        ReplicaId(name, number) for name in graph.stages.order for number in range(graph.vertex(name).replicas)
    )


def place(graph: Graph, workers: int) -> tuple[tuple[ReplicaId, ...], ...]:
    """The replicas of each worker. At most `workers` workers are shared; if there are as many as replicas, each replica
    has its own. A replica of a vertex with `process: own` has an additional worker."""
    replicas = replicas_of(graph)
    alone = [one for one in replicas if graph.vertex(one.vertex).placement.process == "own"]
    shared = [one for one in replicas if one not in alone]
    sources = [one for one in shared if not graph.vertex(one.vertex).definition.has_input]
    others = [one for one in shared if one not in sources]
    others.sort(key=lambda one: _HEAVIEST_FIRST.get(graph.vertex(one.vertex).kind, len(_HEAVIEST_FIRST)))
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
