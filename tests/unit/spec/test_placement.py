"""Which replicas share a process."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from millstream.plan.placement import place
from millstream.plan.plan import Plan
from millstream.spec.loading import load_text

TEXT = """
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  chain: false
  vertices:
    - {{name: in, source: {{generator: {{}}}}, {source}}}
    - {{name: first, udf: {{builtin: {{name: cat}}}}, {first}}}
    - {{name: second, udf: {{builtin: {{name: cat}}}}, {second}}}
    - {{name: out, sink: {{blackhole: {{}}}}, {sink}}}
  edges:
    - {{from: in, to: first}}
    - {{from: first, to: second}}
    - {{from: second, to: out}}
"""
TWO = "partitions: 2, replicas: 2"
OWN = "placement: {process: own}"


def plan(**more: str) -> Plan:
    settings: Mapping[str, str] = dict.fromkeys(("source", "first", "second", "sink"), "partitions: 1") | more
    return load_text(TEXT.format(**settings), "p.yaml").plan


def placed(plan: Plan, workers: int) -> list[list[str]]:
    return [[replica.name for replica in worker] for worker in place(plan, workers)]


def test_one_worker_runs_all() -> None:
    assert placed(plan(), 1) == [["in-0", "first-0", "second-0", "out-0"]]


def test_sources_share_with_sources_and_neighbours_among_the_rest_lie_apart() -> None:
    assert placed(plan(), 2) == [["in-0"], ["first-0", "second-0", "out-0"]]
    assert placed(plan(), 3) == [["in-0"], ["first-0", "out-0"], ["second-0"]]
    assert placed(plan(first=TWO), 3) == [["in-0"], ["first-0", "second-0"], ["first-1", "out-0"]]


@pytest.mark.parametrize("workers", [4, 5, 100])
def test_no_worker_is_without_work(workers: int) -> None:
    assert placed(plan(), workers) == [["in-0"], ["first-0"], ["second-0"], ["out-0"]]


def test_no_worker_has_all_that_is_heavy() -> None:
    window = "groupBy: {window: {fixed: {length: 1s}}}, sql: {query: SELECT 1}"
    names = ("one", "two", "three", "four")
    udfs = ("builtin: {name: cat}", window, "builtin: {name: cat}", window)
    vertices = "".join(f"    - {{name: {name}, udf: {{{udf}}}}}\n" for name, udf in zip(names, udfs, strict=True))
    chain = ("in", *names, "out")
    edges = "".join(f"    - {{from: {start}, to: {end}}}\n" for start, end in pairwise(chain))
    text = TEXT.partition("  vertices:")[0].format() + (
        "  vertices:\n    - {name: in, source: {generator: {}}}\n"
        f"{vertices}    - {{name: out, sink: {{blackhole: {{}}}}}}\n  edges:\n{edges}"
    )
    found = placed(load_text(text, "p.yaml").plan, 3)
    assert found == [["in-0"], ["two-0", "one-0", "out-0"], ["four-0", "three-0"]]


def test_with_a_worker_for_each_replica_sources_do_not_share() -> None:
    assert placed(plan(source="partitions: 2, replicas: 2"), 5) == [
        *(["in-0"], ["in-1"], ["first-0"], ["second-0"], ["out-0"])
    ]


def test_a_vertex_that_asks_for_it_has_processes_of_its_own() -> None:
    found = placed(plan(first=f"{TWO}, {OWN}"), 2)
    assert found == [["in-0"], ["second-0", "out-0"], ["first-0"], ["first-1"]]


def test_every_vertex_may_ask_for_it() -> None:
    everywhere = plan(source=OWN, first=OWN, second=OWN, sink=OWN)
    assert placed(everywhere, 2) == [["in-0"], ["first-0"], ["second-0"], ["out-0"]]
