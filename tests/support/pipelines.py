"""Runs a pipeline inside one process, on a real broker and with real sidecars: for tests of pipelines.

Above it: tests, users' among them. Below it: the same lanes that `millstream run` starts, each vertex replica as a
task instead of a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.account import Account, account_of
from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.clock import START_OF_TIME_US, Clock, SystemClock
from millstream.ledger.protocol import DurabilityLevel
from millstream.nats.connection import open_connection
from millstream.plan import resolved
from millstream.plan.placement import replicas_of
from millstream.record import LaneId
from millstream.spec.loading import load
from millstream.telemetry.opening import open_telemetry
from millstream.wire.ledger.v1 import mark_pb2
from millstream_worker.assembly import open_vertex
from millstream_worker.environment import VertexConfig
from millstream_worker.worker import WorkerConfig


class PipelineRun:
    """A pipeline and its broker. Made by `open_pipeline`."""

    def __init__(self, path: Path, server: NatsServer, clock: Clock, windows: Path, spark: str | None) -> None:
        self._path = path
        self.windows = windows
        """Where reduce lanes keep their logs, <vertex>/<partition>."""
        self._spark = spark
        loaded = load(path)
        self.resolved = resolved.load(resolved.dump(loaded.plan, path.parent))
        self.graph = self.resolved.graph
        self.plan = self.resolved.plan
        self.server = server
        self._clock = clock
        self._stopping = asyncio.Event()

    async def run(self, *, timeout_s: float = 300.0) -> None:
        """Until every vertex has ended, or is finished after `stop`; goes on where an earlier run stopped.

        Raises what ended a vertex (in an `ExceptionGroup`), and `TimeoutError`.
        """
        self._stopping.clear()
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for one in replicas_of(self.plan):
                group.create_task(self._run_vertex(one.vertex, one.number), name=one.name)

    def stop(self) -> None:
        """Have every vertex finish what is in flight, as SIGTERM does."""
        self._stopping.set()

    def again(self) -> PipelineRun:
        """The same pipeline on the same broker once more: its lanes take those of this one over."""
        return PipelineRun(self._path, self.server, self._clock, self.windows, self._spark)

    def config(self, vertex: str, replica: int = 0) -> VertexConfig:
        """The settings of a process of that replica."""
        return VertexConfig(
            resolved=self.resolved,
            vertex=vertex,
            replica=replica,
            broker=self.server.access,
            durability=DurabilityLevel.FSYNC,
            windows_dir=self.windows,
            spark=self._spark,
        )

    def worker(self, *names: str, metrics_port: int = 0, metrics_host: str = "127.0.0.1") -> WorkerConfig:
        """The settings of a worker that runs these replicas, called as `ReplicaId.name`; all without names."""
        replicas = replicas_of(self.plan)
        return WorkerConfig(
            resolved=self.resolved,
            access={one: self.server.access for one in replicas if not names or one.name in names},
            durability=DurabilityLevel.FSYNC,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            windows_dir=self.windows,
            spark=self._spark,
        )

    async def marks(self) -> Mapping[LaneId, mark_pb2.Mark]:
        """The mark of every lane that has one, as the ledgers hold it now."""
        marks: dict[LaneId, mark_pb2.Mark] = {}
        async with open_jetstream_broker(self.server.access, self.resolved.pipeline.name) as broker:
            for lane in self.plan.all_lanes():
                ledger = await broker.existing_ledger(lane.vertex)
                stored = await ledger.mark(lane) if ledger is not None else None
                if stored is not None:
                    marks[lane] = stored.mark
        return marks

    async def published(self, vertex: str) -> int:
        """The watermark that the vertex's lanes have published, as its OT store holds it now; microseconds."""
        async with (
            open_connection(self.server.access) as connection,
            open_jetstream_ot_stores(connection, self.resolved.pipeline.name) as stores,
        ):
            updates = await (await stores.store(vertex)).get_all()
        lanes = self.graph.lanes_of(vertex)
        return min(updates[lane.key].entry.watermark_us if lane.key in updates else START_OF_TIME_US for lane in lanes)

    async def account(self, vertex: str) -> Account:
        """The conservation account of a vertex, over all its lanes."""
        total = Account()
        for lane, mark in (await self.marks()).items():
            if lane.vertex == self.graph.head(vertex):
                total.add(account_of(vertex, lane, mark))
        return total

    async def _run_vertex(self, vertex: str, replica: int) -> None:
        async with open_telemetry(self.worker(f"{vertex}-{replica}").identities) as telemetry:
            opening = open_vertex(self.config(vertex, replica), self._clock, process=telemetry)
            async with opening as process, asyncio.TaskGroup() as group:
                stopping = group.create_task(self._stop(process.stop))
                await process.run()
                stopping.cancel()

    async def _stop(self, stop: Callable[[], None]) -> None:
        await self._stopping.wait()
        stop()


@asynccontextmanager
async def open_pipeline(
    path: Path, directory: Path, *, clock: Clock | None = None, spark: str | None = None
) -> AsyncIterator[PipelineRun]:
    """The pipeline of the YAML file `path`, on a broker of its own; both keep their data below `directory`.

    `spark`: gRPC address of a Spark driver; a pipeline with a reduce needs one.

    Raises `SpecError` for a file that is not valid.
    """
    async with open_nats_server(directory) as server:
        yield PipelineRun(path, server, clock or SystemClock(), directory / "windows", spark)
