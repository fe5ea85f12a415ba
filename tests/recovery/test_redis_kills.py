"""A pipeline into Redis, and all that it needs, killed at random; and its sink at every durable step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contract.sinks.sink_targets import redis_numbers
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.recovery.kills import OUTSIDE, killed_in_turn
from tests.support.children import together
from tests.support.redis_server import RedisServer, open_redis

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
      redisStreams: SETTINGS
      guarantee: exactlyOnce
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
POINTS = [
    f"redis_sink.{step}:{side}#{time}"
    for step, time in (("take_over", 1), ("commit", 5))
    for side in ("before", "after")
]


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_each_record_is_there_once_though_everything_is_killed(tmp_path: Path) -> None:
    with open_redis() as server:
        settings = {**server.settings, "stream": "numbers"}

        async def restart() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        text = PIPELINE.replace("SETTINGS", json.dumps(settings))
        made = await killed_in_turn(tmp_path, text, ("out-0", OUTSIDE, "broker"), restart)
        numbers = [json.loads(entry["value"])["number"] for entry in server.entries("numbers")]
    assert sorted(numbers) == [*range(made)]


@pytest.mark.guarantee("I1")
async def test_a_sink_is_killed_at_every_durable_step(redis: RedisServer) -> None:
    streams = {point: f"killed-{uuid4()}" for point in POINTS}
    specs = {point: {"redisStreams": {**redis.settings, "stream": stream}} for point, stream in streams.items()}
    await together(*(kill_at(spec, point) for point, spec in specs.items()))
    for point, stream in streams.items():
        assert redis_numbers(redis, stream) == EXPECTED, point
