"""Vertices that give records to something outside: a sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.errors import UdfError, UserError
from millstream.record import Position
from millstream.spec.connectors import Guarantee
from millstream.spec.kinds import PlacedEnd, PlacedProgram, VertexUse
from millstream.spec.sinks import OnSinkFailure, Sink, SinkRetryStrategy
from millstream.spec.values import ShapeProblem
from millstream.statistics import LaneReport
from millstream_worker.kind import RunnableKind

if TYPE_CHECKING:
    from millstream_worker.lanes import LaneOpening, VertexLane
    from millstream_writer.connector import HeldInstead

_LOSSES: dict[OnSinkFailure, str] = {
    "drop": "; records that are still refused after the retries are dropped and counted",
    "fallback": "; records that are still refused after the retries go to the fallback",
}


class SinkVertex(RunnableKind[Sink]):
    """A lane of it follows what its target has for sure. `millstream.spec.connectors` has the kinds of target."""

    name = "sink"
    model = Sink
    meaning = "Makes it a sink vertex."
    has_output = False
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

    def dead_letters(self, written: Mapping[str, Any], watermark: Mapping[str, Any]) -> bool:
        # An edge out of it is wrong for another reason.
        return True

    def use_problems(self, settings: Sink, use: VertexUse) -> Iterator[ShapeProblem]:
        for problem in settings.use_problems(use.buffer_records, dead_letters=use.dead_letters):
            yield problem._replace(loc=("sink", *problem.loc))

    async def open_lane(self, settings: Sink, opening: LaneOpening) -> VertexLane:
        from millstream_vertex.sink_lane import SinkVertexLane
        from millstream_writer.connector import SinkOwner
        from millstream_writer.delivery import Delivery, DeliveryLimits
        from millstream_writer.sinks.opening import open_sink

        base = await opening.buffer_lane()
        shared, lane, mark = opening.shared, opening.lane, opening.core.committer.mark
        owner = SinkOwner(
            pipeline=shared.pipeline,
            lane=lane,
            replica=shared.config.replica,
            epoch=mark.epoch,
            start=Position(mark.sequence, mark.record_index),
            ledger_id=(await shared.ledger(lane.vertex)).ledger_id,
            base_dir=shared.config.resolved.base_dir,
            clock=shared.clock,
            held_instead=await _held_instead(opening),
            envelope=shared.graph.writes_envelopes(lane.input, settings),
            client=shared.programs.client("sink"),
        )
        primary = await opening.stack.enter_async_context(open_sink(settings, owner))
        fallback = None
        if settings.fallback is not None:
            aside = owner.as_fallback(
                envelope=shared.graph.writes_envelopes(lane.input, settings.fallback),
                client=shared.programs.client("fallback"),
            )
            fallback = await opening.stack.enter_async_context(open_sink(settings.fallback, aside))
        limits = shared.graph.limits_of(lane.vertex)
        half = DeliveryLimits(max(1, limits.usable_length // 2), max(1, limits.usable_bytes // 2))
        error = UdfError if settings.program is not None else UserError
        delivery = Delivery(
            *(primary, fallback, opening.retry_policy, half),
            where=opening.where,
            rng=shared.rng,
            stop_error=error,
            naming=shared.naming,
        )
        return SinkVertexLane(base, delivery)


async def _held_instead(opening: LaneOpening) -> HeldInstead:
    from millstream.ledger.witness import given_up_of
    from millstream.spec.lanes import inputs_of
    from millstream_vertex.past import held_instead

    (buffer,) = inputs_of(opening.graph, opening.lane)
    return partial(
        held_instead, await opening.upstream(), buffer, given_up_of(opening.core.committer.mark, buffer.edge)
    )


SINK = SinkVertex()
