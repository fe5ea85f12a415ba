"""Everything external that a replica uses: the broker, the OT stores, the user's programs, Spark, the disk.

    worker ─► Link: a connection, watches of OT stores, trimmers      shared by its replicas
                └─► Outside: ledgers, stores, programs                one for each replica

Above it: the worker and the assembly, which open external resources only through this module. A simulation gives
the assembly an `Outside` of its own, and runs everything above it unchanged.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.buffers.placed import placed
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access, Technology
from millstream.buffers.technology import Link as BufferLink
from millstream.ledger.protocol import Broker, DurabilityLevel
from millstream.limits import LOG_BYTES_MAX
from millstream.plan.plan import Plan
from millstream.plan.resolved import ResolvedPipeline
from millstream.record import ReplicaId
from millstream.telemetry.logging import log_replica
from millstream.watermark.store import OtStores
from millstream_worker.programs import NOT_DEVELOPED, Development, Programs, open_programs
from millstream_worker.trimmers import Trimmers, open_trimmers
from millstream_worker.watches import Watches, open_watches

if TYPE_CHECKING:
    # The window engine takes half a second to import, and vertices without windows do not need it.
    from millstream_reduce.engine import WindowEngine
    from millstream_reduce.log.files import Files
    from millstream_reduce.queue import QueueLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The part of a worker's configuration that holds for each of its replicas."""

    resolved: ResolvedPipeline
    durability: DurabilityLevel
    """The weakest level that is accepted."""
    windows_dir: Path | None = None
    """Directory where reduce lanes keep their logs, in <vertex>/<partition>."""
    states_dir: Path | None = None
    """Directory for what functions remember on disk, in <vertex>/<partition>."""
    spark: str | None = None
    """gRPC address of the pipeline's Spark driver."""
    hidden: tuple[Path, ...] = ()
    """Files and directories that are hidden in the sandboxes of functions."""
    development: Development = NOT_DEVELOPED
    """Settings for authors who develop functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexConfig(RunConfig):
    """The configuration that a replica gets when it starts."""

    vertex: str
    replica: int
    broker: Access


@dataclass(frozen=True, slots=True)
class Outside:
    """The environment of a replica: its open external resources."""

    broker: Broker
    stores: OtStores
    """The OT stores in which the replica's lanes publish."""
    watches: Watches
    """The watches that deliver what other lanes publish."""
    trimmers: Trimmers
    """The trimmers that remove what the replica's lanes have consumed."""
    programs: Mapping[str, Programs]
    """The programs of the replica's vertex, and of those that follow in its chain."""
    rng: random.Random
    """The random generator for the pauses between attempts."""
    buffer_trouble: Callable[[], str | None]
    """See `InterStepBuffer.trouble`."""

    def trouble(self) -> str | None:
        """The required resource that is unavailable, as text for a message; None if all are available."""
        if (lost := self.buffer_trouble()) is not None:
            return lost
        down = [
            role if len(self.programs) == 1 else f"{role} of {vertex}"
            for vertex, programs in self.programs.items()
            for role, sidecar in programs.statistics().items()
            if not sidecar.running
        ]
        return f"the program of the {' and the '.join(down)} is not running" if down else None

    def engine(self, address: str) -> AbstractAsyncContextManager[WindowEngine]:
        """The engine at that address, which computes the windows of reduces; it need not be available yet."""
        from millstream_reduce.spark.settings import TOKEN_VARIABLE
        from millstream_reduce.spark.wire import open_spark_client

        return open_spark_client(address, os.environ.get(TOKEN_VARIABLE, ""))

    def files(self) -> Files:
        """The file operations of the logs of reduce lanes."""
        from millstream_reduce.log.files import Files

        return Files()

    def queue_limits(self, log_bytes_max: int | None, segment_bytes: int) -> QueueLimits:
        """Bounds of a reduce lane's queue. `log_bytes_max`: the bound on its log, if the spec sets one."""
        from millstream_reduce.queue import QueueLimits

        return QueueLimits(log_bytes_max or LOG_BYTES_MAX, segment_bytes=segment_bytes)


OpenEnvironment = Callable[[VertexConfig], AbstractAsyncContextManager[Outside]]
"""Opens the environment of a replica."""


class WorkerLink:
    """A worker's connection to its broker as one user, with what its replicas share over it. Made by `open_link`."""

    def __init__(
        self, link: BufferLink, pipeline: str, require: DurabilityLevel, watches: Watches, trimmers: Trimmers
    ) -> None:
        self._link = link
        self._pipeline = pipeline
        self._require = require
        self._watches = watches
        self._trimmers = trimmers

    @asynccontextmanager
    async def environment(self, config: VertexConfig) -> AsyncIterator[Outside]:
        """The environment of one replica, with its programs started.

        The replica does not share its ledgers and the stores in which it publishes: their counts, and what they
        remember about their last put, belong to its lanes.
        """
        async with AsyncExitStack() as stack:
            opened = await stack.enter_async_context(self._link.open(self._pipeline, require=self._require))
            buffer = placed(opened, config.resolved.plan)
            programs: dict[str, Programs] = {}
            for vertex in config.resolved.graph.chain(config.vertex):
                # The output of a program is logged under its own vertex, not under the head of the chain.
                with log_replica(ReplicaId(vertex, config.replica)):
                    opening = open_programs(config.resolved, vertex, config.replica, config.hidden, config.development)
                    programs[vertex] = await stack.enter_async_context(opening)
            yield Outside(
                buffer.broker, buffer.stores, self._watches, self._trimmers, programs, random.Random(), buffer.trouble
            )


@asynccontextmanager
async def open_link(
    technology: Technology, access: Access, plan: Plan, require: DurabilityLevel, name: str
) -> AsyncIterator[WorkerLink]:
    """Connect to the broker. `plan`: that of the pipeline. `name`: the name of the connection, for the broker's
    operator. `require`: the weakest durability that is accepted."""
    async with (
        technology.connect(access, name=name) as link,
        link.open(plan.pipeline.name, require=require) as buffer,
        open_watches(buffer.stores) as watches,
        open_trimmers(placed(buffer, plan).broker) as trimmers,
    ):
        yield WorkerLink(link, plan.pipeline.name, require, watches, trimmers)


@asynccontextmanager
async def open_outside(config: VertexConfig) -> AsyncIterator[Outside]:
    """The environment of a replica that shares nothing with other replicas."""
    plan = config.resolved.plan
    name = f"{plan.pipeline.name}/{config.vertex}"
    async with (
        open_link(technology_of(plan.pipeline), config.broker, plan, config.durability, name) as link,
        link.environment(config) as outside,
    ):
        yield outside
