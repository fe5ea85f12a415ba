"""The pipeline as a graph: which vertices read which, in which order, with which policies. Pure.

A `Graph` is only created from a pipeline with a valid shape, so its answers need no further checks. Lanes and buffers
follow from it alone, so every process computes the same ones. Above: the plan, the runner, the vertex processes. It
knows no files and no brokers.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from millstream import retry
from millstream.limits import MAX_FUTURE_S
from millstream.record import BufferId, LaneId
from millstream.spec import topology
from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream.spec.models import Backoff, Edge, EdgeKind, FallbackSink, Limits, Pipeline, Vertex, VertexLimits
from millstream.spec.problems import Problem, SpecError, path_text
from millstream.spec.shape_checks import may_be_chained, outline_of, shape_findings
from millstream.spec.tables import TableInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Vertices and edges, indexed: those of a pipeline (`Graph`), or those that run (`millstream.plan.Plan`)."""

    pipeline: Pipeline
    """The pipeline it was created from."""
    order: tuple[str, ...]
    """Vertex names in topological order without back edges; the vertices of a cycle are adjacent."""
    sccs: tuple[tuple[str, ...], ...]
    """Strongly connected components in topological order; most have one vertex."""
    back_edges: frozenset[str]
    """Names of the edges that close a cycle."""
    edges_in: Mapping[str, tuple[Edge, ...]]
    """For each vertex the edges it reads, in file order."""
    edges_out: Mapping[str, tuple[Edge, ...]]
    """For each vertex the edges it writes, of every kind, in file order."""
    tables: Mapping[str, TableInput]
    """The table of each edge that is read as one."""
    _vertices: Mapping[str, Vertex]
    _edges: Mapping[str, Edge]

    @classmethod
    def joining(cls, pipeline: Pipeline, vertices: Sequence[Vertex], edges: Sequence[Edge], **more: Any) -> Self:
        """The network of these vertices and edges. `more`: the other fields of the class."""
        nodes = [vertex.name for vertex in vertices]
        arcs = list(dict.fromkeys((edge.from_, edge.to) for edge in edges))
        backs = topology.back_arcs(nodes, arcs)
        return cls(
            pipeline=pipeline,
            order=tuple(topology.ordered(nodes, arcs)),
            sccs=tuple(topology.components(nodes, arcs)),
            back_edges=frozenset(e.name for e in edges if (e.from_, e.to) in backs),
            edges_in={name: tuple(e for e in edges if e.to == name) for name in nodes},
            edges_out={name: tuple(e for e in edges if e.from_ == name) for name in nodes},
            # Of the pipeline as it is written: here, an edge may lead from the first vertex of a chain.
            tables={table.edge: table for table in pipeline.spec.tables.inputs()},
            _vertices={vertex.name: vertex for vertex in vertices},
            _edges={edge.name: edge for edge in edges},
            **more,
        )

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """Vertices in topological order."""
        return tuple(self._vertices[name] for name in self.order)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Edges in file order."""
        return tuple(self._edges.values())

    @property
    def sources(self) -> tuple[Vertex, ...]:
        """Vertices without an input, the sources, in topological order."""
        return tuple(vertex for vertex in self.vertices if not vertex.definition.has_input)

    @property
    def sinks(self) -> tuple[Vertex, ...]:
        """Vertices without an output, the sinks, in topological order."""
        return tuple(vertex for vertex in self.vertices if not vertex.definition.has_output)

    @property
    def reduces(self) -> tuple[Vertex, ...]:
        """Vertices with windows, the reduces, in topological order."""
        return tuple(vertex for vertex in self.vertices if vertex.definition.has_windows)

    def vertex(self, name: str) -> Vertex:
        """The vertex of that name. Errors: KeyError."""
        return self._vertices[name]

    def edge(self, name: str) -> Edge:
        """The edge of that name. Errors: KeyError."""
        return self._edges[name]

    def edges_of(self, vertex: str, kind: EdgeKind) -> tuple[Edge, ...]:
        """The edges out of a vertex of that kind, in file order."""
        return tuple(edge for edge in self.edges_out[vertex] if edge.kind == kind)

    def limits_of(self, vertex: str) -> Limits:
        """The limits of a vertex and of the buffers of the edges into it."""
        return self.pipeline.limits_of(self._vertices[vertex])

    def in_cycle(self, vertex: str) -> bool:
        """Whether a record can come back to a vertex."""
        group = next(group for group in self.sccs if vertex in group)
        return len(group) > 1 or any(edge.to == vertex for edge in self.edges_out[vertex])

    def keeps_input(self, vertex: str) -> bool:
        """Whether the records of a vertex stay in its input buffers until their windows are committed."""
        group_by = self._vertices[vertex].group_by
        return group_by is not None and group_by.keeps_input

    def lanes_of(self, vertex: str) -> tuple[LaneId, ...]:
        """The lanes of a vertex: one per input edge and partition, or one per partition, as its kind says."""
        step = self._vertices[vertex]
        one = step.definition.lane_input
        inputs = [one] if one is not None else [edge.name for edge in self.edges_in[vertex]]
        return tuple(LaneId(vertex, name, partition) for name in inputs for partition in range(step.partitions))

    def all_lanes(self) -> tuple[LaneId, ...]:
        """The lanes of every vertex, in topological order of the vertices."""
        return tuple(lane for vertex in self.order for lane in self.lanes_of(vertex))

    def owned_lanes(self, vertex: str, replica: int) -> tuple[LaneId, ...]:
        """The lanes that one replica of a vertex owns. Errors: ValueError if there is no such replica."""
        replicas = self._vertices[vertex].replicas
        if not 0 <= replica < replicas:
            raise ValueError(f"vertex {vertex} has replicas 0 to {replicas - 1}, not {replica}")
        return tuple(lane for lane in self.lanes_of(vertex) if lane.partition % replicas == replica)

    def inputs_of(self, lane: LaneId) -> tuple[BufferId, ...]:
        """The buffers that a lane reads: none for a source's, one per edge for one of all edges, else one."""
        inputs = [edge.name for edge in self.edges_in[lane.vertex]]
        read = [lane.input] if lane.input in inputs else inputs
        return tuple(BufferId(name, lane.partition) for name in read)

    def buffers_of(self, edge: Edge) -> tuple[BufferId, ...]:
        """The buffers of an edge: one per partition of the vertex that reads it, none inside a chain."""
        if edge.chain:
            return ()
        return tuple(BufferId(edge.name, p) for p in range(self._vertices[edge.to].partitions))

    def upstream_lanes(self, buffer: BufferId) -> tuple[LaneId, ...]:
        """The lanes that may write into a buffer: all of the vertex upstream of its edge."""
        return self.lanes_of(self._edges[buffer.edge].from_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Network):
    """A valid pipeline as its users see it, indexed."""

    chains: tuple[tuple[str, ...], ...]
    """Vertices that run as one lane: each chain in its order, sorted by first vertex."""
    _heads: Mapping[str, str]

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """The graph of a pipeline. Errors: SpecError (without line numbers) if it is not valid."""
        outline = outline_of(pipeline.as_written())
        findings = list(shape_findings(outline)) if outline is not None else []
        if findings:
            raise SpecError([Problem(f.code, "", 0, 0, path_text(f.path), f.what, f.expected) for f in findings])
        vertices, edges = pipeline.spec.vertices, pipeline.spec.edges
        if pipeline.spec.chain is not False and outline is not None:
            edges = tuple(_with_chains(pipeline, may_be_chained(outline)))
        chains = tuple(_chains(vertices, edges))
        heads = {member: chain[0] for chain in chains for member in chain}
        return cls.joining(pipeline, vertices, edges, chains=chains, _heads=heads)

    def head(self, vertex: str) -> str:
        """The vertex in whose lanes a vertex runs: the first of its chain, or itself."""
        return self._heads.get(vertex, vertex)

    def chain(self, vertex: str) -> tuple[str, ...]:
        """The vertices that run in the lanes of one, itself first; without a chain, only itself."""
        return next((chain for chain in self.chains if chain[0] == vertex), (vertex,))

    def chained_into(self, vertex: str) -> Edge | None:
        """The edge by which a vertex follows in a chain; None for all others."""
        return next((edge for edge in self.edges_in[vertex] if edge.chain), None)

    def writes_envelopes(self, edge: str, sink: FallbackSink) -> bool:
        """Whether a sink that reads an edge, or its fallback, writes the envelopes of records."""
        return sink.envelope if sink.envelope is not None else self._edges[edge].kind == "deadLetter"

    def retry_policy(self, vertex: str) -> retry.RetryPolicy | None:
        """What happens to a record on which a vertex's UDF, transformer or sink fails, or to a window on which a reduce
        fails; None for a vertex that cannot fail on one, such as a source without a transformer."""
        step = self._vertices[vertex]
        strategy = step.definition.retry(step.settings)
        if strategy is None:
            return None
        return _policy(strategy.backoff, self._on_failure(vertex, strategy.on_failure), strategy.max_retries)

    def on_invalid(self, vertex: str) -> retry.OnFailure:
        """What happens to a record of a source whose text, event time or key cannot be read."""
        step = self._vertices[vertex]
        return self._on_failure(vertex, step.definition.on_invalid(step.settings))

    def max_future_s(self, vertex: str) -> float | None:
        """How far ahead of the clock the event times of a source's records may be; None: no limit."""
        spec, step = self.pipeline.spec.watermark, self._vertices[vertex]
        if step.definition.has_input:
            return None
        if spec.max_future_s is not None or spec.disabled:
            return spec.max_future_s
        return MAX_FUTURE_S if step.definition.untrusted(step.settings) else None

    def on_future(self, vertex: str) -> retry.OnFailure:
        """What happens to a record whose event time is further ahead: dead letter, drop or stop."""
        written = self.pipeline.spec.watermark.on_future or "deadLetter"
        if written == "deadLetter" and not self.edges_of(vertex, "deadLetter"):
            return retry.OnFailure.DROP
        return retry.OnFailure(written)

    def _on_failure(self, vertex: str, written: str | None) -> retry.OnFailure:
        """What was written, or else the default."""
        if written:
            return retry.OnFailure(written)
        return retry.OnFailure.DEAD_LETTER if self.edges_of(vertex, "deadLetter") else retry.OnFailure.STOP


def promises(graph: Graph) -> Iterator[tuple[Vertex, str, Guarantee]]:
    """The vertices with a guarantee, such as sinks, in topological order, each with its guarantee and what it is for:
    its name, or `<name> (fallback)` for the fallback of a sink."""
    for vertex in graph.vertices:
        kind = vertex.definition
        given = kind.guarantees if graph.chained_into(vertex.name) is None else kind.guarantees_in_chain
        for part, guarantee in given(vertex.settings):
            yield vertex, f"{vertex.name} ({part})" if part else vertex.name, guarantee


def guarantees_of(graph: Graph) -> dict[str, Guarantee]:
    """The guarantees by what they are for."""
    return {name: guarantee for _, name, guarantee in promises(graph)}


def decided(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, in which every edge says whether it is chained."""
    edges = [edge.model_copy(update={"chain": bool(edge.chain)}) for edge in Graph.of(pipeline).edges]
    return with_edges(pipeline, edges)


def with_edges(pipeline: Pipeline, edges: Iterable[Edge]) -> Pipeline:
    """The same pipeline with other edges, which are not validated."""
    spec = pipeline.spec.model_copy(update={"edges": tuple(edges)})
    return pipeline.model_copy(update={"spec": spec})


def _with_chains(pipeline: Pipeline, possible: Collection[int]) -> Iterator[Edge]:
    """The edges; those at the places `possible` that do not say whether they are chained, as the pipeline says."""
    vertices = {vertex.name: vertex for vertex in pipeline.spec.vertices}
    replayed = {edge.from_ for edge in pipeline.spec.edges if edge.kind == "deadLetter"}
    for index, edge in enumerate(pipeline.spec.edges):
        chained = edge.chain is None and index in possible
        if chained and not pipeline.spec.chain:
            chained = edge.to not in replayed and _is_chained_by_default(vertices[edge.from_], vertices[edge.to])
        yield edge.model_copy(update={"chain": True}) if chained else edge


def _is_chained_by_default(origin: Vertex, target: Vertex) -> bool:
    """Whether the buffer between a source or map and a map without dead letters does nothing that users count on. It
    sends the records of a key to one partition, has bounds that were chosen, or takes records from a sender that waits
    for the answer. Dead letters are put back into it."""
    limits = target.limits or VertexLimits()
    bounds = (limits.buffer_max_length, limits.buffer_max_bytes, limits.buffer_usage_limit)
    return (
        target.partitions == 1
        and all(bound is None for bound in bounds)
        and (
            origin.definition.has_input
            or all(placed.end.promise().id is GuaranteeId.POSITION for placed in origin.ends)
        )
    )


def _chains(vertices: Sequence[Vertex], edges: Sequence[Edge]) -> Iterator[tuple[str, ...]]:
    """The vertices of each chain. In a valid pipeline each vertex has at most one chained edge in and one out, and none
    of them closes a cycle."""
    following = {edge.from_: edge.to for edge in edges if edge.chain}
    for vertex in vertices:
        if vertex.name in following and vertex.name not in following.values():
            chain = [vertex.name]
            while chain[-1] in following:
                chain.append(following[chain[-1]])
            yield tuple(chain)


def _policy(backoff: Backoff, on_failure: retry.OnFailure, max_retries: int) -> retry.RetryPolicy:
    steps = None if on_failure is retry.OnFailure.RETRY else backoff.steps
    pauses = retry.Backoff(
        interval_s=backoff.interval_s,
        steps=steps,
        factor=backoff.factor,
        cap_s=backoff.cap_s,
        jitter=backoff.jitter,
    )
    return retry.RetryPolicy(pauses, on_failure, max_retries)
