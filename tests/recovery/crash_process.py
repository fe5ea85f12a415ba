"""Processes that run a pipeline until they are killed at a durable step, or to its end. Run by `crash_runs`.

Reads one JSON run a line on standard input, forks a process for it, and answers how that ended, with the points it
reached and what the check of its outputs said. A run may also be asked to pause at a point, as SIGSTOP does; the answer
is its process id then, and a later line tells several of them to go on at once. Everything is imported before the first
fork: a run costs milliseconds to start. What a process says goes to the file `log` in the pipeline's directory.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401  # imported at the first connection
import gc
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import fields
from pathlib import Path
from threading import Lock
from typing import Any

import pandas  # type: ignore[import-untyped]  # noqa: F401  # imported by pyarrow at its first array
import pyarrow.dataset  # imported by a table's first filter
import pyarrow.parquet  # noqa: F401  # imported by the Parquet sink when it is opened

import millstream_connectors.file.sink.parquet  # noqa: F401  # imported by the Parquet sink when it is opened
import millstream_reduce.spark.wire  # noqa: F401  # imported by a reduce lane when it is opened
import millstream_worker.kinds.reduce_lane  # noqa: F401  # as above
from millstream.account import Account, account_of
from millstream.buffers.registry import over
from millstream.buffers.technology import InterStepBuffer
from millstream.clock import SystemClock
from millstream.durable import crash_at, listen
from millstream.ledger.protocol import DurabilityLevel
from millstream.limits import FRAME_APART_BYTES_MIN, FRAME_RECORDS_MAX
from millstream.plan import resolved
from millstream.spec.loading import load
from millstream.telemetry.logging import configure_logging
from millstream_reduce.queue import QueueLimits
from millstream_runner.cli.broker import prepare
from millstream_worker.assembly import open_vertex
from millstream_worker.environment import OpenEnvironment, Outside, VertexConfig, open_outside
from tests.recovery.crash_brokers import OPERATOR, BrokerPlace
from tests.recovery.crash_pipeline import CrashPipeline, Outputs
from tests.recovery.crash_pipelines import PIPELINES, SHORT_SEGMENTS

RUN_S = 120.0
SEGMENT_BYTES = 4096


class Points:
    """Counts the points that are reached, by point and vertex."""

    def __init__(self) -> None:
        self.reached: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()

    def __call__(self, point: str, vertex: str) -> None:
        with self._lock:
            self.reached[point, vertex] += 1


class _ShortSegments(Outside):
    """The environment of a vertex, but for the segments of its reduce lanes."""

    def queue_limits(self, log_bytes_max: int | None, segment_bytes: int) -> QueueLimits:
        return QueueLimits(segment_bytes=SEGMENT_BYTES)


@asynccontextmanager
async def _open_short_segments(config: VertexConfig) -> AsyncIterator[Outside]:
    async with open_outside(config) as outside:
        yield _ShortSegments(**{field.name: getattr(outside, field.name) for field in fields(Outside)})


async def _run_vertex(config: VertexConfig, environment: OpenEnvironment, stopping: asyncio.Event) -> None:
    async with open_vertex(config, SystemClock(), environment=environment) as process, asyncio.TaskGroup() as group:

        async def stop() -> None:
            await stopping.wait()
            process.stop()

        waiting = group.create_task(stop())
        await process.run()
        waiting.cancel()


async def _run(run: dict[str, Any], pipeline: CrashPipeline) -> None:
    directory = Path(run["directory"])
    loaded = over(load(directory / "pipeline.yaml"), _place(run).ledger)
    spec = resolved.load(resolved.dump(loaded.plan, directory))
    environment: OpenEnvironment = _open_short_segments if run["pipeline"] in SHORT_SEGMENTS else open_outside
    stopping = asyncio.Event()
    async with asyncio.timeout(RUN_S), asyncio.TaskGroup() as group:
        for vertex in spec.plan.vertices:
            config = VertexConfig(
                resolved=spec,
                vertex=vertex.name,
                replica=0,
                broker=_access(run, spec.pipeline.name, vertex.name),
                durability=DurabilityLevel.FSYNC,
                windows_dir=directory / "windows",
                spark=run["spark"],
            )
            group.create_task(_run_vertex(config, environment, stopping))
        if pipeline.feed is not None and run["feed"]:
            await pipeline.feed(Outputs(directory))
            stopping.set()
    listen(None)
    await _check_accounts(run, spec, pipeline)


def _place(run: dict[str, Any]) -> BrokerPlace:
    return BrokerPlace(**run["broker"])


def _access(run: dict[str, Any], pipeline: str, user: str = OPERATOR) -> Any:
    return _place(run).access(pipeline, user)


def _open(run: dict[str, Any], pipeline: str) -> AbstractAsyncContextManager[InterStepBuffer]:
    return _place(run).technology.open(_access(run, pipeline), pipeline, name="test")


async def _check_accounts(run: dict[str, Any], spec: resolved.ResolvedPipeline, pipeline: CrashPipeline) -> None:
    """Every vertex knows where everything went that it was sent."""
    accounts: dict[str, Account] = {}
    name = spec.pipeline.name
    async with _open(run, name) as buffer:
        for lane in spec.plan.all_lanes():
            ledger = await buffer.broker.existing_ledger(lane.vertex)
            assert ledger is not None
            stored = await ledger.mark(lane)
            assert stored is not None
            for vertex in spec.graph.chain(lane.vertex):
                accounts.setdefault(vertex, Account()).add(account_of(vertex, lane, stored.mark))
            for one in stored.mark.members:
                handed = next((written for written in stored.mark.written if written.edge == one.edge), None)
                assert (handed.records if handed is not None else 0) == one.account.inputs, one
            if lane.vertex == pipeline.packed:
                # No frame has so many records.
                assert all(total.records > FRAME_RECORDS_MAX * total.frames for total in stored.mark.written), stored
            if lane.vertex == pipeline.apart:
                assert all(total.bytes > FRAME_APART_BYTES_MIN * total.frames for total in stored.mark.written), stored
    for vertex, account in accounts.items():
        assert account.difference == 0, (vertex, account)
    assert sum(account.open for account in accounts.values()) == pipeline.open_records, accounts


async def _prepare(run: dict[str, Any]) -> None:
    """Make what no vertex may make itself."""
    plan = load(Path(run["directory"]) / "pipeline.yaml").plan
    await prepare(plan, _access(run, plan.pipeline.name), DurabilityLevel.FSYNC)


async def _delete(run: dict[str, Any]) -> None:
    """What the broker keeps of the pipeline, also of one that failed."""
    name = load(Path(run["directory"]) / "pipeline.yaml").pipeline.name
    async with _open(run, name) as buffer:
        await buffer.broker.delete()
        await buffer.stores.delete()


def _run_to_the_end(run: dict[str, Any], points: Points) -> None:
    pipeline = PIPELINES[run["pipeline"]]
    listen(crash_at(run["crash_at"], signal.Signals(run["signal"])) if run["crash_at"] else points)
    try:
        asyncio.run(_run(run, pipeline))
    finally:
        listen(None)
    outputs = Outputs(Path(run["directory"]))
    pipeline.check(outputs)
    assert outputs.left_over() == []


def _process(run: dict[str, Any], answer: int) -> None:
    """Never returns."""
    directory = Path(run["directory"])
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    configure_logging("p", "all", 0, level="INFO")
    points = Points()
    failed = ""
    try:
        if "only" in run:
            asyncio.run({"prepare": _prepare, "delete": _delete}[run["only"]](run))
        else:
            _run_to_the_end(run, points)
    except BaseException:  # noqa: BLE001  # whatever it is, it is the answer
        failed = traceback.format_exc()
    reached = [[point, vertex, count] for (point, vertex), count in sorted(points.reached.items())]
    os.write(answer, json.dumps({"failed": failed, "reached": reached}).encode())
    os._exit(0)


def _forked(run: dict[str, Any], paused: dict[int, int]) -> dict[str, Any]:
    """How the run ended: killed, or with the process's own answer; or which process has paused."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        _process(run, write)
    os.close(write)
    if run["signal"] == signal.SIGSTOP and os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]):
        paused[process] = read
        return {"paused": process}
    return _ended(process, read)


def _ended(process: int, read: int) -> dict[str, Any]:
    with os.fdopen(read, "rb") as answer:
        told = answer.read()
    _, status = os.waitpid(process, 0)
    outcome: dict[str, Any] = {"failed": "", "reached": []}
    with suppress(ValueError):
        outcome = json.loads(told)
    return {**outcome, "ended": os.waitstatus_to_exitcode(status)}


def main() -> None:
    # A collection would touch, and so copy, what a forked process shares with this one.
    gc.collect()
    gc.freeze()
    paused: dict[int, int] = {}
    for line in sys.stdin:
        run = json.loads(line)
        if "continue" in run:
            for process in run["continue"]:
                os.kill(process, signal.SIGCONT)
            answer: Any = [_ended(process, paused.pop(process)) for process in run["continue"]]
        else:
            answer = _forked(run, paused)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
