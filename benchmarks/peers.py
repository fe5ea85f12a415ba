"""The same function over the same records with Millstream and with others that a Python function runs in.

    python benchmarks/peers.py [--records N] [--rounds N] [--only NAME ...]

The function parses a JSON record of 300 bytes, looks something up, multiplies, and writes JSON again. Some read a file
and write files; those that live beside Kafka read a topic and write one (a broker as `make servers` fetches it; every
Kafka run has the same). Every output is compared with what a plain loop over the file gives: a peer that loses, repeats
or changes a record fails.

Each peer has an environment of its own below `.cache/peers`, with the versions that stand here; it is made at the first
use, with the registries' ordinary clients. Rates and processor seconds are the difference between a run of all records
and a run of a tenth of them, so that starting counts for none; memory is the largest sum over all processes of the
large run, shared pages counted once (PSS). Peers take turns; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

from observed_run import machine
from peer_runs import (
    KAFKA_PROPERTIES,
    LIMIT_S,
    NotAvailableError,
    Used,
    call,
    environment_of,
    installed,
    keep_orphans,
    measured,
    tail,
)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.kafka_server import KafkaServer, open_kafka, why_missing

CACHE = Path(__file__).resolve().parent.parent / ".cache"
HOME = CACHE / "peers"
RECORD_BYTES = 300
PARTS = 20
"""Structured Streaming gets so many files, one for each of its batches."""
PARTITIONS = 4
RATE_MIN_S = 1.0

FUNCTION = """\
import json

REGIONS = {"de": "emea", "fr": "emea", "in": "apac", "jp": "apac", "us": "amer", "br": "amer"}


def enrich(value):
    order = json.loads(value)
    order["total"] = round(order["pieces"] * order["price"], 2)
    order["region"] = REGIONS.get(order["country"], "other")
    return json.dumps(order)


def process(value: bytes) -> bytes:
    return enrich(value).encode()
"""
LOOP = """\
import sys

from enrich import process

with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as target:
    for line in source:
        target.write(process(line) + b"\\n")
"""
_CHAINED, _BUFFERED = ", chain: true", ", chain: false"
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: peer}
spec:
  vertices:
    - name: in
      ${partitions}source: $source
    - name: map
      ${partitions}udf: {python: "enrich.py:process"}
    - name: out
      ${partitions}sink: $sink
  edges:
    - {from: in, to: map$chain}
    - {from: map, to: out$last}
"""
BYTEWAX = """\
import os

import bytewax.operators as op
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow

from enrich import enrich

flow = Dataflow("peer")
lines = op.input("in", flow, FileSource(os.environ["PEER_INPUT"]))
enriched = op.map("enrich", lines, enrich)
# A sink that can be recovered takes keyed items.
op.output("out", op.key_on("key", enriched, lambda _: "all"), FileSink(os.environ["PEER_OUTPUT"]))
"""
QUIX = """\
import sys

from enrich import process
from quixstreams import Application

brokers, topic, target, records = sys.argv[1:]
app = Application(
    brokers, consumer_group=target, auto_offset_reset="earliest", processing_guarantee="exactly-once", loglevel="ERROR"
)
source = app.topic(topic, value_deserializer="bytes")
sink = app.topic(target, value_serializer="bytes")
app.dataframe(source).apply(process).to_topic(sink)
app.run(count=int(records))
"""
SPARK = """\
import sys

from enrich import enrich
from pyspark.sql import SparkSession, functions

parts, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(parts)
enriched = lines.select(functions.udf(enrich, "string")("value").alias("value"))
writer = enriched.writeStream.format("text").option("path", target).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
"""
SPARK_REAL_TIME = """\
import signal
import sys
import threading

from enrich import enrich
from pyspark.sql import SparkSession, functions

jars, brokers, topic, target, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").config("spark.jars", jars)
# 4.2.0 refuses functions in Python (STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST). With the check off
# it starts, and held back what the functions returned for minutes.
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
kafka = {"kafka.bootstrap.servers": brokers}
lines = spark.readStream.format("kafka").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
enriched = lines.select(functions.udf(enrich, "string")(functions.col("value").cast("string")).alias("value"))
writer = enriched.writeStream.format("kafka").options(**kafka, topic=target).option("checkpointLocation", checkpoint)
query = writer.outputMode("update").trigger(realTime="5 minutes").start()
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
while query.isActive and not ended.wait(0.2):
    pass
if query.exception() is not None:
    sys.exit(str(query.exception()))
query.stop()
"""
FLINK = """\
import sys

from enrich import enrich
from pyflink.common import Configuration, Encoder, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat

source, target, checkpoints = sys.argv[1:]
configuration = Configuration()
configuration.set_string("execution.checkpointing.dir", f"file://{checkpoints}")
configuration.set_string("execution.checkpointing.interval", "10s")
env = StreamExecutionEnvironment.get_execution_environment(configuration)
env.add_python_file("enrich.py")
files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).build()
lines = env.from_source(files, WatermarkStrategy.no_watermarks(), "in")
enriched = lines.map(enrich, Types.STRING())
enriched.sink_to(FileSink.for_row_format(target, Encoder.simple_string_encoder()).build())
env.execute()
"""
_SPARK_KAFKA = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream.benchmarks</groupId><artifactId>spark-kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>4.2.0</version>
  </dependency></dependencies>
</project>
"""
_SPARK_KAFKA_JARS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients")
_MORE_JARS = ("commons-pool2", "scala-parallel-collections_2.13")


@dataclass(slots=True)
class Given:
    """What a peer gets for one run."""

    directory: Path
    """Empty but for the function."""
    lines: Path
    """A file with a record a line."""
    records: int
    server: KafkaServer | None = None
    topic: str = ""

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def target(self) -> str:
        return self.directory.name


@dataclass(frozen=True, slots=True)
class Peer:
    """How it is installed and run, and what it promises."""

    run: Callable[[Given, Path], None]
    promise: str
    requirements: tuple[str, ...] = ()
    beside_kafka: bool = False


def run_loop(given: Given, python: Path) -> None:
    (given.directory / "loop.py").write_text(LOOP)
    given.out.mkdir()
    call(given.directory, python, "loop.py", given.lines, given.out / "lines")


def run_millstream(given: Given, python: Path, chains: int = 0) -> None:
    """`chains`: so many of its two edges have no buffer."""
    source = f'{{file: {{paths: ["{given.lines}"], format: lines}}}}'
    _run_pipeline(given, python, source, "{file: {path: out, format: lines}}", chains, 1)


def run_chained(given: Given, python: Path) -> None:
    run_millstream(given, python, 1)


def run_unbuffered(given: Given, python: Path) -> None:
    run_millstream(given, python, 2)


def run_on_kafka(given: Given, python: Path) -> None:
    assert given.server is not None
    brokers = f'brokers: ["{given.server.brokers}"]'
    source = f'{{kafka: {{{brokers}, topic: "{given.topic}", stopAtEnd: true}}}}'
    sink = f'{{kafka: {{{brokers}, topic: "{given.target}"}}}}'
    _run_pipeline(given, python, source, sink, 1, PARTITIONS)


def _run_pipeline(given: Given, python: Path, source: str, sink: str, chains: int, partitions: int) -> None:
    text = Template(PIPELINE).substitute(
        source=source,
        sink=sink,
        chain=_CHAINED if chains > 0 else _BUFFERED,
        last=_CHAINED if chains > 1 else "",
        partitions=f"partitions: {partitions}\n      ",
    )
    (given.directory / "pipeline.yaml").write_text(text)
    call(given.directory, python, "-m", "millstream_runner", "run", "pipeline.yaml", "--quiet")


def run_bytewax(given: Given, python: Path) -> None:
    (given.directory / "flow.py").write_text(BYTEWAX)
    (given.directory / "recovery").mkdir()
    given.out.mkdir()
    call(given.directory, python, "-m", "bytewax.recovery", "recovery", "1")
    paths = {"PEER_INPUT": str(given.lines), "PEER_OUTPUT": str(given.out / "lines")}
    call(given.directory, python, "-m", "bytewax.run", "flow", "-r", "recovery", "-s", "10", "-b", "0", **paths)


def run_quix(given: Given, python: Path) -> None:
    assert given.server is not None
    (given.directory / "app.py").write_text(QUIX)
    call(given.directory, python, "app.py", given.server.brokers, given.topic, given.target, str(given.records))


def run_spark(given: Given, python: Path) -> None:
    (given.directory / "stream.py").write_text(SPARK)
    parts = given.lines.with_suffix(".parts")
    call(given.directory, python, "stream.py", parts, given.out, given.directory / "checkpoint")


def run_spark_real_time(given: Given, python: Path) -> None:
    """It has no end: it is ended when the target has as many records as there are."""
    assert given.server is not None
    (given.directory / "stream.py").write_text(SPARK_REAL_TIME)
    jars = ",".join(str(jar) for jar in sorted(spark_kafka().glob("*.jar")))
    command: list[str | Path] = [
        python,
        "stream.py",
        jars,
        given.server.brokers,
        given.topic,
        given.target,
        given.directory / "state",
    ]
    with (given.directory / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=given.directory,
            env=environment_of(python, {}),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            if sum(given.server.ends(given.target)) >= given.records:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
            time.sleep(0.1)
    if process.returncode != 0:
        process.kill()
        process.wait()
        raise NotAvailableError(f"it ended with {process.returncode}: {tail(given.directory)}")


def run_flink(given: Given, python: Path) -> None:
    (given.directory / "job.py").write_text(FLINK)
    call(given.directory, python, "job.py", given.lines, given.out, given.directory / "checkpoints")


PEERS = {
    "loop": Peer(run_loop, "nothing: a kill loses what is not written, and the next run begins again"),
    "millstream": Peer(run_millstream, "exactly once; each commit is fsynced, at every step"),
    "millstream-chained": Peer(run_chained, "the same, with one buffer less"),
    "millstream-unbuffered": Peer(run_unbuffered, "exactly once into files; each commit is fsynced; no buffer"),
    "bytewax": Peer(
        run_bytewax,
        "exactly once into files, by snapshots every 10 s; a kill repeats up to 10 s of work; fsynced",
        ("bytewax==0.21.1",),
    ),
    "spark": Peer(
        run_spark,
        "exactly once into files, by a checkpoint of each micro-batch; a kill repeats one",
        ("pyspark==4.3.0",),
    ),
    "flink": Peer(
        run_flink,
        "exactly once into files, by checkpoints every 10 s; files can be seen after one",
        ("apache-flink==2.3.0",),
    ),
    "millstream-kafka": Peer(run_on_kafka, "exactly once by transactions; each commit is fsynced", beside_kafka=True),
    "quix": Peer(
        run_quix,
        "exactly once by Kafka's transactions, every 5 s; not fsynced",
        ("quixstreams==3.28.1",),
        beside_kafka=True,
    ),
    "spark-real-time": Peer(
        run_spark_real_time,
        "at least once into Kafka; a checkpoint every 5 min",
        ("pyspark==4.2.0",),
        beside_kafka=True,
    ),
}


def python_of(name: str) -> Path:
    """The Python of a peer's environment, which is made when it is not there."""
    return installed(HOME, PEERS[name].requirements)


def spark_kafka() -> Path:
    """Spark's own connector, which no Python package has."""
    home = HOME / "spark-kafka-4.2.0"
    if not home.exists():
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "pom.xml").write_text(_SPARK_KAFKA)
            names = ",".join(_SPARK_KAFKA_JARS + _MORE_JARS)
            command = [
                "mvn",
                "--quiet",
                "--batch-mode",
                "dependency:copy-dependencies",
                f"-DincludeArtifactIds={names}",
            ]
            done = subprocess.run([*command, f"-DoutputDirectory={home}"], cwd=name, capture_output=True, check=False)
        if done.returncode != 0:
            raise NotAvailableError("Maven cannot fetch Spark's connector for Kafka")
    return home


def write_records(path: Path, records: int, part: int) -> None:
    """One file, and the same in parts of so many."""
    lines = list(_records(records))
    path.write_bytes(b"".join(lines))
    parts = path.with_suffix(".parts")
    parts.mkdir()
    for first in range(0, records, part):
        file = parts / f"{first:09}.jsonl"
        file.write_bytes(b"".join(lines[first : first + part]))
        # They are taken in the order of their times of change.
        os.utime(file, (1_700_000_000 + first, 1_700_000_000 + first))


def _records(count: int) -> Iterator[bytes]:
    choice = random.Random(1)
    for number in range(count):
        order = {
            "id": number,
            "customer": f"customer-{choice.randrange(100_000):06}",
            "country": choice.choice(("de", "fr", "in", "jp", "us", "br", "za")),
            "pieces": choice.randint(1, 20),
            "price": choice.randint(1, 99_999) / 100,
            "tags": ["new", "gift"],
            "note": "",
        }
        order["note"] = "x" * (RECORD_BYTES - 1 - len(json.dumps(order)))
        yield json.dumps(order).encode() + b"\n"


def outputs(given: Given) -> Iterable[bytes]:
    """Every line that a reader of the target finds."""
    if given.server is not None:
        yield from given.server.values(given.target)
        return
    for path in sorted(given.out.rglob("*")):
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(given.out).parts):
            yield from path.read_bytes().splitlines()


def digest(lines: Iterable[bytes]) -> tuple[int, int]:
    """How many there are, and their sum: the same in any order."""
    count = total = 0
    for line in lines:
        count += 1
        total += int.from_bytes(hashlib.blake2b(line, digest_size=8).digest())
    return count, total % 2**64


def both_runs(name: str, home: Path, sizes: Sequence[int], server: KafkaServer | None, turn: int) -> list[Used]:
    """A run of each size, its output compared with what the loop gives."""
    peer, python = PEERS[name], python_of(name)
    found = []
    for records in sizes:
        directory = home / f"{name}-{records}-{turn}"
        directory.mkdir()
        (directory / "enrich.py").write_text(FUNCTION)
        given = Given(directory, home / f"{records}.jsonl", records)
        if peer.beside_kafka:
            assert server is not None
            given.server, given.topic = server, f"orders-{records}"
            server.create(given.target, PARTITIONS)
        found.append(measured(partial(peer.run, given, python), server.pid if server else None))
        if digest(outputs(given)) != expected(given.lines):
            raise NotAvailableError(f"its output differs from the loop's: {digest(outputs(given))[0]} records")
        shutil.rmtree(directory)
    return found


def expected(lines: Path) -> tuple[int, int]:
    scope: dict[str, Callable[[bytes], bytes]] = {}
    exec(FUNCTION, scope)
    with lines.open("rb") as file:
        return digest(scope["process"](line) for line in file)


def row(name: str, runs: Sequence[list[Used]], sizes: Sequence[int]) -> str:
    small, large = sizes
    between = large - small
    seconds = statistics.median(two.wall_s - one.wall_s for one, two in runs)
    # Runs of about one length say nothing about a rate: there were too few records.
    rate = f"{between / seconds:,.0f}" if seconds > RATE_MIN_S else "-"
    cpu = statistics.median((two.cpu_s - one.cpu_s) / between * 1e6 for one, two in runs)
    at_broker = statistics.median((two.broker_cpu_s - one.broker_cpu_s) / between * 1e6 for one, two in runs)
    whole = statistics.median(two.wall_s for _, two in runs)
    whole_cpu = statistics.median(two.cpu_s for _, two in runs)
    memory = max(two.memory_mib for _, two in runs)
    broker = f" + {at_broker:.1f}" if PEERS[name].beside_kafka else ""
    return (
        f"| {name} | {rate} | {cpu:.1f}{broker} | {whole:.1f} s, {whole_cpu:.1f} s | {memory:,.0f} MiB "
        f"| {PEERS[name].promise} |"
    )


@contextmanager
def kafka_for(names: Sequence[str], home: Path, sizes: Sequence[int]) -> Iterator[KafkaServer | None]:
    """A broker with the records, where a peer needs one."""
    if not any(PEERS[name].beside_kafka for name in names):
        yield None
        return
    with open_kafka(home / "kafka", properties=KAFKA_PROPERTIES) as server:
        for records in sizes:
            topic = server.create(f"orders-{records}", PARTITIONS)
            lines = (home / f"{records}.jsonl").read_bytes().splitlines()
            for partition in range(PARTITIONS):
                server.produce(topic, lines[partition::PARTITIONS], partition)
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    arguments = parser.parse_args()
    names, sizes = list(arguments.only), (arguments.records // 10, arguments.records)
    if why := why_missing():
        print(f"without Kafka: {why}")
        names = [name for name in names if not PEERS[name].beside_kafka]
    print(machine())
    keep_orphans()
    found: dict[str, list[list[Used]]] = {}
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        home = Path(place)
        for records in sizes:
            write_records(home / f"{records}.jsonl", records, arguments.records // PARTS)
        with kafka_for(names, home, sizes) as server:
            for turn in range(arguments.rounds):
                for name in names:
                    try:
                        found.setdefault(name, []).append(both_runs(name, home, sizes, server, turn))
                    except (NotAvailableError, subprocess.TimeoutExpired) as error:
                        print(f"{name}: not measured: {error}", flush=True)
                    else:
                        print(row(name, found[name], sizes), flush=True)
    print("\n| | records/s | processor s per million | whole run | memory | promises |\n|---|---|---|---|---|---|")
    for name, runs in found.items():
        if runs:
            print(row(name, runs, sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
