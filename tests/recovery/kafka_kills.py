"""From Kafka through a function to Kafka, while any process may be killed: the pipeline, its function's, the brokers.

Above it: a run in `test_kafka_pipelines`. The source topic is
filled between the kills, so the pipeline has work as long as they last, and whatever the machine's speed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from tests.mesh.running import Ended, Running, start
from tests.support.kafka_server import KafkaServer

PARTITIONS = 4
VICTIMS = ("in-0", "map-0", "out-0", "function", "broker", "kafka")
"""Workers by a replica of theirs, the process of the function, our own broker, and Kafka's."""
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  vertices:
  - name: in
    partitions: {partitions}
    source: {{kafka: {{brokers: ["{brokers}"], topic: {topic}, consumerGroup: {topic}}}, guarantee: exactlyOnce}}
  - name: map
    partitions: {partitions}
    udf: {{python: "functions.py:branded"}}
  - name: out
    partitions: {partitions}
    sink: {{kafka: {{brokers: ["{brokers}"], topic: {target}}}, guarantee: exactlyOnce}}
  edges:
  - {{from: in, to: map}}
  - {{from: map, to: out}}
"""
FUNCTION = """\
import os


def branded(value):
    # Of records that are processed twice, at most one result may count.
    return value + b" " + os.urandom(4).hex().encode()
"""


@dataclass(slots=True)
class Storm:
    """What became of a pipeline that was killed."""

    kills: Counter[str] = field(default_factory=Counter)
    values: Sequence[bytes] = ()
    """In the target, as a reader of committed records finds them."""
    ended: Ended | None = None

    def numbers(self) -> list[int]:
        """Of the records in the target, sorted."""
        return sorted(int(value.split()[0]) for value in self.values)


async def storm(
    server: KafkaServer,
    directory: Path,
    *,
    records: int,
    victims: Sequence[str],
    rng: random.Random,
    show: Callable[[str], object] = lambda _: None,
) -> Storm:
    """Run the pipeline over so many numbered records, with a kill of each victim in turn; returns when all have arrived
    and the pipeline has drained.

    The broker of Kafka lives as long as the thread that starts it, so this must be one that stays.
    """
    topic = server.create(f"numbers-{uuid4()}", PARTITIONS)
    target = server.create(f"out-{uuid4()}", PARTITIONS)
    text = PIPELINE.format(partitions=PARTITIONS, brokers=server.brokers, topic=topic, target=target)
    (directory / "pipeline.yaml").write_text(text)
    (directory / "functions.py").write_text(FUNCTION)
    found = Storm()
    part = records // (len(victims) + 1)
    async with start(directory, "run", "pipeline.yaml") as run:
        for number, victim in enumerate(victims):
            _fill(server, topic, number * part, (number + 1) * part)
            # Sometimes before what was killed last is back, sometimes in the middle of the work.
            seen = run.records("out")
            wanted = seen + rng.choice((0, 1, rng.randrange(part)))
            await run.until(lambda wanted=wanted: run.records("out") >= wanted)  # type: ignore[misc]
            if _kill(run, server, victim):
                found.kills[victim] += 1
            show(f"{number + 1}: {victim} at {run.records('out')} of {(number + 1) * part}")
        _fill(server, topic, len(victims) * part, records)
        await run.until(lambda: run.records("out") >= records)
        run.interrupt()
        found.ended = await run.ended()
    found.values = await asyncio.to_thread(server.values, target)
    return found


def _fill(server: KafkaServer, topic: str, first: int, stop: int) -> None:
    for partition in range(PARTITIONS):
        values = [b"%d" % number for number in range(first, stop) if number % PARTITIONS == partition]
        server.produce(topic, values, partition)


def _kill(run: Running, server: KafkaServer, victim: str) -> bool:
    """Whether there was such a process."""
    if victim == "kafka":
        server.restart()
        return True
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        pid = _function_of(run) if victim == "function" else run.pids().get(victim)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _function_of(run: Running) -> int | None:
    family = psutil.Process(run.process.pid).children(recursive=True)
    return next((process.pid for process in family if "millstream_udf" in process.cmdline()), None)
