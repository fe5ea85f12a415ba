"""Whether stored data fits a changed pipeline."""

from typing import Any

import pytest

from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline
from millstream_runner.local.shape import changes, shape_of, successor
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
    assert not changes(shape_of(small()), changed(**same)).any


def test_positions_of_sources_and_of_partitions_that_go_are_not() -> None:
    found = changes(shape_of(small()), changed(**{"in": {"partitions": 3}}))
    (said,) = found.refused
    assert said.startswith("vertex in had 2 partitions and now has 3: the position of a source is kept for each")
    fewer = changes(changed(map={"partitions": 3}), changed(map={"partitions": 2}))
    assert fewer.refused == ["vertex map had 3 partitions and now has 2: rename it; it then starts empty"]


@pytest.mark.parametrize(
    ("other", "edges", "said"),
    [
        ({"map": {"partitions": 7}}, {"in-map"}, "vertex map had 1 partition and now has 7"),
        ({"out": {"sink": {"log": {}}}}, {"map-out"}, "vertex out was a blackhole sink and is now a log sink"),
    ],
)
def test_more_partitions_and_other_sinks_fit_where_nothing_waits(
    other: dict[str, Any], edges: set[str], said: str
) -> None:
    found = changes(shape_of(small()), changed(**other))
    assert (found.refused, found.gone, set(found.emptied)) == ([], [], edges)
    assert set(found.emptied.values()) == {said}


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
    other = "rename it; it then starts empty"
    assert changes(before, now).refused == ([f"vertex map had {said}: {other}"] if said else [])


def test_a_map_is_no_reduce() -> None:
    (said,) = changes(changed(), grouped(FIXED)).refused
    assert said.startswith("vertex map was a map and is now a reduce: rename it")


def test_a_vertex_or_edge_may_go_where_nothing_waits_and_its_name_is_used_up() -> None:
    before, now = shape_of(small()), shape_of(small())
    del now["vertices"]["dead"]
    del now["edges"]["map-dead-dead-letter"]
    found = changes(before, now)
    assert (found.refused, found.gone, found.closed) == ([], ["dead"], {})
    assert found.emptied == {"map-dead-dead-letter": "vertex dead was removed"}
    after = successor(before, now)
    assert not changes(after, now).any
    assert [text.partition(" was")[0] for text in changes(after, before).refused] == [
        "a vertex called dead",
        "a edge called map-dead-dead-letter".replace("a edge", "an edge"),
    ]
    assert successor(after, now) == after


def test_an_edge_that_leads_elsewhere_and_another_pipeline_are_refused() -> None:
    before, now = shape_of(small()), shape_of(small())
    now["edges"]["map-out"] = {"from": "in", "to": "out"}
    now["pipeline"] = "other"
    assert changes(before, now).refused == [
        "the pipeline was called small and is now called other",
        "edge map-out went from map to out and now goes from in to out: give it another name",
    ]


def test_a_source_goes_only_when_that_is_asked_for() -> None:
    before, now = shape_of(small()), shape_of(small())
    del now["vertices"]["in"]
    (said,) = changes(before, now).refused
    assert "vertex in was removed: its position would be forgotten" in said
    assert "--forget in" in said
    assert changes(before, now, forget=["in"]).gone == ["in"]


def test_a_reduce_that_goes_has_no_open_window() -> None:
    before, now = grouped(FIXED), grouped(FIXED)
    del now["vertices"]["map"]
    assert changes(before, now).closed == {"map": "vertex map was removed"}


def test_new_vertices_and_edges_fit() -> None:
    graph = small()
    data = graph.pipeline.as_written(given_only=True)
    data["spec"]["vertices"].append({"name": "more", "sink": {"blackhole": {}}})
    data["spec"]["edges"].append({"from": "in", "to": "more"})
    assert not changes(shape_of(graph), shape_of(Graph.of(Pipeline.model_validate(data)))).any


def test_of_two_changes_the_one_that_never_fits_is_named() -> None:
    def keyed(length: str, partitions: int) -> dict[str, Any]:
        group_by = {"window": {"fixed": {"length": length}}, "keyed": True}
        return changed(map={"udf": {"python": "functions.py:f", "groupBy": group_by}, "partitions": partitions})

    (said,) = changes(keyed("1h", 1), keyed("2h", 3)).refused
    assert said.startswith("vertex map had fixed 1h windows and now has fixed 2h windows: rename it")
