"""Puts a replica of a vertex together from the pipeline's spec: ledgers, OT stores, sidecars, lanes.

The only place that knows every part. It decides nothing while records flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from millstream.clock import START_OF_TIME_US, Clock
from millstream.errors import FencedError, MillstreamError, UdfError, UserError
from millstream.ledger.marks import fenced
from millstream.ledger.witness import from_messages, given_up_of
from millstream.limits import (
    BYTES_IN_FLIGHT_MAX,
    FRAMES_IN_FLIGHT_MAX,
    OT_PUBLISH_INTERVAL_S,
)
from millstream.record import BufferId, LaneId, Position
from millstream.spec.lanes import buffers_of, inputs_of, owned_lanes, upstream_lanes
from millstream.statistics import LaneStatistics, VertexStatistics
from millstream.telemetry import Identity, ProcessTelemetry, Telemetry
from millstream.telemetry.logging import log_lane
from millstream.udf.protocol import MapStream, StreamName
from millstream.watermark.store import newest
from millstream.wire.ledger.v1 import mark_pb2
from millstream_reader.buffer import open_buffer_reader
from millstream_reader.sources.opening import open_source
from millstream_reader.tracker import Tracker
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.buffer_lane import BufferLane
from millstream_vertex.cycle import wait_until_empty
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import LaneCore
from millstream_vertex.lane_log import log_finished, log_opened
from millstream_vertex.map_lane import MapLane
from millstream_vertex.mapping import Mapper
from millstream_vertex.past import check_not_older, held_instead
from millstream_vertex.remembered import open_seen_ids
from millstream_vertex.settings import future_bound, source_watermark
from millstream_vertex.sink_lane import SinkVertexLane
from millstream_vertex.source_lane import SourceVertexLane
from millstream_worker.environment import OpenEnvironment, VertexConfig, open_outside
from millstream_worker.readiness import Readiness
from millstream_worker.shared import Shared
from millstream_writer.committer import Committer
from millstream_writer.connector import HeldInstead, SinkOwner
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sinks.opening import open_sink

_SILENT = ProcessTelemetry(None, None)


class VertexLane(Protocol):
    """A lane of any kind."""

    core: LaneCore

    async def run(self) -> None:
        """Until its input has ended, or `stop` was called and what was begun is finished."""

    def stop(self) -> None:
        """Take nothing new in."""

    def statistics(self) -> LaneStatistics: ...


class VertexProcess:
    """The open lanes of one replica of one vertex. Made by `open_vertex`."""

    def __init__(
        self, shared: Shared, lanes: Sequence[VertexLane], cycle_ends: Sequence[LaneInput], readiness: Readiness
    ) -> None:
        self._shared = shared
        self._lanes = lanes
        self._cycle_ends = cycle_ends
        self._readiness = readiness

    async def run(self) -> None:
        """Until every lane has ended, or is finished after `stop`."""
        trimmers = self._shared.trimmers()
        async with asyncio.TaskGroup() as background:
            tasks = [background.create_task(self._shared.watch(), name="hear other lanes")]
            tasks.append(background.create_task(self._shared.ownership.watch(), name="watch for other owners"))
            tasks += [background.create_task(one.run(), name=f"trim {name}") for name, one in trimmers]
            if self._cycle_ends:
                tasks.append(background.create_task(self._watch_cycle(), name="watch the cycle"))
            async with asyncio.TaskGroup() as running:
                for lane in self._lanes:
                    with log_lane(lane.core.lane.key):
                        running.create_task(lane.run(), name=str(lane.core.lane))
            for task in tasks:
                task.cancel()
        for _, trimmer in trimmers:
            await trimmer.finish()
        for lane in self._lanes:
            log_finished(lane.statistics())

    def stop(self) -> None:
        """Take nothing new in; `run` returns when what is in flight is finished."""
        self._readiness.stopping()
        for lane in self._lanes:
            lane.stop()
        self._shared.backpressure.drain()

    async def _watch_cycle(self) -> None:
        await wait_until_empty(*await self._shared.cycle())
        for lane_input in self._cycle_ends:
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
    """Take the replica's lanes over and open everything they need. `readiness` is told how far that is."""
    lanes: list[VertexLane] = []
    cycle_ends: list[LaneInput] = []
    statistics = _Statistics(config, lanes)
    readiness = readiness or Readiness()
    async with AsyncExitStack() as stack:
        identity = Identity(config.resolved.pipeline.name, config.vertex, statistics.kind, config.replica)
        telemetry = stack.enter_context(process.replica(identity, statistics))
        outside = await stack.enter_async_context(environment(config))
        readiness.reached(outside)
        shared = statistics.shared = await stack.enter_async_context(Shared.open(config, clock, outside))
        await stack.enter_async_context(shared.damage_judged())
        for lane in owned_lanes(shared.graph, config.vertex, config.replica):
            opening = _LaneOpening(shared, lane, telemetry, stack)
            lanes.append(await opening.open())
            if opening.closes_cycle is not None:
                cycle_ends.append(opening.closes_cycle)
        await shared.catch_up()
        readiness.opened()
        yield VertexProcess(shared, lanes, cycle_ends, readiness)


class _LaneOpening:
    """Opens one lane into the process's exit stack."""

    def __init__(self, shared: Shared, lane: LaneId, telemetry: Telemetry, stack: AsyncExitStack) -> None:
        self._shared = shared
        self._lane = lane
        self._telemetry = telemetry
        self._stack = stack
        self._name = StreamName(shared.pipeline, lane.vertex, lane.key, shared.config.replica)
        self._where = f"{shared.pipeline}/{lane}"
        self.closes_cycle: LaneInput | None = None
        """The lane's input, when it is a back edge."""

    async def open(self) -> VertexLane:
        core = await self._core()
        try:
            return await self._open_kind(core)
        except FencedError as update:
            await self._shared.ownership.check_known(self._lane, await self._shared.ledger(self._lane.vertex), update)
            raise

    async def _open_kind(self, core: LaneCore) -> VertexLane:
        if self._shared.kind == "source":
            return await self._open_source(core)
        if self._shared.kind == "reduce":
            return await self._open_reduce(core)
        base = await self._buffer_lane(core)
        if self._shared.kind == "map":
            return await self._open_map(base)
        return await self._open_sink(base)

    async def _core(self) -> LaneCore:
        shared, lane = self._shared, self._lane
        ledger = await shared.ledger(lane.vertex)
        ot = await shared.ot(lane.vertex)
        # In this order: what was published speaks of a mark that had landed.
        update = (await newest(ot)).get(lane.key)
        if update is not None:
            check_not_older(lane, await ledger.mark(lane), update.entry)
        taken_over = await ledger.take_over(lane, shared.owner)
        self._router = shared.router()
        log_opened(lane, taken_over.mark)
        shared.backpressure.written(lane, taken_over.mark.written)
        epoch = taken_over.mark.epoch
        published = await ot.take_over(lane, epoch)
        stored = (await newest(ot)).get(lane.key)
        if stored is not None and stored.entry.epoch > epoch:
            raise fenced(lane, stored.entry.epoch, epoch)
        shared.ownership.own(lane, epoch)
        # The newest frame of a buffer is never trimmed.
        sequences = {buffer: await ledger.last_sequence(buffer) for buffer in self._router.buffers}
        return LaneCore(
            lane,
            Committer(
                ledger,
                lane,
                taken_over,
                sequences,
                self._router,
                shared.backpressure,
                never_waits_for=self._inside_a_cycle(),
            ),
            ot,
            self._telemetry,
            shared.clock,
            Tracker(pieces_max=FRAMES_IN_FLIGHT_MAX, bytes_max=BYTES_IN_FLIGHT_MAX),
            watermarks=not shared.config.resolved.pipeline.spec.watermark.disabled,
            published_us=published.watermark_us if published is not None else START_OF_TIME_US,
            # Of progress without output only the OT entry tells, which is not published more often either.
            commit_interval_s=OT_PUBLISH_INTERVAL_S if shared.kind in ("sink", "reduce") else 0.0,
        )

    def _inside_a_cycle(self) -> list[BufferId]:
        """For a lane that closes a cycle, the buffers inside that it writes."""
        graph, lane = self._shared.graph, self._lane
        if lane.input not in graph.back_edges:
            return []
        members = next(group for group in graph.sccs if lane.vertex in group)
        inside = [edge for edge in graph.edges_out[lane.vertex] if edge.to in members]
        return [buffer for edge in inside for buffer in buffers_of(graph, edge)]

    async def _buffer_lane(self, core: LaneCore) -> BufferLane:
        shared, lane = self._shared, self._lane
        (buffer,) = inputs_of(shared.graph, lane)
        writer = shared.graph.edge(lane.input).from_
        lane_input = LaneInput(
            buffer, upstream_lanes(shared.graph, buffer), back_edge=lane.input in shared.graph.back_edges
        )
        if lane_input.back_edge:
            self.closes_cycle = lane_input
        await shared.listen(writer, lane_input)
        upstream = await shared.ledger(writer)
        mark = core.committer.mark
        reader = await self._stack.enter_async_context(
            open_buffer_reader(
                upstream,
                buffer,
                Position(mark.sequence, mark.record_index),
                lane_input,
                witnesses=from_messages(mark.read),
                given_up=given_up_of(mark, buffer.edge),
            )
        )
        return BufferLane(core, reader, lane_input, await shared.trimmer(writer))

    async def _open_map(self, base: BufferLane) -> MapLane:
        shared = self._shared
        stream = await self._stack.enter_async_context(shared.programs.open_map("udf", udf_pb2.KIND_MAP, self._name))
        limits = shared.graph.limits_of(self._lane.vertex)
        # The default of 500 is Numaflow's; only who sets it wants calls that small.
        batch = limits.read_batch_size if "read_batch_size" in limits.model_fields_set else None
        run = (await shared.ledger(shared.graph.edge(self._lane.input).from_)).ledger_id
        return MapLane(base, self._mapper(stream), self._router, slice_records_max=batch, run=run)

    def _mapper(self, stream: MapStream) -> Mapper:
        policy = self._shared.graph.retry_policy(self._lane.vertex)
        if policy is None:
            raise MillstreamError(f"{self._where}: a function has no retry policy")
        return Mapper(
            stream,
            policy,
            where=self._where,
            has_dead_letter=self._router.has_dead_letter,
            needs_tags=self._router.needs_tags,
            rng=self._shared.rng,
            naming=self._shared.naming,
            bound=future_bound(self._shared.graph, self._lane.vertex, self._shared.clock, self._where),
        )

    async def _open_reduce(self, core: LaneCore) -> VertexLane:
        # What computes windows takes half a second to import, and other vertices do not need it.
        from millstream_reduce.lane.opening import ReduceOpening

        shared = self._shared
        policy = shared.graph.retry_policy(self._lane.vertex)
        if policy is None:
            raise MillstreamError(f"{self._where}: a reduce has no retry policy")
        opening = ReduceOpening(
            resolved=shared.config.resolved,
            core=core,
            router=self._router,
            policy=policy,
            function=shared.programs.reduce_address,
            replica=shared.config.replica,
            windows_dir=shared.config.windows_dir,
            engine=shared.config.spark,
            ledger=shared.ledger,
            trimmer=shared.trimmer,
            listen=shared.listen,
            open_engine=shared.outside.engine,
            files=shared.outside.files(),
            queue_limits=shared.outside.queue_limits,
            rng=shared.rng,
        )
        return await opening.open(self._stack)

    async def _open_source(self, core: LaneCore) -> SourceVertexLane:
        shared, lane = self._shared, self._lane
        spec = shared.vertex.source
        if spec is None:
            raise MillstreamError(f"{self._where}: a source vertex has no source")
        ledger = await shared.ledger(lane.vertex)
        seen = await open_seen_ids(shared.graph, ledger, lane, core.committer, shared.clock)
        source = await self._stack.enter_async_context(
            open_source(
                spec,
                lane,
                shared.vertex.partitions,
                core.committer.mark.position,
                base_dir=shared.config.resolved.base_dir,
                clock=shared.clock,
                udf_client=shared.programs.client("source"),
                stream_name=self._name,
                seen=seen,
            )
        )
        mapper = None
        if spec.transformer is not None:
            stream = await self._stack.enter_async_context(
                shared.programs.open_map("transformer", udf_pb2.KIND_SOURCE_TRANSFORM, self._name)
            )
            mapper = self._mapper(stream)
        watermark = source_watermark(shared.config.resolved.pipeline, core.watermark_us)
        on_invalid = shared.graph.on_invalid(lane.vertex)
        return SourceVertexLane(
            *(core, source, mapper, self._router, watermark, seen, on_invalid),
            pipeline=shared.pipeline,
            naming=shared.naming,
            bound=future_bound(shared.graph, lane.vertex, shared.clock, self._where),
        )

    async def _open_sink(self, base: BufferLane) -> SinkVertexLane:
        shared, lane = self._shared, self._lane
        spec, mark = shared.vertex.sink, base.core.committer.mark
        policy = shared.graph.retry_policy(lane.vertex)
        if spec is None or policy is None:
            raise MillstreamError(f"{self._where}: a sink vertex has no sink")
        owner = SinkOwner(
            pipeline=shared.pipeline,
            lane=lane,
            replica=shared.config.replica,
            epoch=mark.epoch,
            start=Position(mark.sequence, mark.record_index),
            ledger_id=(await shared.ledger(lane.vertex)).ledger_id,
            base_dir=shared.config.resolved.base_dir,
            clock=shared.clock,
            held_instead=await self._held_instead(mark),
            envelope=shared.graph.writes_envelopes(lane.input, spec),
            client=shared.programs.client("sink"),
        )
        primary = await self._stack.enter_async_context(open_sink(spec, owner))
        fallback = None
        if spec.fallback is not None:
            aside = owner.as_fallback(
                envelope=shared.graph.writes_envelopes(lane.input, spec.fallback),
                client=shared.programs.client("fallback"),
            )
            fallback = await self._stack.enter_async_context(open_sink(spec.fallback, aside))
        limits = shared.graph.limits_of(lane.vertex)
        half = DeliveryLimits(max(1, limits.usable_length // 2), max(1, limits.usable_bytes // 2))
        error = UdfError if spec.program is not None else UserError
        delivery = Delivery(
            *(primary, fallback, policy, half),
            where=self._where,
            rng=shared.rng,
            stop_error=error,
            naming=shared.naming,
        )
        return SinkVertexLane(base, delivery)

    async def _held_instead(self, mark: mark_pb2.Mark) -> HeldInstead:
        (buffer,) = inputs_of(self._shared.graph, self._lane)
        upstream = await self._shared.ledger(self._shared.graph.edge(buffer.edge).from_)
        return partial(held_instead, upstream, buffer, given_up_of(mark, buffer.edge))


class _Statistics:
    """The replica's numbers, when asked for."""

    def __init__(self, config: VertexConfig, lanes: Sequence[VertexLane]) -> None:
        self._config = config
        self._lanes = lanes
        self.kind = config.resolved.graph.vertex(config.vertex).kind
        self.shared: Shared | None = None
        """None before the environment are open: then there is nothing to count."""

    def __call__(self) -> VertexStatistics:
        shared = self.shared
        totals = [ledger.statistics() for ledger in shared.ledgers()] if shared is not None else []
        return VertexStatistics(
            pipeline=self._config.resolved.pipeline.name,
            vertex=self._config.vertex,
            vertex_type=self.kind,
            replica=self._config.replica,
            lanes=[lane.statistics() for lane in self._lanes],
            buffers=shared.backpressure.statistics() if shared is not None else [],
            sidecars=shared.programs.statistics() if shared is not None else {},
            commits=sum(total.commits for total in totals),
            commit_bytes=sum(total.commit_bytes for total in totals),
            commit_seconds=sum(total.commit_seconds for total in totals),
            answers_settled=sum(total.answers_settled for total in totals),
            read_restarts=sum(total.read_restarts for total in totals),
        )
