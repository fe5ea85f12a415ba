"""`udf.tables`: which edges are read as tables, how long other records wait for them, and what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.limits import MIB
from millstream.plan.diff import diff
from millstream.plan.plan import plan_of
from millstream.plan.shape import shape_of
from millstream.spec.graph import Graph
from tests.unit.spec.test_graph import CAT, OUT, arrow, pipeline
from tests.unit.spec.test_state import KEYED, PROGRAM, problems_of

ENDLESS = {"source": {"generator": {"rpu": 1}, "keys": ["key"]}}
EDGES = [arrow("in>v"), arrow("rates>v"), arrow("v>out")]


def reading(state: dict[str, Any] | None = None, **tables: dict[str, Any]) -> dict[str, Any]:
    return {"udf": {**PROGRAM, "tables": tables, **({"state": state} if state is not None else {})}}


def graph_of(vertices: dict[str, Any], edges: list[dict[str, Any]]) -> Graph:
    return Graph.of(pipeline({**vertices, "out": OUT}, edges))


def test_an_edge_is_read_as_a_table() -> None:
    graph = graph_of({"in": KEYED, "rates": KEYED, "v": reading(rates={"maxBytes": "1Mi"})}, EDGES)
    assert {edge: (table.vertex, table.name) for edge, table in graph.tables.items()} == {"rates-v": ("v", "rates")}
    vertex = graph.vertex("v")
    assert vertex.definition.name == "keyed map"
    assert vertex.definition.kept_bytes(vertex.settings) == MIB * 11 // 5
    assert vertex.definition.remembers(vertex.settings) == "key"


def test_a_table_of_a_chain_is_that_of_its_last_vertex() -> None:
    edges = [arrow("in>v"), arrow("rates>cut"), arrow("cut>v"), arrow("v>out")]
    graph = graph_of({"in": KEYED, "rates": KEYED, "cut": CAT, "v": reading(rates={"from": "cut"})}, edges)
    assert graph.chain("rates") == ("rates", "cut")
    plan = plan_of(graph)
    assert plan.tables.keys() == {"cut-v"}
    # Frames for every partition are in no copy that others share.
    assert plan.copy_of(plan.edge("cut-v")) is None
    assert plan.copy_of(plan.edge("in-v")) is not None


@pytest.mark.parametrize(
    ("rates", "table", "wait"),
    [
        (KEYED, {}, "end"),
        (ENDLESS, {}, 1),
        (KEYED, {"waitFor": 30}, 30),
        (ENDLESS, {"waitFor": 0}, 0),
        (KEYED, {"waitFor": "end"}, "end"),
    ],
)
def test_other_records_wait_for_a_table(rates: dict[str, Any], table: dict[str, Any], wait: str | int) -> None:
    graph = graph_of({"in": ENDLESS, "rates": rates, "v": reading(rates=table)}, EDGES)
    assert graph.tables["rates-v"].wait == wait


def test_records_of_one_source_do_not_wait_for_each_other() -> None:
    edges = [arrow("in>v"), arrow("in>rates"), arrow("rates>v"), arrow("v>out")]
    graph = graph_of({"in": KEYED, "rates": CAT, "v": reading(rates={})}, edges)
    assert graph.tables["rates-v"].wait == 0


PLACE = "spec.vertices[2].udf.tables"


@pytest.mark.parametrize(
    ("vertex", "says"),
    [
        (reading(fx={}), [f"MS-2216 {PLACE}.fx: no edge leads from `fx` to `v`", "`from` with the vertex"]),
        (reading(a={"from": "rates"}, b={"from": "rates"}), [f"{PLACE}.b.from: table `a` has the records of `rates`"]),
        (reading(rates={}, other={"from": "in"}), [f"{PLACE}: all edges to `v` are its tables", "another edge to `v`"]),
        (reading(rates={"maxBytes": "2Gi"}), [f"{PLACE}.rates.maxBytes: a function gets the whole table"]),
        (reading(rates={"waitFor": -1}), [f"{PLACE}.rates.waitFor"]),
        (reading(**{"exchange-rates": {"from": "rates"}}), ["'exchange-rates' is not a name for a table"]),
        ({"udf": {"builtin": {"name": "cat"}, "tables": {"rates": {}}}}, ["on a built-in; no `tables`, or a function"]),
        (
            {"udf": {**PROGRAM, "tables": {"rates": {}}, "groupBy": {"window": {"fixed": {"length": "1s"}}}}},
            ["`tables` has no effect in a reduce", "a map with `tables` before the reduce"],
        ),
        ({"sink": {"log": {}}, "tables": {"rates": {}}}, ["spec.vertices[2].tables"]),
    ],
)
def test_what_cannot_work_is_named(tmp_path: Path, vertex: dict[str, Any], says: list[str]) -> None:
    problems = problems_of(tmp_path / "p.yaml", {"in": KEYED, "rates": KEYED, "v": vertex, "out": OUT}, EDGES)
    for part in says:
        assert any(part in problem for problem in problems), problems


def test_a_table_without_end_is_not_waited_for_to_its_end(tmp_path: Path) -> None:
    vertices = {"in": KEYED, "rates": ENDLESS, "v": reading(rates={"waitFor": "end"}), "out": OUT}
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, EDGES)
    assert f"{PLACE}.rates.waitFor: `rates` is not known to end" in problem


def test_an_edge_that_discards_cannot_be_a_table(tmp_path: Path) -> None:
    edges = [arrow("in>v"), arrow("rates>v", onFull="discardLatest"), arrow("v>out")]
    vertices = {"in": KEYED, "rates": KEYED, "v": reading(rates={}), "out": OUT}
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, edges)
    assert "the edge from `rates` to `v` discards records, and the table would lack them" in problem


def test_no_two_tables_wait_for_each_other(tmp_path: Path) -> None:
    vertices: dict[str, Any] = {
        "a": KEYED,
        "b": KEYED,
        "v": reading(one={"from": "a"}),
        "w": reading(two={"from": "b"}),
        "out": OUT,
    }
    edges = [arrow("a>v"), arrow("b>v"), arrow("a>w"), arrow("b>w"), arrow("v>out"), arrow("w>out")]
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, edges)
    assert "spec.vertices[3].udf.tables.two: records of `a` would wait" in problem
    assert problem.endswith("; `waitFor: 0`")


def test_records_of_a_table_need_no_keys_for_what_is_remembered(tmp_path: Path) -> None:
    keyless = {"source": {"file": {"paths": ["a"], "format": "jsonl"}}}
    several = {"partitions": 2, **reading({}, rates={})}
    graph_of({"in": KEYED, "rates": keyless, "v": several}, EDGES)
    problems = problems_of(tmp_path / "p.yaml", {"in": keyless, "rates": KEYED, "v": several, "out": OUT}, EDGES)
    assert len(problems) == 1
    assert "records of `in` come without keys" in problems[0]


def test_an_edge_that_becomes_a_table_needs_another_name() -> None:
    plain = {"udf": {**PROGRAM, "state": {}}}
    vertices = {"in": KEYED, "rates": KEYED}
    before, now = (shape_of(plan_of(graph_of({**vertices, "v": one}, EDGES))) for one in (plain, reading({}, rates={})))
    (refused,) = diff(before, now).refused
    assert refused.startswith("the records of edge rates-v went to v as they are and now go into table rates")
    assert len(diff(now, before).refused) == 1
    renamed = [arrow("in>v"), arrow("rates>v", name="prices"), arrow("v>out")]
    other = shape_of(plan_of(graph_of({**vertices, "v": reading({}, rates={})}, renamed)))
    found = diff(before, other)
    assert (found.refused, list(found.emptied)) == ([], ["rates-v"])


def test_tables_come_and_go_where_nothing_waits() -> None:
    vertices = {"in": KEYED, "rates": KEYED, "more": KEYED}
    arrows = [*EDGES, arrow("more>v")]
    both = shape_of(plan_of(graph_of({**vertices, "v": reading({}, rates={}, more={})}, arrows)))
    one = shape_of(plan_of(graph_of({**vertices, "v": reading({}, rates={}), "end": OUT}, [*EDGES, arrow("more>end")])))
    found = diff(both, one)
    assert (found.refused, list(found.emptied), found.removed) == ([], ["more-v"], {"more-v": "v"})
    assert diff(one, both).refused == []


def test_what_is_in_tables_moves_to_other_partitions() -> None:
    one, two = (
        shape_of(plan_of(graph_of({"in": KEYED, "rates": KEYED, "v": {"partitions": n, **reading(rates={})}}, EDGES)))
        for n in (1, 2)
    )
    assert diff(one, two).moved == {"v": 1}
    assert diff(two, one).moved == {"v": 2}
