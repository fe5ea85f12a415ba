"""Pictures of pipelines: nothing overlaps, nothing is missing, and names stay names."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.spec.graph import Graph
from millstream.spec.loading import load
from millstream.spec.models import Pipeline
from millstream_runner.pictures.graph import to_html, to_svg
from millstream_runner.pictures.layout import Arc, Box, Layout, NodePlacement, lay_out

PIPELINES = Path(__file__).parents[1] / "spec/pipelines"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '"><script>alert(1)</script>\u202e&'


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Box], list[Arc]]:
    """Any graph of up to 30 vertices in topological order, with edges back and edges to the same vertex."""
    count = draw(st.integers(1, 20))
    widths = draw(st.lists(st.floats(40, 260), min_size=count, max_size=count))
    vertices = {f"v{number}": Box(width, 46.0) for number, width in enumerate(widths)}
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=25))
    forward = [(min(pair), max(pair)) for pair in pairs]
    back = [(end, start) for start, end in forward[::4] if start != end]
    arcs = []
    for number, (start, end) in enumerate([*forward, *back]):
        label = Box(30.0 + 20 * (number % 5), 15.0) if number % 2 else None
        arcs.append(Arc(f"e{number}", f"v{start}", f"v{end}", label, back=start > end))
    return vertices, arcs


def overlap(one: NodePlacement, other: NodePlacement) -> bool:
    return (
        abs(one.x - other.x) < (one.box.width + other.box.width) / 2 - 0.01
        and abs(one.y - other.y) < (one.box.height + other.box.height) / 2 - 0.01
    )


def along(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Points of the curve that is drawn through these."""
    for (x, y), (to_x, to_y) in pairwise(points):
        for step in range(9):
            t = step / 8
            smooth = t * t * (3 - 2 * t)
            yield x + (to_x - x) * (1.5 * t * (1 - t) ** 2 + 1.5 * t * t * (1 - t) + t**3), y + (to_y - y) * smooth


def assert_clear(layout: Layout, arcs: list[Arc]) -> None:
    solid = [*layout.vertices.values(), *(route.label for route in layout.routes.values() if route.label is not None)]
    for index, one in enumerate(solid):
        assert one.x - one.box.width / 2 >= 0
        assert one.y - one.box.height / 2 >= 0
        assert one.x + one.box.width / 2 <= layout.width
        assert one.y + one.box.height / 2 <= layout.height
        assert not any(overlap(one, other) for other in solid[index + 1 :])
    for arc in arcs:
        others = [placed for name, placed in layout.vertices.items() if name not in (arc.start, arc.end)]
        for x, y in along(list(layout.routes[arc.name].points)):
            assert not any(overlap(NodePlacement(x, y, Box(0.0, 0.0)), other) for other in others), arc


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(graphs())
def test_nothing_lies_on_anything_else(graph: tuple[dict[str, Box], list[Arc]]) -> None:
    vertices, arcs = graph
    layout = lay_out(vertices, arcs)
    assert_clear(layout, arcs)
    assert layout.vertices.keys() == vertices.keys()
    assert layout.routes.keys() == {arc.name for arc in arcs}
    for arc in arcs:
        start, end = layout.vertices[arc.start], layout.vertices[arc.end]
        assert start.x == end.x if arc.start == arc.end else (start.x < end.x) != arc.back
    assert lay_out(vertices, arcs) == layout


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_picture_shows_every_vertex_and_every_edge(path: Path) -> None:
    graph = load(path).graph
    svg = to_svg(graph)
    assert to_svg(load(path).graph) == svg
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    names = {element.get("id"): "".join(element.itertext()) for element in root if element.get("id")}
    assert set(str(root.get("aria-labelledby")).split()) == set(names)
    assert all(vertex.name in names["graph-description"] for vertex in graph.vertices)
    groups = root.findall(f"{SVG}g")
    assert sum(group.get("class") == "vertex" for group in groups) == len(graph.vertices)
    edges = [group for group in groups if str(group.get("class")).startswith("edge")]
    assert len(edges) == len(graph.edges)
    assert sum("back" in str(group.get("class")) for group in edges) == len(graph.back_edges)
    assert sum("apart" in str(group.get("class")) for group in edges) == sum(e.kind != "data" for e in graph.edges)


def test_conditions_keys_cycles_and_partitions_are_told() -> None:
    cycle = to_svg(load(PIPELINES / "cycle.yaml").graph)
    assert "tags or [self], ↺" in cycle
    assert "tags not [again, self]" in cycle
    hourly = to_svg(load(PIPELINES / "flights-hourly.yaml").graph)
    assert "late records" in hourly
    assert "by key" in hourly
    assert "keyed x4" in hourly


def of_many(vertices: int) -> Graph:
    """A chain that branches, with conditions."""
    names = [f"step-{number}" for number in range(vertices)]
    kinds: list[dict[str, Any]] = [{"udf": {"python": "f.py:g"}} for _ in names]
    kinds[0], kinds[-1] = {"source": {"generator": {}}}, {"sink": {"log": {}}}
    edges: list[dict[str, Any]] = [{"from": one, "to": next_} for one, next_ in pairwise(names)]
    edges += [
        {"from": names[number], "to": names[number + 5], "conditions": {"tags": {"values": ["a", "b"]}}}
        for number in range(0, vertices - 6, 3)
    ]
    return Graph.of(
        Pipeline.model_validate({
            "apiVersion": "millstream.io/v1alpha1",
            "kind": "Pipeline",
            "metadata": {"name": "many"},
            "spec": {
                "vertices": [{"name": name, **kind} for name, kind in zip(names, kinds, strict=True)],
                "edges": edges,
            },
        })
    )  # fmt: skip


@pytest.mark.parametrize("vertices", [3, 30])
def test_pictures_of_few_and_of_many_vertices(vertices: int) -> None:
    root = ET.fromstring(to_svg(of_many(vertices)))
    assert len(root.findall(f"{SVG}g[@class='vertex']")) == vertices


def test_a_page_is_one_file_without_script_and_what_users_write_stays_text() -> None:
    graph = load(PIPELINES / "even-odd.yaml").graph
    written = graph.pipeline.as_written(given_only=True)
    for vertex in written["spec"]["vertices"]:
        if "udf" in vertex:
            vertex["udf"] = {"command": [HOSTILE]}
    for edge in written["spec"]["edges"]:
        if edge.get("conditions"):
            edge["conditions"] = {"tags": {"values": [HOSTILE]}}
    hostile = Graph.of(Pipeline.model_validate(written))
    for drawn in (to_html(hostile), to_svg(hostile)):
        assert "<script" not in drawn
        assert "\u202e" not in drawn
        assert "&lt;script&gt;" in drawn
        assert not re.search(r"""(?:src|href)\s*=|url\(|@import""", drawn)
    html = to_html(graph)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme:dark" in html
    assert html.count("<html") == 1
