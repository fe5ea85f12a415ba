"""What a replica reaches outside its worker: the broker, the OT stores, the user's programs, Spark, the disk.

    worker ─► Link: a connection, watches of OT stores, trimmers      shared by its replicas
                └─► Outside: ledgers, stores, programs                one for each replica

Above it: the worker and the assembly, which ask for all of it here and open nothing else outside. A simulation gives
the assembly environment of its own, and runs everything above them as it is.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access, InterStepBuffer, Technology
from millstream.buffers.technology import Link as BufferLink
from millstream.ledger.protocol import Broker, DurabilityLevel
from millstream.limits import LOG_BYTES_MAX
from millstream.record import ReplicaId
from millstream.spec.protocols import FunctionKind
from millstream.spec.resolved import Resolved
from millstream.statistics import SidecarStatistics
from millstream.telemetry.logging import log_replica
from millstream.udf.protocol import MapStream, StreamName, UdfClient
from millstream.watermark.store import OtStores
from millstream_worker.programs import NOT_DEVELOPED, Development, open_programs
from millstream_worker.trimmers import Trimmers, open_trimmers
from millstream_worker.watches import Watches, open_watches

if TYPE_CHECKING:
    # What computes windows takes half a second to import, and vertices without windows do not need it.
    from millstream_reduce.engine import Engine
    from millstream_reduce.log.files import Files
    from millstream_reduce.queue import QueueLimits


@dataclass(frozen=True, slots=True)
class VertexConfig:
    """What a replica gets at its start."""

    resolved: Resolved
    vertex: str
    replica: int
    broker: Access
    durability: DurabilityLevel
    """The weakest that is accepted."""
    windows_dir: Path | None = None
    """Where reduce lanes keep their logs, <vertex>/<partition>."""
    spark: str | None = None
    """gRPC address of the pipeline's Spark driver."""
    hidden: tuple[Path, ...] = ()
    """Files and directories that no sandbox of a function shows."""
    development: Development = NOT_DEVELOPED
    """What is done for the authors of functions."""


class VertexPrograms(Protocol):
    """The running programs of one replica, by role: udf, transformer, sink, fallback, source."""

    def client(self, role: str) -> UdfClient | None:
        """The running program of that role; None where the vertex has none."""

    def reduce_address(self, name: StreamName) -> str | None:
        """Where Spark's tasks reach the reduce function beside this process; None where the vertex has none."""

    def open_map(self, role: str, kind: FunctionKind, name: StreamName) -> AbstractAsyncContextManager[MapStream]:
        """A stream of the map or source transform of that role."""

    def statistics(self) -> Mapping[str, SidecarStatistics]: ...


class Environment(Protocol):
    """Everything outside, open."""

    @property
    def broker(self) -> Broker: ...

    @property
    def stores(self) -> OtStores:
        """Where the replica's lanes publish."""

    @property
    def watches(self) -> Watches:
        """How it hears what other lanes publish."""

    @property
    def trimmers(self) -> Trimmers:
        """What removes what its lanes have consumed."""

    def programs_of(self, vertex: str) -> VertexPrograms:
        """Of the replica's vertex, or of one that follows in its chain."""

    @property
    def rng(self) -> random.Random:
        """For pauses between attempts."""

    def trouble(self) -> str | None:
        """What is away that a process cannot work without; None when everything is there."""

    def engine(self, address: str) -> AbstractAsyncContextManager[Engine]:
        """What computes the windows of reduces, at that address; it need not be there yet."""

    def files(self) -> Files:
        """The file operations of the logs of reduce lanes."""

    def queue_limits(self, log_bytes_max: int | None, segment_bytes: int) -> QueueLimits:
        """Bounds of a reduce lane's queue. `log_bytes_max`: where the spec bounds its log."""


class OpenEnvironment(Protocol):
    """How a replica comes to its environment."""

    def __call__(self, config: VertexConfig) -> AbstractAsyncContextManager[Environment]: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """The environment of a replica that runs for its user."""

    broker: Broker
    stores: OtStores
    watches: Watches
    trimmers: Trimmers
    programs: Mapping[str, VertexPrograms]
    """By vertex: more than one in a chain."""
    rng: random.Random
    buffer: InterStepBuffer

    def programs_of(self, vertex: str) -> VertexPrograms:
        return self.programs[vertex]

    def trouble(self) -> str | None:
        if (lost := self.buffer.trouble()) is not None:
            return lost
        down = [
            role if len(self.programs) == 1 else f"{role} of {vertex}"
            for vertex, programs in self.programs.items()
            for role, sidecar in programs.statistics().items()
            if not sidecar.running
        ]
        return f"the program of the {' and the '.join(down)} is not running" if down else None

    def engine(self, address: str) -> AbstractAsyncContextManager[Engine]:
        from millstream_reduce.spark.settings import TOKEN_VARIABLE
        from millstream_reduce.spark.wire import open_spark_client

        return open_spark_client(address, os.environ.get(TOKEN_VARIABLE, ""))

    def files(self) -> Files:
        from millstream_reduce.log.files import SystemFiles

        return SystemFiles()

    def queue_limits(self, log_bytes_max: int | None, segment_bytes: int) -> QueueLimits:
        from millstream_reduce.queue import QueueLimits

        return QueueLimits(log_bytes_max or LOG_BYTES_MAX, segment_bytes=segment_bytes)


class Link:
    """A worker's connection to its broker as one user, and what its replicas share over it. Made by `open_link`."""

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
        """Those of one replica, with its programs started.

        Its ledgers and the stores it publishes in are its own: what they count, and what they know of their last put,
        belongs to its lanes.
        """
        async with AsyncExitStack() as stack:
            buffer = await stack.enter_async_context(self._link.open(self._pipeline, require=self._require))
            programs: dict[str, VertexPrograms] = {}
            for vertex in config.resolved.graph.chain(config.vertex):
                # What they print is theirs, whose lanes they run in.
                with log_replica(ReplicaId(vertex, config.replica)):
                    opening = open_programs(config.resolved, vertex, config.replica, config.hidden, config.development)
                    programs[vertex] = await stack.enter_async_context(opening)
            yield Outside(
                buffer.broker, buffer.stores, self._watches, self._trimmers, programs, random.Random(), buffer
            )


@asynccontextmanager
async def open_link(
    technology: Technology, access: Access, pipeline: str, require: DurabilityLevel, name: str
) -> AsyncIterator[Link]:
    """Connect to the broker. `name`: of the connection, for the broker's operator. `require`: the weakest durability
    that is accepted."""
    async with (
        technology.connect(access, name=name) as link,
        link.open(pipeline, require=require) as buffer,
        open_watches(buffer.stores) as watches,
        open_trimmers(buffer.broker) as trimmers,
    ):
        yield Link(link, pipeline, require, watches, trimmers)


@asynccontextmanager
async def open_outside(config: VertexConfig) -> AsyncIterator[Outside]:
    """The environment of a replica that shares nothing."""
    name = config.resolved.pipeline.name
    async with (
        open_link(
            technology_of(config.resolved.pipeline), config.broker, name, config.durability, f"{name}/{config.vertex}"
        ) as link,
        link.environment(config) as outside,
    ):
        yield outside
