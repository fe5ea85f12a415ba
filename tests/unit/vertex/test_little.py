"""What of a lane's progress others may hear later, by the buffers and windows of its pipeline."""

from __future__ import annotations

from millstream.limits import OT_LITTLE_SHARE
from millstream.spec.loading import load_text
from millstream_vertex.pacing import Little
from millstream_vertex.settings import little_of

TEXT = """
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {}}}
    - {name: map, udf: {builtin: {name: cat}}, limits: {bufferMaxLength: 6400, bufferUsageLimit: 50}}
    - name: sums
      udf: {sql: {query: "SELECT count(*) AS n FROM window"}, groupBy: {window: {fixed: {length: 1s}}}}
      limits: {bufferMaxLength: 7, bufferUsageLimit: 100}
    - {name: out, sink: {blackhole: {}}}
    - {name: beside, sink: {blackhole: {}}}
  edges:
    - {from: in, to: map}
    - {from: map, to: sums}
    - {from: sums, to: out}
    - {from: in, to: beside}
"""


def little(vertex: str) -> Little:
    return little_of(load_text(TEXT, "p.yaml").plan, vertex)


def test_a_watermark_is_little_where_no_window_waits_for_it() -> None:
    assert [name for name in ("in", "map", "sums", "out", "beside") if little(name).watermark] == [
        "sums",
        "out",
        "beside",
    ]


def test_little_is_little_beside_the_smallest_buffer() -> None:
    assert little("in").records == 3200 // OT_LITTLE_SHARE
    # A buffer of seven records is to be heard of at once.
    assert little("map").records == 0
    assert not little("map").covers(0, 0)
    assert little("in").covers(399, 1000)
    assert not little("in").covers(400, 1000)
    assert not little("in").covers(1, 2**40)
