"""The Spark driver of a local run: how it is started, and its progress.

Above it: the runner, which supervises its process like any other. Below it: the driver process
(`millstream_reduce.spark.driver`), of which it knows the command line and one request. Imported only for pipelines with
a reduce.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc.aio

from millstream.background import beside
from millstream.files import own_directory
from millstream.plurals import counted
from millstream.spec.models import Pipeline
from millstream.wire.reduce.v1 import spark_pb2, spark_pb2_grpc
from millstream_reduce.spark.settings import settings_of
from millstream_runner.local.directory import explained, make_private, write_text
from millstream_runner.local.replica import Hooks, Logs, ProcessPlan, Supervisor
from millstream_runner.local.states import State

PLAN = ProcessPlan("spark")
DRIVER_MODULE = "millstream_reduce.spark.driver"
_LOOK_INTERVAL_S = 0.5
_LOOK_TIMEOUT_S = 2.0
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class LocalSpark(Supervisor):
    """The driver's process, and its progress as far as it answers. `serve` is its only task."""

    def __init__(self, address: str, command: Sequence[str], logs: Logs, hooks: Hooks) -> None:
        """`address`: the gRPC address on which it listens."""
        super().__init__(PLAN, logs, hooks)
        self.address = address
        self._command = command
        self._answer: spark_pb2.DescribeResponse | None = None
        self._jobs = 0
        """Jobs done in this run, by all its processes."""
        self._jobs_before = 0

    @property
    def is_ready(self) -> bool:
        """Whether it runs jobs."""
        return self.state is State.RUNNING and self._answer is not None

    @property
    def text(self) -> str:
        """Its state, in words."""
        words = [self.state.value]
        if self.state is State.RUNNING:
            words = ["starting" if self._answer is None else f"ready ({self._answer.master})"]
        if self._jobs:
            words.append(counted(self._jobs, "job"))
        if self.restarts:
            words.append(f"restarted {self.restarts}x")
        return ", ".join(words)

    def progress(self) -> Mapping[str, object]:
        return {self.plan.name: self._jobs}

    def hear(self, text: str) -> None:
        """It sends nothing besides its heartbeat."""

    def started(self) -> None:
        self._answer = None
        self._jobs_before = self._jobs

    async def serve(self) -> None:
        """Keep it running until it is asked to end or fails permanently."""
        async with beside(self._look(), "observe Spark"):
            await self.keep_running(lambda: self._command)

    async def _look(self) -> None:
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
            stub = spark_pb2_grpc.SparkDriverStub(channel)
            while True:
                try:
                    self._answer = await stub.Describe(spark_pb2.DescribeRequest(), timeout=_LOOK_TIMEOUT_S)
                    self._jobs = self._jobs_before + self._answer.jobs
                except grpc.aio.AioRpcError:
                    self._answer = None
                await asyncio.sleep(_LOOK_INTERVAL_S)


def driver_command(address: str, pipeline: Pipeline, base_dir: Path, directory: Path, log_level: str) -> Sequence[str]:
    """Write the driver's settings, and return its command line. `directory` belongs to the driver."""
    settings = directory / "settings.json"
    with explained(f"cannot write {settings}"):
        make_private(directory)
        own_directory(directory)
    # Settings may contain passwords (of an object store, for example); `write_text` keeps them private.
    write_text(settings, settings_of(pipeline, base_dir, directory / "scratch").to_json(), durable=False)
    return [
        *(sys.executable, "-P", "-m", DRIVER_MODULE),
        *("--address", address),
        *("--settings", str(settings)),
        *("--pipeline", pipeline.name),
        *("--log-level", log_level.upper()),
    ]
