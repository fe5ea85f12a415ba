"""The pipeline as a graph: who reads whom, in which order, with which policies. Pure.

A `Graph` is only ever made of a pipeline whose shape is sound, so what it answers needs no further
checking. Above: lanes, the runner, the vertex processes. It knows no files and no brokers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from millstream import retry
from millstream.limits import MAX_FUTURE_S
from millstream.spec import topology
from millstream.spec.models import Backoff, Edge, FallbackSink, Limits, Pipeline, Vertex
from millstream.spec.problems import Problem, SpecError, path_text
from millstream.spec.shape_checks import outline_of, shape_findings


@dataclass(frozen=True, slots=True)
class Graph:
    """A sound pipeline, indexed."""

    pipeline: Pipeline
    """What it was made of."""
    order: tuple[str, ...]
    """Vertex names in topological order, back edges left out; a cycle's vertices stand together."""
    sccs: tuple[tuple[str, ...], ...]
    """Strongly connected components in topological order; most have one vertex."""
    back_edges: frozenset[str]
    """Names of the edges that close a cycle."""
    edges_in: Mapping[str, tuple[Edge, ...]]
    """For each vertex the edges it reads, in file order."""
    edges_out: Mapping[str, tuple[Edge, ...]]
    """For each vertex the edges it writes, of every kind, in file order."""
    _vertices: Mapping[str, Vertex]
    _edges: Mapping[str, Edge]

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """The graph of a pipeline. Errors: SpecError (without line numbers) when it is not sound."""
        outline = outline_of(pipeline.as_written())
        findings = list(shape_findings(outline)) if outline is not None else []
        if findings:
            raise SpecError([Problem(f.code, "", 0, 0, path_text(f.path), f.what, f.expected) for f in findings])
        nodes = [vertex.name for vertex in pipeline.spec.vertices]
        edges = pipeline.spec.edges
        arcs = list(dict.fromkeys((edge.from_, edge.to) for edge in edges))
        backs = topology.back_arcs(nodes, arcs)
        return cls(
            pipeline=pipeline,
            order=tuple(topology.ordered(nodes, arcs)),
            sccs=tuple(topology.components(nodes, arcs)),
            back_edges=frozenset(e.name for e in edges if (e.from_, e.to) in backs),
            edges_in={name: tuple(e for e in edges if e.to == name) for name in nodes},
            edges_out={name: tuple(e for e in edges if e.from_ == name) for name in nodes},
            _vertices={vertex.name: vertex for vertex in pipeline.spec.vertices},
            _edges={edge.name: edge for edge in edges},
        )

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """Vertices in topological order."""
        return tuple(self._vertices[name] for name in self.order)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Edges in file order."""
        return self.pipeline.spec.edges

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

    def data_edges(self, vertex: str) -> tuple[Edge, ...]:
        """The edges that take what a vertex puts out."""
        return tuple(edge for edge in self.edges_out[vertex] if edge.kind == "data")

    def dead_letter_edges(self, vertex: str) -> tuple[Edge, ...]:
        """The edges that take the records a vertex gives up on."""
        return tuple(edge for edge in self.edges_out[vertex] if edge.kind == "deadLetter")

    def late_edges(self, vertex: str) -> tuple[Edge, ...]:
        """The edges that take the records that come to a reduce after all their windows were closed."""
        return tuple(edge for edge in self.edges_out[vertex] if edge.kind == "late")

    def writes_envelopes(self, edge: str, sink: FallbackSink) -> bool:
        """Whether a sink that reads an edge, or its fallback, writes the envelopes of records."""
        return sink.envelope if sink.envelope is not None else self._edges[edge].kind == "deadLetter"

    def limits_of(self, vertex: str) -> Limits:
        """The limits that hold for a vertex and for the buffers of the edges into it."""
        return self.pipeline.limits_of(self._vertices[vertex])

    def in_cycle(self, vertex: str) -> bool:
        """Whether a record can come back to a vertex."""
        group = next(group for group in self.sccs if vertex in group)
        return len(group) > 1 or any(edge.to == vertex for edge in self.edges_out[vertex])

    def retry_policy(self, vertex: str) -> retry.RetryPolicy | None:
        """What happens to a record that a vertex's UDF, transformer or sink fails on, or to a window that a reduce
        fails on; None for a vertex that cannot fail on one, such as a source without a transformer."""
        step = self._vertices[vertex]
        strategy = step.definition.retry(step.settings)
        if strategy is None:
            return None
        written = strategy.on_failure
        on_failure = retry.OnFailure(written) if written else self._default_on_failure(vertex)
        return _policy(strategy.backoff, on_failure, strategy.max_retries)

    def on_invalid(self, vertex: str) -> retry.OnFailure:
        """What happens to a record of a source whose text, event time or key cannot be read."""
        step = self._vertices[vertex]
        written = step.definition.on_invalid(step.settings)
        return retry.OnFailure(written) if written else self._default_on_failure(vertex)

    def max_future_s(self, vertex: str) -> float | None:
        """How far ahead of the clock the event times of a source's records may be; None: no bound."""
        spec, step = self.pipeline.spec.watermark, self._vertices[vertex]
        if step.definition.has_input:
            return None
        if spec.max_future_s is not None or spec.disabled:
            return spec.max_future_s
        return MAX_FUTURE_S if step.definition.strangers(step.settings) else None

    def on_future(self, vertex: str) -> retry.OnFailure:
        """What happens to a record whose event time is further ahead: dead letter, drop or stop."""
        written = self.pipeline.spec.watermark.on_future or "deadLetter"
        if written == "deadLetter" and not self.dead_letter_edges(vertex):
            return retry.OnFailure.DROP
        return retry.OnFailure(written)

    def _default_on_failure(self, vertex: str) -> retry.OnFailure:
        has_edge = bool(self.dead_letter_edges(vertex))
        return retry.OnFailure.DEAD_LETTER if has_edge else retry.OnFailure.STOP


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
