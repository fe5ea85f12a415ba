"""The file sink in a bucket, killed at every durable step; and a pipeline into one, killed at random."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.sinks.sink_targets import finished_objects, object_numbers
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.recovery.kills import killed_in_turn
from tests.support.children import together
from tests.support.object_server import ObjectServer

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {generator: {rpu: 750, keyCount: 20}}
  - name: same
    udf: {builtin: {name: cat}}
    partitions: 2
  - name: out
    partitions: 2
    sink:
      file: SETTINGS
      guarantee: exactlyOnce
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
POINTS = [
    f"object_sink.{step}:{side}#{time}"
    for step, times in (("claim", (1, 3)), ("put", (2,)))
    for time in times
    for side in ("before", "after")
]


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_each_record_is_there_once_though_sink_and_broker_are_killed(
    objects: ObjectServer, tmp_path: Path
) -> None:
    bucket = objects.bucket()
    settings = {"path": bucket.url("out"), "store": objects.settings, "rolling": {"maxAge": "200ms"}}
    text = PIPELINE.replace("SETTINGS", json.dumps(settings))
    made = await killed_in_turn(tmp_path, text, ("out-0", "broker") * 2)
    found = [json.loads(line)["number"] for key in finished_objects(bucket) for line in bucket.get(key).splitlines()]
    assert sorted(found) == [*range(made)]


@pytest.mark.guarantee("I1")
async def test_a_sink_is_killed_at_every_durable_step(objects: ObjectServer) -> None:
    buckets = {point: objects.bucket() for point in POINTS}
    specs = {
        point: {"file": {"path": bucket.url("out"), "store": objects.settings, "rolling": {"maxRecords": 15}}}
        for point, bucket in buckets.items()
    }
    await together(*(kill_at(spec, point) for point, spec in specs.items()))
    for point, bucket in buckets.items():
        assert object_numbers(bucket) == EXPECTED, point
