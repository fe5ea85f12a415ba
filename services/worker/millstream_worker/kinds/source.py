"""Vertices that read records from an external system: a source."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.record import SOURCE_INPUT
from millstream.spec.connectors import Guarantee, IdBounds
from millstream.spec.kinds import PlacedEnd, PlacedProgram, on_failure_of
from millstream.spec.problems import Path
from millstream.spec.programs import RetryStrategy
from millstream.spec.protocols import FunctionKind
from millstream.spec.sources import OnInvalid, Source
from millstream.statistics import LaneReport
from millstream_worker.kind import RunnableKind

if TYPE_CHECKING:
    from millstream_worker.opening import LaneOpening, VertexLane


class SourceVertex(RunnableKind[Source]):
    """A source vertex. Each of its lanes reads one split. `millstream.spec.connectors` has the kinds of origin."""

    name = "source"
    model = Source
    meaning = "Makes it a source vertex."
    has_input = False
    lane_input = SOURCE_INPUT
    may_lead_chain = True
    reports = frozenset({LaneReport.INTAKE})
    drawn = ("([", "])")

    def contents(self, settings: Source) -> str:
        return settings.kind

    def programs(self, settings: Source) -> Iterator[PlacedProgram]:
        if settings.program is not None:
            yield PlacedProgram("source", (settings.kind,), settings.program)
        if settings.transformer is not None:
            yield PlacedProgram("transformer", ("transformer",), settings.transformer)

    def ends(self, settings: Source) -> Iterator[PlacedEnd]:
        yield PlacedEnd((), settings)

    def guarantees(self, settings: Source) -> Iterator[tuple[str, Guarantee]]:
        yield "", settings.promise()

    def bounded(self, settings: Source) -> bool | None:
        return settings.bounded

    def may_give_keys(self, settings: Source) -> bool:
        own = settings.connector.may_give_keys(settings.settings)
        return own or bool(settings.keys) or settings.transformer is not None

    def id_bounds(self, settings: Source) -> IdBounds | None:
        return settings.id_bounds

    def untrusted(self, settings: Source) -> bool:
        return settings.connector.untrusted

    def on_invalid(self, settings: Source) -> OnInvalid | None:
        return settings.on_invalid

    def retry(self, settings: Source) -> RetryStrategy | None:
        return settings.transformer.retry_strategy if settings.transformer is not None else None

    def dead_letters(self, written: Mapping[str, Any], watermark: Mapping[str, Any]) -> bool:
        possible = ("", "deadLetter")
        if (written.get("onInvalid") or "") in possible:
            return True
        if written.get("transformer") is not None and on_failure_of(written, "transformer") in possible:
            return True
        held_back = Source.takes_untrusted_times(written) or watermark.get("maxFuture") is not None
        return held_back and (watermark.get("onFuture") or "") in possible

    def dead_letters_asked(self, written: Mapping[str, Any]) -> Iterator[Path]:
        if on_failure_of(written, "transformer") == "deadLetter":
            yield ("transformer", "retryStrategy", "onFailure")
        if written.get("onInvalid") == "deadLetter":
            yield ("onInvalid",)

    def open_lane(self, settings: Source, opening: LaneOpening) -> Coroutine[Any, Any, VertexLane]:
        from millstream_connectors.opening_sources import open_source
        from millstream_vertex.event_times import EventTimes
        from millstream_vertex.lane import Lane
        from millstream_vertex.settings import future_bound, source_watermark
        from millstream_vertex.source_input import SourceInput
        from millstream_vertex.stage import Stage
        from millstream_vertex.stages import Stages
        from millstream_vertex.unreadable import Unreadable

        async def lane() -> VertexLane:
            shared, lane, core = opening.shared, opening.lane, opening.core
            steps, output = await opening.rest()
            seen = await opening.seen_ids()
            source = await opening.reached(
                lambda: open_source(
                    settings,
                    lane,
                    shared.vertex.partitions,
                    core.committer.mark.position,
                    base_dir=shared.config.resolved.base_dir,
                    clock=shared.clock,
                    udf_client=shared.programs.client("source"),
                    stream_name=opening.name,
                    seen=seen,
                    former_keys=lane.vertex in shared.plan.former_keys,
                )
            )
            bound = future_bound(shared.graph, lane.vertex, shared.clock, opening.where)
            stage: Stage = EventTimes(bound, opening.where, shared.naming)
            if settings.transformer is not None:
                stage = await opening.map_stage("transformer", FunctionKind.SOURCE_TRANSFORM)
            own = replace(opening.step(stage), is_source=True, timed_as="transformer" if stage.waits else "")
            stages = Stages([own, *steps], output, shared.clock)
            lane_input = SourceInput(
                core,
                source,
                source_watermark(shared.config.resolved.pipeline, core.watermark_us),
                seen,
                Unreadable(
                    lane,
                    shared.graph.on_invalid(lane.vertex),
                    opening.router,
                    shared.clock,
                    pipeline=shared.pipeline,
                    naming=shared.naming,
                ),
                stages,
                pipeline=shared.pipeline,
                bound=bound,
                run=(await shared.ledgers.of(lane.vertex)).ledger_id,
            )
            # Functions that follow in a chain get only as much at once as they can finish in time, as from a buffer.
            paced = any(step.stage.waits for step in steps)
            # The bounds of a read also bound its output, unless reads may exceed them or functions make more of it.
            may_grow = any(settings.formats()) or stage.waits or paced
            most = lane_input.read_max.records
            return Lane(
                core,
                lane_input,
                stages,
                paced=paced,
                may_grow=may_grow,
                leaves=source.replayable,
                records_max=min(most, opening.call_records_max or most) if paced else most,
            )

        return lane()


SOURCE = SourceVertex()
