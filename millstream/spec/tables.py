"""The tables of a pipeline: the edges that are read as tables, how long others wait for them, and what cannot work.

    rates ──► enrich        every partition of `enrich` gets every record of this edge
    payments ──► enrich     and the records of this one, by their keys; they wait for the table

Pure. Above it: the models, which report the problems, and the graph. Below it: the settings of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from millstream import codes
from millstream.spec import topology
from millstream.spec.programs import Table
from millstream.spec.values import ShapeProblem

Wait = Literal["end"] | int
"""How much of a table is read before other records: all of it, or so many records."""


class TableInput(NamedTuple):
    """A table of a vertex."""

    vertex: str
    name: str
    table: Table
    edge: str
    """The name of the edge with its records."""
    wait: Wait


class TableVertex(NamedTuple):
    """What counts of a vertex."""

    name: str
    key: str
    """That of its settings."""
    tables: Mapping[str, Table]
    """The tables that it reads, by name."""
    is_source: bool
    ends: bool
    """Whether it is known to end by itself."""


class TableEdge(NamedTuple):
    """What counts of an edge."""

    name: str
    from_: str
    to: str
    discards: bool
    """Whether it leaves records out when its buffer is full."""


class Tables:
    """The tables of these vertices."""

    def __init__(self, vertices: Sequence[TableVertex], edges: Sequence[TableEdge]) -> None:
        """`edges`: some may have ends that there are not, which others report."""
        self._vertices = {vertex.name: vertex for vertex in vertices}
        self._edges = [edge for edge in edges if {edge.from_, edge.to} <= self._vertices.keys()]
        self._arcs = [(edge.to, edge.from_) for edge in self._edges]
        """Against the direction of records."""

    def inputs(self) -> Iterator[TableInput]:
        """Every table that has an edge."""
        for vertex in self._vertices:
            for name, table in self._vertices[vertex].tables.items():
                edges = [edge.name for edge in self._into(vertex) if edge.from_ == origin_of(name, table)]
                if edges:
                    yield TableInput(vertex, name, table, edges[0], self._wait(vertex, name, table))

    def edge_names(self, vertex: str) -> Collection[str]:
        """The edges into a vertex that it reads as tables."""
        origins = {origin_of(name, table) for name, table in self._vertices[vertex].tables.items()}
        return [edge.name for edge in self._into(vertex) if edge.from_ in origins]

    def problems(self) -> Iterator[ShapeProblem]:
        """What cannot work. Places are relative to the specification."""
        waits: dict[str, set[str]] = {}
        for index, vertex in enumerate(self._vertices.values()):
            tables = vertex.tables
            here = ("vertices", index, vertex.key, "tables")
            into = {edge.name for edge in self._into(vertex.name)}
            if tables and not into - set(self.edge_names(vertex.name)):
                what = f"all edges to `{vertex.name}` are its tables, so there is no record that it would process"
                yield ShapeProblem(codes.NOT_CONNECTED, here, what, f"another edge to `{vertex.name}`")
            names: dict[str, str] = {}
            for name, table in tables.items():
                for problem in self._problems_of(vertex.name, name, table, names, waits):
                    yield problem._replace(loc=(*here, name, *problem.loc))

    def _problems_of(
        self, vertex: str, name: str, table: Table, names: dict[str, str], waits: dict[str, set[str]]
    ) -> Iterator[ShapeProblem]:
        """`names`: the tables of the vertex before it, by their origin. `waits`: for each source, those that it waits
        for; of all tables before it."""
        origin = origin_of(name, table)
        loc = ("from",) if table.from_ is not None else ()
        edges = [edge for edge in self._into(vertex) if edge.from_ == origin]
        if not edges:
            what = f"no edge leads from `{origin}` to `{vertex}`, so the table would stay empty"
            yield ShapeProblem(
                codes.NOT_CONNECTED, loc, what, f"the edge, or `from` with the vertex that has the records of `{name}`"
            )
            return
        if len(edges) > 1:
            what = f"{len(edges)} edges lead from `{origin}` to `{vertex}`, and a table has the records of one"
            yield ShapeProblem(codes.FIELDS_CONFLICT, loc, what, "one edge, or a map with the built-in `cat` for each")
        if origin in names:
            what = f"table `{names[origin]}` has the records of `{origin}` already"
            yield ShapeProblem(codes.FIELDS_CONFLICT, loc, what, "one table for each edge")
        names.setdefault(origin, name)
        if any(edge.discards for edge in edges):
            what = f"the edge from `{origin}` to `{vertex}` discards records, and the table would lack them"
            yield ShapeProblem(codes.FIELDS_CONFLICT, loc, what, "an edge without `onFull: discardLatest`")
        own, others = self._sources(vertex, name, table)
        endless = sorted(source for source in own if not self._vertices[source].ends)
        if table.wait_for == "end" and endless:
            what = f"`{endless[0]}` is not known to end, so other records could wait for ever"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("waitFor",), what, "a number of records")
        if not self._wait(vertex, name, table):
            return
        for source in others:
            waits.setdefault(source, set()).update(own)
        arcs = [(waiting, awaited) for waiting, all_awaited in waits.items() for awaited in all_awaited]
        around = sorted(source for source in others if source in topology.reachable(waits[source], arcs))
        if around:
            what = f"records of `{around[0]}` would wait for the table, and the table for records of `{around[0]}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("waitFor",), what, "`waitFor: 0`")

    def _wait(self, vertex: str, name: str, table: Table) -> Wait:
        if table.wait_for is not None:
            return table.wait_for
        own, others = self._sources(vertex, name, table)
        if own & others:
            return 0
        return "end" if all(self._vertices[source].ends for source in own) else 1

    def _sources(self, vertex: str, name: str, table: Table) -> tuple[set[str], set[str]]:
        """The sources of a table, and those of the records that are not of a table."""
        origins = {origin_of(one, other) for one, other in self._vertices[vertex].tables.items()}
        others = {edge.from_ for edge in self._into(vertex)} - origins
        return self._above([origin_of(name, table)]), self._above(others)

    def _above(self, vertices: Collection[str]) -> set[str]:
        """The sources whose records reach these vertices."""
        reached = topology.reachable(vertices, self._arcs)
        return {name for name in reached if self._vertices[name].is_source}

    def _into(self, vertex: str) -> Sequence[TableEdge]:
        return [edge for edge in self._edges if edge.to == vertex]


def origin_of(name: str, table: Table) -> str:
    """The vertex whose records a table has."""
    return table.from_ if table.from_ is not None else name
