"""Which edges can be chained, and what a pipeline with chains consists of where it runs."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.spec.lanes import buffers_of, lanes_of
from millstream.spec.placement import replicas_of
from millstream.spec.problems import SpecError
from tests.unit.spec.test_graph import IN, MAP, OUT, arrow, pipeline

TWO: dict[str, Any] = {"in": IN, "a": MAP, "b": MAP, "out": OUT}
WHOLE = [arrow("in>a"), arrow("a>b", chain=True), arrow("b>out")]
REASONS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    "into a sink": (TWO, [arrow("in>a"), arrow("a>b"), arrow("b>out", chain=True)], "`out` is a sink"),
    "of another kind": (
        {**TWO, "b": OUT},
        [arrow("in>a"), arrow("a>out"), arrow("a!b", chain=True)],
        "it does not carry the output of its vertex",
    ),
    "with conditions": (
        TWO,
        [arrow("in>a"), arrow("a>b", chain=True, conditions={"tags": {"values": ["x"]}}), arrow("b>out")],
        "it has `conditions`",
    ),
    "that discards": (
        TWO,
        [arrow("in>a"), arrow("a>b", chain=True, onFull="discardLatest"), arrow("b>out")],
        "it has `onFull`",
    ),
    "beside another one out": (TWO, [*WHOLE, arrow("a>out")], "`a` has other data edges"),
    "beside another one in": (TWO, [*WHOLE, arrow("in>b")], "`b` reads other edges too"),
    "in a cycle": (TWO, [*WHOLE, arrow("b>a")], "it is part of a cycle"),
    "between other partitions": (
        {**TWO, "b": {**MAP, "partitions": 2}},
        WHOLE,
        "`partitions` is 1 for `a` and 2 for `b`",
    ),
    "between other places": (
        {**TWO, "b": {**MAP, "placement": {"process": "own"}}},
        WHOLE,
        "`placement` is shared for `a` and own for `b`",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("vertices", "edges", "why"), REASONS.values(), ids=REASONS)
def test_an_edge_that_needs_its_buffer_says_why(
    vertices: dict[str, Any], edges: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(SpecError) as caught:
        Graph.of(pipeline(vertices, edges))
    (problem,) = caught.value.problems
    assert problem.code.id == "MS-2240"
    assert why in problem.what


def test_a_chain_is_one_vertex_where_it_runs() -> None:
    vertices = {name: {**step, "partitions": 2} for name, step in TWO.items()} | {"dead": OUT}
    graph = Graph.of(
        pipeline(vertices, [arrow("in>a", chain=True), arrow("a>b", chain=True), arrow("b>out"), arrow("a!dead")])
    )
    assert graph.chains == (("in", "a", "b"),)
    assert [graph.head(name) for name in graph.order] == ["in", "in", "in", "out", "dead"]
    stages = graph.stages
    assert stages.order == ("in", "out", "dead")
    assert [(edge.name, edge.from_) for edge in stages.edges_out["in"]] == [
        ("b-out", "in"),
        ("a-dead-dead-letter", "in"),
    ]
    assert [one.name for one in replicas_of(graph)] == ["in-0", "out-0", "dead-0"]
    assert lanes_of(stages, "in") == (LaneId("in", "source", 0), LaneId("in", "source", 1))
    assert buffers_of(graph, graph.edge("a-b")) == ()
    assert buffers_of(stages, stages.edge("b-out")) == (BufferId("b-out", 0), BufferId("b-out", 1))
    # Each vertex keeps what its author decided about it.
    assert [edge.name for edge in graph.dead_letter_edges("b")] == []


def test_without_chains_what_runs_is_the_graph() -> None:
    graph = Graph.of(pipeline(TWO, [arrow("in>a"), arrow("a>b"), arrow("b>out")]))
    assert graph.stages is graph
    assert graph.chain("a") == ("a",)
