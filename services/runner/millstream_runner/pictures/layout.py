"""Where the vertices and edges of a graph go: a layered drawing from left to right. Pure and deterministic.

    layers ─► places for labels and for edges that pass a layer ─► order within layers ─► coordinates

Vertices are in even layers, each after all its predecessors. Every edge has a place in each layer that it passes, and
its label has one in an odd layer. So nothing overlaps, and no edge crosses a vertex. The order within a layer comes
from the means of the neighbours (Sugiyama's method), coordinates are those closest to the neighbours' that keep order
and distance (pool adjacent violators). Edges that close a cycle are laid out as if they were reversed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_SWEEPS = 12
"""Sweeps over all layers, in either direction."""
_VERTEX_GAP = 26.0
_EDGE_GAP = 16.0
"""Vertical distance between neighbours in a layer."""
_LAYER_GAP = 32.0
"""Distance between two layers; only there do edges go up or down."""
_MARGIN = 16.0
_LOOP_HEIGHT = 22.0
"""Height of an edge from a vertex to itself, above the vertex and below its label."""


@dataclass(frozen=True, slots=True)
class Box:
    """The size of an element, in pixels."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Arc:
    """An edge to lay out. `label` is the size of its text; None: no text."""

    name: str
    start: str
    end: str
    label: Box | None = None
    back: bool = False
    """Whether it closes a cycle."""


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """The centre of an element."""

    x: float
    y: float
    box: Box


@dataclass(frozen=True, slots=True)
class Route:
    """The path of an edge: points from left to right, and the centre of its label; for an edge from a vertex to itself,
    only the label."""

    points: Sequence[tuple[float, float]]
    label: NodePlacement | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing."""

    width: float
    height: float
    vertices: Mapping[str, NodePlacement]
    routes: Mapping[str, Route]


@dataclass(slots=True, eq=False)
class _Place:
    """An element of a layer: a vertex, a label, or an edge that passes."""

    layer: int
    box: Box
    is_vertex: bool
    loop: Box | None = None
    """Space above it for edges to itself."""
    y: float = 0.0
    before: list[_Place] = field(default_factory=list)
    after: list[_Place] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(self.box.width, self.loop.width if self.loop is not None else 0.0)

    @property
    def top(self) -> float:
        return self.y - self.box.height / 2 - (self.loop.height if self.loop is not None else 0.0)

    def neighbours(self, *, forward: bool) -> list[_Place]:
        return self.before if forward else self.after


def lay_out(vertices: Mapping[str, Box], arcs: Sequence[Arc]) -> Layout:
    """`vertices`: in topological order, ignoring arcs with `back` and arcs to themselves."""
    layers = _layers(vertices, arcs)
    loops = _loops(arcs)
    places = {
        name: _Place(2 * layers[name], box, is_vertex=True, loop=loops.get(name)) for name, box in vertices.items()
    }
    between = [arc for arc in arcs if arc.start != arc.end]
    chains = {arc.name: _chain(arc, places) for arc in between}
    columns: dict[int, list[_Place]] = defaultdict(list)
    for place in [*places.values(), *(place for chain in chains.values() for place in chain)]:
        columns[place.layer].append(place)
    order = [columns[layer] for layer in sorted(columns)]
    _link(chains, between, places)
    _sort(order)
    _align(order)
    height = _move_to_top(order)
    spans, width = _spans(order)
    routes = {arc.name: _route(arc, chains[arc.name], places, spans) for arc in between}
    for name, place in places.items():
        own = [arc for arc in arcs if arc.start == arc.end == name]
        routes.update(_loop_routes(own, spans[place.layer].middle, place.y - place.box.height / 2))
    placed = {name: NodePlacement(spans[place.layer].middle, place.y, place.box) for name, place in places.items()}
    return Layout(width, height, placed, routes)


def _layers(vertices: Iterable[str], arcs: Sequence[Arc]) -> dict[str, int]:
    """Each vertex is one layer after its last predecessor; a source is just before its first successor."""
    layers = dict.fromkeys(vertices, 0)
    forward = [arc for arc in arcs if not arc.back and arc.start != arc.end]
    for name in layers:
        for arc in forward:
            if arc.end == name:
                layers[name] = max(layers[name], layers[arc.start] + 1)
    entered = {arc.end for arc in forward}
    for name in layers:
        following = [layers[arc.end] for arc in forward if arc.start == name]
        if name not in entered and following:
            layers[name] = min(following) - 1
    return layers


def _ends(arc: Arc) -> tuple[str, str]:
    """The ends from left to right."""
    return (arc.end, arc.start) if arc.back else (arc.start, arc.end)


def _chain(arc: Arc, places: Mapping[str, _Place]) -> list[_Place]:
    """The places of an edge between its ends, in order from left to right."""
    left, right = _ends(arc)
    chain: list[_Place] = []
    for layer in range(places[left].layer + 1, places[right].layer):
        box = arc.label if arc.label is not None and not chain else Box(0.0, 0.0)
        chain.append(_Place(layer, box, is_vertex=False))
    return chain


def _link(chains: Mapping[str, Sequence[_Place]], arcs: Iterable[Arc], places: Mapping[str, _Place]) -> None:
    for arc in arcs:
        left, right = _ends(arc)
        path = [places[left], *chains[arc.name], places[right]]
        for one, next_ in pairwise(path):
            one.after.append(next_)
            next_.before.append(one)


def _sort(order: list[list[_Place]]) -> None:
    """Sort each layer such that few edges cross, as far as sweeping finds such an order."""
    best, fewest = [list(column) for column in order], _crossings(order)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        rank = _ranks(order)
        for column in order if forward else reversed(order):
            weights = {}
            for place in column:
                near = [rank[id(one)] for one in place.neighbours(forward=forward)]
                weights[id(place)] = sum(near) / len(near) if near else rank[id(place)]
            column.sort(key=lambda place: weights[id(place)])  # used at once
            rank.update({id(place): float(index) for index, place in enumerate(column)})
        crossings = _crossings(order)
        if crossings < fewest:
            best, fewest = [list(column) for column in order], crossings
    for column, kept in zip(order, best, strict=True):
        column[:] = kept


def _ranks(order: Iterable[Sequence[_Place]]) -> dict[int, float]:
    return {id(place): float(index) for column in order for index, place in enumerate(column)}


def _crossings(order: Sequence[Sequence[_Place]]) -> int:
    rank = _ranks(order)
    found = 0
    for column in order:
        ends = [(rank[id(place)], after) for place in column for after in sorted(rank[id(one)] for one in place.after)]
        found += sum(
            one_end > other_end
            for index, (one, one_end) in enumerate(ends)
            for other, other_end in ends[index + 1 :]
            if one < other
        )
    return found


def _align(order: Sequence[Sequence[_Place]]) -> None:
    """Set heights near those of the neighbours, in order and without overlap."""
    for column in order:
        _spread(column, [0.0] * len(column))
    for sweep in range(2 * _SWEEPS):
        forward = sweep % 2 == 0
        for column in order if forward else reversed(order):
            wanted = []
            for place in column:
                near = place.neighbours(forward=forward) or place.neighbours(forward=not forward)
                wanted.append(sum(one.y for one in near) / len(near) if near else place.y)
            _spread(column, wanted)


def _spread(column: Sequence[_Place], wanted: Sequence[float]) -> None:
    """The heights closest to the wanted ones (by squares) that keep order and gaps."""
    offsets, offset = [], 0.0
    for index, place in enumerate(column):
        if index:
            above = column[index - 1]
            gap = _VERTEX_GAP if above.is_vertex and place.is_vertex else _EDGE_GAP
            offset += (above.box.height + place.box.height) / 2 + gap + (place.loop.height if place.loop else 0.0)
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for index, want in enumerate(wanted):
        mean, size = want - offsets[index], 1
        while blocks and blocks[-1][0] > mean:
            other, others = blocks.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        blocks.append((mean, size))
    means = [mean for mean, size in blocks for _ in range(size)]
    for place, mean, offset in zip(column, means, offsets, strict=True):
        place.y = mean + offset


def _move_to_top(order: Sequence[Sequence[_Place]]) -> float:
    """Move everything to the top margin. Returns the total height."""
    every = [place for column in order for place in column]
    top = min((place.top for place in every), default=0.0)
    for place in every:
        place.y += _MARGIN - top
    return max((place.y + place.box.height / 2 for place in every), default=0.0) + _MARGIN


def _loops(arcs: Iterable[Arc]) -> dict[str, Box]:
    """The space that edges from a vertex to itself need above it: their labels are stacked."""
    found: dict[str, Box] = {}
    for arc in arcs:
        if arc.start == arc.end:
            before = found.get(arc.start, Box(0.0, _LOOP_HEIGHT))
            label = arc.label or Box(0.0, 0.0)
            found[arc.start] = Box(max(before.width, label.width), before.height + label.height)
    return found


def _loop_routes(arcs: Iterable[Arc], x: float, top: float) -> Iterator[tuple[str, Route]]:
    y = top - _LOOP_HEIGHT
    for arc in arcs:
        if arc.label is None:
            yield arc.name, Route((), None)
        else:
            yield arc.name, Route((), NodePlacement(x, y - arc.label.height / 2, arc.label))
            y -= arc.label.height


@dataclass(frozen=True, slots=True)
class _Span:
    """The horizontal extent of a layer."""

    left: float
    right: float

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def _spans(order: Sequence[Sequence[_Place]]) -> tuple[dict[int, _Span], float]:
    """The extent of each layer, and the total width."""
    spans: dict[int, _Span] = {}
    x = _MARGIN
    for column in order:
        width = max(place.width for place in column)
        spans[column[0].layer] = _Span(x, x + width)
        x += width + _LAYER_GAP
    return spans, x - _LAYER_GAP + _MARGIN


def _route(arc: Arc, chain: Sequence[_Place], places: Mapping[str, _Place], spans: Mapping[int, _Span]) -> Route:
    """Level through every layer, so that it touches nothing."""
    left, right = (places[name] for name in _ends(arc))
    start_y, end_y = left.y + _port(left, chain[0]), right.y + _port(right, chain[-1])
    points = [(spans[left.layer].middle + left.box.width / 2, start_y), (spans[left.layer].right, start_y)]
    for place in chain:
        points += [(spans[place.layer].left, place.y), (spans[place.layer].right, place.y)]
    points += [(spans[right.layer].left, end_y), (spans[right.layer].middle - right.box.width / 2, end_y)]
    label = NodePlacement(spans[chain[0].layer].middle, chain[0].y, arc.label) if arc.label is not None else None
    return Route(list(dict.fromkeys(points)), label)


def _port(vertex: _Place, beside: _Place) -> float:
    """Where an edge meets the side of a vertex: the edges of one side are below one another, in order."""
    side = vertex.after if beside in vertex.after else vertex.before
    ports = sorted(side, key=lambda place: place.y)
    place = next(index for index, one in enumerate(ports) if one is beside)
    return (place - (len(ports) - 1) / 2) * min(10.0, vertex.box.height / (len(ports) + 1))
