"""Bounds that follow from the pipeline, before anything runs."""

from __future__ import annotations

import json

from millstream.limits import BUFFER_FRAMES_MAX, LOG_SEGMENT_BYTES, LOG_SEGMENT_BYTES_MIN, MIB
from millstream.plan.plan import plan_of
from millstream.spec.graph import Graph
from millstream.spec.loading import load_text
from millstream_vertex.settings import ledger_limits, log_segment_bytes


def _graph(group_by: dict[str, object], limits: dict[str, object]) -> Graph:
    spec = {
        "limits": limits,
        "vertices": [
            {"name": "in", "source": {"generator": {"records": 1}}},
            {"name": "more", "source": {"generator": {"records": 1}}},
            {"name": "sum", "udf": {"groupBy": group_by, "sql": {"query": "SELECT 1"}}},
            {"name": "out", "sink": {"blackhole": {}}},
        ],
        "edges": [{"from": "in", "to": "sum"}, {"from": "more", "to": "sum"}, {"from": "sum", "to": "out"}],
    }
    pipeline = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}, "spec": spec}
    return load_text(json.dumps(pipeline), "p.yaml").graph


def test_where_the_input_is_kept_several_segments_of_the_log_fit_the_buffers() -> None:
    def bytes_of(**limits: object) -> int:
        keeping = {"window": {"fixed": {"length": "1m"}}, "keepInput": True}
        return log_segment_bytes(_graph(keeping, limits), "sum")

    assert log_segment_bytes(_graph({"window": {"fixed": {"length": "1m"}}}, {"bufferMaxBytes": "1Mi"}), "sum") == (
        LOG_SEGMENT_BYTES
    )
    assert bytes_of() == 16_000_000, "a million frames of 64 bytes each fill four"
    assert bytes_of(bufferMaxLength=10_000_000) == 32 * MIB, "a quarter of a buffer"
    assert bytes_of(bufferMaxLength=10_000_000, bufferMaxBytes="512Mi") == LOG_SEGMENT_BYTES
    assert bytes_of(bufferMaxLength=10_000_000, bufferMaxBytes="32Mi") == 8 * MIB
    assert bytes_of(bufferMaxBytes="1Mi") == LOG_SEGMENT_BYTES_MIN


def test_a_buffer_may_hold_as_many_frames_as_records() -> None:
    keeping = {"window": {"fixed": {"length": "1m"}}, "keepInput": True}
    graph = _graph(keeping, {"bufferMaxLength": 300_000})
    assert ledger_limits(plan_of(graph), "in").frames_per_buffer_max == 300_000
    # Its milestones: at most one for each frame of its two inputs.
    assert ledger_limits(plan_of(graph), "sum").frames_per_buffer_max == 600_000
    assert (
        ledger_limits(plan_of(_graph(keeping, {"bufferMaxLength": 10})), "in").frames_per_buffer_max
        == BUFFER_FRAMES_MAX
    )
