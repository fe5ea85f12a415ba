"""The plan of a pipeline: what runs, and what is stored where. Pure.

    Graph (what users see) ─► each chain is one stage ─► lanes, buffers, shared copies, ledgers

Above it: everything that runs or looks at stored data. Below it: the spec's graph. It knows no directory and no engine.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from millstream.spec.graph import Graph, Network
from millstream.spec.models import Edge


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

    def head(self, vertex: str) -> str:
        """The stage in which a vertex runs."""
        return self.graph.head(vertex)

    def chain(self, stage: str) -> tuple[str, ...]:
        """The vertices that run in a stage, in their order; its own is first."""
        return self.graph.chain(stage)

    def ledger_of(self, vertex: str) -> str:
        """The vertex that names the ledger of this one: the first of its chain, or of the chain that it followed in
        before it had lanes of its own."""
        head = self.head(vertex)
        return self.ledgers.get(head, head)

    def stored_with(self, vertex: str) -> tuple[str, ...]:
        """The stages whose ledger is that of this vertex, in topological order; most have one of their own."""
        ledger = self.ledger_of(vertex)
        return tuple(stage for stage in self.order if self.ledger_of(stage) == ledger)


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
