"""Measures real pipelines on this machine, from a generator to a blackhole.

Above it: `millstream bench`. Below it: the runner of `millstream run`, observed from outside: the OT stores for the
rate, the sink's metrics for the latency, the operating system for CPU and memory.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil

from millstream import codes
from millstream.background import beside
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Technology
from millstream.clock import MICROSECONDS
from millstream.compression import Compression
from millstream.errors import InfrastructureError, MillstreamError, RetryLaterError, UserError
from millstream.files import write_private
from millstream.ledger.protocol import DurabilityLevel
from millstream.limits import MIB
from millstream.ports import free_ports
from millstream.spec.loading import load_text
from millstream.telemetry.metrics import LATENCY
from millstream.watermark.store import OtStore, OtStores, OtUpdate, follow
from millstream.wire.certificates import make_certificate
from millstream_runner.bench.latency import LatencyCounts, scrape_latency
from millstream_runner.local.directory import DataDirectory, Runtime, read_json
from millstream_runner.local.logfiles import process_label
from millstream_runner.local.processes import is_alive
from millstream_runner.local.run import RunOptions, RunResult, run
from millstream_runner.local.screen import Screen

BUFFER_RECORDS = 400_000
"""Length of a buffer: a second's worth of records. At most this many pile up on each edge before all processes run."""
_SAMPLE_INTERVAL_S = 1.0
"""Reading the sink's metrics stops the sink for some milliseconds. This is rare enough not to affect the result."""
_LOOK_INTERVAL_S = 0.02
_STRETCH_MIN_S = 0.1
"""A rate that was measured for a shorter time means nothing."""
_PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata:
  name: bench
spec:
  interStepBuffer: {{{ledger}: {{}}, compression: {{type: {compression}}}}}
  limits: {{bufferMaxLength: {buffer}}}
  vertices:
    - name: in
      source:
        generator: {{rpu: {rate}, records: {records}, msgSize: {size}, keyCount: {keys}}}
{maps}\
    - name: out
      sink:
        blackhole: {{}}
  edges:
    - {{from: in, to: map, chain: {first}}}
{chained}\
    - {{from: {last}, to: out, chain: {end}}}
"""
_MAP = """\
    - name: {name}
      partitions: {partitions}
      limits: {{bufferMaxLength: {buffer}}}
      udf: {function}
"""
_FUNCTION = "def process(value):\n    return value\n"
_REMEMBERING = """\
import millstream_udf as udf


@udf.map
class Remembering:
    last = udf.value(bytes, default=b"")

    def process(self, value: bytes) -> bytes:
        before, self.last = self.last, value
        return before or value
"""
"""Gets and puts a value as long as that of a record."""
_KEY_BYTES_MAX = 64
"""What an entry has beside its value."""


@dataclass(frozen=True, slots=True)
class BenchPipeline:
    """What to run, and where its latency is reported."""

    text: str
    """YAML with source vertex `in`, sink vertex `out` and name `bench`."""
    processes: tuple[str, ...]
    """The processes, in the order of the file."""
    observed_by: str
    """The process whose metrics have the latency."""
    metric: str
    """A histogram in seconds."""
    observed_edge: str | None = None
    """The edge to the sink, if the source's lane commits for the sink."""
    passes_on: bool = True
    """Whether the sink gets as many records as the source makes, so that its rate can be measured."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load on the pipeline."""

    records: int
    record_bytes: int
    rate: int = 0
    """Records per second; 0: as fast as possible."""
    keys: int = 0
    """Different keys, used in turn; 0: records without a key."""
    partitions: int = 1
    """Partitions of the map; a record goes to that of its key."""
    chain: int = 1
    """Maps in a chain."""
    from_source: bool = False
    """Whether the source is part of the chain, as by default in a pipeline."""
    unbuffered: bool = False
    """Whether the source and the sink are part of the chain."""
    builtin: bool = False
    """Whether the maps are built-in functions, not Python functions."""
    remembers: bool = False
    """Whether the maps remember the last record of each key, and return the one before it."""
    compression: Compression = Compression.NONE
    """The records of a generator get so small that a rate with compression says little about other records."""
    warm_up_s: float = 0.0
    """Latencies of this initial time are left out."""
    warm_up_count: int = 0
    """This many initial latencies are left out."""


@dataclass(slots=True)
class ProcessUse:
    """What one process used while records flowed, including the processes of its functions."""

    cpu_s: float = 0.0
    rss_bytes_max: int = 0
    """The resident memory of each process, summed: what several of them map counts several times."""
    pss_bytes_max: int = 0
    """The same, with each page divided by the number of processes that map it."""
    first_cpu_s: float | None = None


@dataclass(slots=True)
class Measurement:
    """The result of a measurement."""

    records: int = 0
    records_per_s: float = 0.0
    """Rate while all vertices worked, see `_Clock`."""
    elapsed_s: float = 0.0
    latency: LatencyCounts = field(default_factory=LatencyCounts)
    sampled_s: float = 0.0
    """For how long CPU use was sampled."""
    use: dict[str, ProcessUse] = field(default_factory=dict)
    durability: str = ""


async def measure_map(
    directory: Path,
    load: Load,
    durability: DurabilityLevel,
    ledger: str,
    *,
    tls: bool = False,
    workers: int | None = None,
) -> Measurement:
    """Measure a generator, Python functions that return their input, and a blackhole. `tls`: connections to the broker
    are encrypted. `workers`: as in `RunOptions`."""
    if tls:
        make_certificate(directory / "data" / "broker")
    write_private(directory / "identity.py", _REMEMBERING if load.remembers else _FUNCTION)
    function = "{python: 'identity.py:process'}"
    if load.remembers:
        size = load.keys * (load.record_bytes + _KEY_BYTES_MAX) + MIB
        function = f"{{python: 'identity.py:Remembering', state: {{maxBytes: {size}}}}}"
    elif load.builtin:
        function = "{builtin: {name: cat}}"
    maps = ["map", *(f"map-{number}" for number in range(2, load.chain + 1))]
    partitioned = {"partitions": load.partitions, "buffer": BUFFER_RECORDS // load.partitions}
    text = _PIPELINE.format(
        maps="".join(_MAP.format(name=name, function=function, **partitioned) for name in maps),
        first="true" if load.unbuffered or load.from_source else "false",
        end="true" if load.unbuffered else "false",
        chained="".join(f"    - {{from: {one}, to: {other}, chain: true}}\n" for one, other in pairwise(maps)),
        last=maps[-1],
        rate=load.rate,
        records=load.records,
        size=load.record_bytes,
        keys=load.keys,
        buffer=BUFFER_RECORDS,
        ledger=ledger,
        compression=load.compression.value,
    )
    if load.unbuffered:
        pipeline = BenchPipeline(text, ("in-0",), "in-0", LATENCY, observed_edge=f"{maps[-1]}-out")
    else:
        maps_apart = () if load.from_source else ("map-0",)
        pipeline = BenchPipeline(text, ("in-0", *maps_apart, "out-0"), "out-0", LATENCY)
    measured = await measure(directory, pipeline, load, durability, workers)
    if measured.records != load.records:
        raise MillstreamError(
            codes.EXPERIMENT_FAILED, f"{load.records} records were generated, but only {measured.records} arrived"
        )
    if not measured.records_per_s:
        raise UserError(
            codes.OPTION_VALUE,
            f"{load.records:,} records are too few to measure: all of them, or nearly all, had been generated by "
            "the time the last process was up; use more",
        )
    return measured


async def measure(
    directory: Path, pipeline: BenchPipeline, load: Load, durability: DurabilityLevel, workers: int | None = None
) -> Measurement:
    """Run the pipeline below `directory` to its end. Raises the error if it did not succeed."""
    loaded = load_text(pipeline.text, directory / "pipeline.yaml")
    base = free_ports(len(pipeline.processes))
    data = DataDirectory(directory / "data")
    options = RunOptions(data_dir=data.root, durability=durability, metrics_port_base=base, workers=workers)
    measured = Measurement()
    notes = io.StringIO()
    async with beside(_watch(data, pipeline, technology_of(loaded.pipeline), load, measured), "watch"):
        result = await run(loaded, options, Screen(notes))
    if (failure := result.failure) is not None:
        raise MillstreamError(
            codes.EXPERIMENT_FAILED, f"{failure.process} {failure.reason}: {failure.message}\n{notes.getvalue()}"
        )
    measured.durability = str((read_json(data.status) or {}).get("durability", durability.value))
    _check(result, load)
    return measured


def _check(result: RunResult, load: Load) -> None:
    summary = result.summary
    if summary is None or not summary.ended:
        raise InfrastructureError(codes.EXPERIMENT_STOPPED, "the benchmark was stopped before its end")
    if not summary.balanced:
        raise MillstreamError(codes.UNBALANCED, f"the account does not balance: {'; '.join(summary.differences)}")
    for vertex in summary.vertices[1 : 1 + load.chain]:
        processed = vertex.account.processed
        if processed != load.records:
            raise MillstreamError(
                codes.UNBALANCED, f"{load.records} records were generated, but {processed} were processed"
            )


async def _watch(
    directory: DataDirectory, pipeline: BenchPipeline, used: Technology, load: Load, measured: Measurement
) -> None:
    """Observe the run until cancelled."""
    runtime = await _until_started(directory)
    async with (
        used.open(directory.access(runtime, used), "bench", name="bench", require=DurabilityLevel.MEMORY) as buffer,
        asyncio.TaskGroup() as group,
    ):
        clock = _Clock(load, measured)
        if pipeline.observed_edge is not None:
            group.create_task(
                _follow(buffer.stores, "in", partial(clock.take_chain, pipeline.observed_edge)), name="chain"
            )
        elif pipeline.passes_on:
            group.create_task(_follow(buffer.stores, "in", clock.take_source), name="source")
            group.create_task(_follow(buffer.stores, "out", clock.take_sink), name="sink")
        else:
            clock.begun.set()
        group.create_task(_sample(directory, clock.begun, pipeline, load, measured), name="use")


async def _follow(stores: OtStores, vertex: str, take: Callable[[OtUpdate], None]) -> None:
    """Pass on what a vertex publishes."""
    await follow(await _store(stores, vertex), [take])


async def _store(stores: OtStores, vertex: str) -> OtStore:
    """Ask until the broker answers: the run notices if it is gone, and a slow machine must not end a benchmark."""
    while True:
        with suppress(RetryLaterError):
            return await stores.store(vertex)
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _until_started(directory: DataDirectory) -> Runtime:
    """The run's processes and addresses, once its broker has started."""
    while True:
        runtime = directory.read_runtime()
        if runtime is not None and runtime.processes and runtime.broker_url and is_alive(runtime.runner):
            return runtime
        await asyncio.sleep(_LOOK_INTERVAL_S)


class _Clock:
    """Finds the stretch of time in which all vertices work.

    It begins when the sink has processed what the source had made before the sink's first commit. So neither the start
    of the processes nor what piled up during it counts. It ends with the sink's last commit.
    """

    def __init__(self, load: Load, measured: Measurement) -> None:
        self.begun = asyncio.Event()
        self._load = load
        self._measured = measured
        self._made = 0
        self._piled_up: int | None = None
        self._first: tuple[int, int] | None = None

    def take_source(self, update: OtUpdate) -> None:
        self._made = update.consumed_records

    def take_sink(self, update: OtUpdate) -> None:
        self._take(update.consumed_records, update.entry.published_us)

    def take_chain(self, edge: str, update: OtUpdate) -> None:
        """`edge`: the one to the sink, which the lane of the source writes."""
        records = sum(state.records for state in update.entry.inputs if state.edge == edge)
        self._take(records, update.entry.published_us)

    def _take(self, records: int, published_us: int) -> None:
        measured = self._measured
        if records == measured.records:
            # Nothing new: a later update about the same commit.
            return
        measured.records = records
        if records and self._piled_up is None:
            self._piled_up = self._made
        if self._piled_up is None or records < self._piled_up:
            return
        self.begun.set()
        if self._first is None:
            self._first = records, published_us
        first, first_us = self._first
        measured.elapsed_s = (published_us - first_us) / MICROSECONDS
        if records == self._load.records and measured.elapsed_s >= _STRETCH_MIN_S:
            measured.records_per_s = (records - first) / measured.elapsed_s


async def _sample(
    directory: DataDirectory,
    begun: asyncio.Event,
    pipeline: BenchPipeline,
    load: Load,
    measured: Measurement,
) -> None:
    """Sample CPU and memory of all processes, and the latencies that one of them reports, repeatedly.

    Sampling starts before the measured stretch: a source may have ended before the others have started, and on a slow
    machine the first answer of the metrics may come when everything has ended.
    """
    before = None if load.warm_up_s or load.warm_up_count else LatencyCounts()
    loop = asyncio.get_running_loop()
    begun_s: float | None = None
    while True:
        _sample_use(directory, measured)
        if begun_s is not None:
            measured.sampled_s = loop.time() - begun_s
        port = _port_of(directory, pipeline.observed_by)
        if port is not None:
            with suppress(RetryLaterError):
                counts = await scrape_latency(port, pipeline.metric)
                warm_s = 0.0 if begun_s is None else loop.time() - begun_s
                if before is None and warm_s >= load.warm_up_s and counts.total >= load.warm_up_count:
                    before = counts
                if before is not None:
                    measured.latency = counts.since(before)
        if begun_s is not None:
            await asyncio.sleep(_SAMPLE_INTERVAL_S)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAMPLE_INTERVAL_S):
                await begun.wait()
            begun_s = loop.time()
            for use in measured.use.values():
                use.first_cpu_s, use.cpu_s = None, 0.0


def _port_of(directory: DataDirectory, replica: str) -> int | None:
    """Port of the metrics of the worker that runs a replica; None while no worker does."""
    runtime = directory.read_runtime()
    processes = runtime.processes if runtime is not None else ()
    return next((process.metrics_port for process in processes if replica in process.replicas), None)


def _sample_use(directory: DataDirectory, measured: Measurement) -> None:
    runtime = directory.read_runtime()
    if runtime is None:
        return
    for process in runtime.processes:
        with suppress(psutil.Error):
            cpu_s, rss, pss = _use_of(psutil.Process(process.identity.pid))
            use = measured.use.setdefault(process_label(process.name, process.replicas), ProcessUse())
            if use.first_cpu_s is None:
                use.first_cpu_s = cpu_s
            use.cpu_s = max(use.cpu_s, cpu_s - use.first_cpu_s)
            use.rss_bytes_max = max(use.rss_bytes_max, rss)
            use.pss_bytes_max = max(use.pss_bytes_max, pss)


def _use_of(process: psutil.Process) -> tuple[float, int, int]:
    """CPU seconds, resident memory and its proportional share of a process and its child processes, in bytes."""
    cpu_s, rss, pss = 0.0, 0, 0
    for one in [process, *process.children(recursive=True)]:
        times = one.cpu_times()
        cpu_s += times.user + times.system
        resident = one.memory_info().rss
        rss += resident
        try:
            # Read later than the resident memory, which may have grown since; a share is never more than that.
            pss += min(resident, one.memory_full_info().pss)
        except psutil.AccessDenied:
            # A process in a sandbox does not show its pages to others; it has no more than these.
            pss += resident
    return cpu_s, rss, pss
