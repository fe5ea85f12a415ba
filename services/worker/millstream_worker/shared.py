"""What the lanes of a replica share: ledgers, OT stores and their listeners, back-pressure, ownership.

Above it: the assembly, which opens lanes with it. Below it: the boundaries. It does not depend on any lane.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from millstream.clock import Clock
from millstream.errors import DamageError
from millstream.ledger.protocol import Ledger
from millstream.ledger.sharing import SEPARATE
from millstream.naming import Naming
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Network
from millstream.spec.models import EdgeKind
from millstream.watermark.store import OtListener, OtStore
from millstream_vertex.input import Cycle, LaneInput
from millstream_vertex.ownership import Ownership
from millstream_vertex.settings import buffer_limits, route
from millstream_worker.environment import Outside, VertexConfig
from millstream_worker.ledgers import ReplicaLedgers
from millstream_worker.readiness import Readiness
from millstream_writer.backpressure import Backpressure
from millstream_writer.routing import Route, Router, shared_route


class ReplicaResources:
    """What the lanes of one replica share."""

    def __init__(self, config: VertexConfig, clock: Clock, outside: Outside, readiness: Readiness) -> None:
        self.config = config
        self.clock = clock
        self.outside = outside
        self.readiness = readiness
        self.plan = config.resolved.plan
        """What runs and is stored: a chain is one stage."""
        self.graph = config.resolved.graph
        """The pipeline as its author wrote it: every vertex with its own edges and settings."""
        self.vertex = self.plan.vertex(config.vertex)
        self.programs = outside.programs[config.vertex]
        self.pipeline = config.resolved.pipeline.name
        self.naming = Naming(values=config.resolved.pipeline.spec.logging.values)
        self.owner = f"{config.vertex}-{config.replica}/{os.getpid()}@{socket.gethostname()}"
        self.rng = outside.rng
        self.ledgers = ReplicaLedgers(config, outside, self.listen)
        self._sharing = SEPARATE
        """The edges out of the vertex that share copies."""
        self._listeners: dict[str, list[OtListener]] = defaultdict(list)
        self._ot: dict[str, OtStore] = {}
        self.ownership = Ownership()
        self.closing_cycle: list[LaneInput] = []
        """The inputs that are back edges."""
        self.backpressure = Backpressure(
            {
                buffer: buffer_limits(self.plan, edge)
                for edge in self.plan.edges_out[config.vertex]
                for buffer in self.plan.buffers_of(edge)
            }
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: VertexConfig, clock: Clock, outside: Outside, readiness: Readiness
    ) -> AsyncIterator[ReplicaResources]:
        shared = cls(config, clock, outside, readiness)
        shared._sharing = await shared.ledgers.sharing(config.vertex)
        try:
            await shared.listen(config.vertex, shared.ownership.observe)
            for buffer, fill in shared.backpressure.fills.items():
                await shared.listen(shared.plan.edge(buffer.edge).to, fill.on_reader)
                if shared.vertex.replicas > 1:
                    await shared.listen(config.vertex, fill.on_writer)
            yield shared
        finally:
            outside.watches.forget(shared._listeners)

    @asynccontextmanager
    async def damage_judged(self) -> AsyncIterator[None]:
        """Raise damage found inside as `FencedError` if lanes have another owner: that owner has trimmed or deleted the
        missing data."""
        try:
            yield
        except (DamageError, BaseExceptionGroup) as error:
            if isinstance(error, DamageError) or error.subgroup(DamageError) is not None:
                await self.ownership.check(await self.ledgers.of(self.config.vertex))
            raise

    async def ot(self, vertex: str) -> OtStore:
        if vertex not in self._ot:
            self._ot[vertex] = await self.outside.stores.store(vertex)
        return self._ot[vertex]

    async def listen(self, vertex: str, listener: OtListener) -> None:
        """Pass the updates of that vertex's OT store to `listener`."""
        await self.outside.watches.listen(vertex, listener)
        self._listeners[vertex].append(listener)

    async def catch_up(self) -> None:
        """Pass the stored state to the listeners, so that no decision is made without it."""
        await self.outside.watches.catch_up(self._listeners)

    async def watch(self) -> None:
        """Wait until cancelled. Raises the error that ends a watch of other lanes, or the trimming."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.outside.watches.failed(), name="hear other lanes")
            tasks.create_task(self.outside.trimmers.failed(), name="trim")

    def router(self, network: Network, vertex: str) -> Router:
        """The router for the edges of a vertex in that network that have buffers."""
        kinds: tuple[EdgeKind, ...] = ("data", "deadLetter", "late")
        data, dead, late = (
            [route(network, edge) for edge in network.edges_of(vertex, kind) if not edge.chain] for kind in kinds
        )
        copies: defaultdict[str, list[Route]] = defaultdict(list)
        for one in data:
            copies[self._sharing.stores.get(one.edge, one.edge)].append(one)
        return Router([shared_route(routes) for routes in copies.values()], dead, late)

    async def cycle(self) -> tuple[Cycle, Mapping[str, Ledger]]:
        """The cycle that contains this vertex, with the ledgers of its members."""
        members = next(group for group in self.plan.sccs if self.config.vertex in group)
        entering: list[LaneId] = []
        inside: list[tuple[LaneId, BufferId, str]] = []
        for lane in (lane for member in members for lane in self.plan.lanes_of(member)):
            # A lane that reads several buffers is not in a cycle.
            (buffer,) = self.plan.inputs_of(lane)
            writer = self.plan.edge(buffer.edge).from_
            if writer in members:
                inside.append((lane, buffer, writer))
            else:
                entering.append(lane)
        return Cycle(entering, inside), {member: await self.ledgers.of(member) for member in members}
