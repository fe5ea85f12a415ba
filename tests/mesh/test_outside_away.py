"""A run whose source and sink find their systems away when their vertices start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

import pytest

from millstream.limits import DRAIN_TIMEOUT_S
from tests.contract.sinks.sink_targets import finished_objects
from tests.mesh.running import Ended, Running, start
from tests.support.object_server import Bucket, ObjectServer, open_objects_server
from tests.support.redis_server import RedisServer, open_redis

RECORDS = 500
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {redisStreams: $source}
  - name: out
    sink: {file: $sink}
  edges:
  - {from: in, to: out, chain: false}
"""


@dataclass(frozen=True, slots=True)
class Outside:
    """What the pipeline reads from and writes to."""

    redis: RedisServer
    objects: ObjectServer
    bucket: Bucket

    def kill(self) -> None:
        self.redis.kill()
        self.objects.kill()

    async def start(self) -> None:
        await asyncio.to_thread(self.redis.start)
        await asyncio.to_thread(self.objects.start)

    def numbers(self) -> list[int]:
        """Those that are in the bucket, in order."""
        found = [self.bucket.get(key).splitlines() for key in finished_objects(self.bucket)]
        return sorted(int(json.loads(line)["value"]) for lines in found for line in lines)


@contextmanager
def prepared(directory: Path) -> Iterator[Outside]:
    """Both servers with what the pipeline in `directory` needs, killed."""
    with open_redis() as redis, open_objects_server() as objects:
        for number in range(RECORDS):
            redis.command("XADD", "numbers", "*", "value", number)
        bucket = objects.bucket()
        source = {**redis.settings, "stream": "numbers", "stopAtEnd": True}
        sink = {"path": bucket.url("out"), "store": objects.settings, "rolling": {"maxRecords": 100}}
        text = Template(PIPELINE).substitute(source=json.dumps(source), sink=json.dumps(sink))
        (directory / "pipeline.yaml").write_text(text)
        outside = Outside(redis, objects, bucket)
        outside.kill()
        yield outside


async def until_both_wait(run: Running) -> None:
    await run.until(lambda: all(f"{name} at" in run.err() for name in ("Redis", "S3")))


async def ended_at_once(run: Running) -> Ended:
    """How it ends after Ctrl-C, if it does not wait for records in flight: there are none."""
    run.interrupt()
    async with asyncio.timeout(DRAIN_TIMEOUT_S):
        return await run.ended()


@pytest.mark.guarantee("I1", "I9")
async def test_systems_that_are_away_when_vertices_start_are_tried_until_they_are_there(tmp_path: Path) -> None:
    with prepared(tmp_path) as outside:
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await until_both_wait(run)
            first = await run.pid("out-0")
            os.kill(first, signal.SIGKILL)
            await run.until_replaced("out-0", first)
            await outside.start()
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert ended.err.count("it is restarted") == 1, "only for the kill"
        assert "account: BALANCED" in ended.out
        assert outside.numbers() == [*range(RECORDS)]


@pytest.mark.sweep
async def test_vertices_that_wait_for_their_systems_end_when_they_are_told_to(tmp_path: Path) -> None:
    with prepared(tmp_path) as outside:
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await until_both_wait(run)
            ended = await ended_at_once(run)
        assert ended.exit_code == 0, ended.err
        assert "not finished" not in ended.err
        await outside.start()
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert outside.numbers() == [*range(RECORDS)]


@pytest.mark.sweep
async def test_a_chain_whose_target_is_away_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with open_redis() as redis:
        sink = json.dumps({**redis.settings, "stream": "numbers"})
        text = PIPELINE.replace("redisStreams: $source", f"generator: {{rpu: 100, records: {RECORDS}}}")
        text = text.replace("file: $sink", f"redisStreams: {sink}").replace("chain: false", "chain: true")
        (tmp_path / "pipeline.yaml").write_text(text)
        redis.kill()
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await run.until(lambda: "Redis at" in run.err())
            ended = await ended_at_once(run)
        assert ended.exit_code == 0, ended.err
        assert "not finished" not in ended.err
        await asyncio.to_thread(redis.start)
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert redis.command("XLEN", "numbers") == RECORDS
