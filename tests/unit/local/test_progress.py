"""From what lanes publish to the numbers on the screen."""

import dataclasses
import json

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.record import ReplicaId
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry
from millstream_runner.local.formatting import watermark_text
from millstream_runner.local.progress import RATE_WINDOW_S, PipelineProgress, VertexProgress, vertex_from_json
from millstream_runner.local.scene import Scene, plain_lines, slow_of, table
from tests.unit.local.pipelines import small

NOW_US = 1_800_000_000_000_000


def entry(records: int, watermark_us: int = NOW_US - 2_000_000, ended: bool = False, **written: int) -> OtEntry:
    return OtEntry(
        watermark_us=watermark_us,
        ended=ended,
        inputs=[BufferState(edge="in-map", records=records)],
        outputs=[BufferState(edge=edge.replace("_", "-"), records=count) for edge, count in written.items()],
    )


def sampled(progress: PipelineProgress, now_s: float = 0.0) -> dict[str, VertexProgress]:
    return {vertex.vertex: vertex for vertex in progress.sample(now_us=NOW_US, now_s=now_s)}


def test_what_waits_is_what_all_upstream_lanes_wrote_less_what_was_read() -> None:
    progress = PipelineProgress(small(map={"limits": {"bufferMaxLength": 100}}).graph)
    progress.observe("in", "source.0", entry(30, in_map=30))
    progress.observe("in", "source.1", entry(50, in_map=50))
    progress.observe("map", "in-map.0", entry(60, map_out=60))
    vertices = sampled(progress)
    assert vertices["map"].waiting == 20
    assert vertices["map"].fill == 0.2
    assert vertices["out"].waiting == 60
    assert vertices["in"].records == vertices["in"].written == 80
    assert progress.waiting(["map", "out"]) == 80


def chained() -> PipelineProgress:
    """in -> one -> two, in one lane, and out behind a buffer."""
    vertices = [
        {"name": "in", "source": {"generator": {"records": 10}}},
        *({"name": name, "udf": {"python": "functions.py:f"}} for name in ("one", "two")),
        {"name": "out", "sink": {"blackhole": {}}},
    ]
    edges = [{"from": one, "to": two} for one, two in (("in", "one"), ("one", "two"), ("two", "out"))]
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "chained"}}
    return PipelineProgress(Graph.of(Pipeline.model_validate({**head, "spec": {"vertices": vertices, "edges": edges}})))


def chain_entry(held_up_us: int, **busy_us: int) -> OtEntry:
    given = entry(100, two_out=100)
    given.held_up_us = held_up_us
    for vertex, us in busy_us.items():
        given.busy.add(vertex=vertex, us=us)
    return given


def test_the_vertex_that_holds_up_its_chain_is_the_one_that_takes_longest() -> None:
    progress = chained()
    progress.observe("in", "source.0", chain_entry(0, one=0, two=0))
    assert {one.holds_up for one in sampled(progress).values()} == {0.0}
    progress.observe("in", "source.0", chain_entry(1_800_000, one=300_000, two=1_900_000))
    vertices = sampled(progress, 2.0)
    assert {name: vertex.holds_up for name, vertex in vertices.items()} == {"in": 0, "one": 0, "two": 0.9, "out": 0}
    slow = slow_of(list(vertices.values()))
    assert slow is not None
    assert slow.vertex == "two"
    assert vertex_from_json(json.loads(json.dumps(dataclasses.asdict(slow)))) == slow


def test_a_chain_that_waits_for_its_commits_is_held_up_by_no_vertex() -> None:
    progress = chained()
    progress.observe("in", "source.0", chain_entry(0, one=0, two=0))
    sampled(progress)
    progress.observe("in", "source.0", chain_entry(2_000_000, one=300_000, two=400_000))
    assert {one.holds_up for one in sampled(progress, 2.0).values()} == {0.0}


def test_a_process_that_begins_again_holds_up_nothing() -> None:
    progress = chained()
    progress.observe("in", "source.0", chain_entry(9_000_000, one=9_000_000))
    sampled(progress)
    progress.observe("in", "source.0", chain_entry(1_000, one=1_000))
    assert {one.holds_up for one in sampled(progress, 1.0).values()} == {0.0}


def test_a_side_that_publishes_late_never_makes_the_count_negative() -> None:
    progress = PipelineProgress(small().graph)
    progress.observe("map", "in-map.0", entry(60))
    assert sampled(progress)["map"].waiting == 0


def test_the_watermark_of_a_vertex_is_that_of_its_lowest_lane() -> None:
    progress = PipelineProgress(small().graph)
    progress.observe("in", "source.0", entry(1, NOW_US - 3_000_000))
    assert sampled(progress)["in"].watermark_us is None
    progress.observe("in", "source.1", entry(1, START_OF_TIME_US))
    assert sampled(progress)["in"].watermark_us is None
    progress.observe("in", "source.1", entry(1, END_OF_TIME_US, ended=True))
    vertex = sampled(progress)["in"]
    assert vertex.watermark_us == NOW_US - 3_000_000
    assert vertex.watermark_lag_s == 3.0
    assert vertex.lanes_ended == 1


def test_rates_are_means_over_the_window() -> None:
    progress = PipelineProgress(small().graph)
    rates = []
    for second in range(20):
        progress.observe("map", "in-map.0", entry(100 * second if second < 10 else 900))
        rates.append(sampled(progress, float(second))["map"].records_per_s)
    assert rates[0] == 0
    assert rates[9] == 100
    assert rates[10 + int(RATE_WINDOW_S)] == 0


def test_progress_of_a_replica_changes_only_with_its_own_lanes() -> None:
    progress = PipelineProgress(small(**{"in": {"replicas": 2}}).graph)
    first, second = progress.mark_of(ReplicaId("in", 0)), progress.mark_of(ReplicaId("in", 1))
    progress.observe("in", "source.1", entry(5))
    assert progress.mark_of(ReplicaId("in", 0)) == first
    assert progress.mark_of(ReplicaId("in", 1)) != second


def test_numbers_survive_the_way_through_a_file() -> None:
    progress = PipelineProgress(small().graph)
    progress.observe("in", "source.0", entry(30, in_map=30))
    for vertex in progress.sample(now_us=NOW_US, now_s=1.0):
        assert vertex_from_json(json.loads(json.dumps(dataclasses.asdict(vertex)))) == vertex


def test_watermarks_in_words() -> None:
    assert watermark_text(None, None) == "none yet"
    assert watermark_text(END_OF_TIME_US, None) == "end"
    assert watermark_text(NOW_US, 1.25) == "1.2 s behind"
    assert watermark_text(1_357_016_400_000_000, 4e8) == "2013-01-01 05:00:00.000"
    assert watermark_text(START_OF_TIME_US + 1, None) == f"{START_OF_TIME_US + 1} us"


def test_the_table_and_the_line_show_the_same_numbers() -> None:
    progress = PipelineProgress(small().graph)
    progress.observe("in", "source.0", entry(1234567, in_map=1234567))
    scene = Scene(
        "small", "running", 3725.0, "fsync (verified)", progress.sample(now_us=NOW_US, now_s=0.0), {"in": "running"}
    )
    lines = table(scene)
    assert lines[0] == "small  running  1:02:05  durability: fsync (verified)"
    assert "1,234,567" in lines[2]
    # What has said nothing yet has no figures, not even zeros.
    assert all(line.split()[2:] == ["-"] * 5 for line in lines[3:6])
    assert plain_lines(scene)[0] == "1:02:05 running: in 1,234,567 (0/s), out 0 (0/s), 1,234,567 waiting"
