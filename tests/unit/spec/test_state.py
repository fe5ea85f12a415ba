"""`udf.state`: where a function may remember something, and what such a vertex needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.limits import MIB
from millstream.record import BufferId, LaneId
from millstream.spec import needs
from millstream.spec.graph import Graph
from millstream.spec.loading import load
from millstream.spec.problems import SpecError
from millstream.spec.programs import Udf
from tests.unit.spec.test_graph import IN, MAP, OUT, arrow, pipeline

PROGRAM = {"python": "f.py:f"}
KEYED = {"source": {"file": {"paths": ["a"], "format": "jsonl"}, "keys": ["user"]}}
KEYLESS = {"source": {"file": {"paths": ["a"], "format": "jsonl"}}}
CAT = {"udf": {"builtin": {"name": "cat"}}}
WINDOW = {"window": {"fixed": {"length": "1s"}}}


def remembering(**state: Any) -> dict[str, Any]:
    return {"udf": {**PROGRAM, "state": state}}


def problems_of(path: Path, vertices: dict[str, Any], edges: Sequence[dict[str, Any]]) -> list[str]:
    """The problems of a pipeline file: code, place, what, and what is expected."""
    listed = [{"name": name, **contents} for name, contents in vertices.items()]
    spec = {"vertices": listed, "edges": edges}
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
    path.write_text(json.dumps({**head, "spec": spec}))
    with pytest.raises(SpecError) as caught:
        load(path)
    return [f"{one.code.id} {one.path}: {one.what}; {one.expected}" for one in caught.value.problems]


def test_a_state_has_limits_and_a_scope() -> None:
    graph = Graph.of(pipeline({"in": IN, "v": remembering(), "out": OUT}, [arrow("in>v"), arrow("v>out")]))
    vertex = graph.vertex("v")
    assert vertex.definition.name == "keyed map"
    assert vertex.definition.kept_bytes(vertex.settings) == 256 * MIB * 11 // 5
    assert isinstance(vertex.settings, Udf)
    state = vertex.settings.state
    assert state is not None
    assert (state.scope, state.max_bytes, state.max_bytes_per_key) == ("key", 256 * MIB, MIB)


@pytest.mark.parametrize(
    ("udf", "says"),
    [
        ({**PROGRAM, "state": {}, "groupBy": WINDOW}, ("udf.state: ", "`groupBy`")),
        ({"builtin": {"name": "cat"}, "state": {}}, ("udf.state: ", "on a built-in; no `state`, or a function")),
        ({**PROGRAM, "state": {"maxBytesPerKey": "5Mi"}}, ("udf.state.maxBytesPerKey: ", "at most 4Mi")),
        ({**PROGRAM, "state": {"maxBytes": "5Gi"}}, ("udf.state.maxBytes: ", "more `partitions`")),
        ({**PROGRAM, "state": {"scope": "record"}}, ("udf.state.scope: ", "one of key, lane")),
    ],
    ids=["in a reduce", "of a built-in", "too large", "too much", "of another scope"],
)
def test_a_state_that_cannot_be_is_named(udf: dict[str, Any], says: tuple[str, ...], tmp_path: Path) -> None:
    vertices = {"in": IN, "v": {"udf": udf}, "out": OUT}
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, [arrow("in>v"), arrow("v>out")])
    for part in says:
        assert part in problem


def test_one_lane_of_a_partition_reads_all_of_its_edges() -> None:
    vertices = {"a": KEYED, "b": KEYED, "v": {**remembering(), "partitions": 2}, "out": OUT}
    graph = Graph.of(pipeline(vertices, [arrow("a>v"), arrow("b>v"), arrow("v>out")]))
    lanes = graph.lanes_of("v")
    assert lanes == (LaneId("v", "_all", 0), LaneId("v", "_all", 1))
    assert graph.inputs_of(lanes[1]) == (BufferId("a-v", 1), BufferId("b-v", 1))


def test_every_edge_to_several_partitions_brings_keys(tmp_path: Path) -> None:
    vertices = {"a": KEYED, "b": KEYLESS, "c": CAT, "v": {**remembering(), "partitions": 3}, "out": OUT}
    edges = [arrow("a>v"), arrow("b>c"), arrow("c>v"), arrow("v>out")]
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, edges)
    assert "records of `b` come without keys, so each of 3 partitions gets some of them" in problem
    assert "`keys: [<member>]` in the `source` of `b`; or `partitions: 1`; or `state: {scope: lane}`" in problem


@pytest.mark.parametrize(
    ("source", "between", "vertex"),
    [
        (KEYLESS, CAT, remembering()),
        (KEYLESS, CAT, {**remembering(scope="lane"), "partitions": 3}),
        (KEYLESS, MAP, {**remembering(), "partitions": 3}),
        ({"source": {"generator": {"records": 5, "keyCount": 2}}}, CAT, {**remembering(), "partitions": 3}),
        ({"source": {**KEYLESS["source"], "transformer": PROGRAM}}, CAT, {**remembering(), "partitions": 3}),
    ],
    ids=["one partition", "a state of the lane", "a function", "a source with keys", "a transformer"],
)
def test_where_keys_may_come_from_the_file_is_accepted(
    source: dict[str, Any], between: dict[str, Any], vertex: dict[str, Any]
) -> None:
    vertices = {"in": source, "between": between, "v": vertex, "out": OUT}
    edges = [arrow("in>between", chain=False), arrow("between>v"), arrow("v>out")]
    assert Graph.of(pipeline(vertices, edges)).vertex("v").definition.name == "keyed map"


def test_of_several_edges_none_closes_a_cycle(tmp_path: Path) -> None:
    vertices = {"in": IN, "v": remembering(), "next": MAP, "out": OUT}
    edges = [arrow("in>v"), arrow("v>next"), arrow("next>v"), arrow("next>out")]
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, edges)
    assert "`v` has `state` and is in a cycle, and 2 edges lead to it" in problem
    assert "built-in `cat`" in problem
    vertices = {"in": IN, "enter": MAP, "v": remembering(), "out": OUT}
    edges = [arrow("in>enter"), arrow("enter>v"), arrow("v>enter"), arrow("v>out")]
    assert Graph.of(pipeline(vertices, edges)).in_cycle("v")


def test_it_does_not_follow_in_a_chain(tmp_path: Path) -> None:
    vertices = {"in": IN, "v": remembering(), "out": OUT}
    (problem,) = problems_of(tmp_path / "p.yaml", vertices, [arrow("in>v", chain=True), arrow("v>out")])
    assert "MS-2240" in problem
    assert "`v` is a keyed map, and a chain can only continue with a map or a sink" in problem


@pytest.mark.parametrize("chain", [None, True])
def test_no_chain_is_made_into_it_and_one_may_begin_with_it(chain: bool | None) -> None:
    vertices = {"in": IN, "v": remembering(), "next": MAP, "out": OUT}
    edges = [arrow("in>v"), arrow("v>next"), arrow("next>out")]
    graph = Graph.of(pipeline(vertices, edges, **({} if chain is None else {"chain": chain})))
    assert graph.chains == (("v", "next"),)


@pytest.mark.parametrize(("store", "is_there", "found"), [("disk", False, 1), ("disk", True, 0), ("memory", False, 0)])
def test_a_store_on_disk_needs_its_package(
    monkeypatch: pytest.MonkeyPatch, store: str, is_there: bool, found: int
) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda module: object() if is_there else None)
    vertex = Graph.of(
        pipeline({"in": IN, "v": remembering(store=store), "out": OUT}, [arrow("in>v"), arrow("v>out")])
    ).vertex("v")
    findings = list(vertex.definition.local_findings(vertex.settings, ("v", "udf")))
    expected = [(("v", "udf", "state", "store"), "`pip install 'millstream[disk]'`")]
    assert [(one.path, one.expected) for one in findings] == expected[:found]
