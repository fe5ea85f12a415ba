"""Passes records through the stages of a lane, one vertex after the other, and accounts for each of them.

    frame ─► stage ─► account ─┬─► outputs ──► the next stage, in memory, or the output of the lane
                               └─► dead letters ─► routing

Above it: the lane, which commits the unit that comes out. Below it: stages, routers and the output. Nothing here has an
effect of its own, so the same records may pass any number of times, unless a stage has a state: then the lane restores
that first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass

from millstream import codes
from millstream.account import Account
from millstream.clock import END_OF_TIME_US, Clock
from millstream.errors import UserError
from millstream.frame import Frame
from millstream.ledger.protocol import StoredFrame
from millstream.limits import STAGE_STATE_BYTES_MAX
from millstream.naming import Origin
from millstream.record import BufferId, LaneId
from millstream.telemetry.telemetry import Span, Telemetry
from millstream.udf.states import StateClock
from millstream_vertex.lineage import Lineage
from millstream_vertex.outputs import Output
from millstream_vertex.publishing import LaneCounters
from millstream_vertex.stage import Stage, StageInput, StageResult, TakenBackError
from millstream_writer.committer import MemberCounts, Unit, size_of
from millstream_writer.routing import Router, cut

Ask = Callable[[Stage], Awaitable[StageResult | None]]
"""Calls one of the methods of a stage that have nothing to do with a record."""


@dataclass(frozen=True, slots=True)
class Step:
    """The stage of one vertex in a lane."""

    lane: LaneId
    """The lane; for a vertex that follows in a chain, the lane that it would have without the chain."""
    stage: Stage
    router: Router
    """Routes the vertex's dead letters."""
    telemetry: Telemetry
    counters: LaneCounters
    number: int = 0
    """Its place in the chain."""
    is_source: bool = False
    """Whether it is the stage of a source: a trace begins with it, its records are named by the source's position, and
    the event times of its outputs determine the watermark."""
    timed_as: str = "udf"
    """The name of its processing time in metrics; empty if that is not measured."""

    def span(self, frame: Frame, sequence: int) -> AbstractContextManager[Span]:
        if self.is_source:
            return self.telemetry.source_span(frame, lane=self.lane.key)
        return self.telemetry.span(
            "millstream.map",
            parent=frame.traceparent,
            lane=self.lane.key,
            records=frame.records,
            sequence=sequence,
        )

    def origin(self, lineage: Lineage) -> Origin:
        if self.is_source:
            return Origin(source_position=lineage.source_position)
        return lineage.origin(self.lane)


class Stages:
    """The stages of one lane and its output."""

    def __init__(self, steps: Sequence[Step], output: Output, clock: Clock) -> None:
        self._steps = tuple(steps)
        self.output = output
        self._clock = clock
        self._stateful = tuple(step for step in self._steps if step.stage.is_stateful)
        self.is_stateful = bool(self._stateful)
        """Whether records have to pass one after another."""
        self.concurrencies = tuple(step.stage.concurrency for step in self._steps if step.stage.waits)
        """The concurrency of each function that records pass; 0 if it is unknown."""

    def unit(self) -> Unit:
        """A unit for no records."""
        passed = [*(MemberCounts() for _ in self._steps[1:]), *self.output.passed]
        return Unit(passed=passed, delivered=self.output.delivered, holds_us=self.holds_us)

    async def take(self, frame: Frame, lineage: Lineage, watermark_us: int, sequence: int = 0) -> Unit:
        """The unit of records that have passed all stages. `lineage`: their names; `sequence`: of their stored frame,
        0 for those of a source. Raises what the stages raise."""
        unit = self.unit()
        try:
            await self._pass(0, unit, frame, lineage, watermark_us, sequence, early=True)
        except TakenBackError:
            self.undo()
            self.begin()
            unit = self.unit()
            await self._pass(0, unit, frame, lineage, watermark_us, sequence)
        return self._complete(unit)

    async def _pass(
        self,
        place: int,
        unit: Unit,
        frame: Frame,
        lineage: Lineage,
        watermark_us: int,
        sequence: int = 0,
        *,
        early: bool = False,
    ) -> None:
        """Pass a frame through the stages from `place` on. `early`: outputs may be passed on while a stage works."""
        if place == len(self._steps):
            unit.account.unrouted += self.output.take(unit, frame, None, lineage, watermark_us)
            return
        step = self._steps[place]
        started_s, elsewhere_s = self._clock.monotonic_s(), 0.0
        with step.span(frame, sequence) as span:

            async def put(result: StageResult) -> None:
                nonlocal elsewhere_s
                begun_s = self._clock.monotonic_s()
                if result.frame is not None and span.traceparent:
                    result.frame = result.frame.traced(span.traceparent)
                await self._pass_outputs(place, unit, result, lineage, watermark_us, early=True)
                self._account_of(place, unit).unrouted += result.account.unrouted
                elsewhere_s += self._clock.monotonic_s() - begun_s

            # Those after the first of a chain have one edge.
            edge = "" if place else lineage.edge
            given = StageInput(
                frame,
                watermark_us,
                step.origin(lineage),
                edge=edge,
                traceparent=span.traceparent,
                put=put if early else None,
            )
            result = await step.stage.on_frame(given)
        if step.timed_as:
            seconds = self._clock.monotonic_s() - started_s - elsewhere_s
            step.telemetry.observe_processing(step.timed_as, seconds)
            step.counters.busy_s += seconds
        if step.is_source:
            result.account.input_bytes = frame.size
            if result.frame is not None:
                unit.observed = result.frame.times_only()
        else:
            result.account.late = frame.late_records(watermark_us)
        if place:
            passed = unit.passed[place - 1]
            passed.records += frame.records
            passed.size += frame.size
            result.account.input_bytes = frame.size
        if result.frame is not None and span.traceparent:
            result.frame = result.frame.traced(span.traceparent)
        await self._pass_on(place, unit, result, lineage, watermark_us, early=early)

    async def _pass_on(
        self,
        place: int,
        unit: Unit,
        result: StageResult,
        lineage: Lineage,
        watermark_us: int,
        *,
        early: bool = False,
    ) -> None:
        """Account for the result of the stage at `place`, and pass its outputs on."""
        step = self._steps[place]
        step.counters.retries += result.retries
        step.counters.udf_errors += result.errors
        step.counters.state_reads += result.state_reads
        await self._pass_outputs(place, unit, result, lineage, watermark_us, early=early)
        self._account_of(place, unit).add(result.account)
        if result.dead_letters is not None:
            unit.frames.extend(step.router.route_dead_letter(result.dead_letters).frames)
        unit.frames.extend(result.kept)

    async def _pass_outputs(
        self, place: int, unit: Unit, result: StageResult, lineage: Lineage, watermark_us: int, *, early: bool
    ) -> None:
        """Pass the outputs of the stage at `place` on. Sets `unrouted` in the account of the result."""
        step, output = self._steps[place], result.frame
        if output is None:
            return
        children, start = lineage.children(result.parents, step.number, result.begun), 0
        if place + 1 == len(self._steps):
            result.account.unrouted = self.output.take(unit, output, result.tags, children, watermark_us)
            return
        # Tags have no effect: they are for edges with conditions, and this edge has none. A function gets no larger
        # frames than it would read from a buffer.
        for piece in cut(output):
            await self._pass(place + 1, unit, piece, children.part(start, piece.records), watermark_us, early=early)
            start += piece.records

    @staticmethod
    def _account_of(place: int, unit: Unit) -> Account:
        """The account of the vertex at `place`."""
        return unit.passed[place - 1].account if place else unit.account

    async def fire(
        self, clock: StateClock, until_us: int, *, watermark_us: int, floor_us: int, most: int
    ) -> Unit | None:
        """What the functions make of the next timers that are due by a clock, at most so many; None if none is due.
        `watermark_us`: the one that the stages know. Other arguments: see `Stage.take_timers`."""
        for place, step in enumerate(self._steps):
            if not step.stage.is_stateful:
                continue
            due = step.stage.take_timers(clock, until_us, floor_us, most)
            if due is None:
                continue
            unit, lineage, frame = self.unit(), Lineage("timer/", names=due.names), due.frame
            started_s = self._clock.monotonic_s()
            with step.span(frame, 0) as span:
                given = StageInput(frame, watermark_us, step.origin(lineage), traceparent=span.traceparent)
                result = await step.stage.on_timers(given)
            seconds = self._clock.monotonic_s() - started_s
            step.telemetry.observe_processing(step.timed_as, seconds)
            step.counters.busy_s += seconds
            if result.frame is not None and span.traceparent:
                result.frame = result.frame.traced(span.traceparent)
            # What is due was held back, so it is not late for those that follow.
            await self._pass_on(place, unit, result, lineage, min(watermark_us, frame.event_time_min_us))
            return self._complete(unit)
        return None

    async def on_watermark(self, watermark_us: int) -> Unit | None:
        """What the stages do when no record older than this will follow; None if they do nothing."""
        return await self._each(
            f"watermark-{watermark_us}/", watermark_us, lambda stage: stage.on_watermark(watermark_us)
        )

    async def on_timer(self, now_us: int, watermark_us: int) -> Unit | None:
        """What the stages do whose `timer_us` has come; None if they do nothing."""

        async def due(stage: Stage) -> StageResult | None:
            timer_us = stage.timer_us
            return await stage.on_timer(now_us) if timer_us is not None and timer_us <= now_us else None

        # The time that was set is the same for the next owner, if this one is killed.
        return await self._each(f"timer-{self.timer_us}/", watermark_us, due)

    def edits(self) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]] | None:
        """Changes of a state that others ask for, as they come; None if nobody can."""
        opened = [edits for step in self._stateful if (edits := step.stage.edits()) is not None]
        assert len(opened) <= 1, "only the first vertex of a lane can be asked"
        return opened[0] if opened else None

    async def on_edit(self, edit: StoredFrame, watermark_us: int) -> Unit | None:
        """Make such a change, or refuse it."""
        return await self._each(f"edit-{edit.sequence}/", watermark_us, lambda stage: stage.on_edit(edit))

    async def on_end(self, watermark_us: int) -> Unit | None:
        """What the stages do when the input has ended; None if they do nothing."""
        return await self._each("end/", watermark_us, lambda stage: stage.on_end())

    async def _each(self, prefix: str, watermark_us: int, ask: Ask) -> Unit | None:
        """`prefix`: of the names of outputs, which no record made."""
        unit = self.unit()
        unit.pieces, done = 0, False
        for place, step in enumerate(self._steps):
            if step.stage.is_stateful and (result := await ask(step.stage)) is not None:
                done = True
                await self._pass_on(place, unit, result, Lineage(prefix), watermark_us)
        return self._complete(unit) if done else None

    def _complete(self, unit: Unit) -> Unit:
        unit.size = sum(frame.size for _, frame in unit.frames) + size_of(unit.delivered)
        if self._stateful:
            unit.changes.states = self.states()
            unit.holds_us = self.holds_us
        return unit

    @property
    def timer_us(self) -> int | None:
        """The next time by the clock at which a stage has something to do."""
        times_us = [step.stage.timer_us for step in self._stateful]
        return min((time_us for time_us in times_us if time_us is not None), default=None)

    @property
    def holds_us(self) -> int:
        """The event time below which the stages may still put something out."""
        return min((step.stage.holds_us for step in self._stateful), default=END_OF_TIME_US)

    def states(self) -> Mapping[str, bytes]:
        """The state of each vertex that has one. Raises `UserError` for one that is too large."""
        states = {step.lane.vertex: step.stage.state for step in self._stateful}
        for step in self._stateful:
            size = len(states[step.lane.vertex])
            if size > STAGE_STATE_BYTES_MAX:
                raise UserError(
                    codes.COMMIT_TOO_LARGE,
                    f"{step.lane}: the state of the vertex has {size} bytes; the limit is {STAGE_STATE_BYTES_MAX}, "
                    "because it is stored with every commit. Let it remember less, or for a shorter time",
                )
        return states

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Continue from the states in the mark of the lane. Raises `UserError` for the state of a vertex that has none
        now."""
        if gone := states.keys() - {step.lane.vertex for step in self._stateful}:
            raise UserError(
                codes.DATA_OF_ANOTHER_PIPELINE,
                f"{self._steps[0].lane}: there is a stored state of vertex {', '.join(sorted(gone))}, which would be "
                "lost: it no longer has one in the pipeline file, or no longer runs in this lane. Put its `state` "
                "back; or rename the vertex, which then starts without",
            )
        for step in self._stateful:
            step.stage.restore(states.get(step.lane.vertex, b""))

    def begin(self) -> None:
        """The next unit may be taken back."""
        for step in self._stateful:
            step.stage.begin()

    def undo(self) -> None:
        """The units since `begin` are discarded."""
        for step in self._stateful:
            step.stage.undo()

    def committed(self, units: Sequence[Unit], sequences: Mapping[BufferId, int]) -> None:
        """These units are durable. `sequences`: of the last frame in each buffer."""
        for step in self._stateful:
            step.stage.committed(units, sequences)
