"""Whether stored data fits a changed pipeline."""

import json
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.plan import resolved
from millstream.plan.diff import Difference, Effect, diff, settings_changed
from millstream.plan.plan import plan_of
from millstream.plan.shape import as_stored, shape_of, successor
from millstream.spec.graph import Graph
from millstream.spec.loading import LoadedPipeline, load_text
from millstream.spec.models import Pipeline
from tests.support.errors import raises
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
    assert not diff(shape_of(small()), changed(**same)).any


def test_what_a_restart_changes_is_listed() -> None:
    other = small(map={"udf": {"command": ["./program"]}}, out={"limits": {"bufferMaxLength": 7}})
    assert settings_changed(small().pipeline, small().pipeline) == []
    assert settings_changed(small().pipeline, other.pipeline) == [
        Difference(Effect.RESTART, "`limits` of vertex out changed"),
        Difference(Effect.RESTART, "`udf` of vertex map changed"),
    ]


def test_each_difference_says_what_it_requires() -> None:
    found = diff(changed(), changed(map={"partitions": 7}, **{"in": {"partitions": 3}}))
    assert [one.effect for one in found.differences] == [Effect.REFUSED, Effect.DRAIN]
    assert found.differences[1].what == "vertex map had 1 partition and now has 7"
    assert diff(changed(), changed()).differences == []


def test_positions_of_sources_and_of_partitions_that_go_are_not() -> None:
    found = diff(shape_of(small()), changed(**{"in": {"partitions": 3}}))
    (said,) = found.refused
    assert said.startswith("vertex in had 2 partitions and now has 3: the position of a source is kept for each")
    fewer = diff(changed(map={"partitions": 3}), changed(map={"partitions": 2}))
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
    found = diff(shape_of(small()), changed(**other))
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
    assert diff(before, now).refused == ([f"vertex map had {said}: {other}"] if said else [])


def test_a_map_is_no_reduce() -> None:
    (said,) = diff(changed(), grouped(FIXED)).refused
    assert said.startswith("vertex map was a map and is now a reduce: rename it")


def remembering(**more: Any) -> dict[str, Any]:
    keyed = {"source": {"generator": {"records": 1, "keyCount": 2}}}
    return changed(map={"udf": {"python": "functions.py:F", "state": {}}, **more}, **{"in": keyed})


def remembering_in(partitions: int) -> dict[str, Any]:
    return changed(map={"udf": {"python": "functions.py:F", "state": {}}, "partitions": partitions})


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            changed(map={"udf": {"python": "functions.py:F", "state": {"scope": "lane"}}, "partitions": 2}),
            "vertex map had 1 partition and now has 2",
        ),
        (changed(), "vertex map had a state for each key and now has no state"),
        (
            changed(map={"udf": {"python": "functions.py:F", "state": {"scope": "lane"}}}),
            "vertex map had a state for each key and now has a state for each lane",
        ),
    ],
)
@pytest.mark.guarantee("I7")
def test_what_a_vertex_remembers_is_not_left_behind(now: dict[str, Any], said: str) -> None:
    (refused,) = diff(remembering(), now).refused
    assert refused.startswith(f"{said}: what it remembers belongs to its partitions")


@pytest.mark.guarantee("I7")
def test_what_a_vertex_remembers_moves_with_its_keys_where_nothing_waits() -> None:
    one, three = remembering(), remembering_in(3)
    for before, now, count in ((one, three, "1 partition and now has 3"), (three, one, "3 partitions and now has 1")):
        found = diff(before, now)
        assert found.differences == [
            Difference(Effect.DRAIN, f"vertex map had {count}; what it remembers moves with its keys")
        ]
        assert list(found.emptied) == ["in-map"]
        assert found.moved == {"map": before["vertices"]["map"]["partitions"]}
    # Also if it reads other edges at the same time.
    other = remembering_in(3)
    other["edges"] = {{"in-map": "other"}.get(name, name): ends for name, ends in other["edges"].items()}
    assert (diff(one, other).refused, diff(one, other).moved) == ([], {"map": 1})


@pytest.mark.guarantee("I7")
def test_those_that_follow_in_a_chain_move_along() -> None:
    before, now = remembering_in(3), remembering_in(2)
    for shape in (before, now):
        shape["vertices"]["out"]["partitions"] = shape["vertices"]["map"]["partitions"]
        shape["edges"]["map-out"]["chained"] = True
    found = diff(before, now)
    assert (found.refused, sorted(found.emptied), found.moved) == ([], ["in-map", "map-out"], {"map": 3})
    now["edges"]["map-out"].pop("chained")
    assert diff(before, now).refused[0].startswith("vertex out had 3 partitions and now has 2: rename it")


@pytest.mark.guarantee("I7")
def test_a_chain_is_not_separated_while_it_gets_fewer_lanes() -> None:
    before, now = remembering_in(3), remembering_in(2)
    for shape in (before, now):
        shape["vertices"]["later"] = {"kind": "map", "of": "", "partitions": 3}
        shape["edges"]["map-later"] = {"from": "map", "to": "later"}
    before["edges"]["map-later"]["chained"] = True
    (refused,) = diff(before, now).refused
    assert refused.startswith("edge map-later was chained and has a buffer now, and vertex map has fewer partitions")


@pytest.mark.guarantee("I7")
def test_what_a_vertex_remembers_stays_whichever_edges_it_reads() -> None:
    more, other = remembering(), remembering()
    more["edges"]["more-map"] = {"from": "in", "to": "map"}
    found = diff(remembering(), more)
    assert (found.refused, found.emptied, found.added) == ([], {}, ["edge more-map is new"])
    # A removed edge has to be empty, as that of any vertex.
    other["edges"] = {{"in-map": "other"}.get(name, name): ends for name, ends in other["edges"].items()}
    found = diff(remembering(), other)
    assert (found.refused, dict(found.emptied)) == ([], {"in-map": "edge in-map (in to map) was removed"})


def test_what_a_vertex_remembers_is_forgotten_by_name() -> None:
    now = remembering()
    del now["vertices"]["map"]
    (refused,) = diff(remembering(), now).refused
    assert "use `--forget map`" in refused
    assert diff(remembering(), now, forget={"map"}).gone == ["map"]


def test_a_vertex_begins_to_remember_where_nothing_waits() -> None:
    found = diff(changed(), remembering())
    assert (found.refused, list(found.emptied)) == ([], ["in-map"])
    assert found.gathered == {"map": ["in-map"]}
    assert diff(remembering(), remembering()).differences == []


def test_a_vertex_or_edge_may_go_where_nothing_waits_and_its_name_is_used_up() -> None:
    before, now = shape_of(small()), shape_of(small())
    del now["vertices"]["dead"]
    del now["edges"]["map-dead-dead-letter"]
    found = diff(before, now)
    assert (found.refused, found.gone, found.closed) == ([], ["dead"], {})
    assert found.emptied == {"map-dead-dead-letter": "vertex dead was removed"}
    after = successor(before, now)
    assert not diff(after, now).any
    assert [text.partition(" was")[0] for text in diff(after, before).refused] == [
        "a vertex called dead",
        "a edge called map-dead-dead-letter".replace("a edge", "an edge"),
    ]
    assert successor(after, now) == after


def test_an_edge_that_leads_elsewhere_and_another_pipeline_are_refused() -> None:
    before, now = shape_of(small()), shape_of(small())
    now["edges"]["map-out"] = {"from": "in", "to": "out"}
    now["pipeline"] = "other"
    assert diff(before, now).refused == [
        "the pipeline was called small and is now called other",
        "edge map-out went from map to out and now goes from in to out: give it another name",
    ]


def test_a_source_goes_only_when_that_is_asked_for() -> None:
    before, now = shape_of(small()), shape_of(small())
    del now["vertices"]["in"]
    (said,) = diff(before, now).refused
    assert "vertex in was removed: its position would be forgotten" in said
    assert "--forget in" in said
    assert diff(before, now, forget=["in"]).gone == ["in"]


def test_a_reduce_that_goes_has_no_open_window() -> None:
    before, now = grouped(FIXED), grouped(FIXED)
    del now["vertices"]["map"]
    assert diff(before, now).closed == {"map": "vertex map was removed"}


def test_new_vertices_and_edges_fit() -> None:
    plan = small()
    data = plan.pipeline.as_written(given_only=True)
    data["spec"]["vertices"].append({"name": "more", "sink": {"blackhole": {}}})
    data["spec"]["edges"].append({"from": "in", "to": "more"})
    assert not diff(shape_of(plan), shape_of(plan_of(Graph.of(Pipeline.model_validate(data))))).any


def test_of_two_changes_the_one_that_never_fits_is_named() -> None:
    def keyed(length: str, partitions: int) -> dict[str, Any]:
        group_by = {"window": {"fixed": {"length": length}}, "keyed": True}
        return changed(map={"udf": {"python": "functions.py:f", "groupBy": group_by}, "partitions": partitions})

    (said,) = diff(keyed("1h", 1), keyed("2h", 3)).refused
    assert said.startswith("vertex map had fixed 1h windows and now has fixed 2h windows: rename it")


def loaded(*edges: str, more: str = "", spec: str = "") -> LoadedPipeline:
    """A source, maps `a` and `b`, and a sink, with these edges; `more`: further vertices."""
    text = f"""apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  {spec or "limits: {}"}
  vertices:
    - {{name: in, source: {{generator: {{keyCount: 2}}}}}}
    - {{name: a, udf: {{python: "f.py:f"}}}}
    - {{name: b, udf: {{builtin: {{name: cat}}}}}}
    - {{name: out, sink: {{log: {{}}}}}}
{more}
  edges:
"""
    return load_text(text + "".join(f"    - {{{edge}}}\n" for edge in edges), "p.yaml")


ROW = ("from: in, to: a", "from: a, to: b", "from: b, to: out")


def test_a_pipeline_that_does_not_say_keeps_the_buffers_that_it_has() -> None:
    before = shape_of(loaded(*ROW, spec="chain: false").plan)
    now, kept = as_stored(loaded(*ROW), before)
    assert (now.graph.chains, kept) == ((), ["in-a", "a-b"])
    assert not diff(before, shape_of(now.plan)).any
    # What the file says is what the user wants, and is refused.
    for wanted in (loaded(*ROW, spec="chain: true"), loaded("from: in, to: a, chain: true", *ROW[1:])):
        now, kept = as_stored(wanted, before)
        assert "edge in-a has its buffer in the ledger of in in the stored data, but now is chained" in "".join(
            diff(before, shape_of(now.plan)).refused
        )


def test_a_new_vertex_in_front_of_a_stored_one_leaves_that_in_its_ledger() -> None:
    new = "    - {name: new, udf: {builtin: {name: cat}}}"
    before = shape_of(loaded(*ROW).plan)
    now, _ = as_stored(loaded("from: in, to: new", "from: new, to: a", *ROW[1:], more=new), before)
    assert now.graph.chains == (("in", "new"), ("a", "b"))
    assert now.plan.ledgers == {"a": "in"}
    found = diff(before, shape_of(now.plan))
    assert (found.refused, found.removed) == ([], {})


def keyed(source: str, name: str = "in") -> LoadedPipeline:
    text = (
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"    - {{name: {name}, source: {source}}}\n    - {{name: out, sink: {{log: {{}}}}}}\n"
        f"  edges:\n    - {{from: {name}, to: out}}\n"
    )
    return load_text(text, Path("p.yaml"))


KAFKA = "{kafka: {brokers: ['127.0.0.1:9092'], topic: t}}"
REDIS = "{redisStreams: {url: 'redis://127.0.0.1', stream: s, format: record}}"


@pytest.mark.parametrize("source", [KAFKA, REDIS])
def test_stored_data_keeps_the_texts_of_keys_that_it_began_with(source: str) -> None:
    now = keyed(source)
    assert not now.plan.former_keys
    shape = shape_of(now.plan)
    assert not as_stored(now, shape)[0].plan.former_keys
    # Earlier versions wrote nothing about keys.
    former = json.loads(json.dumps(shape))
    del former["vertices"]["in"]["keys"]
    kept, _ = as_stored(now, former)
    assert kept.plan.former_keys == {"in"}
    # The next run keeps it, too.
    assert shape_of(kept.plan)["vertices"] == former["vertices"]
    assert not diff(former, shape_of(kept.plan)).any
    again = resolved.load(resolved.dump(kept.plan, Path()))
    assert again.plan.former_keys == {"in"}
    # A source of another name, or of another kind, begins with nothing.
    assert not as_stored(keyed(source, "new"), former)[0].plan.former_keys
    other = KAFKA if source is REDIS else REDIS
    assert not as_stored(keyed(other), former)[0].plan.former_keys


def test_a_resolved_pipeline_of_an_earlier_version_keeps_its_keys() -> None:
    text = json.loads(resolved.dump(keyed(KAFKA).plan, Path()))
    assert not resolved.load(json.dumps(text)).plan.former_keys
    del text["formerKeys"]
    assert "in" in resolved.load(json.dumps(text)).plan.former_keys


@pytest.mark.parametrize(
    ("edges", "more", "chains", "ledgers"),
    [
        (
            (*ROW, "from: a, to: dead, kind: deadLetter"),
            "    - {name: dead, sink: {log: {}}}",
            (("a", "b"),),
            {"a": "in"},
        ),
        ((*ROW, "from: a, to: side"), "    - {name: side, sink: {log: {}}}", (("in", "a"),), {"b": "in"}),
        (("from: in, to: a", "from: a, to: b, chain: false", ROW[2]), "", (("in", "a"),), {"b": "in"}),
    ],
)
def test_a_chain_is_separated_where_an_edge_needs_a_buffer(
    edges: tuple[str, ...], more: str, chains: tuple[tuple[str, ...], ...], ledgers: dict[str, str]
) -> None:
    before = shape_of(loaded(*ROW).plan)
    now, kept = as_stored(loaded(*edges, more=more), before)
    assert (now.graph.chains, dict(now.plan.ledgers), kept) == (chains, ledgers, [])
    found = diff(before, shape_of(now.plan))
    assert found.any
    assert (found.refused, found.emptied, found.gone) == ([], {}, [])
    after = successor(before, shape_of(now.plan))
    # The next run finds it as it is, and what was separated is not chained again.
    again, kept = as_stored(loaded(*edges, more=more), after)
    assert not diff(after, shape_of(again.plan)).any
    back, kept = as_stored(loaded(*ROW), after)
    assert (back.graph.chains, dict(back.plan.ledgers)) == (chains, ledgers)
    assert len(kept) == 1


def test_a_sink_does_not_leave_its_chain() -> None:
    before = shape_of(loaded(*ROW[:2], "from: b, to: out, chain: true").plan)
    now, _ = as_stored(loaded(*ROW), before)
    assert len(diff(before, shape_of(now.plan)).refused) == 1
    now, _ = as_stored(loaded(ROW[0], "from: a, to: b, chain: false", "from: b, to: out, chain: true"), before)
    assert any(
        said.startswith("edge a-b is chained in the stored data") for said in diff(before, shape_of(now.plan)).refused
    )


def test_a_removed_edge_of_a_vertex_that_stays_is_named() -> None:
    before = shape_of(loaded(*ROW, spec="chain: false").plan)
    now, _ = as_stored(loaded("from: in, to: b", "from: b, to: out", "from: in, to: a", "from: a, to: out"), before)
    assert diff(before, shape_of(now.plan)).removed == {"a-b": "b"}


def test_a_stored_shape_that_cannot_be_read_is_damage() -> None:
    with raises(codes.SHAPE_UNREADABLE):
        as_stored(loaded(*ROW), {"pipeline": "p"})
