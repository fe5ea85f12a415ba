"""The plan of a pipeline: what runs, and what is stored where. Pure.

    Graph (what users see) ─► each chain is one stage ─► lanes, buffers, shared copies, ledgers

Edges that carry the same frames need one stored copy only:

    map ─┬─► a        the same records under the same conditions, in the same partitions: stored once
         ├─► b
         └─► c        with other conditions: stored separately

Above it: everything that runs or looks at stored data. Below it: the spec's graph. It knows no directory and no engine.
"""

import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from millstream.record import ALL_INPUTS, LaneId
from millstream.spec.graph import Graph, Network
from millstream.spec.models import Edge

_COPY_PREFIX = "_"
"""The prefix of a shared copy's name. The name of an edge cannot begin with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Network):
    """The stages of a pipeline: each chain is one vertex, with the name of its first vertex and all edges out of the
    chain. Edges inside a chain are omitted. Created by `plan_of`."""

    graph: Graph
    """The pipeline as its users see it: policies and accounts are those of each of its vertices."""
    ledgers: Mapping[str, str]
    """For vertices that once followed in a chain and now have lanes of their own: the vertex in whose ledger they are
    stored."""
    former_keys: frozenset[str]
    """Sources whose stored data began with the texts that earlier versions gave to keys that are not UTF-8."""

    def ledger_of(self, vertex: str) -> str:
        """The vertex that names the ledger of this one: the first of its chain, or of the chain that it followed in
        before it had lanes of its own."""
        head = self.graph.head(vertex)
        return self.ledgers.get(head, head)

    def stored_with(self, vertex: str) -> tuple[str, ...]:
        """The stages whose ledger is that of this vertex, in topological order; most have one of their own."""
        ledger = self.ledger_of(vertex)
        return tuple(stage for stage in self.order if self.ledger_of(stage) == ledger)

    def lane_inside(self, lane: LaneId, edge: Edge) -> LaneId:
        """The lane that the vertex behind an edge inside a chain would have without the chain. `lane`: that of the
        chain. If the chain begins with a join, its lanes of one partition would be called the same, so each is called
        after the edge that it reads."""
        joins = len(self.edges_in[lane.vertex]) > 1 and lane.input != ALL_INPUTS
        return LaneId(edge.to, lane.input if joins else edge.name, lane.partition)

    def sink_lane(self, lane: LaneId) -> LaneId | None:
        """The lane of the sink whose target a lane writes to: itself, or that at the end of its chain; None if there is
        none."""
        last = self.graph.vertex(self.graph.chain(lane.vertex)[-1])
        if last.definition.has_output:
            return None
        edge = self.graph.chained_into(last.name)
        return lane if edge is None else self.lane_inside(lane, edge)

    def same_frames(self, vertex: str) -> Mapping[str, tuple[str, ...]]:
        """The groups of edges in a vertex's ledger that carry the same frames: for each group of two or more, the name
        of its copy in a new ledger, and the names of the edges in file order."""
        groups: dict[str, list[str]] = defaultdict(list)
        for edge in self.edges_out[vertex]:
            copy = self.copy_of(edge)
            if copy is not None:
                groups[copy].append(edge.name)
        return {copy: tuple(edges) for copy, edges in groups.items() if len(edges) > 1}

    def copy_of(self, edge: Edge) -> str | None:
        """The name of the copy that an edge shares with all others that carry the same frames. None for an edge whose
        buffers depend on more than its condition and its reader's mark."""
        in_cycle = any(edge.from_ in group and edge.to in group for group in self.sccs)
        if (
            edge.kind != "data"
            or edge.chain
            or edge.on_full == "discardLatest"
            or edge.name in self.tables
            or self.keeps_input(edge.to)
            or in_cycle
        ):
            return None
        # A chain writes the edges of all its vertices to one ledger; only those of one vertex carry the same frames.
        name = f"{_COPY_PREFIX}{self.graph.edge(edge.name).from_}-{self.vertex(edge.to).partitions}"
        tags = edge.conditions.tags if edge.conditions is not None else None
        if tags is None or not tags.values:
            return name
        condition = "\n".join([tags.operator, *sorted(set(tags.values))])
        return f"{name}-{zlib.crc32(condition.encode()):08x}"


def plan_of(graph: Graph, ledgers: Mapping[str, str] = MappingProxyType({}), former_keys: Collection[str] = ()) -> Plan:
    """The plan of a pipeline. `ledgers`, `former_keys`: see the fields of `Plan`; empty for a pipeline without stored
    data."""
    stages = [vertex for vertex in graph.pipeline.spec.vertices if graph.head(vertex.name) == vertex.name]
    return Plan.joining(
        graph.pipeline,
        stages,
        [_of_stage(graph, edge) for edge in graph.edges if not edge.chain],
        graph=graph,
        ledgers=ledgers,
        former_keys=frozenset(former_keys),
    )


def _of_stage(graph: Graph, edge: Edge) -> Edge:
    head = graph.head(edge.from_)
    return edge if head == edge.from_ else edge.model_copy(update={"from_": head})
