"""A whole experiment: its directory, the session, and the oracle's verdict on the result.

    <directory>/state/            the data directory of the run
    <directory>/sinks/<vertex>/   what file sinks wrote
    <directory>/pipeline/         the pipeline, if it is a built-in one
    <directory>/runner.log        output of the runner, across all its restarts
    <directory>/successors.log    output of the successors of paused processes
    <directory>/inputs.jsonl, received.jsonl      for `push`: what was sent to it, and what it sent
    <directory>/queries.jsonl     for `state`: what queries saw meanwhile
    <directory>/guarantees.json   the guarantee of each sink
    <directory>/verdict.json      the oracle's findings

Above it: the command line, benchmarks and tests. Below it: the session, and the oracle as a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.buffers.registry import over
from millstream.errors import DamageError, InfrastructureError, MillstreamError, UdfError, UserError
from millstream.files import make_private_directories, write_private
from millstream.ports import free_ports
from millstream.processes import Process, Stop, open_process
from millstream.spec.buffers import DEFAULT, TECHNOLOGIES
from millstream.spec.checks import local_problems
from millstream.spec.graph import Graph, guarantees_of
from millstream.spec.loading import LoadedPipeline, load
from millstream.spec.problems import SpecError
from millstream.wire.certificates import make_certificate
from millstream_runner.chaos.builtin_pipelines import KEYS, PARTITIONS, SHIPPED, Ports, write
from millstream_runner.chaos.faults import Injector, refuse_large_disk
from millstream_runner.chaos.lossy_path import open_lossy_path
from millstream_runner.chaos.plan import ALWAYS_THERE, FaultKind
from millstream_runner.chaos.running import RunnerProcess
from millstream_runner.chaos.session import Assignment, ExperimentOutcome, ExperimentSession, Struck
from millstream_runner.local.directory import DataDirectory

SPLITS = 2
"""Of the source of `push`."""
INPUTS = "inputs.jsonl"
RECEIVED = "received.jsonl"
QUERIES = "queries.jsonl"
_FINISH_TIMEOUT_S = 60.0
"""Time from the request that the feeder sends nothing new until everything is acknowledged."""
_STOP_TIMEOUT_S = 10.0
ORACLE_TIMEOUT_S = 3600.0
"""The verifier of a run with millions of records takes minutes, more on a busy machine."""
_ERRORS: Mapping[int, type[MillstreamError]] = {
    kind.exit_code: kind for kind in (UserError, UdfError, InfrastructureError, DamageError)
}
_CODE = re.compile(r"\[(MS-\d{4})\]")
_TAIL_BYTES = 2000
_ENDLESS = 1 << 40
"""Records of a built-in pipeline, until the number is known."""
_SETTLE_S = 3.0
"""When the end of the source is set, it still has this much time's worth of records to make."""


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options."""

    pipeline: str
    """A file, or the name of a built-in pipeline."""
    directory: Path
    seed: int = 1
    kills: int | None = None
    """Faults to inject. None: as many as occur in `seconds`."""
    seconds: float | None = None
    kinds: tuple[FaultKind, ...] = (FaultKind.KILL,)
    records: int | None = None
    """Of a built-in pipeline."""
    rate: int | None = None
    """Records per second of a built-in pipeline. None: such that the records last for all faults."""
    keys: int | None = None
    """Of the built-in pipeline `state`."""
    partitions: int | None = None
    """Of the vertex that remembers, in the same pipeline."""
    id_field: str | None = None
    ledger: str | None = None
    """What stores the records, if not what the pipeline says."""
    workers: int | None = None
    """Processes that share the vertices. None: as many as `millstream run` would use."""
    secured: bool = False
    """Whether the broker only accepts encrypted connections, and functions of a built-in pipeline run in a strict
    sandbox."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The outcome of an experiment."""

    outcome: ExperimentOutcome
    verdict: Mapping[str, Any]
    """The verdict of the oracle."""
    planned: int | None = None
    """The requested number of faults; None if it was not limited."""

    @property
    def shortfall(self) -> str:
        """Why the result has little significance: fewer faults were injected than requested, none at all, or few in
        processes that every run has. Empty if all were."""
        done = len(self.outcome.struck)
        if self.planned is not None and done < self.planned:
            return (
                f"{done} of {self.planned} faults could be injected before the run ended; give it more to do (more "
                "input, a slower source), or ask for fewer"
            )
        if not done:
            return "no fault could be injected; give it more time (--seconds), or more to do"
        met = Counter(one.strike.role for one in self.outcome.struck)
        for role in ALWAYS_THERE:
            if (missed := self.outcome.missed[role]) > met[role]:
                return f"{met[role]} faults hit the {role.value}, which could not be found for {missed} more"
        return ""

    @property
    def faults(self) -> list[str]:
        """What the session itself saw go wrong."""
        found = []
        if self.outcome.exit_code is None:
            found.append("the run did not end")
        elif self.outcome.exit_code != 0:
            found.append(f"the run ended with exit code {self.outcome.exit_code}")
        found += [
            f"{', '.join(struck.absent)} did not come back after fault {struck.strike.number} ({struck.strike.what})"
            for struck in self.outcome.struck
            if struck.absent
        ]
        return found + [f"a process outlived the run: {line}" for line in self.outcome.leftovers]

    @property
    def sound(self) -> bool:
        return bool(self.verdict["sound"]) and not self.faults and not self.shortfall


async def conduct(options: Options, on_struck: Callable[[Struck], None]) -> Experiment:
    """Run the experiment. Raises `SpecError` and other errors that occur before the start, and `MillstreamError` if
    there is no verdict."""
    if options.kills is None and options.seconds is None:
        raise UserError(codes.OPTIONS_CONFLICT, "say how many faults (--kills) or for how long (--seconds)")
    numbers = (options.kills, options.seconds, options.records, options.rate, options.keys, options.partitions)
    if any(number is not None and number <= 0 for number in numbers):
        raise UserError(
            codes.OPTION_VALUE, "--kills, --seconds, --records, --rate, --keys and --partitions must be positive"
        )
    directory = options.directory.absolute()
    if (directory / "state").exists():
        raise UserError(
            codes.PATH_EXISTS, f"{directory} already contains an experiment; specify another directory, or remove it"
        )
    make_private_directories(directory)
    if FaultKind.DISK in options.kinds:
        refuse_large_disk(directory)
    ports = outside_ports()
    records, rate = _load(options)
    file = _pipeline_file(options, directory, _ENDLESS, rate, ports)
    loaded = load(file)
    if options.ledger is not None:
        loaded = over(loaded, options.ledger)
    _refuse_unknown_ledger(options, loaded)
    faults = local_problems(loaded)
    if faults:
        raise SpecError(faults)
    stated = {name: guarantee.id.value for name, guarantee in guarantees_of(loaded.graph).items()}
    write_private(directory / "guarantees.json", json.dumps(stated))
    assignment = Assignment(
        options.seed, options.kinds, options.kills, options.seconds, bounded=is_bounded(loaded.graph)
    )
    data = DataDirectory(directory / "state")
    if options.secured:
        make_certificate(data.broker)
    command = [sys.executable, "-P", "-m", "millstream_runner.chaos.runner", "--data-dir", str(data.root)]
    command += ["--sinks", str(directory / "sinks"), str(file)]
    if options.ledger is not None:
        command += ["--ledger", options.ledger]
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    async with AsyncExitStack() as stack:
        path = None
        if FaultKind.NETWORK in options.kinds:
            path = await stack.enter_async_context(open_lossy_path(lambda: _broker_port(data)))
            command += ["--broker-path", path.url]
        runner = RunnerProcess(command, data, directory / "runner.log")
        injector = Injector(directory / "successors.log", path, directory if FaultKind.DISK in options.kinds else None)
        finish = None
        if options.pipeline == "push":
            finish = await stack.enter_async_context(open_outside(directory, ports, rate))
        if options.pipeline == "state":
            await stack.enter_async_context(open_queries(directory, options.keys or KEYS))
        settle = None
        if options.pipeline in SHIPPED and finish is None:
            # The records must last as long as the faults do, however slow the machine is.
            settle = partial(_settle, options, directory, records, rate, ports)
        outcome = await ExperimentSession(loaded.plan, runner, injector, assignment, on_struck, finish, settle).run()
    if not outcome.struck and outcome.exit_code:
        # No fault was injected, so there is nothing for the oracle to judge.
        raise _ended_early(outcome.exit_code, runner.log_file)
    verdict = await _judged(options, directory, drained=outcome.drained)
    write_private(directory / "verdict.json", json.dumps(verdict, indent=1))
    return Experiment(outcome, verdict, options.kills)


def _ended_early(exit_code: int, log_file: Path) -> MillstreamError:
    """The error that ended a run, according to its log; without one, that there was nothing to judge."""
    log = log_file.read_text(encoding="utf-8", errors="replace")[-_TAIL_BYTES:].strip()
    text = f"the run ended before any fault was injected:\n{log}"
    for said in reversed(_CODE.findall(log)):
        code = codes.find(said)
        if code is not None and code.exit_code == exit_code and exit_code in _ERRORS:
            return _ERRORS[exit_code](code, text)
    return MillstreamError(codes.EXPERIMENT_FAILED, text)


def _refuse_unknown_ledger(options: Options, loaded: LoadedPipeline) -> None:
    """The oracle reads marks with code of its own; faults of the network, and encryption, work with only one
    protocol."""
    used = loaded.pipeline.spec.buffer_technology
    if not TECHNOLOGIES.is_own(used):
        raise UserError(
            codes.OPTIONS_CONFLICT,
            f"chaos cannot judge this pipeline: it keeps its records in {used}, which is of a package, and the "
            "verifier does not read its marks",
        )
    if used != DEFAULT and (FaultKind.NETWORK in options.kinds or options.secured):
        raise UserError(
            codes.OPTIONS_CONFLICT,
            f"--faults network and --secured only work with {DEFAULT}; this pipeline keeps its records in {used}",
        )


def _settle(options: Options, directory: Path, records: int, rate: int, ports: Ports, taken: int) -> None:
    """Set the end of the source of a built-in pipeline, now that the faults are over and `records` have been made."""
    _pipeline_file(options, directory, max(records, taken + round(rate * _SETTLE_S) + 1), rate, ports)


def _broker_port(data: DataDirectory) -> int | None:
    """Port of the run's broker; None until it is known."""
    runtime = data.read_runtime()
    return runtime.broker_port or None if runtime is not None else None


def _load(options: Options) -> tuple[int, int]:
    """Records, and records per second, of a built-in pipeline."""
    shipped = SHIPPED.get(options.pipeline)
    if shipped is None:
        return 0, 0
    records = options.records or shipped.records
    lasts_s = options.seconds or (options.kills or 0) * shipped.seconds_per_kill
    return records, options.rate or max(1, round(records / lasts_s) if lasts_s else 0)


def _pipeline_file(options: Options, directory: Path, records: int, rate: int, ports: Ports) -> Path:
    shipped = SHIPPED.get(options.pipeline)
    if (options.keys or options.partitions) and (shipped is None or not shipped.keyed):
        raise UserError(codes.OPTIONS_CONFLICT, "--keys and --partitions are for the built-in pipeline `state`")
    if shipped is None:
        if options.records is not None or options.rate is not None:
            raise UserError(
                codes.OPTIONS_CONFLICT, f"--records and --rate are for the built-in pipelines: {', '.join(SHIPPED)}"
            )
        return Path(options.pipeline)
    return write(
        shipped,
        directory / "pipeline",
        records,
        rate,
        ports,
        keys=options.keys or KEYS,
        partitions=options.partitions or PARTITIONS,
        sandboxed=options.secured,
    )


def is_bounded(graph: Graph) -> bool:
    """Whether every source ends by itself, according to the pipeline."""
    return all(vertex.definition.bounded(vertex.settings) is not False for vertex in graph.sources)


async def _judged(options: Options, directory: Path, *, drained: bool) -> dict[str, Any]:
    """The oracle's verdict. Raises `MillstreamError` if it cannot judge."""
    command = [sys.executable, "-P", "-m", "millstream_runner.chaos.oracle"]
    command += ["--data-dir", str(directory / "state"), "--sinks", str(directory / "sinks")]
    command += ["--guarantees", str(directory / "guarantees.json")]
    if options.pipeline == "push":
        command += ["--inputs", str(directory / INPUTS), "--received", str(directory / RECEIVED)]
    elif options.pipeline == "mesh" or (options.pipeline in SHIPPED and not drained):
        # Records in windows that are open when a run is drained wait for the next run.
        command += ["--expect", options.pipeline]
    if options.pipeline == "state":
        command += ["--queries", str(directory / QUERIES)]
    command += ["--id", options.id_field] if options.id_field is not None else []
    command += ["--drained"] if drained else []
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(ORACLE_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise InfrastructureError(
            codes.EXPERIMENT_STOPPED, f"the verifier has given no verdict after {ORACLE_TIMEOUT_S:.0f} s"
        ) from error
    finally:
        if process.returncode is None:
            os.kill(process.pid, 9)
            await process.wait()
    if process.returncode not in (0, 1):
        raise MillstreamError(
            codes.EXPERIMENT_FAILED, f"the verifier has given no verdict: {errors.decode(errors='replace')[-2000:]}"
        )
    verdict: dict[str, Any] = json.loads(output.splitlines()[-1])
    return verdict


@asynccontextmanager
async def open_outside(directory: Path, ports: Ports, rate: float) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The feeder and the receiver of the pipeline `push` run during the block. The yielded function ends the feeder
    once everything that it has sent is acknowledged.

    Raises `InfrastructureError` if that takes too long, because the source is not there.
    """
    receiver = ["--port", str(ports.target), "--file", str(directory / RECEIVED)]
    feeder = ["--source", "orders", "--port", str(ports.source), "--splits", str(SPLITS)]
    feeder += ["--rate", str(rate), "--file", str(directory / INPUTS)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_running("receiver", receiver))
        feeding = await stack.enter_async_context(_running("feeder", feeder))

        async def finish() -> None:
            feeding.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_FINISH_TIMEOUT_S):
                    await feeding.wait()
            except TimeoutError:
                raise InfrastructureError(
                    codes.EXPERIMENT_STOPPED,
                    f"the source did not acknowledge all records within {_FINISH_TIMEOUT_S:.0f} s",
                ) from None

        yield finish


def open_queries(directory: Path, keys: int) -> AbstractAsyncContextManager[Process]:
    """What the vertex of the pipeline `state` remembers is queried again and again during the block."""
    # Not the data directory itself: only processes of the run name it.
    command = [sys.executable, "-P", "-m", "millstream_runner.chaos.queries", "--dir", str(directory)]
    command += ["--keys", str(keys), "--file", str(directory / QUERIES)]
    return open_process(command, name="the queries", stop=Stop(_STOP_TIMEOUT_S))


def _running(name: str, options: list[str]) -> AbstractAsyncContextManager[Process]:
    command = [sys.executable, "-P", "-m", f"millstream_runner.chaos.oracle.{name}", *options]
    return open_process(command, name=f"the {name}", stop=Stop(_STOP_TIMEOUT_S))


def outside_ports() -> Ports:
    """Ports that are free now: adjacent ones for the splits of the source, one for the target."""
    source = free_ports(SPLITS + 1)
    return Ports(source, source + SPLITS)
