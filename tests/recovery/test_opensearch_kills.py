"""Pipelines into OpenSearch, and all that they need, killed at random; and the sink at every durable step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sinks.sink_targets import opensearch_spec
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.recovery.kills import OUTSIDE, killed_in_turn
from tests.support.opensearch_server import OpenSearchServer

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {generator: {rpu: 25, keyCount: 20}}
  - name: out
    partitions: 2
    sink:
      opensearch: SETTINGS
      guarantee: exactlyOnce
  edges:
  - {from: in, to: out}
"""
POINTS = [
    f"opensearch_sink.{step}:{side}#{time}"
    for step, time in (("take_over", 1), ("bulk", 5))
    for side in ("before", "after")
]


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_each_record_counts_once_though_everything_is_killed(
    opensearch: OpenSearchServer, tmp_path: Path, mode: str
) -> None:
    index = opensearch.index()
    settings = {**opensearch.settings, "index": index, "lanesIndex": f"{index}-lanes", "mode": mode}

    async def restart() -> None:
        opensearch.kill()
        # Not in a thread: the server ends with the thread that starts it, and other tests use it, too.
        opensearch.start()

    text = PIPELINE.replace("SETTINGS", json.dumps(settings))
    made = await killed_in_turn(tmp_path, text, ("out-0", OUTSIDE, "broker"), restart)
    documents: list[dict[str, Any]] = [*opensearch.documents(index).values()]
    numbers = sorted(document["number"] for document in documents)
    if mode == "insert":
        assert numbers == [*range(made)]
    else:
        # The newest record of each key.
        assert numbers == [*range(made - 20, made)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", [POINTS[-1], *(pytest.param(one, marks=pytest.mark.sweep) for one in POINTS[:-1])])
async def test_killed_at_a_step_each_record_is_there_once(opensearch: OpenSearchServer, point: str) -> None:
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, mode="upsert", id="n")
    await kill_at(spec.as_written(given_only=True), point)
    assert opensearch.numbers(index) == EXPECTED
