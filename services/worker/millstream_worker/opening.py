"""What a kind of vertex gets to open a lane, or its part of one.

    the lane that was taken over ─► the vertices of its chain, last one first ─► output, stages, input

Above it: the kinds of vertex, and `lanes`. Below it: the parts of lanes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UdfError, UserError
from millstream.importing import started
from millstream.ledger.protocol import Ledger, Witness
from millstream.ledger.witness import from_messages, given_up_of
from millstream.limits import FRAME_RECORDS_MAX
from millstream.pauses import Pauses, RepeatedFailure, until_done
from millstream.record import ALL_INPUTS, BufferId, LaneId, Position
from millstream.retry import RetryPolicy
from millstream.spec.protocols import FunctionKind
from millstream.spec.values import SpecModel
from millstream.statistics import LaneStatistics
from millstream.telemetry.telemetry import Telemetry
from millstream.udf.protocol import StreamName
from millstream.udf.streams import KeyedMapStream, TableStream
from millstream.values import reads_arrow
from millstream.wire.ledger.v1 import mark_pb2
from millstream_reader.buffer import BufferReader, open_buffer_reader
from millstream_reader.ids import SeenIds
from millstream_vertex.buffer_input import BufferInput
from millstream_vertex.core import LaneCore
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import Input, Lane
from millstream_vertex.mapping import MapStage
from millstream_vertex.merged_input import MergedBuffer, MergedInput
from millstream_vertex.outputs import Output, ToBuffers
from millstream_vertex.publishing import LaneCounters
from millstream_vertex.settings import future_bound
from millstream_vertex.stage import Stage
from millstream_vertex.stages import Stages, Step
from millstream_vertex.taking_over import open_seen_ids
from millstream_vertex.to_sink import ChainDeliverer, ChainSink, recover
from millstream_worker.shared import ReplicaResources

T = TypeVar("T")

_log = logging.getLogger(__name__)
_AWAY_FIRST_S, _AWAY_LAST_S = 0.1, 5.0


OpenStage = Callable[..., Coroutine[Any, Any, Stage]]
"""Opens a stage. Its argument `next_takes_arrow` is whether what follows takes frames with Arrow columns."""


class VertexLane(Protocol):
    """A lane of any kind."""

    core: LaneCore

    async def run(self) -> None:
        """Run until the input has ended, or until the work in progress is finished after `stop`."""

    def stop(self) -> None:
        """Accept no new input."""

    def statistics(self) -> LaneStatistics: ...


class InChain(Protocol):
    """A kind whose vertices may follow in a chain: see `RunnableKind`, which knows this module."""

    has_output: bool

    def open_stage(
        self, settings: SpecModel, opening: StageOpening, *, next_takes_arrow: bool
    ) -> Coroutine[Any, Any, Stage]: ...

    def open_target(
        self, settings: SpecModel, opening: StageOpening, core: LaneCore
    ) -> Coroutine[Any, Any, ChainSink]: ...


class StageOpening:
    """What a kind needs to open one vertex of a lane: the only vertex, or one of a chain."""

    def __init__(
        self,
        shared: ReplicaResources,
        lane: LaneId,
        telemetry: Telemetry,
        counters: LaneCounters,
        stack: AsyncExitStack,
        *,
        edge: str = "",
    ) -> None:
        """`edge`: by which all records of the lane come."""
        self.shared = shared
        """What the lanes of the replica share."""
        self.lane = lane
        """The lane; for a vertex that follows in a chain, the lane that it would have without the chain."""
        self.telemetry = telemetry
        """The telemetry of the vertex."""
        self.counters = counters
        """The counters of the vertex in this lane."""
        self.router = shared.router(shared.graph, lane.vertex)
        """Routes to the vertex's own edges that have buffers."""
        self.stack = stack
        """Resources that are closed when the replica ends."""
        self.name = StreamName(shared.pipeline, lane.vertex, lane.key, shared.config.replica, edge)
        """The name under which the vertex calls a program."""
        self.where = f"{shared.pipeline}/{lane}"
        """The name of the lane, for messages."""

    @property
    def retry_policy(self) -> RetryPolicy:
        """The policy for records on which the vertex fails."""
        policy = self.shared.graph.retry_policy(self.lane.vertex)
        if policy is None:
            raise MillstreamError(
                codes.IMPOSSIBLE,
                f"{self.where}: a {self.shared.vertex.kind} that may fail on a record has no retry policy",
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
        readiness, failure = self.shared.readiness, RepeatedFailure()

        def report(error: RetryLaterError) -> None:
            failure.warn(_log, "", str(error))
            readiness.waits_for_outside(str(error))

        found = await until_done(ask, RetryLaterError, report, Pauses(_AWAY_FIRST_S, _AWAY_LAST_S))
        failure.over(_log, f"{self.lane}: ")
        readiness.reached_outside()
        return found

    def step(self, stage: Stage, number: int = 0) -> Step:
        """The stage as a part of the lane. `number`: the place of its vertex in the chain."""
        return Step(self.lane, stage, self.router, self.telemetry, self.counters, number)

    async def map_stage(
        self,
        role: str,
        kind: FunctionKind,
        *,
        may_return_arrow: bool = False,
        make: Callable[..., MapStage] | None = None,
    ) -> MapStage:
        """A stage that calls the program of that role and applies the vertex's retry policy to its answers.
        `may_return_arrow`: the outputs go to a function that takes Arrow. `make`: makes the stage of a function
        with states; it takes what `MapStage` takes."""
        shared, policy = self.shared, self.retry_policy
        programs = shared.outside.programs[self.lane.vertex]
        stream = await self.stack.enter_async_context(
            programs.open_map(role, kind, self.name, may_return_arrow=may_return_arrow)
        )
        if make is None and isinstance(stream, KeyedMapStream) and stream.states:
            names = ", ".join(f"`{state.name}`" for state in stream.states)
            raise UdfError(
                codes.STATE_MISFIT,
                f"{self.where}: the function remembers {names}, and its vertex has no state. Write `state: {{}}` to "
                "the `udf` of the vertex",
            )
        if make is None and isinstance(stream, TableStream) and stream.tables:
            names = ", ".join(f"`{name}`" for name in stream.tables)
            raise UdfError(
                codes.STATE_MISFIT,
                f"{self.where}: the function reads the tables {names}, and its vertex has none. Write them to the "
                "`tables` of the `udf` of the vertex, with edges that bring their records",
            )
        client = programs.client(role)
        return (make or MapStage)(
            stream,
            policy,
            where=self.where,
            has_dead_letter=self.router.has_dead_letter,
            needs_tags=self.router.needs_tags,
            rng=shared.rng,
            naming=shared.naming,
            bound=future_bound(shared.graph, self.lane.vertex, shared.clock, self.where),
            # Built-ins, which have no client, answer at once.
            concurrency=1 if client is None else client.description.concurrency,
            # A process without pyarrow could not do what needs the values themselves, such as a dead letter.
            takes_arrow=stream.takes_arrow and reads_arrow(),
        )


class LaneOpening(StageOpening):
    """What a kind of vertex needs to open a lane that has been taken over."""

    def __init__(
        self, shared: ReplicaResources, core: LaneCore, telemetry: Mapping[str, Telemetry], stack: AsyncExitStack
    ) -> None:
        edge = next((one.name for one in shared.plan.edges_in[core.lane.vertex] if one.name == core.lane.input), "")
        super().__init__(shared, core.lane, core.telemetry, core.counters, stack, edge=edge)
        self.core = core
        """Commits for the lane; the core's committer has the mark."""
        self._telemetry = telemetry
        self.plan = shared.plan
        self.chain = shared.graph.chain(core.lane.vertex)
        """The vertices that run in the lane; the lane's own vertex is first."""

    @property
    def call_records_max(self) -> int | None:
        """The most records that a function of the chain gets in one call, if that is limited."""
        # The default of 500 is Numaflow's. Calls are that small only for vertices that set the limit explicitly.
        limits = [self.shared.graph.limits_of(vertex) for vertex in self.chain]
        return min((one.read_batch_size for one in limits if "read_batch_size" in one.model_fields_set), default=None)

    async def rest(self) -> tuple[list[Step], Output]:
        """What follows the lane's own vertex: the stages of the vertices in its chain, and the lane's output.

        If the chain ends in a sink, this also commits what a former owner delivered; only after that is the mark the
        position of the lane.
        """
        graph, chain = self.shared.graph, self.chain
        router, ledger = self.shared.router(graph, chain[-1]), await self.shared.ledgers.of(self.lane.vertex)
        # As in `map_stage`; and a ledger that an earlier version created holds only what that version reads.
        takes_arrow = router.takes_arrow and ledger.holds_arrow and reads_arrow()
        output: Output = ToBuffers(self.core, router, takes_arrow=takes_arrow)
        steps: list[Step] = []
        for number in reversed(range(1, len(chain))):
            vertex, edge = graph.vertex(chain[number]), graph.chained_into(chain[number])
            # The graph is sound, so the kind can be chained.
            kind = cast("InChain", vertex.definition)
            assert edge is not None, "it follows in a chain"
            lane = self.plan.lane_inside(self.lane, edge)
            counters = self.core.counters_of(lane)
            telemetry = self._telemetry[vertex.name]
            opening = StageOpening(self.shared, lane, telemetry, counters, self.stack, edge=edge.name)
            if kind.has_output:
                takes_arrow = takes_arrow_of(steps, output)
                stage = await started(partial(kind.open_stage, next_takes_arrow=takes_arrow), vertex.settings, opening)
                if stage.is_stateful:
                    # The state would be left in the mark of this lane if the chain were separated.
                    raise UserError(
                        codes.EXTENSION,
                        f"{opening.where}: the stage of a {vertex.kind} has a state, so it cannot follow in a chain: "
                        "the kind must not say that it `may_follow_in_chain`",
                    )
                steps.insert(0, opening.step(stage, number))
            else:
                target = await started(kind.open_target, vertex.settings, opening, self.core)
                if target.kept is not None:
                    await recover(self.core.committer, await self.answered(target.kept.reach), self.where)
                output = ChainDeliverer(self.core, target)
        return steps, output

    async def stage_lane(self, open_stage: OpenStage) -> Lane:
        """A lane that reads a buffer, and passes its records through the stage of the lane's vertex and those of the
        vertices that follow in its chain."""
        steps, output = await self.rest()
        stage = await started(partial(open_stage, next_takes_arrow=takes_arrow_of(steps, output)))
        stages = Stages([self.step(stage), *steps], output, self.shared.clock)
        # The output of a call is committed together. If a buffer is small, calls are small, so that several fit.
        piece, records_max = self.core.committer.router.piece.records, self.call_records_max
        if piece < FRAME_RECORDS_MAX:
            records_max = min(piece, records_max or piece)
        paced = bool(stages.concurrencies)
        return Lane(
            self.core,
            await self._input_of_stages(stage),
            stages,
            paced=paced,
            may_grow=True,
            leaves=False,
            records_max=records_max,
        )

    async def upstream(self) -> Ledger:
        """The ledger that contains the lane's input buffer."""
        return await self.shared.ledgers.of(self.plan.edge(self.lane.input).from_)

    async def _input_of_stages(self, stage: Stage) -> Input:
        """The input of a lane with stages. `stage`: the first one."""
        if self.lane.input == ALL_INPUTS:
            return await self.merged_input(stage)
        return await self.buffer_input(in_parts=True, run=(await self.upstream()).ledger_id)

    async def merged_input(self, stage: Stage) -> MergedInput:
        """The input of a lane that reads every edge into its vertex."""
        wake, changed = asyncio.Event(), asyncio.Event()
        marked = {done.edge: done for done in self.core.committer.mark.inputs}
        buffers: list[MergedBuffer] = []
        for buffer in self.plan.inputs_of(self.lane):
            done, writer = marked.get(buffer.edge, mark_pb2.InputProgress()), self.plan.edge(buffer.edge).from_
            start = Position(done.sequence, done.record_index)
            reader, lane_input = await self.reader(
                buffer, start, from_messages(done.read), in_parts=True, joins=True, wake=wake, changed=changed
            )
            trimmer, upstream = await self.shared.ledgers.trimmer(writer), await self.shared.ledgers.of(writer)
            table = self.plan.tables.get(buffer.edge)
            taken = stage.taken_of(buffer.edge)
            buffers.append(MergedBuffer(reader, lane_input, trimmer, upstream.ledger_id, table, taken))
        return MergedInput(self.core, buffers, wake, changed)

    async def buffer_input(self, *, in_parts: bool = False, run: str = "") -> BufferInput:
        """The input of a lane that reads a buffer. `in_parts`: see `BufferReader`; `run`: see `BufferInput`."""
        (buffer,) = self.plan.inputs_of(self.lane)
        mark = self.core.committer.mark
        start = Position(mark.sequence, mark.record_index)
        reader, lane_input = await self.reader(buffer, start, from_messages(mark.read), in_parts=in_parts)
        trimmer = await self.shared.ledgers.trimmer(self.plan.edge(buffer.edge).from_)
        return BufferInput(self.core, reader, lane_input, trimmer, run=run)

    async def reader(
        self,
        buffer: BufferId,
        start: Position,
        witnesses: Sequence[Witness],
        *,
        in_parts: bool = False,
        takes_arrow: bool = False,
        wake: asyncio.Event | None = None,
        joins: bool = False,
        changed: asyncio.Event | None = None,
    ) -> tuple[BufferReader, LaneInput]:
        """A reader of one buffer, which stays open until the replica ends. `in_parts`, `takes_arrow`, `wake`, `joins`:
        see `BufferReader`; `changed`: see `LaneInput`."""
        shared, writer = self.shared, self.plan.edge(buffer.edge).from_
        back_edge = buffer.edge in self.plan.back_edges
        lane_input = LaneInput(buffer, self.plan.upstream_lanes(buffer), back_edge=back_edge, changed=changed)
        if back_edge:
            shared.closing_cycle.append(lane_input)
        await shared.listen(writer, lane_input.observe)
        reader = await self.stack.enter_async_context(
            open_buffer_reader(
                await shared.ledgers.of(writer),
                buffer,
                start,
                lane_input,
                witnesses=witnesses,
                given_up=given_up_of(self.core.committer.mark, buffer.edge),
                in_parts=in_parts,
                takes_arrow=takes_arrow,
                wake=wake,
                joins=joins,
            )
        )
        return reader, lane_input

    async def seen_ids(self) -> SeenIds | None:
        """The ids that the lane has committed and still remembers; None for a kind without `id_bounds`."""
        return await open_seen_ids(
            self.plan, await self.shared.ledgers.of(self.lane.vertex), self.lane, self.shared.clock
        )


def takes_arrow_of(steps: Sequence[Step], output: Output) -> bool:
    """Whether the next of these takes frames with Arrow columns in place of values."""
    return steps[0].stage.takes_arrow if steps else output.takes_arrow
