"""Graphs: order, cycles, lanes and everything that can be wrong with a shape."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import retry
from millstream.plan.plan import plan_of
from millstream.record import BufferId, LaneId
from millstream.spec import topology
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline
from millstream.spec.problems import SpecError
from tests.unit.spec.strategies import pipelines

NODES = [f"n{index}" for index in range(7)]
arcs_lists = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), unique=True, max_size=20)


def ahead_of(node: str, arcs: list[tuple[str, str]]) -> set[str]:
    """What can be reached from a node in one step or more."""
    return topology.reachable([b for a, b in arcs if a == node], arcs)


@settings(deadline=None)
@given(arcs_lists)
def test_components_are_mutual_reachability(arcs: list[tuple[str, str]]) -> None:
    groups = topology.components(NODES, arcs)
    assert sorted(node for group in groups for node in group) == NODES
    group_of = {node: group for group in groups for node in group}
    for a in NODES:
        for b in NODES:
            mutual = a == b or (b in ahead_of(a, arcs) and a in ahead_of(b, arcs))
            assert (group_of[a] == group_of[b]) is mutual
    place = {group: index for index, group in enumerate(groups)}
    assert all(place[group_of[a]] <= place[group_of[b]] for a, b in arcs)


@settings(deadline=None)
@given(arcs_lists)
def test_back_arcs_are_in_cycles_and_without_them_there_is_none(arcs: list[tuple[str, str]]) -> None:
    backs = topology.back_arcs(NODES, arcs)
    assert all(a in topology.reachable([b], arcs) for a, b in backs)
    forward = [arc for arc in arcs if arc not in backs]
    assert all(node not in ahead_of(node, forward) for node in NODES)
    order = topology.ordered(NODES, arcs)
    assert sorted(order) == NODES
    assert all(order.index(a) < order.index(b) for a, b in forward)


def test_a_long_chain_needs_no_deep_stack() -> None:
    nodes = [f"n{index}" for index in range(5000)]
    arcs = list(pairwise(nodes))
    assert topology.ordered(nodes, [*arcs, (nodes[-1], nodes[0])]) == nodes


@pytest.mark.slow
@settings(deadline=None)
@given(pipelines)
def test_the_lanes_of_a_graph_are_shared_out_once(written: dict[str, Any]) -> None:
    for vertex in written["spec"]["vertices"]:
        vertex["replicas"] = 1 + vertex.get("partitions", 1) // 2 if vertex.get("partitions", 1) > 1 else 1
    graph = plan_of(Graph.of(Pipeline.model_validate(written)))
    for vertex in graph.vertices:
        every = graph.lanes_of(vertex.name)
        inputs = 1 if vertex.kind in ("source", "reduce") else len(graph.edges_in[vertex.name])
        assert len(set(every)) == len(every) == inputs * vertex.partitions
        owned = [graph.owned_lanes(vertex.name, replica) for replica in range(vertex.replicas)]
        assert all(owned)
        assert sorted(lane for part in owned for lane in part) == sorted(every)
        for lane in every:
            inputs_read = graph.inputs_of(lane)
            expected = {"source": 0, "reduce": len(graph.edges_in[vertex.name])}
            assert len(inputs_read) == expected.get(vertex.kind, 1)
            origins = {e.from_ for e in graph.edges_in[vertex.name]}
            assert all(up.vertex in origins for buffer in inputs_read for up in graph.upstream_lanes(buffer))
    buffers = [buffer for edge in graph.edges for buffer in graph.buffers_of(edge)]
    read = [buffer for lane in graph.all_lanes() for buffer in graph.inputs_of(lane)]
    assert sorted(buffers) == sorted(read), "every buffer has exactly one lane that reads it"


def pipeline(vertices: dict[str, dict[str, Any]], edges: list[dict[str, Any]], **more: Any) -> Pipeline:
    """`more`: further fields of the spec."""
    listed = [{"name": name, **contents} for name, contents in vertices.items()]
    spec = {"vertices": listed, "edges": edges, **more}
    return Pipeline.model_validate(
        {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}, "spec": spec}
    )


def arrow(text: str, **more: Any) -> dict[str, Any]:
    """An edge written as `a>b`, or `a!b` for dead letters."""
    kind = "deadLetter" if "!" in text else "data"
    origin, target = text.replace("!", ">").split(">")
    return {"from": origin, "to": target, "kind": kind, **more}


IN: dict[str, Any] = {"source": {"generator": {}}}
MAP: dict[str, Any] = {"udf": {"python": "a:f"}}
CAT: dict[str, Any] = {"udf": {"builtin": {"name": "cat"}}}
OUT: dict[str, Any] = {"sink": {"log": {}}}


def policy_map(on_failure: str) -> dict[str, Any]:
    return {"udf": {"python": "a:f", "retryStrategy": {"onFailure": on_failure}}}


def named(text: str, name: str) -> dict[str, Any]:
    return arrow(text, name=name)


CASES: dict[str, tuple[dict[str, dict[str, Any]], list[dict[str, Any]], list[tuple[str, str]]]] = {
    "no source, no sink": (
        {"m": MAP},
        [arrow("m>m")],
        [
            ("spec.vertices", "the pipeline has no source"),
            ("spec.vertices", "the pipeline has no sink"),
            ("spec.vertices[0]", "`m` cannot be reached from a source"),
            ("spec.vertices[0]", "`m` does not lead to a sink"),
        ],
    ),
    "no edges": (
        {"in": IN, "m": MAP, "out": OUT},
        [],
        [
            ("spec.vertices[0]", "`in` has no output"),
            ("spec.vertices[1]", "`m` has no input"),
            ("spec.vertices[1]", "`m` has no output"),
            ("spec.vertices[2]", "`out` has no input"),
        ],
    ),
    "a cycle beside the rest": (
        {"in": IN, "a": MAP, "b": MAP, "out": OUT},
        [arrow("in>out"), arrow("a>b"), arrow("b>a"), arrow("b>out")],
        [
            ("spec.vertices[1]", "`a` cannot be reached from a source"),
            ("spec.vertices[2]", "`b` cannot be reached from a source"),
        ],
    ),
    "a cycle without a way out": (
        {"in": IN, "a": MAP, "b": MAP, "out": OUT},
        [arrow("in>out"), arrow("in>a"), arrow("a>b"), arrow("b>a")],
        [("spec.vertices[1]", "`a` does not lead to a sink"), ("spec.vertices[2]", "`b` does not lead to a sink")],
    ),
    "input into a source, output of a sink": (
        {"in": IN, "out": OUT},
        [arrow("in>out"), arrow("out>in")],
        [
            ("spec.edges[1].from", "`out` is a sink and has no output"),
            ("spec.edges[1].to", "`in` is a source and has no input"),
        ],
    ),
    "the same edge twice": (
        {"in": IN, "out": OUT},
        [arrow("in>out"), named("in>out", "again")],
        [("spec.edges[1]", "the edge from `in` to `out` appears twice; the first is edges[0]")],
    ),
    "two edges of one name": (
        {"a": IN, "a-b": MAP, "b-c": MAP, "c": OUT},
        [arrow("a>b-c"), arrow("a>a-b"), arrow("a-b>c"), arrow("b-c>c")],
        [("spec.edges[2]", "edge name `a-b-c` appears twice; the first is edges[0]")],
    ),
    "an unknown vertex hides what would follow from it": (
        {"in": IN, "out": OUT},
        [arrow("in>uot")],
        [("spec.edges[0].to", "there is no vertex `uot`")],
    ),
    "dead letters only": (
        {"in": IN, "m": MAP, "out": OUT},
        [arrow("in>m"), arrow("m!out")],
        [("spec.vertices[1]", "`m` has no output")],
    ),
    "dead letters that never come": (
        {"in": {"source": {"generator": {}, "onInvalid": "drop"}}, "m": policy_map("drop"), "c": CAT, "out": OUT},
        [arrow("in>m"), arrow("m>c"), arrow("c>out"), arrow("in!out"), arrow("m!out"), arrow("c!out")],
        [
            ("spec.edges[3].kind", "`in` has no dead letters"),
            ("spec.edges[4].kind", "`m` has no dead letters"),
            ("spec.edges[5].kind", "`c` has no dead letters"),
        ],
    ),
    "dead letters without an edge": (
        {
            "in": {
                "source": {"generator": {}, "onInvalid": "deadLetter", "transformer": policy_map("deadLetter")["udf"]}
            },
            "m": policy_map("deadLetter"),
            "out": OUT,
        },
        [arrow("in>m"), arrow("m>out")],
        [
            ("spec.vertices[0].source.transformer.retryStrategy.onFailure", "`in` has no dead-letter edge"),
            ("spec.vertices[0].source.onInvalid", "`in` has no dead-letter edge"),
            ("spec.vertices[1].udf.retryStrategy.onFailure", "`m` has no dead-letter edge"),
        ],
    ),
    "dead letters in a circle": (
        {"in": IN, "m": MAP, "out": OUT},
        [arrow("in>m"), arrow("m>out"), arrow("m!m")],
        [("spec.edges[2]", "dead letters of `m` would come back to it")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("vertices", "edges", "expected"), CASES.values(), ids=CASES)
def test_problems_of_shapes(
    vertices: dict[str, dict[str, Any]], edges: list[dict[str, Any]], expected: list[tuple[str, str]]
) -> None:
    with pytest.raises(SpecError) as caught:
        Graph.of(pipeline(vertices, edges))
    assert [(problem.path, problem.what) for problem in caught.value.problems] == expected


def test_event_time_is_bounded_where_others_write() -> None:
    def graph(watermark: dict[str, Any], *edges: str, **source: Any) -> Graph:
        written = pipeline({"in": {"source": source}, "out": OUT}, [arrow("in>out"), *map(arrow, edges)])
        plain = written.as_written()
        plain["spec"]["watermark"] = watermark
        return Graph.of(Pipeline.model_validate(plain))

    written_to: list[dict[str, Any]] = [{"http": {}}, {"udsource": {"python": "a:f"}}]
    for source in written_to:
        assert graph({}, **source).max_future_s("in") == 300
        assert graph({"maxFuture": "1h"}, **source).max_future_s("in") == 3600
        assert graph({"disabled": True}, **source).max_future_s("in") is None
    assert graph({"maxFuture": "1h"}, generator={}).max_future_s("in") == 3600
    assert graph({}, http={}).on_future("in") is retry.OnFailure.DROP
    # The edge has something to carry, whatever becomes of invalid input.
    edge = graph({}, "in!out", http={}, onInvalid="drop")
    assert edge.on_future("in") is retry.OnFailure.DEAD_LETTER
    with pytest.raises(SpecError) as caught:
        graph({"onFuture": "drop"}, "in!out", http={}, onInvalid="drop")
    assert [problem.what for problem in caught.value.problems] == ["`in` has no dead letters"]
    with pytest.raises(SpecError) as caught:
        graph({"onFuture": "deadLetter"}, http={})
    assert [(problem.path, problem.what) for problem in caught.value.problems] == [
        ("spec.watermark.onFuture", "no source has a dead-letter edge")
    ]


def test_a_vertex_named_twice() -> None:
    written = pipeline({"in": IN, "out": OUT}, [arrow("in>out")])
    twice = written.model_copy(
        update={
            "spec": written.spec.model_copy(update={"vertices": (*written.spec.vertices, written.spec.vertices[1])})
        }
    )
    with pytest.raises(SpecError) as caught:
        Graph.of(twice)
    assert [problem.what for problem in caught.value.problems] == [
        "vertex `out` appears twice; the first is vertices[1]"
    ]


def cycle() -> Graph:
    vertices = {
        "out": OUT,
        "b": MAP,
        "a": {**policy_map("retry"), "partitions": 3, "replicas": 2},
        "in": IN,
        "bad": OUT,
    }
    edges = [arrow("in>a"), arrow("a>b"), arrow("b>a"), arrow("b>b"), arrow("b>out"), arrow("b!bad"), arrow("b!out")]
    return Graph.of(pipeline(vertices, edges))


def test_a_cycle_is_entered_where_data_enters_it() -> None:
    graph = cycle()
    assert graph.order == ("in", "a", "b", "out", "bad")
    assert graph.sccs == (("in",), ("b", "a"), ("out",), ("bad",))
    assert graph.back_edges == {"b-a", "b-b"}
    assert [graph.in_cycle(name) for name in graph.order] == [False, True, True, False, False]
    assert [edge.name for edge in graph.edges_of("b", "data")] == ["b-a", "b-b", "b-out"]
    assert [edge.name for edge in graph.edges_of("b", "deadLetter")] == ["b-bad-dead-letter", "b-out-dead-letter"]


def test_lanes_by_name() -> None:
    graph = cycle()
    assert graph.owned_lanes("a", 0) == (
        LaneId("a", "in-a", 0), LaneId("a", "in-a", 2), LaneId("a", "b-a", 0), LaneId("a", "b-a", 2)
    )  # fmt: skip
    assert graph.inputs_of(LaneId("a", "b-a", 2)) == (BufferId("b-a", 2),)
    assert graph.upstream_lanes(BufferId("a-b", 0)) == graph.lanes_of("a")
    assert graph.lanes_of("in") == (LaneId("in", "source", 0),)
    with pytest.raises(ValueError, match="replicas 0 to 1, not 2"):
        graph.owned_lanes("a", 2)


def test_policies_come_from_the_spec_or_from_the_edges() -> None:
    graph = cycle()
    a, b, out = graph.retry_policy("a"), graph.retry_policy("b"), graph.retry_policy("out")
    assert a is not None
    assert (a.on_failure, a.backoff.steps) == (retry.OnFailure.RETRY, None)
    assert b is not None
    assert (b.on_failure, b.backoff.steps) == (retry.OnFailure.DEAD_LETTER, 3)
    assert out is not None
    assert (out.on_failure, out.backoff.steps, out.backoff.cap_s) == (retry.OnFailure.RETRY, None, 10.0)
    assert graph.retry_policy("in") is None
    assert graph.on_invalid("in") is retry.OnFailure.STOP
    plain = Graph.of(pipeline({"in": IN, "m": MAP, "out": OUT}, [arrow("in>m"), arrow("m>out"), arrow("in!out")]))
    assert (plain.max_future_s("in"), plain.max_future_s("m")) == (None, None)
    assert plain.on_future("in") is retry.OnFailure.DEAD_LETTER
    policy = plain.retry_policy("m")
    assert policy is not None
    assert policy.on_failure is retry.OnFailure.STOP
    assert plain.on_invalid("in") is retry.OnFailure.DEAD_LETTER
