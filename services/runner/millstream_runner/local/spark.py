"""The Spark driver of a local run: how it is started, and its progress.

Above it: the runner, which supervises its process like any other. Below it: the driver process
(`millstream_reduce.spark.driver`), of which it knows the command line and one request. Imported only for pipelines with
a reduce.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.files import own_directory
from millstream.plurals import counted
from millstream.record import ReplicaId
from millstream.spec.models import Pipeline
from millstream.wire.reduce.v1 import spark_pb2, spark_pb2_grpc
from millstream_reduce.spark.settings import settings_of
from millstream_runner.local.directory import RunningProcess, make_private, write_text
from millstream_runner.local.logfiles import LogFile
from millstream_runner.local.replica import Failure, Reports, Supervisor
from millstream_runner.local.states import State

DRIVER_MODULE = "millstream_reduce.spark.driver"
STOP_GRACE_S = 10.0
"""Time from the request to end until it is killed. Nothing is lost by that."""
_LOOK_INTERVAL_S = 0.5
_LOOK_TIMEOUT_S = 2.0
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """The driver process."""

    address: str
    """gRPC address on which it listens."""
    settings: Path
    pipeline: str
    log_level: str
    name: str = "spark"
    metrics_port: None = None
    replicas: tuple[ReplicaId, ...] = ()

    def command(self) -> list[str]:
        """Its command line."""
        return [
            *(sys.executable, "-P", "-m", DRIVER_MODULE),
            *("--address", self.address),
            *("--settings", str(self.settings)),
            *("--pipeline", self.pipeline),
            *("--log-level", self.log_level.upper()),
        ]


class LocalSpark:
    """The driver's process, and its progress as far as it answers. `serve` is its only task."""

    def __init__(
        self,
        plan: DriverPlan,
        *,
        log: LogFile,
        on_entry: Callable[[Mapping[str, Any]], bool],
        on_health: Callable[[Mapping[str, Any]], None],
        on_change: Callable[[], None],
    ) -> None:
        """Arguments as for `Supervisor`; `log` stores what it logs and prints."""
        self._plan = plan
        self._supervisor = Supervisor(
            plan,
            Reports(
                keep=lambda line, entry: log.write(line),
                keep_output=log.write,
                progress=lambda: {plan.name: self._jobs},
                lanes_ended=_never,
                on_entry=on_entry,
                on_health=on_health,
                on_change=on_change,
            ),
        )
        self._answer: spark_pb2.DescribeResponse | None = None
        self._pid = 0
        self._jobs = 0
        """Jobs done in this run, by all its processes."""
        self._jobs_before = 0

    @property
    def address(self) -> str:
        return self._plan.address

    @property
    def process(self) -> RunningProcess | None:
        return self._supervisor.process

    @property
    def failure(self) -> Failure | None:
        return self._supervisor.failure

    @property
    def is_ready(self) -> bool:
        """Whether it runs jobs."""
        return self._supervisor.state is State.RUNNING and self._answer is not None

    @property
    def text(self) -> str:
        """Its state, in words."""
        words = [self._supervisor.state.value]
        if self._supervisor.state is State.RUNNING:
            words = ["starting" if self._answer is None else f"ready ({self._answer.master})"]
        if self._jobs:
            words.append(counted(self._jobs, "job"))
        if self._supervisor.restarts:
            words.append(f"restarted {self._supervisor.restarts}x")
        return ", ".join(words)

    def stop(self) -> None:
        """Ask it to end; `serve` then returns."""
        self._supervisor.stop(grace_s=STOP_GRACE_S)

    async def serve(self) -> None:
        """Keep it running until it is asked to end or fails permanently."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look(), name="observe Spark")
            await self._supervisor.serve(self._plan.command)
            looking.cancel()

    async def _look(self) -> None:
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
            stub = spark_pb2_grpc.SparkDriverStub(channel)
            while True:
                try:
                    self._take(await stub.Describe(spark_pb2.DescribeRequest(), timeout=_LOOK_TIMEOUT_S))
                except grpc.aio.AioRpcError:
                    self._answer = None
                await asyncio.sleep(_LOOK_INTERVAL_S)

    def _take(self, answer: spark_pb2.DescribeResponse) -> None:
        if answer.pid != self._pid:
            self._pid, self._jobs_before = answer.pid, self._jobs
        self._jobs = self._jobs_before + answer.jobs
        self._answer = answer


async def _never() -> bool:
    """It has no lanes, so it ends only when it is asked to."""
    return False


def plan_driver(pipeline: Pipeline, base_dir: Path, directory: Path, sockets: Path, log_level: str) -> DriverPlan:
    """Write the driver's settings. `directory` belongs to the driver; `sockets` has a short path."""
    settings = directory / "settings.json"
    try:
        make_private(directory)
        own_directory(directory)
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_WRITE, f"cannot write {settings}: {error.strerror}") from error
    # Settings may contain passwords (of an object store, for example); `write_text` keeps them private.
    write_text(settings, settings_of(pipeline, base_dir, directory / "scratch").to_json(), durable=False)
    return DriverPlan(f"unix:{sockets / 'spark'}", settings, pipeline.name, log_level)
