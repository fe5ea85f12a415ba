"""Assembles a replica of a vertex from the pipeline's spec: ledgers, OT stores, sidecars, lanes.

This is the only module that knows every part. It makes no decisions while records flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from millstream.clock import Clock
from millstream.statistics import VertexStatistics
from millstream.telemetry.logging import log_lane
from millstream.telemetry.opening import Identity, ProcessTelemetry
from millstream_vertex.input import wait_until_empty
from millstream_vertex.taking_over import log_finished
from millstream_worker.environment import OpenEnvironment, VertexConfig, open_outside
from millstream_worker.lanes import open_lane
from millstream_worker.opening import VertexLane
from millstream_worker.readiness import Readiness
from millstream_worker.shared import ReplicaResources

_SILENT = ProcessTelemetry(None, None)


class VertexProcess:
    """The open lanes of one replica of one vertex. Made by `open_vertex`."""

    def __init__(self, shared: ReplicaResources, lanes: Sequence[VertexLane], readiness: Readiness) -> None:
        self._shared = shared
        self._lanes = lanes
        self._readiness = readiness

    async def run(self) -> None:
        """Run until every lane has ended, or has finished its work after `stop`."""
        async with asyncio.TaskGroup() as background:
            tasks = [background.create_task(self._shared.watch(), name="watch what the worker does for all")]
            tasks.append(background.create_task(self._shared.ownership.watch(), name="watch for other owners"))
            if self._shared.closing_cycle:
                tasks.append(background.create_task(self._watch_cycle(), name="watch the cycle"))
            async with asyncio.TaskGroup() as running:
                for lane in self._lanes:
                    with log_lane(lane.core.lane.key):
                        running.create_task(lane.run(), name=str(lane.core.lane))
            for task in tasks:
                task.cancel()
        await self._shared.ledgers.finish_trimming()
        for lane in self._lanes:
            await lane.core.publisher.flush()
            log_finished(lane.statistics())

    def stop(self) -> None:
        """Accept no new input; `run` returns when the records in flight are finished."""
        self._readiness.stopping()
        for lane in self._lanes:
            lane.stop()
        self._shared.backpressure.drain()

    async def _watch_cycle(self) -> None:
        await wait_until_empty(*await self._shared.cycle())
        for lane_input in self._shared.closing_cycle:
            lane_input.cycle_is_empty()


@asynccontextmanager
async def open_vertex(
    config: VertexConfig,
    clock: Clock,
    *,
    environment: OpenEnvironment = open_outside,
    process: ProcessTelemetry = _SILENT,
    readiness: Readiness | None = None,
) -> AsyncIterator[VertexProcess]:
    """Take over the replica's lanes and open everything they need. `readiness` tracks the progress."""
    lanes: list[VertexLane] = []
    name, graph = config.resolved.pipeline.name, config.resolved.graph
    numbers = [_Statistics(config, vertex, lanes) for vertex in graph.chain(config.vertex)]
    readiness = readiness or Readiness()
    async with AsyncExitStack() as stack:
        telemetry = {
            one.vertex: stack.enter_context(
                process.replica(Identity(name, one.vertex, one.kind.name, config.replica, one.kind.reports), one)
            )
            for one in numbers
        }
        outside = await stack.enter_async_context(environment(config))
        readiness.reached(outside)
        shared = await stack.enter_async_context(ReplicaResources.open(config, clock, outside, readiness))
        for one in numbers:
            one.shared = shared
        await stack.enter_async_context(shared.damage_judged())
        for lane in shared.plan.owned_lanes(config.vertex, config.replica):
            opened = await open_lane(shared, lane, telemetry, stack)
            lanes.append(opened)
        await shared.catch_up()
        readiness.opened()
        yield VertexProcess(shared, lanes, readiness)


class _Statistics:
    """Computes the statistics of the replica on request, for its vertex or for one that follows in its chain."""

    def __init__(self, config: VertexConfig, vertex: str, lanes: Sequence[VertexLane]) -> None:
        self._config = config
        self.vertex = vertex
        self._lanes = lanes
        self.kind = config.resolved.graph.vertex(vertex).definition
        self.shared: ReplicaResources | None = None
        """None until the environment is open; until then there is nothing to count."""

    def __call__(self) -> VertexStatistics:
        shared, graph = self.shared, self._config.resolved.graph
        leads = self.vertex == self._config.vertex
        # A chain commits once for all of its vertices; its first vertex reports the commits.
        totals = [ledger.statistics() for ledger in shared.ledgers.opened()] if shared is not None and leads else []
        buffers = shared.backpressure.statistics() if shared is not None else []
        return VertexStatistics(
            pipeline=self._config.resolved.pipeline.name,
            vertex=self.vertex,
            vertex_type=self.kind.name,
            replica=self._config.replica,
            lanes=[lane.statistics() if leads else lane.core.statistics_of(self.vertex) for lane in self._lanes],
            buffers=[one for one in buffers if graph.edge(one.buffer.edge).from_ == self.vertex],
            sidecars=shared.outside.programs[self.vertex].statistics() if shared is not None else {},
            functions=shared.outside.programs[self.vertex].metrics() if shared is not None else {},
            commits=sum(total.commits for total in totals),
            commit_bytes=sum(total.commit_bytes for total in totals),
            commit_seconds=sum(total.commit_seconds for total in totals),
            answers_settled=sum(total.answers_settled for total in totals),
            read_restarts=sum(total.read_restarts for total in totals),
            reports=self.kind.reports,
        )
