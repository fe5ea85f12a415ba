"""A pipeline as a picture: SVG, and a page with it. Pure, and the same for the same pipeline.

Above it: `millstream graph`, the report of a run. Below it: the layout, the graph.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from millstream.spec.graph import Graph
from millstream.spec.models import Edge, Vertex
from millstream.spec.render import description, edge_labels
from millstream_runner.local.formatting import shortened
from millstream_runner.pictures.layout import Arc, Box, Layout, NodePlacement, Route, lay_out
from millstream_runner.pictures.page import in_both, page, table, text

_NAME_PX, _SMALL_PX = 7.9, 6.7
"""Width of a character of a vertex's name (13 px, bold) and of other text (11 px), of the widest monospace fonts."""
_NAME_CHARS_MAX, _SMALL_CHARS_MAX = 30, 38
"""The most characters in a line; the complete text is the element's title."""
_VERTEX_HEIGHT = 46.0
_LABEL_HEIGHT = 15.0
# In a page, the rules of a picture apply to the whole page, so each needs a class of this picture.
_STYLE = """\
.graph{font:11px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;text-anchor:middle}
.name{font-size:13px;font-weight:600}.vertex rect,.vertex path{stroke-width:1.2}
.edge path{fill:none;stroke-width:1.4}.edge .tip{stroke:none}.apart path{stroke-dasharray:5 4}
"""
_RULES = """\
.graph{fill:$ink}.label{fill:$soft}.vertex rect,.vertex path{stroke:$ink}
.source{fill:$source}.map{fill:$map}.reduce{fill:$reduce}.sink{fill:$sink}
.edge path{stroke:$soft}.edge .tip{fill:$soft}
.apart path{stroke:$apart}.apart .tip,.apart .label{fill:$apart}
.back path{stroke:$back}.back .tip,.back .label{fill:$back}
"""


def to_svg(graph: Graph) -> str:
    """The pipeline as one SVG image, with a description in words."""
    boxes = {vertex.name: _box(vertex) for vertex in graph.vertices}
    arcs = [
        Arc(edge.name, edge.from_, edge.to, _label_box(_label(graph, edge)), edge.name in graph.back_edges)
        for edge in graph.edges
    ]
    layout = lay_out(boxes, arcs)
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    described = 'role="img" aria-labelledby="graph-title graph-description"'
    return "\n".join([
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" {size} {described}>',
        f'<title id="graph-title">Pipeline {text(graph.pipeline.name)}</title>',
        f'<desc id="graph-description">{text(_in_words(graph))}</desc>',
        f"<style>\n{_STYLE}{in_both(_RULES)}</style>",
        *(line for edge in graph.edges for line in _edge(graph, edge, layout)),
        *(line for vertex in graph.vertices for line in _vertex(vertex, layout.vertices[vertex.name])),
        "</svg>",
        "",
    ])  # fmt: skip


def to_html(graph: Graph) -> str:
    """A page with the picture, and with all its contents as tables."""
    vertices = [(one.name, description(one), one.partitions, one.replicas) for one in graph.vertices]
    edges = [(edge.from_, edge.to, edge.name, ", ".join(_labels(graph, edge))) for edge in graph.edges]
    return page(
        f"Pipeline {graph.pipeline.name}",
        [
            f"<h1>Pipeline {text(graph.pipeline.name)}</h1>",
            f'<div class="wide">\n{to_svg(graph)}</div>',
            "<h2>Vertices</h2>",
            table(("vertex", "what it is", "partitions", "replicas"), vertices, numbers=frozenset({2, 3})),
            "<h2>Edges</h2>",
            table(("from", "to", "edge", "which records"), edges),
        ],
    )


def _box(vertex: Vertex) -> Box:
    name = _width(shortened(vertex.name, _NAME_CHARS_MAX)) * _NAME_PX
    small = _width(shortened(description(vertex), _SMALL_CHARS_MAX)) * _SMALL_PX
    return Box(max(name, small, 60.0) + 26.0, _VERTEX_HEIGHT)


def _label_box(label: str) -> Box | None:
    return Box(_width(label) * _SMALL_PX + 8.0, _LABEL_HEIGHT) if label else None


def _width(line: str) -> int:
    """In characters of normal width."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


def _labels(graph: Graph, edge: Edge) -> list[str]:
    """The labels of the other drawings, and whether the records are partitioned by key."""
    to = graph.vertex(edge.to)
    keyed = to.partitions > 1 or (to.group_by is not None and to.group_by.keyed)
    return edge_labels(graph, edge) + (["by key"] if keyed else [])


def _label(graph: Graph, edge: Edge) -> str:
    return shortened(", ".join(_labels(graph, edge)), _SMALL_CHARS_MAX)


def _role(vertex: Vertex) -> str:
    kind = vertex.definition
    if not kind.has_input:
        return "source"
    if not kind.has_output:
        return "sink"
    return "reduce" if kind.has_windows else "map"


def _vertex(vertex: Vertex, placed: NodePlacement) -> Iterator[str]:
    role, box = _role(vertex), placed.box
    x, y = placed.x - box.width / 2, placed.y - box.height / 2
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    yield '<g class="vertex">'
    yield f"<title>{text(vertex.name)}: {text(description(vertex))}</title>"
    if vertex.partitions > 1:
        # One behind the other.
        yield f'<rect class="{role}" x="{x + 4:.1f}" y="{y - 4:.1f}" {size} rx="{_corner(role):.0f}"/>'
    yield f'<rect class="{role}" x="{x:.1f}" y="{y:.1f}" {size} rx="{_corner(role):.0f}"/>'
    if vertex.definition.has_windows:
        for edge in (x + 5, x + box.width - 5):
            yield f'<path d="M{edge:.1f} {y:.1f}v{box.height:.1f}"/>'
    name = shortened(vertex.name, _NAME_CHARS_MAX)
    yield f'<text class="name" x="{placed.x:.1f}" y="{placed.y - 4:.1f}">{text(name)}</text>'
    words = shortened(description(vertex), _SMALL_CHARS_MAX)
    yield f'<text x="{placed.x:.1f}" y="{placed.y + 13:.1f}">{text(words)}</text>'
    yield "</g>"


def _corner(role: str) -> float:
    return {"source": _VERTEX_HEIGHT / 2, "sink": 14.0}.get(role, 4.0)


def _edge(graph: Graph, edge: Edge, layout: Layout) -> Iterator[str]:
    route = layout.routes[edge.name]
    is_back = edge.name in graph.back_edges
    classes = "edge" + (" back" if is_back else "") + (" apart" if edge.kind != "data" else "")
    yield f'<g class="{classes}">'
    yield f"<title>{text(_sentence(graph, edge))}</title>"
    if not route.points:
        yield from _loop(layout.vertices[edge.to])
    else:
        yield f'<path d="{_curve(route)}"/>'
        tip_x, tip_y = route.points[0] if is_back else route.points[-1]
        side = -1 if is_back else 1
        yield f'<path class="tip" d="M{tip_x:.1f} {tip_y:.1f}l{-8 * side} -4v8z"/>'
    if route.label is not None:
        label = text(_label(graph, edge))
        yield f'<text class="label" x="{route.label.x:.1f}" y="{route.label.y + 4:.1f}">{label}</text>'
    yield "</g>"


def _curve(route: Route) -> str:
    """A curve through all points, level at each of them, with a gap for the text of the label."""
    x, y = route.points[0]
    parts = [f"M{x:.1f} {y:.1f}"]
    label = route.label
    for to_x, to_y in route.points[1:]:
        if y != to_y:
            half = (to_x - x) / 2
            parts.append(f"C{x + half:.1f} {y:.1f} {to_x - half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")
        elif label is not None and x < label.x < to_x and y == label.y:
            room = label.box.width / 2
            parts.append(f"H{label.x - room:.1f}M{label.x + room:.1f} {y:.1f}H{to_x:.1f}")
        else:
            parts.append(f"H{to_x:.1f}")
        x, y = to_x, to_y
    return "".join(parts)


def _loop(placed: NodePlacement) -> Iterator[str]:
    """From the right end of a vertex's upper side to the left one."""
    x, y = placed.x, placed.y - placed.box.height / 2
    yield f'<path d="M{x + 16:.1f} {y:.1f}C{x + 26:.1f} {y - 24:.1f} {x - 26:.1f} {y - 24:.1f} {x - 16:.1f} {y:.1f}"/>'
    yield f'<path class="tip" d="M{x - 16:.1f} {y:.1f}l-6.5 -5l7.5 -2.5z"/>'


def _sentence(graph: Graph, edge: Edge) -> str:
    labels = _labels(graph, edge)
    return f"{edge.from_} to {edge.to}" + (f": {', '.join(labels)}" if labels else "")


def _in_words(graph: Graph) -> str:
    vertices = "; ".join(f"{vertex.name}, {description(vertex)}" for vertex in graph.vertices)
    edges = "; ".join(_sentence(graph, edge) for edge in graph.edges)
    return f"Vertices: {vertices}. Edges: {edges}."
