"""Whether stored data fits a changed pipeline."""

from typing import Any

import pytest

from millstream.local.shape import differences, shape_of
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline
from tests.unit.local.pipelines import small


def changed(**changes: Any) -> dict[str, Any]:
    return shape_of(small(**changes))


@pytest.mark.parametrize(
    "same",
    [
        {"in": {"source": {"generator": {"records": 20, "keyCount": 5}}}},
        {"map": {"udf": {"command": ["./program"]}}},
        {"in": {"replicas": 2}},
        {"out": {"limits": {"bufferMaxLength": 7}}},
    ],
)
def test_what_a_vertex_does_is_the_users_to_change(same: dict[str, Any]) -> None:
    assert differences(shape_of(small()), changed(**same)) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"in": {"partitions": 3}}, "vertex in had 2 partition(s) and now has 3"),
        ({"out": {"sink": {"log": {}}}}, "vertex out was a blackhole sink and is now a log sink"),
    ],
)
def test_kinds_and_partitions_are_not(other: dict[str, Any], said: str) -> None:
    assert differences(shape_of(small()), changed(**other)) == [said]


def grouped(window: dict[str, Any], program: str = "functions.py:f", **more: Any) -> dict[str, Any]:
    return changed(map={"udf": {"python": program, "groupBy": {"window": window, **more}}})


FIXED = {"fixed": {"length": "1h"}}
SESSION = {"session": {"timeout": "90s"}}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (grouped(FIXED), grouped({"fixed": {"length": 3600, "streaming": True}}, "other.py:g", keyed=True), None),
        (grouped(FIXED), grouped({"fixed": {"length": "2h"}}), "fixed 1h windows and now has fixed 2h windows"),
        (
            grouped({"sliding": {"length": "1h", "slide": "1m"}}),
            grouped(SESSION),
            "sliding 1h every 1m windows and now has session 1m30s windows",
        ),
        (
            grouped(SESSION),
            grouped(SESSION, keyed=True, allowedLateness="5s"),
            "session 1m30s windows and now has session 1m30s per key 5s late windows",
        ),
        (
            grouped({"global": {}}),
            grouped({"global": {"trigger": {"count": 3}, "accumulate": True}}),
            "global windows and now has global every 3 accumulating windows",
        ),
    ],
)
def test_records_wait_in_the_windows_they_were_put_into(
    before: dict[str, Any], now: dict[str, Any], said: str | None
) -> None:
    assert differences(before, now) == ([f"vertex map had {said}"] if said else [])


def test_a_map_is_no_reduce() -> None:
    assert differences(changed(), grouped(FIXED)) == ["vertex map was a map and is now a reduce"]


def test_a_vertex_or_edge_that_is_gone_or_leads_elsewhere_is_named() -> None:
    before, now = shape_of(small()), shape_of(small())
    del now["vertices"]["dead"]
    del now["edges"]["map-dead-dead-letter"]
    now["edges"]["map-out"] = {"from": "in", "to": "out"}
    now["pipeline"] = "other"
    assert differences(before, now) == [
        "the pipeline was called small and is now called other",
        "vertex dead is gone",
        "edge map-out led from map to out and now leads from in to out",
        "edge map-dead-dead-letter (map to dead) is gone",
    ]


def test_new_vertices_and_edges_fit() -> None:
    graph = small()
    data = graph.pipeline.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["spec"]["vertices"].append({"name": "more", "sink": {"blackhole": {}}})
    data["spec"]["edges"].append({"from": "in", "to": "more"})
    assert differences(shape_of(graph), shape_of(Graph.of(Pipeline.model_validate(data)))) == []
