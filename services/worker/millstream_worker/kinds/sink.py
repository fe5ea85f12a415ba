"""Vertices that write records to an external system: a sink."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream import codes
from millstream.errors import UdfError, UserError
from millstream.importing import started
from millstream.record import Position
from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream.spec.kinds import PlacedEnd, PlacedProgram, VertexUse
from millstream.spec.sinks import OnSinkFailure, Sink, SinkRetryStrategy
from millstream.spec.values import ShapeProblem
from millstream.statistics import LaneReport
from millstream_worker.kind import RunnableKind

if TYPE_CHECKING:
    from millstream.wire.ledger.v1.mark_pb2 import Mark
    from millstream_vertex.core import LaneCore
    from millstream_vertex.to_sink import ChainSink
    from millstream_worker.opening import LaneOpening, StageOpening, VertexLane
    from millstream_writer.committer import Committer
    from millstream_writer.connector import HeldInstead, SinkOwner
    from millstream_writer.delivery import Delivery, DeliveryLimits
    from millstream_writer.known_target import KnownTarget
    from millstream_writer.sink import SinkLane

_LOSSES: dict[OnSinkFailure, str] = {
    "drop": "; records that are still refused after the retries are dropped and counted",
    "fallback": "; records that are still refused after the retries go to the fallback",
}


class SinkVertex(RunnableKind[Sink]):
    """A sink vertex. Each of its lanes commits the position that is durable in its target.

    `millstream.spec.connectors` has the kinds of target.
    """

    name = "sink"
    model = Sink
    meaning = "Makes it a sink vertex."
    has_output = False
    may_follow_in_chain = True
    is_paced = True
    reports = frozenset({LaneReport.TARGET})
    drawn = ("[(", ")]")

    def contents(self, settings: Sink) -> str:
        return settings.kind

    def programs(self, settings: Sink) -> Iterator[PlacedProgram]:
        for role, placed in zip(("sink", "fallback"), self.ends(settings), strict=False):
            if placed.end.program is not None:
                yield PlacedProgram(role, (*placed.path, placed.end.kind), placed.end.program)

    def ends(self, settings: Sink) -> Iterator[PlacedEnd]:
        yield PlacedEnd((), settings)
        if settings.fallback is not None:
            yield PlacedEnd(("fallback",), settings.fallback)

    def retry(self, settings: Sink) -> SinkRetryStrategy:
        return settings.retry_strategy

    def guarantees(self, settings: Sink) -> Iterator[tuple[str, Guarantee]]:
        own = settings.promise()
        yield "", Guarantee(own.id, own.sentence + _LOSSES.get(settings.retry_strategy.on_failure, ""))
        if settings.fallback is not None:
            yield "fallback", settings.fallback.promise(fallback=True)

    def guarantees_in_chain(self, settings: Sink) -> Iterator[tuple[str, Guarantee]]:
        for part, guarantee in self.guarantees(settings):
            yield part, settings.in_chain(guarantee) if not part else guarantee

    def chain_problem(self, settings: Sink) -> str | None:
        if settings.promise().id is GuaranteeId.TRANSACTIONAL and not settings.connector.whole:
            return f"the sink `{settings.kind}` keeps a position and does not take whole deliveries"
        return None

    def dead_letters(self, written: Mapping[str, Any], watermark: Mapping[str, Any]) -> bool:
        # An edge out of a sink is an error that another check reports.
        return True

    def use_problems(self, settings: Sink, use: VertexUse) -> Iterator[ShapeProblem]:
        for problem in settings.use_problems(use.buffer_records, dead_letters=use.dead_letters):
            yield problem._replace(loc=("sink", *problem.loc))
        if use.chained:
            holding = (
                "a sink that is exactly once in a chain, such as `file`; no `chain` on the edge to it; or no "
                "`guarantee`"
            )
            promise = settings.in_chain(settings.promise())
            yield from promise.demand_problems(settings.guarantee, ("sink", "guarantee"), holding)

    def open_lane(self, settings: Sink, opening: LaneOpening) -> Coroutine[Any, Any, VertexLane]:
        from millstream_vertex.continued import run_outside
        from millstream_vertex.lane import Lane
        from millstream_vertex.sink_output import SinkOutput
        from millstream_vertex.stages import Stages
        from millstream_vertex.to_sink import ChainSink
        from millstream_writer.delivery import DeliveryLimits

        async def lane() -> VertexLane:
            # Without a position in the target, a write that is cut short by a stop or a crash is repeated, so it gets
            # one frame. A target that keeps a position benefits from large writes.
            lane_input = await opening.buffer_input(in_parts=settings.promise().id is not GuaranteeId.TRANSACTIONAL)
            limits = opening.shared.plan.limits_of(opening.lane.vertex)
            half = DeliveryLimits(max(1, limits.usable_length // 2), max(1, limits.usable_bytes // 2))
            ledger = await opening.shared.ledgers.of(opening.lane.vertex)
            owner = _owner(
                settings,
                opening,
                opening.core,
                run_outside(opening.core.committer.mark, ledger.ledger_id),
                _position_of(opening.core.committer.mark),
                await started(_held_instead, opening),
                committed=lambda: _position_of(opening.core.committer.mark),
            )
            _, delivery = await started(_opened, settings, opening, owner, half)
            target = ChainSink(opening.lane, delivery, None, opening.telemetry, opening.counters, opening.shared.clock)
            stages = Stages([], SinkOutput(opening.core, target), opening.shared.clock)
            return Lane(opening.core, lane_input, stages, paced=False, may_grow=False, leaves=True)

        return lane()

    def open_target(self, settings: Sink, opening: StageOpening, core: LaneCore) -> Coroutine[Any, Any, ChainSink]:
        from millstream_vertex.continued import run_outside
        from millstream_vertex.to_sink import ChainSink, held_instead
        from millstream_writer.delivery import DeliveryLimits
        from millstream_writer.sink import WholeLane

        async def target() -> ChainSink:
            start = Position(core.committer.mark.delivered)
            ledger = await opening.shared.ledgers.of(core.lane.vertex)
            held = held_instead(core.committer)
            run = run_outside(core.committer.mark, ledger.ledger_id)
            owner = _owner(settings, opening, core, run, start, held, whole=True)
            primary, delivery = await started(_opened, settings, opening, owner, DeliveryLimits())
            kept = None
            if primary.durable is not None:
                if not isinstance(primary, WholeLane):
                    what = f"the sink {settings.kind} keeps a position and does not take whole deliveries"
                    raise UserError(codes.EXTENSION, f"{opening.where}: {what}: it cannot be the end of a chain")
                kept = primary
            return ChainSink(opening.lane, delivery, kept, opening.telemetry, opening.counters, opening.shared.clock)

        return target()


def _position_of(mark: Mark) -> Position:
    from millstream_vertex.continued import position_outside

    return position_outside(mark, Position(mark.sequence, mark.record_index))


def _known(settings: Sink, opening: StageOpening, committer: Committer) -> KnownTarget | None:
    from millstream_writer.connector import SinkConnector
    from millstream_writer.known_target import KnownTarget

    connector = settings.connector
    if committer.mark.ended or not isinstance(connector, SinkConnector):
        # A lane that has ended writes nothing, so its target may be gone.
        return None
    place = connector.place(settings.settings)
    return None if place is None else KnownTarget(committer, opening.lane.vertex, settings.kind, place)


def _owner(
    settings: Sink,
    opening: StageOpening,
    core: LaneCore,
    run: str,
    start: Position,
    held: HeldInstead,
    *,
    committed: Callable[[], Position] | None = None,
    whole: bool = False,
) -> SinkOwner:
    """The owner of the target in the lane of `core`."""
    from millstream_writer.connector import SinkOwner

    shared = opening.shared
    return SinkOwner(
        pipeline=shared.pipeline,
        lane=opening.lane,
        replica=shared.config.replica,
        epoch=core.committer.mark.epoch,
        start=start,
        ledger_id=run,
        base_dir=shared.config.resolved.base_dir,
        clock=shared.clock,
        held_instead=held,
        known=_known(settings, opening, core.committer),
        committed=committed,
        whole=whole,
    )


def _opened(
    settings: Sink, opening: StageOpening, owner: SinkOwner, limits: DeliveryLimits
) -> Coroutine[Any, Any, tuple[SinkLane, Delivery]]:
    """Open the sink, and the delivery to it and to its fallback."""
    from millstream_connectors.opening_sinks import open_sink
    from millstream_writer.delivery import Delivery

    async def found() -> tuple[SinkLane, Delivery]:
        shared, lane = opening.shared, opening.lane
        programs = shared.outside.programs[lane.vertex]
        chained = shared.graph.chained_into(lane.vertex)
        edge = lane.input if chained is None else chained.name
        own = replace(
            owner,
            edge=edge,
            envelope=shared.graph.writes_envelopes(edge, settings),
            client=programs.client("sink"),
        )
        primary = await opening.reached(lambda: open_sink(settings, own))
        _check_demand(settings, primary, opening)
        fallback = None
        if (instead := settings.fallback) is not None:
            aside = own.as_fallback(
                envelope=shared.graph.writes_envelopes(edge, instead),
                client=programs.client("fallback"),
            )
            fallback = await opening.reached(lambda: open_sink(instead, aside))
        delivery = Delivery(
            primary,
            fallback,
            opening.retry_policy,
            limits,
            where=opening.where,
            rng=shared.rng,
            stop_error=UdfError if settings.program is not None else UserError,
            naming=shared.naming,
        )
        return primary, delivery

    return found()


def _check_demand(settings: Sink, primary: SinkLane, opening: StageOpening) -> None:
    """Raise `UdfError` if the sink is a function that guarantees less than the spec requires."""
    from millstream_writer.sink import Guarantee

    if settings.promise().id is not GuaranteeId.BY_FUNCTION or settings.guarantee != "exactlyOnce":
        return
    if primary.guarantee is Guarantee.AT_LEAST_ONCE:
        raise UdfError(
            codes.FUNCTION_POSITIONS,
            f"{opening.where}: `guarantee: exactlyOnce` needs a function that keeps positions, and this one does not: "
            "a class with open, write and flush. No record was given to it. Write it as such a class, or remove "
            "`guarantee: exactlyOnce`",
        )


def _held_instead(opening: LaneOpening) -> Coroutine[Any, Any, HeldInstead]:
    from millstream.ledger.witness import given_up_of
    from millstream_vertex.continued import position_inside
    from millstream_vertex.taking_over import held_instead

    async def found() -> HeldInstead:
        (buffer,) = opening.plan.inputs_of(opening.lane)
        upstream, mark = await opening.upstream(), opening.core.committer.mark
        given_up = given_up_of(mark, buffer.edge)

        async def answer(sequence: int, name: str) -> str | None:
            inside = position_inside(mark, Position(sequence)).sequence
            return await held_instead(upstream, buffer, given_up, inside, name)

        return answer

    return found()


SINK = SinkVertex()
