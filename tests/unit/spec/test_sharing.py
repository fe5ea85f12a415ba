"""Which edges carry the same frames."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.plan.plan import Plan, plan_of
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline

SOURCE = {"name": "in", "source": {"generator": {}}}
EVEN = {"conditions": {"tags": {"values": ["even", "small"]}}}


def sink(name: str, partitions: int = 1) -> dict[str, Any]:
    return {"name": name, "partitions": partitions, "sink": {"log": {}}}


def map_(name: str) -> dict[str, Any]:
    return {"name": name, "udf": {"command": ["./function"]}}


def edge(begin: str, end: str, **more: Any) -> dict[str, Any]:
    return {"from": begin, "to": end, **more}


def planned(vertices: list[dict[str, Any]], edges: list[dict[str, Any]]) -> Plan:
    document = {
        "apiVersion": "millstream.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "p"},
        "spec": {"vertices": vertices, "edges": edges},
    }
    return plan_of(Graph.of(Pipeline.model_validate(document)))


def test_edges_without_conditions_carry_the_same_frames() -> None:
    plan = planned([SOURCE, sink("a"), sink("b"), sink("c")], [edge("in", name) for name in "abc"])
    assert plan.same_frames("in") == {"_in-1": ("in-a", "in-b", "in-c")}


def test_one_edge_shares_with_no_other() -> None:
    plan = planned([SOURCE, sink("a")], [edge("in", "a")])
    assert plan.same_frames("in") == {}
    assert plan.copy_of(plan.edge("in-a")) == "_in-1"


def test_edges_share_where_partitions_and_conditions_are_the_same() -> None:
    vertices = [SOURCE, map_("map"), sink("a", 2), sink("b", 2), sink("c"), sink("d"), sink("e"), sink("f")]
    turned = {"conditions": {"tags": {"values": ["small", "even"]}}}
    every = {"conditions": {"tags": {"operator": "and", "values": ["even", "small"]}}}
    edges = [edge("in", "map", chain=False), edge("map", "a"), edge("map", "b"), edge("map", "c")]
    edges += [edge("map", "d", **EVEN), edge("map", "e", **turned), edge("map", "f", **every)]
    groups = planned(vertices, edges).same_frames("map")
    assert list(groups.values()) == [("map-a", "map-b"), ("map-d", "map-e")]
    assert next(iter(groups)) == "_map-2"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(edge("map", "b", kind="deadLetter"), id="other records"),
        pytest.param(edge("map", "b", onFull="discardLatest"), id="not all records"),
    ],
)
def test_an_edge_whose_buffers_hold_something_else_shares_with_no_other(other: dict[str, Any]) -> None:
    vertices = [SOURCE, map_("map"), sink("a"), sink("b")]
    vertices[1] = {"name": "map", "udf": {"command": ["./function"], "retryStrategy": {"onFailure": "deadLetter"}}}
    letters = [] if other.get("kind") else [edge("map", "dead", kind="deadLetter")]
    vertices += [sink("dead")] * len(letters)
    plan = planned(vertices, [edge("in", "map"), edge("map", "a"), other, *letters])
    assert plan.same_frames("map") == {}
    assert [plan.copy_of(edge) for edge in plan.edges_in["b"]] == [None]


def test_input_that_is_kept_for_longer_has_a_copy_of_its_own() -> None:
    windows = {"groupBy": {"window": {"fixed": {"length": "1s"}}, "keyed": True, "keepInput": True}}
    reduce = {"name": "sum", "udf": {**windows, "python": "functions.py:total"}}
    plan = planned([SOURCE, reduce, sink("a"), sink("out")], [edge("in", "sum"), edge("in", "a"), edge("sum", "out")])
    assert plan.same_frames("in") == {}


def test_edges_inside_a_cycle_have_copies_of_their_own() -> None:
    vertices = [SOURCE, map_("map"), map_("back"), sink("a"), sink("b")]
    edges = [edge("in", "map"), edge("map", "back"), edge("back", "map"), edge("map", "a"), edge("map", "b")]
    assert planned(vertices, edges).same_frames("map") == {"_map-1": ("map-a", "map-b")}


def test_a_chain_has_the_copies_of_its_last_vertex_in_the_ledger_of_its_first() -> None:
    vertices = [SOURCE, map_("map"), sink("a"), sink("b")]
    edges = [edge("in", "map", chain=True), *(edge("map", name) for name in "ab")]
    plan = planned(vertices, edges)
    assert plan.same_frames("in") == {"_map-1": ("map-a", "map-b")}
