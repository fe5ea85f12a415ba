"""From Kafka through a function to Kafka, exactly once: Millstream, the client library alone, and Quix Streams.

    python benchmarks/kafka.py [--records N] [--rounds N] [--only NAME ...]

All read the same records of 100 bytes from four partitions of one broker, and write them into four partitions of a new
topic, in transactions. `client` is a loop of the client library alone: it reads, writes and commits every second, and
calls no function. `quix` is Quix Streams with exactly-once, in an environment of its own. Its function is that of the
pipelines: `millstream` with a buffer on each edge, `chained` with the function in the source's lane, `unbuffered` with
the sink there, too. They take turns. Records are counted as readers of committed records find them.

A rate is that of the records between a tenth of them and all, by the times at which the broker stored them, so that
starting counts for none. Processor seconds are those of all processes of a contestant from start to end, and those of
the broker apart. Shares are the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.kafka_server import KafkaServer, open_kafka, why_missing

PARTITIONS = 4
RECORD_BYTES = 100
COMMIT_EVERY_S = 1.0
"""Of the loop. A commit of the others contains what they have by then."""
LIMIT_S = 900.0
_PROPERTIES = """\
log.flush.interval.messages=9223372036854775807
log.retention.check.interval.ms=300000
"""
"""As Kafka is run: the file system decides when it writes to the disk."""

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: k{number}}}
spec:
  vertices:
    - name: in
      partitions: {partitions}
      source: {{kafka: {{brokers: ["{brokers}"], topic: "{topic}", stopAtEnd: true}}}}
    - name: map
      partitions: {partitions}
      udf: {{python: "upper.py:process"}}
    - name: out
      partitions: {partitions}
      sink: {{kafka: {{brokers: ["{brokers}"], topic: "{target}"}}}}
  edges:
    - {{from: in, to: map{chain}}}
    - {{from: map, to: out{whole}}}
"""
FUNCTION = """\
def process(value: bytes) -> bytes:
    return value.upper()
"""
QUIX = """\
import sys

from quixstreams import Application

brokers, topic, target, records, group = sys.argv[1:]
app = Application(
    brokers, consumer_group=group, auto_offset_reset="earliest", processing_guarantee="exactly-once", loglevel="ERROR",
    commit_interval=1.0,
)
source = app.topic(topic, value_deserializer="bytes")
sink = app.topic(target, value_serializer="bytes")
app.dataframe(source).apply(lambda value: value.upper()).to_topic(sink)
app.run(count=int(records))
"""


class Took(NamedTuple):
    """What a contestant needed."""

    rate: float
    """Records a second."""
    cpu_s: float
    """Of the processor, all its processes."""
    broker_cpu_s: float
    wall_s: float

    def line(self, name: str) -> str:
        return (
            f"{name:10}  {self.rate:9,.0f} records/s  processor {self.cpu_s:6.2f} s, broker {self.broker_cpu_s:6.2f} s"
            f"  (whole {self.wall_s:.1f} s)"
        )


@dataclass(slots=True)
class Round:
    """What every contestant gets."""

    server: KafkaServer
    directory: Path
    topic: str
    records: int
    number: int
    quix: Path | None


def alone(brokers: str, topic: str, target: str, records: int) -> None:
    """The loop of the client library."""
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": brokers, "log_level": 0}
    # Without the last of these, it waits a second whenever its queue is full.
    reading = {"group.id": target, "isolation.level": "read_committed", "fetch.queue.backoff.ms": 10}
    consumer = Consumer({**settings, **reading})
    producer = Producer(
        {**settings, "transactional.id": target, "acks": "all", "queue.buffering.max.messages": 1_000_000}
    )
    producer.init_transactions(30)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    done = 0
    while done < records:
        producer.begin_transaction()
        until = time.monotonic() + COMMIT_EVERY_S
        while done < records and time.monotonic() < until:
            for message in consumer.consume(4096, 0.05):
                assert message.error() is None, message.error()
                while True:
                    try:
                        producer.produce(target, message.value())
                        break
                    except BufferError:
                        producer.poll(0.1)
                done += 1
        places = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
    consumer.close()


def run(given: Round, command: Sequence[str], directory: Path | None = None) -> None:
    """To its end. Each is a session of its own, as the broker is: the scheduler shares the processors among those."""
    subprocess.run(command, cwd=directory or given.directory, check=True, timeout=LIMIT_S, start_new_session=True)


def run_alone(given: Round, target: str) -> None:
    program = [sys.executable, str(Path(__file__).resolve())]
    run(given, [*program, "--alone", given.server.brokers, given.topic, target, str(given.records)])


def run_quix(given: Round, target: str) -> None:
    assert given.quix is not None
    (given.directory / "app.py").write_text(QUIX)
    run(given, [str(given.quix), "app.py", given.server.brokers, given.topic, target, str(given.records), target])


def run_pipeline(given: Round, target: str, chain: str = ", chain: false", whole: str = "") -> None:
    directory = given.directory / target
    directory.mkdir()
    text = PIPELINE.format(
        number=given.number,
        partitions=PARTITIONS,
        brokers=given.server.brokers,
        topic=given.topic,
        target=target,
        chain=chain,
        whole=whole,
    )
    (directory / "pipeline.yaml").write_text(text)
    (directory / "upper.py").write_text(FUNCTION)
    command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--quiet"]
    run(given, command, directory)


def run_chained(given: Round, target: str) -> None:
    run_pipeline(given, target, ", chain: true")


def run_unbuffered(given: Round, target: str) -> None:
    run_pipeline(given, target, ", chain: true", ", chain: true")


CONTESTANTS: dict[str, Callable[[Round, str], None]] = {
    "client": run_alone,
    "quix": run_quix,
    "millstream": run_pipeline,
    "chained": run_chained,
    "unbuffered": run_unbuffered,
}


def children_cpu_s() -> float:
    """Of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def broker_cpu_s(server: KafkaServer) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


def measure(given: Round, name: str) -> Took:
    """One contestant, once."""
    target = given.server.create(f"{name}-{given.number}", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    cpu_s, at_broker_s, began_s = children_cpu_s(), broker_cpu_s(given.server), time.perf_counter()
    CONTESTANTS[name](given, target)
    wall_s = time.perf_counter() - began_s
    cpu_s, at_broker_s = children_cpu_s() - cpu_s, broker_cpu_s(given.server) - at_broker_s
    times_ms = stored(given.server, target, given.records)
    first = len(times_ms) // 10
    seconds = max(0.001, (times_ms[-1] - times_ms[first]) / 1000)
    return Took((len(times_ms) - first) / seconds, cpu_s, at_broker_s, wall_s)


def stored(server: KafkaServer, topic: str, records: int) -> Sequence[int]:
    """When the broker stored each record, in order; each number has to be there once."""
    messages = server.read(topic)
    numbers = {int((message.value() or b"")[:12]) for message in messages}
    assert len(messages) == len(numbers) == records, f"{topic}: {len(messages)} records, {len(numbers)} numbers"
    return sorted(message.timestamp()[1] for message in messages)


def fill(server: KafkaServer, records: int) -> str:
    topic = server.create("numbers", PARTITIONS)
    for partition in range(PARTITIONS):
        numbers = range(partition, records, PARTITIONS)
        server.produce(topic, [(b"%012d " % number).ljust(RECORD_BYTES, b"x") for number in numbers], partition)
    return topic


def install_quix(directory: Path) -> Path:
    """An environment with Quix Streams; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "quixstreams"], check=True)
    return python


def compete(names: Sequence[str], records: int, rounds: int, directory: Path) -> dict[str, list[Took]]:
    quix = install_quix(directory / "quix") if "quix" in names else None
    found: dict[str, list[Took]] = {name: [] for name in names}
    with open_kafka(directory / "kafka", properties=_PROPERTIES) as server:
        topic = fill(server, records)
        for number in range(rounds):
            for name in names:
                given = Round(server, directory, topic, records, number, quix)
                found[name].append(measure(given, name))
                print(found[name][-1].line(name), flush=True)
    return found


def shares(found: dict[str, list[Took]]) -> list[str]:
    """How each of ours stands to the others."""
    lines = []
    for name in ("millstream", "chained", "unbuffered"):
        for other in ("client", "quix"):
            pairs = list(zip(found.get(name, ()), found.get(other, ()), strict=False))
            if pairs:
                rate = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
                cpu = statistics.median(theirs.cpu_s / ours.cpu_s for ours, theirs in pairs)
                lines.append(f"{name} / {other}: {rate:.2f} of its rate, {cpu:.2f} of its records a processor second")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--alone", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        brokers, topic, target, records = options.alone
        alone(brokers, topic, target, int(records))
        return
    if why := why_missing():
        sys.exit(why)
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    with tempfile.TemporaryDirectory(prefix="millstream-kafka-") as directory:
        found = compete(options.only, options.records, options.rounds, Path(directory))
    print("\n".join(shares(found)))
    print(json.dumps({name: [took._asdict() for took in each] for name, each in found.items()}))


if __name__ == "__main__":
    main()
