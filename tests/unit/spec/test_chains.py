"""Which edges can be chained, and what a pipeline with chains consists of where it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from millstream.plan import resolved
from millstream.plan.placement import replicas_of
from millstream.plan.plan import plan_of
from millstream.record import BufferId, LaneId
from millstream.spec.connectors import GuaranteeId
from millstream.spec.graph import Graph, guarantees_of
from millstream.spec.models import Pipeline
from millstream.spec.problems import SpecError
from tests.unit.spec.strategies import pipelines
from tests.unit.spec.test_graph import IN, MAP, OUT, arrow, pipeline

TWO: dict[str, Any] = {"in": IN, "a": MAP, "b": MAP, "out": OUT}
WHOLE = [arrow("in>a"), arrow("a>b", chain=True), arrow("b>out")]
REASONS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    "into a reduce": (
        {**TWO, "b": {"udf": {"python": "f.py:f", "groupBy": {"window": {"fixed": {"length": "1s"}}}}}},
        WHOLE,
        "`b` is a reduce, and a chain can only continue with a map or a sink",
    ),
    "into one of two sinks": (
        {**TWO, "other": OUT},
        [arrow("in>a"), arrow("a>b"), arrow("b>out", chain=True), arrow("b>other")],
        "`b` has other data edges",
    ),
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
    "beside another one in": (TWO, [*WHOLE, arrow("in>b")], "`b` also reads other edges"),
    "in a cycle": (TWO, [*WHOLE, arrow("b>a")], "it is part of a cycle"),
    "between other partitions": (
        {**TWO, "b": {**MAP, "partitions": 2}},
        WHOLE,
        "`partitions` is 1 for `a` but 2 for `b`",
    ),
    "between other places": (
        {**TWO, "b": {**MAP, "placement": {"process": "own"}}},
        WHOLE,
        "`placement` is shared for `a` but own for `b`",
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


@pytest.mark.parametrize(("vertices", "edges"), [each[:2] for each in REASONS.values()], ids=REASONS)
def test_a_pipeline_with_chains_keeps_the_buffer_of_such_an_edge(
    vertices: dict[str, Any], edges: list[dict[str, Any]]
) -> None:
    (index,) = (number for number, edge in enumerate(edges) if edge.get("chain"))
    silent = [{name: value for name, value in edge.items() if name != "chain"} for edge in edges]
    graph = Graph.of(pipeline(vertices, silent, chain=True))
    kept = graph.pipeline.spec.edges[index].name
    assert not graph.edge(kept).chain


def test_a_pipeline_with_chains_chains_its_maps_and_no_sink(tmp_path: Path) -> None:
    edges = [arrow("in>a"), arrow("a>b"), arrow("b>out")]
    written = pipeline(TWO, edges, chain=True)
    assert Graph.of(written).chains == (("in", "a", "b"),)
    # Processes of vertices read it in this form.
    assert resolved.load(resolved.dump(plan_of(Graph.of(written)), tmp_path)).graph.chains == (("in", "a", "b"),)
    edges[0]["chain"] = False
    edges[2]["chain"] = True
    assert Graph.of(pipeline(TWO, edges, chain=True)).chains == (("a", "b", "out"),)
    assert Graph.of(pipeline(TWO, edges, chain=False)).chains == (("b", "out"),)


LIMITED: dict[str, Any] = {**MAP, "limits": {"bufferMaxLength": 5000}}
PUSHED: dict[str, Any] = {"source": {"http": {"port": 0}}}
BY_DEFAULT: dict[str, tuple[dict[str, Any], list[dict[str, Any]], tuple[tuple[str, ...], ...]]] = {
    "maps behind a source": (TWO, [], (("in", "a", "b"),)),
    "senders wait for an answer": ({**TWO, "in": PUSHED}, [], (("a", "b"),)),
    "several partitions": ({name: {**step, "partitions": 2} for name, step in TWO.items()}, [], ()),
    "bounds that were chosen": ({**TWO, "b": LIMITED}, [], (("in", "a"),)),
    "other limits": ({**TWO, "b": {**MAP, "limits": {"readBatchSize": 7}}}, [], (("in", "a", "b"),)),
    "dead letters to put back": ({**TWO, "dead": OUT}, [arrow("b!dead")], (("in", "a"),)),
    "a second edge": ({**TWO, "other": OUT}, [arrow("a>other")], (("in", "a"),)),
}


@pytest.mark.parametrize(("vertices", "more", "chains"), BY_DEFAULT.values(), ids=BY_DEFAULT)
def test_by_default_an_edge_to_a_map_has_a_buffer_where_that_does_something(
    vertices: dict[str, Any], more: list[dict[str, Any]], chains: tuple[tuple[str, ...], ...]
) -> None:
    edges = [arrow("in>a"), arrow("a>b"), arrow("b>out"), *more]
    assert Graph.of(pipeline(vertices, edges)).chains == chains
    assert Graph.of(pipeline(vertices, edges, chain=False)).chains == ()


def test_what_processes_read_says_which_edges_are_chained(tmp_path: Path) -> None:
    edges = [arrow("in>a"), arrow("a>b"), arrow("b>out")]
    text = resolved.dump(plan_of(Graph.of(pipeline(TWO, edges)), {"b": "in"}), tmp_path)
    written = json.loads(text)
    assert [edge["chain"] for edge in written["pipeline"]["spec"]["edges"]] == [True, True, False]
    assert resolved.load(text).plan.ledgers == {"b": "in"}
    # An earlier version chained no edge that did not say so, and wrote nothing about the others.
    for edge in written["pipeline"]["spec"]["edges"]:
        del edge["chain"]
    assert resolved.load(json.dumps(written)).graph.chains == ()


def test_vertices_that_left_a_chain_are_in_its_ledger() -> None:
    edges = [arrow("in>a", chain=False), arrow("a>b", chain=False), arrow("b>out")]
    plan = plan_of(Graph.of(pipeline(TWO, edges)), {"b": "in"})
    assert [plan.ledger_of(name) for name in plan.order] == ["in", "a", "in", "out"]
    assert plan.stored_with("b") == plan.stored_with("in") == ("in", "b")
    graph = Graph.of(pipeline(TWO, [arrow("in>a", chain=False), arrow("a>b", chain=True), arrow("b>out")]))
    chained = plan_of(graph, {"a": "in"})
    assert chained.ledger_of("b") == "in"


@settings(deadline=None)
@given(pipelines)
def test_any_pipeline_may_have_chains(written: dict[str, Any]) -> None:
    written["spec"]["chain"] = True
    graph = Graph.of(Pipeline.model_validate(written))
    inside = [name for chain in graph.chains for name in chain]
    assert len(inside) == len(set(inside))
    assert {vertex.name for vertex in plan_of(graph).vertices} == {graph.head(one.name) for one in graph.vertices}


def test_a_chain_may_end_in_a_sink_and_is_one_vertex_without_edges() -> None:
    graph = Graph.of(pipeline(TWO, [arrow("in>a", chain=True), arrow("a>b", chain=True), arrow("b>out", chain=True)]))
    assert graph.chains == (("in", "a", "b", "out"),)
    assert [edge.name for edge in plan_of(graph).edges] == []
    assert [one.name for one in replicas_of(plan_of(graph))] == ["in-0"]


HTTP: dict[str, Any] = {"http": {"url": "http://127.0.0.1:1/"}}


@pytest.mark.parametrize(
    ("sink", "chained", "promised"),
    [
        ({"file": {"path": "out"}}, True, GuaranteeId.TRANSACTIONAL),
        (HTTP, False, GuaranteeId.IDEMPOTENT),
        (HTTP, True, GuaranteeId.AT_LEAST_ONCE),
    ],
)
def test_what_a_sink_promises_in_a_chain(sink: dict[str, Any], promised: GuaranteeId, *, chained: bool) -> None:
    vertices = {"in": IN, "out": {"sink": sink}}
    graph = Graph.of(pipeline(vertices, [arrow("in>out", chain=chained)]))
    assert guarantees_of(graph)["out"].id is promised
    # And so much may be demanded.
    demanding = {**vertices, "out": {"sink": {**sink, "guarantee": "exactlyOnce"}}}
    if promised is GuaranteeId.AT_LEAST_ONCE:
        with pytest.raises(ValueError, match="there is no buffer from which the same records"):
            pipeline(demanding, [arrow("in>out", chain=chained)])
    else:
        pipeline(demanding, [arrow("in>out", chain=chained)])


def test_a_sink_that_takes_no_whole_deliveries_keeps_its_buffer() -> None:
    sink = {"jetstream": {"url": "nats://127.0.0.1:1", "subject": "s.a", "positions": "s-positions"}}
    with pytest.raises(ValueError, match="does not take whole deliveries"):
        pipeline({"in": IN, "out": {"sink": sink}}, [arrow("in>out", chain=True)])


def test_a_chain_is_one_vertex_where_it_runs() -> None:
    vertices = {name: {**step, "partitions": 2} for name, step in TWO.items()} | {"dead": OUT}
    graph = Graph.of(
        pipeline(vertices, [arrow("in>a", chain=True), arrow("a>b", chain=True), arrow("b>out"), arrow("a!dead")])
    )
    assert graph.chains == (("in", "a", "b"),)
    assert [graph.head(name) for name in graph.order] == ["in", "in", "in", "out", "dead"]
    stages = plan_of(graph)
    assert stages.order == ("in", "out", "dead")
    assert [(edge.name, edge.from_) for edge in stages.edges_out["in"]] == [
        ("b-out", "in"),
        ("a-dead-dead-letter", "in"),
    ]
    assert [one.name for one in replicas_of(plan_of(graph))] == ["in-0", "out-0", "dead-0"]
    assert stages.lanes_of("in") == (LaneId("in", "source", 0), LaneId("in", "source", 1))
    assert graph.buffers_of(graph.edge("a-b")) == ()
    assert stages.buffers_of(stages.edge("b-out")) == (BufferId("b-out", 0), BufferId("b-out", 1))
    # Each vertex keeps what its author decided about it.
    assert [edge.name for edge in graph.edges_of("b", "deadLetter")] == []


def test_without_chains_what_runs_is_the_graph() -> None:
    graph = Graph.of(pipeline(TWO, [arrow("in>a"), arrow("a>b"), arrow("b>out")], chain=False))
    plan = plan_of(graph)
    assert (plan.order, plan.edges, plan.graph) == (graph.order, graph.edges, graph)
    assert graph.chain("a") == ("a",)
