"""State with many keys: Millstream beside Quix Streams, Bytewax, PyFlink and Spark, with the same records and function.

    python benchmarks/state_peers.py [--records N] [--keys N] [--rounds N] [--only NAME ...] [--environments DIRECTORY]

The function (`state_jobs/counting.py`) gets 100 bytes for the key of each record, puts 100 bytes, and passes them on.
Records have 99 bytes; their keys are drawn evenly, with the same seed for all. Each output contains how many records
its key has had, so the outputs show whether the state was kept: a peer whose outputs are not exactly the expected
ones, or whose last counts do not add up to the number of records, is not measured. All read files and write files,
except Quix Streams, which reads a topic and writes one (a broker as `make servers` fetches it).

Rates are from the first record that a function gets until the last output or checkpoint is committed, so starting
counts for none. Processor time is that of all processes from the same moment to their end. Memory is the largest sum
over all processes, shared pages counted once (PSS). The broker of Millstream is one of its processes; that of Kafka is
given apart. Each peer runs once as its documentation recommends, and once with the shortest interval between commits
that makes sense. Peers have environments of their own, made with pip; `--environments` keeps them.
The last line is one JSON object. Exit code 1 if something could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from observed_run import machine
from peer_runs import KAFKA_PROPERTIES, NotAvailableError, call, call_together, installed, keep_orphans, measured
from state_jobs.counting import BEGUN, COUNT, KEY, RECORD, RECORD_BYTES

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.kafka_server import KafkaServer, open_kafka, why_missing

JOBS = Path(__file__).resolve().parent / "state_jobs"
FILE_RECORDS = 10_000
"""Flink and Spark get files of so many records."""
HALVES = 2
"""Quix Streams and Bytewax use one processor per process: each of two gets half of the keys."""
BENCH_RECORDS_MIN = 2_000_000
"""`millstream bench` needs some seconds."""
BENCH = "millstream-bench"
REFERENCE = "millstream-memory"


@dataclass(frozen=True, slots=True)
class Input:
    """The records, in the forms in which peers take them."""

    directory: Path
    records: int
    keys: int
    counts: Counter[bytes]
    """How many records each key has."""
    server: KafkaServer | None = None

    @property
    def whole(self) -> Path:
        return self.directory / "whole.jsonl"

    @property
    def parts(self) -> Path:
        return self.directory / "parts"

    def half(self, number: int) -> Path:
        return self.directory / f"half-{number}.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a peer."""

    directory: Path
    """Empty but for the jobs, `out` and `progress`."""
    python: Path
    setting: str
    given: Input

    @property
    def out(self) -> Path:
        """For what it writes, if these are files."""
        return self.directory / "out"

    @property
    def progress(self) -> Path:
        """For its checkpoints, if these are files."""
        return self.directory / "progress"

    def target(self, half: int) -> str:
        return f"{self.directory.name}-{half}"


@dataclass(frozen=True, slots=True)
class System:
    """How it is installed and run, and how durable it is."""

    run: Callable[[Run], None]
    kill: str
    """What survives kill -9."""
    output: str
    """What its output guarantees."""
    requirements: tuple[str, ...] = ()
    on_kafka: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """A system with one setting."""

    system: System
    setting: str
    """What `run` says."""
    commits: str
    """How often it commits or checkpoints."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured in one run."""

    records_per_s: float
    cpu_s_per_million: float
    memory_mib: float
    broker_cpu_s_per_million: float = 0.0


def run_millstream(run: Run) -> None:
    text = Template((JOBS / "millstream.yaml").read_text())
    (run.directory / "pipeline.yaml").write_text(text.substitute(input=run.given.whole, store=run.setting))
    call(run.directory, run.python, "-m", "millstream_runner", "run", "pipeline.yaml", "--quiet")


def run_bytewax(run: Run) -> None:
    """`setting`: seconds between snapshots. Older snapshots are not kept (-b 0)."""
    for half in range(HALVES):
        (run.progress / str(half)).mkdir()
        call(run.directory, run.python, "-m", "bytewax.recovery", run.progress / str(half), "1")
    commands: list[list[str | Path]] = []
    for half in range(HALVES):
        flow = f"state_jobs.bytewax_flow:get_flow('{run.given.half(half)}', '{run.out / str(half)}')"
        options: list[str | Path] = ["-r", run.progress / str(half), "-s", run.setting, "-b", "0"]
        commands.append([run.python, "-m", "bytewax.run", flow, *options])
    call_together(run.directory, commands)


def run_quix(run: Run) -> None:
    """`setting`: seconds between commits."""
    server = run.given.server
    assert server is not None
    commands: list[list[str | Path]] = []
    for half in range(HALVES):
        server.create(run.target(half))
        records = sum(server.ends(f"half-{half}"))
        topics = [f"half-{half}", run.target(half)]
        commands.append([run.python, "-m", "state_jobs.quix_app", server.brokers, *topics, str(records), run.setting])
    call_together(run.directory, commands)


def run_flink(run: Run) -> None:
    """`setting`: where state is, and milliseconds between checkpoints."""
    job: list[str | Path] = [run.python, "-m", "state_jobs.flink_job"]
    paths = run.given.parts, run.out, run.progress
    # Its temporary files go with the run; it leaves them behind.
    temporary = run.directory / "tmp"
    temporary.mkdir()
    java = f"-Djava.io.tmpdir={temporary}"
    call(run.directory, *job, *paths, *run.setting.split(), JAVA_TOOL_OPTIONS=java)


def run_spark(run: Run) -> None:
    """`setting`: files in a micro-batch."""
    paths = run.given.parts, run.out, run.progress
    call(run.directory, run.python, "-m", "state_jobs.spark_query", *paths, run.setting)


MILLSTREAM = System(
    run_millstream,
    kill="every commit; as it is fsynced, also a loss of power",
    output="exactly once",
)
BYTEWAX = System(
    run_bytewax,
    kill="the last snapshot (SQLite, fsynced); what followed is computed again",
    output="exactly once in files that are read at the end: a restart cuts them back to the snapshot",
    requirements=("bytewax==0.21.1",),
)
QUIX = System(
    run_quix,
    kill="the last transaction (changelog topics, acks=all, not fsynced); what followed is computed again",
    output="exactly once for readers of committed records",
    requirements=("quixstreams==3.28.1",),
    on_kafka=True,
)
FLINK = System(
    run_flink,
    kill="the last checkpoint (files, fsynced), if the next start names it; what followed is computed again",
    output="exactly once in files, which are complete after a checkpoint",
    requirements=("apache-flink==2.3.0",),
)
SPARK = System(
    run_spark,
    kill="the last micro-batch (files with RocksDB's changelog, not fsynced); what followed is computed again",
    output="exactly once in files, for readers of Spark's list of them",
    requirements=("pyspark==4.3.0", "pandas==2.3.3", "pyarrow==26.0.1", "protobuf==6.33.6"),
)
_OFTEN = "state, output and position in one commit, as often as the disk takes it"
PEERS = {
    REFERENCE: Peer(MILLSTREAM, "memory", _OFTEN),
    "millstream-disk": Peer(MILLSTREAM, "disk", _OFTEN),
    "bytewax": Peer(BYTEWAX, "10", "every 10 s"),
    "bytewax-often": Peer(BYTEWAX, "0", "after each batch of 1,000 records"),
    "quix": Peer(QUIX, "5", "every 5 s"),
    "quix-often": Peer(QUIX, "0.1", "every 0.1 s"),
    "flink": Peer(FLINK, "hashmap 10000", "every 10 s, all of the state"),
    "flink-often": Peer(FLINK, "rocksdb 500", "every 0.5 s, what changed (RocksDB)"),
    "spark": Peer(SPARK, "10", f"every {10 * FILE_RECORDS:,} records"),
    "spark-often": Peer(SPARK, "1", f"every {FILE_RECORDS:,} records"),
}
BENCH_NOTE = "`millstream bench map --state`: keys in turn, a generator, no target; as durable as millstream-memory"


def write_input(directory: Path, records: int, keys: int) -> Input:
    """The same records whole, in parts of `FILE_RECORDS`, and in halves by key."""
    choice = random.Random(1)
    given = Input(directory, records, keys, Counter())
    given.parts.mkdir()
    note = RECORD_BYTES - len(RECORD % (0, ""))
    halves = [given.half(number).open("w") for number in range(HALVES)]
    with given.whole.open("w") as whole:
        for first in range(0, records, FILE_RECORDS):
            part = []
            for _ in range(min(FILE_RECORDS, records - first)):
                key = choice.randrange(keys)
                line = RECORD % (key, f"{choice.getrandbits(4 * note):0{note}x}") + "\n"
                given.counts[b"%06d" % key] += 1
                halves[key % HALVES].write(line)
                part.append(line)
            whole.writelines(part)
            path = given.parts / f"{first:09}.jsonl"
            path.write_text("".join(part))
            # Files are taken in the order of their times of change.
            os.utime(path, (1_700_000_000 + first, 1_700_000_000 + first))
    for half in halves:
        half.close()
    return given


def outputs(run: Run) -> Iterable[bytes]:
    """Every line that a reader of the target finds."""
    if (server := run.given.server) is not None:
        for half in range(HALVES):
            yield from server.values(run.target(half))
        return
    for path in sorted(run.out.rglob("*")):
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(run.out).parts):
            yield from path.read_bytes().splitlines()


def check(run: Run) -> None:
    """The outputs of each key count up to the number of its records, each number once."""
    counts = Counter(line[: COUNT.stop] for line in outputs(run))
    last: dict[bytes, int] = {}
    for line in counts:
        last[line[:6]] = max(last.get(line[:6], 0), int(line[COUNT]))
    records, total = counts.total(), sum(last.values())
    if total != run.given.records or last != run.given.counts:
        raise NotAvailableError(f"wrong: its last counts add up to {total:,}, not to {run.given.records:,}")
    if records != run.given.records or len(counts) != records:
        raise NotAvailableError(f"wrong: {records:,} outputs, {len(counts):,} different ones")


def between(run: Run) -> float:
    """Seconds from the first record of the function until the last file of the output or a checkpoint changed."""
    begun = [float(path.read_text()) for path in run.directory.glob(f"{BEGUN}*")]
    if not begun:
        raise NotAvailableError("its function had no record")
    files = [path for place in (run.out, run.progress) for path in place.rglob("*") if path.is_file()]
    return max(path.stat().st_ctime for path in files) - min(begun)


def measure(name: str, given: Input, environments: Path, turn: int) -> Result:
    """One run of a peer, its outputs checked."""
    peer = PEERS[name]
    python = installed(environments, peer.system.requirements)
    run = Run(given.directory / f"{name}-{turn}", python, peer.setting, given)
    shutil.copytree(JOBS, run.directory / JOBS.name, ignore=shutil.ignore_patterns("__pycache__"))
    run.out.mkdir()
    run.progress.mkdir()
    broker_pid = given.server.pid if given.server else None
    used = measured(partial(peer.system.run, run), broker_pid, lambda: any(run.directory.glob(f"{BEGUN}*")))
    seconds, millions = between(run), given.records / 1e6
    check(run)
    shutil.rmtree(run.directory)
    return Result(given.records / seconds, used.cpu_s / millions, used.memory_mib, used.broker_cpu_s / millions)


def bench(records: int, keys: int) -> Result:
    """`millstream bench map` with state, which says itself what it used."""
    records = max(records, BENCH_RECORDS_MIN)
    command = [sys.executable, "-m", "millstream_runner", "bench", "map", "--state", "-o", "json"]
    ended = subprocess.run(
        [*command, "--keys", str(keys), "--records", str(records)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise NotAvailableError(ended.stderr[-500:])
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    rate = found["records_per_s"]
    uses = found["processes"].values()
    cpu_s = sum(one["cpu_s"] for one in uses) / (rate * found["elapsed_s"] / 1e6)
    return Result(rate, cpu_s, sum(one["pss_mib_max"] for one in uses))


def median(results: Sequence[Result]) -> Result:
    figures = [asdict(one) for one in results]
    return Result(**{name: round(statistics.median(one[name] for one in figures), 1) for name in figures[0]})


def row(name: str, result: Result, reference: Result | None) -> str:
    peer = PEERS.get(name)
    durability = f"{peer.commits} | {peer.system.kill} | {peer.system.output}" if peer else f"{BENCH_NOTE} | |"
    ratio = f"{result.records_per_s / reference.records_per_s:.2f}" if reference else "-"
    broker = f" + {result.broker_cpu_s_per_million:.1f}" if peer and peer.system.on_kafka else ""
    return (
        f"| {name} | {result.records_per_s:,.0f} | {ratio} | {result.cpu_s_per_million:.1f}{broker} "
        f"| {result.memory_mib:,.0f} MiB | {durability} |"
    )


@contextmanager
def kafka_with(given: Input) -> Iterator[Input]:
    """The same input, also in a topic for each half, with the keys of the records."""
    if why := why_missing():
        raise NotAvailableError(f"no Kafka: {why}")
    with open_kafka(given.directory / "kafka", properties=KAFKA_PROPERTIES) as server:
        producer = server.producer()
        for half in range(HALVES):
            topic = server.create(f"half-{half}")
            for line in given.half(half).read_bytes().splitlines():
                producer.produce(topic, line, line[KEY])
                producer.poll(0)
            producer.flush()
        yield Input(given.directory, given.records, given.keys, given.counts, server)
    shutil.rmtree(given.directory / "kafka")


def main() -> int:
    names = [BENCH, *PEERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--environments", type=Path, help="keep the peers' environments in this directory")
    options = parser.parse_args()
    place = machine()
    print(place, flush=True)
    keep_orphans()
    # So that nothing is left behind: neither processes nor files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: dict[str, list[Result]] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="millstream-state-peers-") as directory:
        home = Path(directory)
        environments = (options.environments or home / "environments").resolve()
        given = write_input(home, options.records, options.keys)
        for turn in range(options.rounds):
            for name in options.only:
                try:
                    if name == BENCH:
                        result = bench(options.records, options.keys)
                    elif PEERS[name].system.on_kafka:
                        with kafka_with(given) as on_kafka:
                            result = measure(name, on_kafka, environments, turn)
                    else:
                        result = measure(name, given, environments, turn)
                except (NotAvailableError, subprocess.TimeoutExpired) as error:
                    failures[name] = str(error)
                    print(f"{name}: not measured: {error}", flush=True)
                else:
                    found.setdefault(name, []).append(result)
                    print(row(name, result, None), flush=True)
    medians = {name: median(results) for name, results in found.items()}
    reference = medians.get(REFERENCE)
    print(f"\n| | records/s | of {REFERENCE} | processor s per million | memory | commits | kill -9 keeps | output |")
    print("|---|---|---|---|---|---|---|---|")
    for name, result in medians.items():
        print(row(name, result, reference))
    for name, why in failures.items():
        print(f"{name}: not measured: {why}")
    figures = {name: asdict(result) for name, result in medians.items()}
    summary = {"benchmark": "state_peers", "records": options.records, "keys": options.keys, "rounds": options.rounds}
    print(json.dumps({**summary, "machine": place, "medians": figures, "not_measured": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
