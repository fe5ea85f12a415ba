"""Opens the lanes of a replica. What the lanes of all kinds need is here; each kind has the rest.

    take over: ledger, OT store ─► LaneCore ─► the kind opens the rest ─► VertexLane

Above it: the assembly. Below it: the kinds of vertex, found by `millstream.spec.kinds`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol, TypeVar

from millstream import codes
from millstream.clock import START_OF_TIME_US
from millstream.errors import FencedError, MillstreamError, RetryLaterError, UserError
from millstream.importing import started
from millstream.ledger.marks import fenced
from millstream.ledger.protocol import Ledger
from millstream.ledger.witness import from_messages, given_up_of
from millstream.limits import BYTES_IN_FLIGHT_MAX, FRAMES_IN_FLIGHT_MAX, OT_PUBLISH_INTERVAL_S
from millstream.pauses import Pauses, RepeatedFailure
from millstream.record import BufferId, LaneId, Position
from millstream.retry import RetryPolicy
from millstream.spec.graph import Graph
from millstream.spec.lanes import buffers_of, inputs_of, upstream_lanes
from millstream.spec.models import Edge
from millstream.spec.protocols import FunctionKind
from millstream.statistics import LaneStatistics
from millstream.telemetry import Telemetry
from millstream.udf.protocol import StreamName
from millstream.watermark.store import newest
from millstream_reader.buffer import open_buffer_reader
from millstream_reader.ids import SeenIds
from millstream_reader.tracker import Tracker
from millstream_udf import arrow_values
from millstream_vertex.buffer_lane import BufferLane
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import LaneCore, LaneCounters
from millstream_vertex.lane_log import log_opened
from millstream_vertex.little import little_of
from millstream_vertex.map_step import Outlet, ToBuffers, ToNext, ToSink
from millstream_vertex.mapping import Mapper
from millstream_vertex.past import check_not_older
from millstream_vertex.places import check_places
from millstream_vertex.remembered import open_seen_ids
from millstream_vertex.settings import future_bound, id_bounds, members_of
from millstream_vertex.to_sink import ChainDeliverer, Target, recover
from millstream_worker.kind import RunnableKind
from millstream_worker.shared import Shared
from millstream_writer.committer import Committer
from millstream_writer.routing import Router

T = TypeVar("T")

_log = logging.getLogger(__name__)
_AWAY_FIRST_S, _AWAY_LAST_S = 0.1, 5.0


class VertexLane(Protocol):
    """A lane of any kind."""

    core: LaneCore

    async def run(self) -> None:
        """Run until the input has ended, or until the work in progress is finished after `stop`."""

    def stop(self) -> None:
        """Accept no new input."""

    def statistics(self) -> LaneStatistics: ...


async def open_lane(
    shared: Shared, lane: LaneId, telemetry: Mapping[str, Telemetry], stack: AsyncExitStack
) -> VertexLane:
    """Take over a lane and open it on `stack`. `telemetry`: the telemetry of each vertex that runs in the lane."""
    kind = shared.vertex.definition
    if not isinstance(kind, RunnableKind):
        raise UserError(
            codes.EXTENSION,
            f"{shared.pipeline}/{lane}: no worker can run a {kind.name}: its object is not a RunnableKind",
        )
    core = await _core(shared, lane, telemetry[lane.vertex], shared.router(shared.graph, lane.vertex))
    try:
        opened: VertexLane = await started(
            kind.open_lane, shared.vertex.settings, LaneOpening(shared, core, telemetry, stack)
        )
    except FencedError as update:
        await shared.ownership.check_known(lane, await shared.ledger(lane.vertex), update)
        raise
    return opened


class StepOpening:
    """What a kind needs to open one vertex of a lane: the only vertex, or one of a chain."""

    def __init__(
        self, shared: Shared, lane: LaneId, telemetry: Telemetry, counters: LaneCounters, stack: AsyncExitStack
    ) -> None:
        self.shared = shared
        """What the lanes of the replica share."""
        self.lane = lane
        """The lane; for a vertex that follows in a chain, the lane that it would have without the chain."""
        self.telemetry = telemetry
        """The telemetry of the vertex."""
        self.counters = counters
        """The counters of the vertex in this lane."""
        self.router = shared.router(shared.whole, lane.vertex)
        """Routes to the vertex's own edges that have buffers."""
        self.stack = stack
        """Resources that are closed when the replica ends."""

    @property
    def name(self) -> StreamName:
        """The name under which the vertex calls a program."""
        return StreamName(self.shared.pipeline, self.lane.vertex, self.lane.key, self.shared.config.replica)

    @property
    def where(self) -> str:
        """The name of the lane, for messages."""
        return f"{self.shared.pipeline}/{self.lane}"

    @property
    def retry_policy(self) -> RetryPolicy:
        """The policy for records on which the vertex fails."""
        policy = self.shared.whole.retry_policy(self.lane.vertex)
        if policy is None:
            raise MillstreamError(
                codes.IMPOSSIBLE, f"{self.where}: a {self.shared.kind} that may fail on a record has no retry policy"
            )
        return policy

    async def reached(self, connect: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter the context that `connect` returns; it stays open until the replica ends.

        While the external system is unavailable, this waits and tries again, as lanes do while records flow.
        """
        return await self.answered(lambda: self.stack.enter_async_context(connect()))

    async def answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of an external system to `ask`, without which the lane cannot be opened.

        While the system is unavailable, this waits and asks again. The replica's readiness has the reason, and a
        replica that has to stop does not wait for the system: nothing is in flight.
        """
        readiness, pauses = self.shared.readiness, Pauses(_AWAY_FIRST_S, _AWAY_LAST_S)
        failure = RepeatedFailure()
        while True:
            try:
                found = await ask()
            except RetryLaterError as error:
                failure.warn(_log, "", str(error))
                readiness.waits_for_outside(str(error))
                await pauses.wait()
            else:
                failure.over(_log, f"{self.lane}: ")
                readiness.reached_outside()
                return found

    async def mapper(self, role: str, kind: FunctionKind, *, may_return_arrow: bool = False) -> Mapper:
        """A mapper that calls the program of that role and applies the vertex's retry policy to its answers.
        `may_return_arrow`: the outputs go to a function that takes Arrow."""
        shared, policy = self.shared, self.retry_policy
        programs = shared.outside.programs_of(self.lane.vertex)
        stream = await self.stack.enter_async_context(
            programs.open_map(role, kind, self.name, may_return_arrow=may_return_arrow)
        )
        client = programs.client(role)
        return Mapper(
            stream,
            policy,
            where=self.where,
            has_dead_letter=self.router.has_dead_letter,
            needs_tags=self.router.needs_tags,
            rng=shared.rng,
            naming=shared.naming,
            bound=future_bound(shared.whole, self.lane.vertex, shared.clock, self.where),
            # Built-ins, which have no client, answer at once.
            concurrency=1 if client is None else client.description.concurrency,
            # A process without pyarrow could not do what needs the values themselves, such as a dead letter.
            takes_arrow=stream.takes_arrow and arrow_values.available(),
        )


class LaneOpening(StepOpening):
    """What a kind of vertex needs to open a lane that has been taken over."""

    def __init__(
        self, shared: Shared, core: LaneCore, telemetry: Mapping[str, Telemetry], stack: AsyncExitStack
    ) -> None:
        super().__init__(shared, core.lane, core.telemetry, core.counters, stack)
        self.core = core
        """Commits for the lane; the core's committer has the mark."""
        self._telemetry = telemetry

    @property
    def graph(self) -> Graph:
        return self.shared.graph

    @property
    def chain(self) -> Sequence[str]:
        """The vertices that run in the lane; the lane's own vertex is first."""
        return self.shared.whole.chain(self.lane.vertex)

    @property
    def call_records_max(self) -> int | None:
        """The most records that a function of the chain gets in one call, if that is limited."""
        # The default of 500 is Numaflow's. Calls are that small only for vertices that set the limit explicitly.
        limits = [self.shared.whole.limits_of(vertex) for vertex in self.chain]
        return min((one.read_batch_size for one in limits if "read_batch_size" in one.model_fields_set), default=None)

    async def outlet(self) -> Outlet:
        """The destination of the outputs of the lane's vertex: its buffers, or the vertices that follow in its chain.

        This opens these vertices. If the chain ends in a sink, it also commits what a former owner delivered; only
        after that is the mark the position of the lane.
        """
        whole, chain = self.shared.whole, self.chain
        router, ledger = self.shared.router(whole, chain[-1]), await self.shared.ledger(self.lane.vertex)
        # As in `mapper`; and a ledger that an earlier version created holds only what that version reads.
        takes_arrow = router.takes_arrow and ledger.holds_arrow and arrow_values.available()
        outlet: Outlet = ToBuffers(router, takes_arrow=takes_arrow)
        for number in reversed(range(1, len(chain))):
            vertex, edge = whole.vertex(chain[number]), whole.chained_into(chain[number])
            kind = vertex.definition
            assert edge is not None, "it follows in a chain"
            assert isinstance(kind, RunnableKind), "the graph is sound, and the kind can be chained"
            lane = LaneId(vertex.name, self._entered_by(edge), self.lane.partition)
            counters = self.core.followers.setdefault(lane, LaneCounters())
            opening = StepOpening(self.shared, lane, self._telemetry[vertex.name], counters, self.stack)
            if kind.has_output:
                outlet = ToNext(await started(kind.open_step, vertex.settings, opening, outlet, number))
            else:
                outlet = ToSink(lane, number)
                await self._deliver_to(await started(kind.open_target, vertex.settings, opening, self.core))
        return outlet

    def _entered_by(self, edge: Edge) -> str:
        """The input in the name of a lane that follows by this edge in the chain. If the chain begins with a join, its
        lanes of one partition would have the same one, and records and positions the same names."""
        return self.lane.input if len(self.graph.edges_in[self.lane.vertex]) > 1 else edge.name

    async def _deliver_to(self, target: Target) -> None:
        """Make the lane commit through the sink at the end of its chain, starting at the target's position."""
        committer = self.core.committer
        bounds = id_bounds(self.graph, self.lane.vertex)
        committer.ids_ttl_s = bounds.ttl_s if bounds is not None else 0.0
        if target.kept is not None:
            await recover(committer, await self.answered(target.kept.reach), self.where)
        self.core.deliverer = ChainDeliverer(self.core, target)

    async def upstream(self) -> Ledger:
        """The ledger that contains the lane's input buffer."""
        return await self.shared.ledger(self.graph.edge(self.lane.input).from_)

    async def buffer_lane(self, *, in_parts: bool = False) -> BufferLane:
        """The input side of a lane that reads a buffer. `in_parts`: see `BufferReader`."""
        shared, lane = self.shared, self.lane
        (buffer,) = inputs_of(shared.graph, lane)
        writer = shared.graph.edge(lane.input).from_
        back_edge = lane.input in shared.graph.back_edges
        lane_input = LaneInput(buffer, upstream_lanes(shared.graph, buffer), back_edge=back_edge)
        if back_edge:
            shared.closing_cycle.append(lane_input)
        await shared.listen(writer, lane_input)
        mark = self.core.committer.mark
        reader = await self.stack.enter_async_context(
            open_buffer_reader(
                await self.upstream(),
                buffer,
                Position(mark.sequence, mark.record_index),
                lane_input,
                witnesses=from_messages(mark.read),
                given_up=given_up_of(mark, buffer.edge),
                in_parts=in_parts,
            )
        )
        return BufferLane(self.core, reader, lane_input, await shared.trimmer(writer))

    async def seen_ids(self) -> SeenIds | None:
        """The ids that the lane has committed and still remembers; None for a kind without `id_bounds`."""
        ledger = await self.shared.ledger(self.lane.vertex)
        return await open_seen_ids(self.graph, ledger, self.lane, self.core.committer, self.shared.clock)


async def _core(shared: Shared, lane: LaneId, telemetry: Telemetry, router: Router) -> LaneCore:
    """Take over the lane in its ledger and in the OT store."""
    ledger = await shared.ledger(lane.vertex)
    ot = await shared.ot(lane.vertex)
    # Read the OT entry before the mark: an entry is published only after its mark has been committed.
    update = (await newest(ot)).get(lane.key)
    before = await ledger.mark(lane)
    if update is not None:
        check_not_older(lane, before, update.entry)
    members = members_of(shared.whole, lane.vertex)
    if before is not None:
        check_places(lane, before.mark, members, {edge.name for edge in shared.graph.edges})
    taken_over = await ledger.take_over(lane, shared.owner)
    log_opened(lane, taken_over.mark)
    shared.backpressure.written(lane, taken_over.mark.written)
    epoch = taken_over.mark.epoch
    published = await ot.take_over(lane, epoch)
    stored = (await newest(ot)).get(lane.key)
    if stored is not None and stored.entry.epoch > epoch:
        raise fenced(lane, stored.entry.epoch, epoch)
    shared.ownership.own(lane, epoch)
    # The newest frame of a buffer is never trimmed.
    sequences = {buffer: await ledger.last_sequence(buffer) for buffer in router.buffers}
    inside = _inside_a_cycle(shared.graph, lane)
    return LaneCore(
        lane,
        Committer(
            *(ledger, lane, taken_over, sequences, router, shared.backpressure),
            compression=shared.config.resolved.pipeline.spec.compression,
            never_waits_for=inside,
            members=members,
        ),
        ot,
        telemetry,
        shared.clock,
        Tracker(pieces_max=FRAMES_IN_FLIGHT_MAX, bytes_max=BYTES_IN_FLIGHT_MAX),
        watermarks=not shared.config.resolved.pipeline.spec.watermark.disabled,
        published_us=published.watermark_us if published is not None else START_OF_TIME_US,
        # Progress without output is visible only in the OT entry, which is not published more often than this.
        commit_interval_s=OT_PUBLISH_INTERVAL_S if shared.vertex.definition.is_paced else 0.0,
        little=little_of(shared.graph, lane.vertex),
    )


def _inside_a_cycle(graph: Graph, lane: LaneId) -> list[BufferId]:
    """The buffers inside the cycle that a lane writes, if its input closes the cycle; otherwise none."""
    if lane.input not in graph.back_edges:
        return []
    members = next(group for group in graph.sccs if lane.vertex in group)
    inside = [edge for edge in graph.edges_out[lane.vertex] if edge.to in members]
    return [buffer for edge in inside for buffer in buffers_of(graph, edge)]
