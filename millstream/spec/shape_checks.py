"""The shape of a pipeline as far as it can be read, and all problems with it.

An outline is created from the file's plain values, whether or not the models accept them, so that problems of the graph
are reported together with those of the fields. Parts that cannot be read are left out, and checks that would mistake
them for missing parts are skipped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import one_of
from millstream.record import ALL_INPUTS
from millstream.spec import topology
from millstream.spec.kinds import KINDS, VertexKind
from millstream.spec.models import EdgeKind, Vertex, default_edge_name
from millstream.spec.problems import Finding, Path
from millstream.spec.values import SpecModel

_EDGE_KINDS: Mapping[str, EdgeKind] = {"deadLetter": "deadLetter", "late": "late"}


@dataclass(frozen=True, slots=True)
class VertexOutline:
    """The part of a vertex that the checks need."""

    index: int
    name: str
    kind: VertexKind[SpecModel] | None
    """None if it has no kind or several."""
    key: str
    """The key of its settings; empty if it has no kind."""
    settings: Mapping[str, Any]
    """The settings, as written."""
    shares: Mapping[str, Any]
    """Its partitions, replicas and placement, which the vertices of a chain share."""

    @property
    def path(self) -> Path:
        return ("spec", "vertices", self.index)

    @property
    def has_input(self) -> bool:
        """Whether it reads edges, as far as is known."""
        return self.kind is None or self.kind.has_input

    @property
    def has_output(self) -> bool:
        """Whether it writes data edges, as far as is known."""
        return self.kind is None or self.kind.has_output

    @property
    def late_asked(self) -> Path | None:
        """Where it asks for an edge for late records."""
        asked = self.kind.late_asked(self.settings) if self.kind is not None else None
        return (*self.path, self.key, *asked) if asked is not None else None


@dataclass(frozen=True, slots=True)
class EdgeOutline:
    """The part of an edge that the checks need."""

    index: int
    name: str
    origin: str
    target: str
    kind: EdgeKind
    chained: bool = False
    """Whether its ends run as one lane."""
    picks: str = ""
    """The field because of which some records may not take it; empty if all do."""

    @property
    def path(self) -> Path:
        return ("spec", "edges", self.index)


@dataclass(frozen=True, slots=True)
class Outline:
    """The vertices and edges that could be read."""

    vertices: tuple[VertexOutline, ...]
    edges: tuple[EdgeOutline, ...]
    vertices_whole: bool
    """Whether every vertex could be read."""
    edges_whole: bool
    """Whether every edge could be read."""
    watermark: Mapping[str, Any] = field(default_factory=dict)
    """The contents of `watermark`."""


def outline_of(pipeline: Any) -> Outline | None:
    """The outline of a pipeline's plain values; None if they contain no vertices."""
    spec = pipeline.get("spec") if isinstance(pipeline, Mapping) else None
    written = spec.get("vertices") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(written, list) or not written:
        return None
    arrows = spec.get("edges")
    arrows = arrows if isinstance(arrows, list) else []
    vertices = tuple(_vertices_of(written))
    edges = tuple(_edges_of(arrows))
    return Outline(
        vertices,
        edges,
        len(vertices) == len(written) and all(vertex.kind is not None for vertex in vertices),
        len(edges) == len(arrows),
        watermark if isinstance(watermark := spec.get("watermark"), Mapping) else {},
    )


def _vertices_of(written: list[Any]) -> Iterator[VertexOutline]:
    for index, vertex in enumerate(written):
        if not isinstance(vertex, Mapping) or not isinstance(vertex.get("name"), str):
            continue
        keys = [
            key for key, value in vertex.items() if value is not None and isinstance(key, str) and Vertex.is_kind(key)
        ]
        key = keys[0] if len(keys) == 1 else ""
        settings = vertex[key] if isinstance(vertex.get(key), Mapping) else {}
        placement = vertex.get("placement")
        shares = {
            "partitions": vertex.get("partitions", 1),
            "replicas": vertex.get("replicas", 1),
            "placement": placement.get("process", "shared") if isinstance(placement, Mapping) else "shared",
        }
        yield VertexOutline(index, vertex["name"], _kind_of(key, settings), key, settings, shares)


def _kind_of(key: str, settings: Mapping[str, Any]) -> VertexKind[SpecModel] | None:
    if not key:
        return None
    try:
        return KINDS.load(key).of([name for name, value in settings.items() if value is not None])
    except UserError:
        # The models report the problem with its package.
        return None


def _edges_of(written: list[Any]) -> Iterator[EdgeOutline]:
    for index, edge in enumerate(written):
        if not isinstance(edge, Mapping):
            continue
        origin, target = edge.get("from"), edge.get("to")
        if not isinstance(origin, str) or not isinstance(target, str):
            continue
        name = edge.get("name")
        name = name if isinstance(name, str) else default_edge_name(edge)
        kind = _EDGE_KINDS.get(str(edge.get("kind")), "data")
        picks = "conditions" if edge.get("conditions") else "onFull" if edge.get("onFull") == "discardLatest" else ""
        yield EdgeOutline(index, name, origin, target, kind, edge.get("chain") is True, picks)


def shape_findings(outline: Outline) -> Iterator[Finding]:
    """All problems with the graph."""
    yield from _repeated(outline)
    yield from _unknown_ends(outline)
    yield from _wrong_ends(outline)
    yield from _missing_kinds(outline)
    yield from _unconnected(outline)
    yield from _dead_letters(outline)
    yield from _around_cycles(outline)
    yield from _late_records(outline)
    yield from _chains(outline)


def _repeated(outline: Outline) -> Iterator[Finding]:
    vertices: dict[str, int] = {}
    for vertex in outline.vertices:
        first = vertices.setdefault(vertex.name, vertex.index)
        if first != vertex.index:
            what = f"vertex `{vertex.name}` appears twice; the first is vertices[{first}]"
            yield Finding(codes.NAME_TWICE, (*vertex.path, "name"), what, "another name")
    pairs: dict[tuple[str, str, str], int] = {}
    names: dict[str, int] = {}
    for edge in outline.edges:
        first = pairs.setdefault((edge.origin, edge.target, edge.kind), edge.index)
        if first != edge.index:
            what = f"the edge from `{edge.origin}` to `{edge.target}` appears twice"
            yield Finding(
                codes.EDGE_NOT_ALLOWED, edge.path, f"{what}; the first is edges[{first}]", "each edge only once"
            )
            continue
        first = names.setdefault(edge.name, edge.index)
        if first != edge.index:
            what = f"edge name `{edge.name}` appears twice; the first is edges[{first}]"
            yield Finding(codes.NAME_TWICE, edge.path, what, "a unique `name` for one of them")


def _unknown_ends(outline: Outline) -> Iterator[Finding]:
    if len(outline.vertices) == 0:
        return
    known = {vertex.name for vertex in outline.vertices}
    for edge in outline.edges:
        for member, name in (("from", edge.origin), ("to", edge.target)):
            if name not in known:
                expected = one_of(str(name), sorted(known))
                yield Finding(codes.NO_SUCH_VERTEX, (*edge.path, member), f"there is no vertex `{name}`", expected)


def _wrong_ends(outline: Outline) -> Iterator[Finding]:
    kinds = {vertex.name: vertex.kind for vertex in outline.vertices}
    for edge in outline.edges:
        origin, target = kinds.get(edge.origin), kinds.get(edge.target)
        if origin is not None and not origin.has_output:
            what = f"`{edge.origin}` is a {origin.name} and has no output"
            yield Finding(codes.EDGE_NOT_ALLOWED, (*edge.path, "from"), what, "a vertex with an output")
        if target is not None and not target.has_input:
            what = f"`{edge.target}` is a {target.name} and has no input"
            yield Finding(codes.EDGE_NOT_ALLOWED, (*edge.path, "to"), what, "a vertex with an input")


def _missing_kinds(outline: Outline) -> Iterator[Finding]:
    if not outline.vertices_whole:
        return
    ends = {
        "source": any(not vertex.has_input for vertex in outline.vertices),
        "sink": any(not vertex.has_output for vertex in outline.vertices),
    }
    for kind, is_there in ends.items():
        if not is_there:
            expected = f"at least one vertex with `{kind}`"
            yield Finding(codes.NOT_CONNECTED, ("spec", "vertices"), f"the pipeline has no {kind}", expected)


def _unconnected(outline: Outline) -> Iterator[Finding]:
    """Vertices without a way in or out. A vertex after a reported one is not reported."""
    known = {vertex.name for vertex in outline.vertices}
    edges_known = outline.edges_whole and all(edge.origin in known and edge.target in known for edge in outline.edges)
    if not outline.vertices_whole or not edges_known:
        return
    arcs = [(edge.origin, edge.target) for edge in outline.edges]
    with_input = {edge.target for edge in outline.edges}
    with_output = {edge.origin for edge in outline.edges if edge.kind == "data"}
    begins = {v.name for v in outline.vertices if not v.has_input or v.name not in with_input}
    ends = {v.name for v in outline.vertices if not v.has_output or v.name not in with_output}
    reached = topology.reachable(begins, arcs)
    arriving = topology.reachable(ends, [(target, origin) for origin, target in arcs])
    for vertex in outline.vertices:
        name = vertex.name
        if vertex.has_input and name not in with_input:
            yield Finding(codes.NOT_CONNECTED, vertex.path, f"`{name}` has no input", f"an edge to `{name}`")
        elif name not in reached:
            expected = f"an edge into `{name}` or its cycle"
            yield Finding(codes.NOT_CONNECTED, vertex.path, f"`{name}` cannot be reached from a source", expected)
        if vertex.has_output and name not in with_output:
            yield Finding(codes.NOT_CONNECTED, vertex.path, f"`{name}` has no output", f"a data edge from `{name}`")
        elif name not in arriving:
            expected = f"an edge out of `{name}` or its cycle"
            yield Finding(codes.NOT_CONNECTED, vertex.path, f"`{name}` does not lead to a sink", expected)


def _dead_letters(outline: Outline) -> Iterator[Finding]:
    """Dead-letter edges that can never carry a record, policies without an edge, and cycles of dead letters."""
    vertices = {vertex.name: vertex for vertex in outline.vertices}
    arcs = [(edge.origin, edge.target) for edge in outline.edges]
    with_edge = set()
    for edge in outline.edges:
        if edge.kind != "deadLetter":
            continue
        with_edge.add(edge.origin)
        origin = vertices.get(edge.origin)
        if edge.origin in topology.reachable([edge.target], arcs):
            what = f"dead letters of `{edge.origin}` would come back to it"
            yield Finding(codes.CYCLE, edge.path, what, "a dead-letter edge that does not lead back")
        kind = origin.kind if origin is not None else None
        if origin is not None and kind is not None and not kind.dead_letters(origin.settings, outline.watermark):
            what = f"`{edge.origin}` has no dead letters"
            expected = "`onFailure: deadLetter` (or `onInvalid`), or no such edge"
            yield Finding(codes.SIDE_EDGE, (*edge.path, "kind"), what, expected)
    if not outline.edges_whole:
        return
    sources = {vertex.name for vertex in outline.vertices if not vertex.has_input}
    if outline.watermark.get("onFuture") == "deadLetter" and not sources & with_edge:
        what = "no source has a dead-letter edge"
        yield Finding(
            codes.SIDE_EDGE, ("spec", "watermark", "onFuture"), what, "an edge with `kind: deadLetter` from a source"
        )
    for vertex in outline.vertices:
        if vertex.name in with_edge or vertex.kind is None:
            continue
        for place in vertex.kind.dead_letters_asked(vertex.settings):
            path = (*vertex.path, vertex.key, *place)
            what = f"`{vertex.name}` has no dead-letter edge"
            yield Finding(codes.SIDE_EDGE, path, what, f"an edge with `kind: deadLetter` from `{vertex.name}`")


def _around_cycles(outline: Outline) -> Iterator[Finding]:
    """Reduces in a cycle: the watermark of such a reduce would wait for itself. Lanes that read several edges, one of
    which closes a cycle: whether records still come in by the others is not in their marks. Dead letters that come back
    are reported elsewhere."""
    arcs = [(edge.origin, edge.target) for edge in outline.edges if edge.kind != "deadLetter"]
    for vertex in outline.vertices:
        following = [target for origin, target in arcs if origin == vertex.name]
        kind, around = vertex.kind, topology.reachable(following, arcs)
        if kind is not None and kind.has_windows and vertex.name in around:
            what = f"`{vertex.name}` is a {kind.name} in a cycle, where no window can close"
            yield Finding(codes.CYCLE, vertex.path, what, "a reduce outside every cycle")
        into = sum(edge.target == vertex.name for edge in outline.edges)
        if kind is not None and kind.lane_input == ALL_INPUTS and into > 1 and vertex.name in around:
            which = "tables" if "tables" in vertex.settings else "state"
            what = f"`{vertex.name}` has `{which}` and is in a cycle, and {into} edges lead to it"
            expected = "one edge, for example from a map with the built-in `cat` that these edges lead to"
            yield Finding(codes.CYCLE, vertex.path, what, expected)


def _late_records(outline: Outline) -> Iterator[Finding]:
    """Late edges that can never carry a record, and reduces that send late records nowhere."""
    vertices = {vertex.name: vertex for vertex in outline.vertices}
    with_edge = set()
    for edge in outline.edges:
        if edge.kind != "late":
            continue
        with_edge.add(edge.origin)
        origin = vertices.get(edge.origin)
        here = (*edge.path, "kind")
        if origin is None or origin.kind is None or origin.late_asked is not None:
            continue
        if not origin.kind.has_windows:
            yield Finding(
                codes.SIDE_EDGE,
                here,
                f"`{origin.name}` is not a reduce and has no late records",
                "another kind of edge",
            )
        else:
            yield Finding(
                codes.SIDE_EDGE, here, f"`{origin.name}` drops its late records", "`onLate: edge` in its `groupBy`"
            )
    if not outline.edges_whole:
        return
    for vertex in outline.vertices:
        if vertex.late_asked is not None and vertex.name not in with_edge:
            expected = f"an edge with `kind: late` from `{vertex.name}`"
            yield Finding(codes.SIDE_EDGE, vertex.late_asked, f"`{vertex.name}` has no late edge", expected)


def _chains(outline: Outline) -> Iterator[Finding]:
    """Edges without a buffer that need one."""
    vertices = {vertex.name: vertex for vertex in outline.vertices}
    for edge in outline.edges:
        origin, target = vertices.get(edge.origin), vertices.get(edge.target)
        if not edge.chained or origin is None or target is None:
            continue
        why = next(_needs_buffer(outline, edge, origin, target), None)
        if why is not None:
            what = f"the edge from `{edge.origin}` to `{edge.target}` cannot be chained: {why}"
            yield Finding(
                codes.EDGE_NOT_CHAINED, (*edge.path, "chain"), what, "no `chain`, so that the edge has a buffer"
            )


def may_be_chained(outline: Outline) -> frozenset[int]:
    """The edges to maps that can be chained, by their place in the file."""
    vertices = {vertex.name: vertex for vertex in outline.vertices}
    return frozenset(
        edge.index
        for edge in outline.edges
        if (target := vertices[edge.target]).has_output
        and next(_needs_buffer(outline, edge, vertices[edge.origin], target), None) is None
    )


def _needs_buffer(outline: Outline, edge: EdgeOutline, origin: VertexOutline, target: VertexOutline) -> Iterator[str]:
    """Why the vertices at the ends of an edge cannot run as one lane."""
    if edge.kind != "data":
        yield "it does not carry the output of its vertex"
    if edge.picks:
        yield f"it has `{edge.picks}`, but a chained edge takes every record"
    if origin.kind is not None and not origin.kind.may_lead_chain:
        yield f"`{origin.name}` is a {origin.kind.name}, and a chain can only continue after a source or a map"
    if target.kind is not None and not target.kind.may_follow_in_chain:
        yield f"`{target.name}` is a {target.kind.name}, and a chain can only continue with a map or a sink"
    if any(
        other.index != edge.index and other.kind == "data" and other.origin == origin.name for other in outline.edges
    ):
        yield f"`{origin.name}` has other data edges"
    if any(other.index != edge.index and other.target == target.name for other in outline.edges):
        yield f"`{target.name}` also reads other edges"
    if origin.name in topology.reachable([target.name], [(one.origin, one.target) for one in outline.edges]):
        yield "it is part of a cycle"
    for what, own in origin.shares.items():
        if own != target.shares[what]:
            yield f"`{what}` is {own} for `{origin.name}` but {target.shares[what]} for `{target.name}`"
