"""A process that takes too much memory: ended before the machine has none left, said, and not restarted for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from millstream import codes
from millstream.limits import MIB
from millstream.record import ReplicaId
from millstream_runner.local.policy import FAILURES_MAX
from millstream_runner.local.replica import Hooks, Logs, ProcessPlan, Supervisor
from millstream_runner.local.states import State
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import start

if TYPE_CHECKING:
    from tests.support.kafka_server import KafkaServer

LIMIT_BYTES = 150 * MIB
GROWS = """
held = []
while True:
    held.append(bytearray(b"x") * (16 << 20))
"""
"""What a library may do with a batch of records that is small when it is stored."""


class Growing(Supervisor):
    """The supervisor of a process whose lanes do nothing."""

    def progress(self) -> Mapping[str, object]:
        return {}

    def hear(self, text: str) -> None:
        pass

    def started(self) -> None:
        pass

    async def have_lanes_ended(self) -> bool:
        return False


@pytest.mark.process
async def test_a_process_that_grows_is_ended_and_given_up_in_the_end(tmp_path: Path) -> None:
    said: list[str] = []

    async def none_has_ended(replica: ReplicaId) -> bool:
        return False

    async def print_nothing(lines: bytes) -> None:
        pass

    def hear(entry: Mapping[str, Any]) -> None:
        said.append(str(entry["message"]))

    hooks = Hooks(
        progress=lambda replica: None,
        have_ended=none_has_ended,
        prints=print_nothing,
        on_entry=lambda entry: True,
        on_health=hear,
        on_change=lambda: None,
    )
    plan = ProcessPlan("in-0", (ReplicaId("in", 0),))
    with ExitStack() as files:
        supervisor = Growing(plan, Logs(tmp_path, plan, files), hooks, memory_max=LIMIT_BYTES)
        async with asyncio.timeout(60):
            await supervisor.keep_running(lambda: [sys.executable, "-c", GROWS])
    assert supervisor.state is State.FAILED
    failure = supervisor.failure
    assert failure is not None
    assert (failure.exit_code, failure.code) == (4, codes.PROCESS_TOO_LARGE)
    assert failure.process == "in-0"
    assert "MiB of memory, more than its limit of 150 MiB: it was killed, 4 times in a row" in failure.reason
    assert "--worker-memory" in failure.message
    assert len(said) == supervisor.restarts == FAILURES_MAX - 1
    assert all("more than its limit" in text and "it is restarted" in text for text in said)


RECORDS = 50
RECORD_BYTES = 7_000_000
WRITES_ONE_BATCH = f"""
import sys
from confluent_kafka import Producer
producer = Producer({{
    "bootstrap.servers": sys.argv[1], "compression.type": "gzip", "linger.ms": 60_000, "batch.size": 2**31 - 1,
    "message.max.bytes": 1_000_000_000, "queue.buffering.max.kbytes": 2**21 - 1, "acks": "all",
}})
for _ in range({RECORDS}):
    producer.produce(sys.argv[2], bytes({RECORD_BYTES}), partition=0)
assert producer.flush(300) == 0
"""


@pytest.mark.sweep
async def test_a_batch_of_kafka_that_is_small_when_it_is_stored(kafka: KafkaServer, tmp_path: Path) -> None:
    """The whole batch is decompressed by the client before a record of it can be looked at."""
    topic = kafka.create(f"bomb-{uuid4().hex[:8]}", config={"max.message.bytes": str(16 * MIB)})
    kafka.produce(topic, [b"small"])
    command = [sys.executable, "-c", WRITES_ONE_BATCH, kafka.brokers, topic]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=300)
    files = PipelineFiles(tmp_path)
    files.write(
        f"- name: in\n  source: {{kafka: {{brokers: ['{kafka.brokers}'], topic: {topic}, stopAtEnd: true}}}}\n"
        "- name: out\n  sink: {blackhole: {}}\n",
        ["in -> out"],
    )
    async with start(files.directory, "run", "--worker-memory", "256Mi", "pipeline.yaml") as running:
        ended = await running.ended()
    assert ended.exit_code == 4, ended.err
    assert "error[MS-4016]" in ended.err
    assert "more than its limit of 256 MiB: it was killed, 4 times in a row" in ended.err
    # With a higher limit, the same run continues with all of it.
    async with start(files.directory, "run", "--worker-memory", "4Gi", "pipeline.yaml") as running:
        ended = await running.ended()
    assert ended.exit_code == 0, ended.err
    assert running.records("out") == RECORDS + 1
