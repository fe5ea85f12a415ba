"""A lane of a source vertex: reads the source, drops repeated ids, transforms records, routes and commits.

source ─► ids seen before? ─► transformer (several calls at once) ─► InOrder ─► commit: frames + ids + mark ─► ack
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream import codes
from millstream.account import Account
from millstream.dead_letter import headers_of
from millstream.durable import step
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.frame import Frame, frame_of_records
from millstream.limits import (
    COMMIT_FRAMES_MAX,
    FRAME_BYTES_MAX,
    FRAME_RECORDS_MAX,
    OT_PUBLISH_INTERVAL_S,
    SLICE_TARGET_S,
)
from millstream.naming import WITH_VALUES, Naming, Origin
from millstream.pauses import Pauses, RepeatedFailure, until_next
from millstream.record import Record
from millstream.retry import OnFailure
from millstream.statistics import LaneStatistics
from millstream.watermark import future
from millstream.watermark.source import SourceWatermark
from millstream_reader.ids import FULL_REPORTED_EVERY_S, Admitted, SeenIds, full
from millstream_reader.source import (
    InvalidRecord,
    ListeningLane,
    SourceBatch,
    SourceLane,
    is_held_up,
    pending_bytes,
    pending_versions,
)
from millstream_reader.tracker import Tracked
from millstream_udf import columns
from millstream_vertex.in_flight import bound_by
from millstream_vertex.lane import LaneCore
from millstream_vertex.map_step import Lineage, Outlet
from millstream_vertex.mapping import Mapper
from millstream_vertex.slicing import Slicer
from millstream_vertex.source_parts import Behind, LeftOut, digests_of
from millstream_writer.committer import Unit, size_of
from millstream_writer.routing import Router

_LOOK_TIMEOUT_S = 5.0
"""How long a lane that has ended checks for more input."""
_log = logging.getLogger(__name__)

_POSITION_CHARACTERS_MAX = 200
"""Maximum length of a source's position in messages and dead letters."""

_AWAY_FIRST_S, _AWAY_LAST_S = 0.1, 5.0
"""Pauses between reads of a source that cannot be read now."""

READ_TIMEOUT_S = 0.25
"""How long one read waits for data; the lane notices a request to stop within this time."""


@dataclass(slots=True)
class SourceUnit(Unit):
    """A unit of a source lane."""

    observed: Frame | None = None
    """Event times of the records that determine the watermark: after the transformer, before any condition. None if
    there are none. A sink at the end of the chain may have the records long before the unit is committed."""
    records: int = 0
    """Number of records that the unit was made from."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The new records of one read, without those that were seen before."""

    frame: Frame
    position: bytes
    """The source's position after the read."""
    lineage: Lineage
    digests: bytes
    """Digests of the ids to remember."""
    remembers: bool
    """Whether ids show which records are committed; otherwise, their place after the position does."""
    behind: Behind
    """The committed records between the previous position and the records of the read."""
    aside: SourceUnit
    """The unit for input that is not in the frame."""
    tracked: Tracked
    """The read as work in flight."""


class SourceVertexLane:
    """A lane of a source vertex. `run` returns when the source has ended, or was drained after `stop`."""

    def __init__(
        self,
        core: LaneCore,
        source: SourceLane,
        transformer: Mapper | None,
        router: Router,
        outlet: Outlet,
        watermark: SourceWatermark,
        seen: SeenIds | None,
        on_invalid: OnFailure,
        *,
        pipeline: str = "",
        naming: Naming = WITH_VALUES,
        bound: future.FutureBound | None = None,
        run: str = "",
        grows: bool = False,
        call_records_max: int | None = None,
    ) -> None:
        """`router`: the source's router, for its dead letters; `outlet`: the destination of its output. `seen` is
        needed for a source that may repeat records; `on_invalid` decides about input that cannot be read; `naming`
        decides how messages name a record. `bound`: the bound of event times; the transformer applies it itself. `run`:
        id of the lane's ledger, for the dead letters of vertices that follow in a chain. `grows`: reads may be larger
        than requested. `call_records_max`: the most records in one read if functions follow in a chain."""
        self.core = core
        self._source = source
        self._transformer = transformer
        self._router = router
        self._outlet = outlet
        self._watermark = watermark
        self._seen = seen
        self._on_invalid = on_invalid
        self._where = f"{pipeline}/{core.lane}"
        self._naming = naming
        self._bound = bound
        self._run = run
        self._stopping = asyncio.Event()
        self._away, self._failure = Pauses(_AWAY_FIRST_S, _AWAY_LAST_S), RepeatedFailure()
        self._held_up = False
        """Whether records were refused, or there may be some that could not be read: that is not silence."""
        self._warned_invalid = False
        self._busy = False
        """Whether the last read has brought records."""
        # The records of one read are committed together, and each may go to a different partition on every edge.
        written = core.committer.router
        self._records_max = min(FRAME_RECORDS_MAX, written.piece.records)
        self._bytes_max = min(FRAME_BYTES_MAX, written.piece.size)
        if len(written.buffers) > COMMIT_FRAMES_MAX // 2:
            self._records_max = max(1, min(self._records_max, COMMIT_FRAMES_MAX // written.copies_max))
        nothing = outlet.nothing()
        self._numbers = bool(nothing.passed)
        """Whether other vertices follow in the chain; they name records by number."""
        # Functions that follow in a chain get only as much at once as they can finish in time, as from a buffer.
        functions = len(nothing.passed) - (nothing.delivered is not None)
        calls_max = min(self._records_max, call_records_max or self._records_max)
        self._pace = Slicer(target_s=SLICE_TARGET_S, records_max=calls_max) if functions else None
        self._first_passed = asyncio.Event()
        self._calls = transformer is not None or functions > 0
        """Whether records pass a function before they are committed."""
        # The bounds of a read also bound its output, unless reads may exceed them or functions make more of it.
        self._may_grow = grows or transformer is not None or self._pace is not None
        own = (transformer.concurrency,) if transformer is not None else ()
        bound_by(core.tracker, (*own, *outlet.concurrencies), core.deliverer)
        if core.deliverer is not None:
            core.deliverer.prompt = not source.replayable
        self._left_out = LeftOut(core.lane, core.committer.mark.ahead)
        self._numbered = core.committer.mark.numbered

    def stop(self) -> None:
        """Accept no new input. Input that the source has already accepted is still finished; input that can be read
        again and is not being committed is left for the next run."""
        self._stopping.set()
        self.core.leaving = self._source.replayable

    def statistics(self) -> LaneStatistics:
        statistics = self.core.statistics(pending=self._source.pending())
        size, versions = pending_bytes(self._source), pending_versions(self._source)
        statistics = replace(statistics, pending_bytes=size, pending_versions=versions)
        if isinstance(self._source, ListeningLane):
            return replace(statistics, listener=self._source.listener())
        return statistics

    async def run(self) -> None:
        if self.core.committer.mark.position:
            # The process that committed it may have been killed before it acknowledged it to the source.
            await self._acknowledge()
        if self.core.committer.mark.ended:
            await self._look_for_more()
            await self.core.end()
            return
        if self._bound is not None and self._watermark.watermark_us > self._bound.latest_us:
            _log.warning("%s: %s", self._where, self._bound.passed(self._watermark.watermark_us))
        async with asyncio.TaskGroup() as background:
            ticking = background.create_task(self._tick(), name=f"idle {self.core.lane}")
            async with asyncio.TaskGroup() as work:
                work.create_task(
                    self.core.commit_all(self._watermark_after, self._committed), name=f"commit {self.core.lane}"
                )
                ended = await self._read_all(work)
                self.core.units.close()
            ticking.cancel()
        if ended and not self.core.left:
            await self.core.end()

    async def _look_for_more(self) -> None:
        """Warn about input that came after the source ended: it cannot be read, because event time has ended."""
        if not self._source.replayable:
            return
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                batch = await self._source.read(1, self._bytes_max, 0.0)
        except TimeoutError:
            # A lane that has ended does not wait longer just for a warning.
            return
        except MillstreamError as error:
            more = f"its new input cannot be read: {error}"
        else:
            more = "it has new input" if batch.frame is not None or batch.invalid else ""
        if more:
            _log.warning(
                "%s: the source ended in an earlier run and is no longer read (%s). To read more, give the source "
                "another name, which begins at its start; start the pipeline over with --fresh; or use a file "
                "source with `follow`, which does not end",
                self._where,
                more,
            )

    async def _read_all(self, work: asyncio.TaskGroup) -> bool:
        """Read until the source has ended (returns True) or nothing is left after `stop` (returns False)."""
        position = self.core.committer.mark.position
        draining = False
        while True:
            if self._stopping.is_set() and not draining:
                draining = True
                await self._source.drain()
                if self._source.replayable:
                    return False
            read = await self._read(position)
            if read is None:
                if draining:
                    # The next run reads the rest.
                    return False
                continue
            batch = self._left_out.rest(read)
            if batch is None:
                continue
            if batch.frame is not None or batch.invalid or batch.position != position:
                position = batch.position
                if not await self._begin(batch, work):
                    return False
            if batch.ended:
                return True
            if draining and batch.frame is None and not batch.invalid:
                return False

    async def _read(self, position: bytes) -> SourceBatch | None:
        """The next batch; None, after a pause, if the source cannot be read now. `position`: after the last batch."""
        records_max = self._pace.records() if self._pace is not None else self._records_max
        # An idle lane wakes up when its process does anyway.
        timeout_s = READ_TIMEOUT_S if self._busy else until_next(READ_TIMEOUT_S)
        try:
            batch = await self._source.read(min(records_max, self._records_max), self._bytes_max, timeout_s)
        except RetryLaterError as error:
            self._held_up = True
            place = f"source position {_position_text(position)}" if position else "the beginning"
            self._failure.warn(_log, f"{self._where}: ", f"waits to read what follows {place}: {error}")
            await self._away.wait(unless=self._stopping)
            return None
        self._away.begin_again()
        self._failure.over(_log, f"{self._where}: ")
        self._held_up = False
        self._busy = batch.frame is not None
        if not self._busy:
            self.core.renew_mark()
        return batch

    async def _begin(self, batch: SourceBatch, work: asyncio.TaskGroup) -> bool:
        """Start processing a batch. Returns False if the lane was asked to stop before it could remember the ids: the
        source returns the batch again later, with everything after it."""
        new, behind, remembers = Admitted(batch.frame), self._left_out.taken(), False
        if batch.frame is not None and (batch.frame.ids_column or not self._source.replayable):
            seen = self._seen
            if seen is not None and not await self._room_for_ids(seen, batch.frame, batch.made_up):
                return False
            new = seen.admit(batch.frame, batch.made_up) if seen is not None else new
            remembers = True
        frame = new.frame
        unit = SourceUnit(
            source_position=batch.position,
            account=Account(repeated_ids=new.repeated),
            passed=self._outlet.nothing().passed,
            delivered=self._outlet.nothing().delivered,
        )
        self._set_aside(batch, unit)
        if frame is None:
            unit.size += sum(part.size for _, part in unit.frames)
            tracked = Tracked(len(batch.invalid), unit.size)
            await self.core.tracker.begin(tracked)
            await self.core.tracker.answered(tracked)
            self.core.units.add_done((unit,))
            return True
        lineage, in_flight_max = Lineage(), None
        if self._numbers:
            lineage = Lineage("", self._numbered, None, _position_text(batch.position), self._run)
            self._numbered += frame.records
        if self._pace is not None:
            in_flight_max = self._pace.records_in_flight_max()
        tracked = Tracked(frame.records, frame.size)
        await self.core.tracker.begin(tracked, records_max=in_flight_max)
        read = _Read(frame, batch.position, lineage, new.digests, remembers, behind, unit, tracked)
        if self._calls:
            self.core.units.add(work.create_task(self._process(read)))
        else:
            # Nothing in it waits, and a task costs as much as routing a small frame.
            self.core.units.add_done(await self._process(read))
        if self._pace is not None and not self._pace.learned:
            await self._first_passed.wait()
        return True

    async def _room_for_ids(self, seen: SeenIds, frame: Frame, made_up: bytes) -> bool:
        """Wait until there is room for the frame's new ids. Returns False if the lane is asked to stop before that. An
        HTTP source itself refuses records for whose ids there is no room."""
        if made_up and 0 not in made_up:
            return True
        ids = [record_id for index, record_id in enumerate(frame.id_bytes() or ()) if not (made_up and made_up[index])]
        warned_at_s: float | None = None
        while not seen.has_room(ids):
            self._held_up = True
            if self._stopping.is_set():
                return False
            now_s = self.core.clock.monotonic_s()
            if warned_at_s is None or now_s >= warned_at_s + FULL_REPORTED_EVERY_S:
                warned_at_s = now_s
                _log.warning("%s waits: %s", self.core.lane, full(seen))
            await asyncio.sleep(READ_TIMEOUT_S)
        self._held_up = False
        return True

    def _set_aside(self, batch: SourceBatch, unit: SourceUnit) -> None:
        """Handle input that cannot be read, as the spec's `onInvalid` says."""
        invalid = batch.invalid
        if not invalid:
            return
        unit.account.inputs += len(invalid)
        if self._on_invalid is OnFailure.DROP:
            unit.account.drop("invalid input", len(invalid))
            self._warn_once(invalid[0], batch, "dropped")
        elif self._on_invalid is OnFailure.DEAD_LETTER and self._router.has_dead_letter:
            now_us = self.core.clock.now_us()
            records = [Record(item.value, now_us, headers=self._headers_of(item, batch)) for item in invalid]
            unit.frames.extend(self._router.route_dead_letter(frame_of_records(records, ingest_time_us=now_us)).frames)
            unit.account.dead_lettered += len(invalid)
            self._warn_once(invalid[0], batch, "sent to the dead-letter edge")
        else:
            raise UserError(
                codes.RECORD_INVALID,
                f"{self.core.lane}: {self._named(invalid[0], batch)}\n"
                "Fix the input and start again (nothing was lost), or set the source's onInvalid to drop or "
                "deadLetter.",
            )

    def _warn_once(self, item: InvalidRecord, batch: SourceBatch, fate: str) -> None:
        """Log the first input that cannot be read: without this, only the account would show that none can be read."""
        if not self._warned_invalid:
            self._warned_invalid = True
            named = self._named(item, batch)
            _log.warning("%s: %s\nIt is %s; others are counted and not logged.", self._where, named, fate)

    def _headers_of(self, item: InvalidRecord, batch: SourceBatch) -> dict[str, bytes]:
        return headers_of(item.reason, "", self._where, position=item.place or _position_text(batch.position))

    def _named(self, item: InvalidRecord, batch: SourceBatch) -> str:
        """Describe the input that cannot be read: where it is, and the reason as far as it may be shown."""
        if not self._naming.values:
            place = item.place or f"a record read before source position {_position_text(batch.position)}"
            return f"{place} cannot be read (the reason shows values, and `logging.values` is false)"
        if item.place:
            return item.reason
        return f"{item.reason} (read before source position {_position_text(batch.position)})"

    async def _process(self, read: _Read) -> Sequence[Unit]:
        """The units of a read: one, unless its output is too large for one commit."""
        try:
            units = await self._parts(read.frame, read.lineage, _position_text(read.position))
        finally:
            self._first_passed.set()
        if len(units) == 1:
            units[0].ids = read.digests
        else:
            self._name_parts(read, units)
        # Input that cannot be read is committed with the position, because it may be anywhere before it.
        last, aside = units[-1], read.aside
        last.source_position = read.position
        last.account.add(aside.account)
        last.frames = aside.frames + last.frames
        if self._numbers:
            last.numbered = read.lineage.first + read.frame.records
        for unit in units:
            unit.size = len(unit.ids) + sum(part.size for _, part in unit.frames) + size_of(unit.delivered)
        await self.core.tracker.answered(read.tracked)
        return units

    def _name_parts(self, read: _Read, units: Sequence[SourceUnit]) -> None:
        """Record in each unit of a read what the next owner of the lane has to leave out: ids, or a number of
        records."""
        digests = list(digests_of(read.frame, read.digests)) if read.remembers else []
        start = 0
        for unit in units:
            stop = start + unit.records
            unit.ids = b"".join(digests[start:stop])
            if unit is not units[-1]:
                unit.pieces = 0
                unit.ahead = None if read.remembers else read.behind.ahead(read.frame.slice(0, stop))
                unit.numbered = read.lineage.first + stop if self._numbers else 0
            start = stop

    async def _parts(self, frame: Frame, lineage: Lineage, position: str) -> list[SourceUnit]:
        unit = await self._pass(frame, lineage, position)
        if frame.records == 1 or not self._may_grow or unit.fits_a_commit:
            return [unit]
        # The first attempt had no effect, so both halves may be processed again.
        half = frame.records // 2
        first = await self._parts(frame.slice(0, half), lineage.part(0, half), position)
        rest = frame.records - half
        return first + await self._parts(frame.slice(half, frame.records), lineage.part(half, rest), position)

    async def _pass(self, frame: Frame, lineage: Lineage, position: str) -> SourceUnit:
        """Transform records and pass the output on."""
        core = self.core
        ahead, nothing = core.tracker.records, self._outlet.nothing()
        unit = SourceUnit(records=frame.records, passed=nothing.passed, delivered=nothing.delivered)
        with core.telemetry.source_span(frame, lane=core.lane.key) as span:
            output, tags = frame, None
            parents: Sequence[int] | None = None
            if self._transformer is None:
                unit.account.inputs += frame.records
                kept = self._hold_back(frame, unit, position)
                if not kept:
                    return unit
                if len(kept) < frame.records:
                    output, lineage = frame.take(kept), lineage.taken(kept)
                unit.account.add(Account(processed=output.records, outputs=output.records))
            else:
                started = core.clock.monotonic_s()
                mapped = await self._transformer.map(
                    frame,
                    watermark_us=self._watermark.watermark_us,
                    traceparent=span.traceparent,
                    origin=Origin(source_position=position),
                )
                seconds = core.clock.monotonic_s() - started
                core.telemetry.observe_processing("transformer", seconds)
                core.counters.busy_s += seconds
                core.counters.retries += mapped.retries
                core.counters.udf_errors += mapped.errors
                unit.account.add(mapped.account)
                if mapped.dead_letters is not None:
                    unit.frames.extend(self._router.route_dead_letter(mapped.dead_letters).frames)
                unit.account.input_bytes = frame.size
                if mapped.frame is None:
                    return unit
                output, tags, parents = mapped.frame, mapped.tags, mapped.parents
            unit.account.input_bytes = frame.size
            unit.observed = output.times_only()
            if span.traceparent:
                output = output.traced(span.traceparent)
            left = await self._outlet.take(output, tags, lineage, parents, self._watermark.watermark_us)
        unit.frames.extend(left.frames)
        unit.account.unrouted = left.unrouted
        unit.passed = left.passed
        unit.delivered = left.delivered
        unit.size = sum(part.size for _, part in unit.frames) + size_of(unit.delivered)
        if self._pace is not None:
            self._pace.answered(max(ahead, frame.records), left.seconds)
            self._pace.gave(frame.records, unit.size)
        return unit

    def _hold_back(self, frame: Frame, unit: SourceUnit, position: str) -> Sequence[int]:
        """Handle records beyond the bound of event times as `onFuture` says. Returns the indexes of the others."""
        bound = self._bound
        beyond = bound.beyond(frame) if bound is not None else []
        if bound is None or not beyond:
            return range(frame.records)
        times_us = frame.event_times_us()
        origin = Origin(source_position=position)
        if bound.on_future is OnFailure.STOP:
            named = self._naming.of(frame, beyond[0], origin)
            raise UserError(codes.EVENT_TIME_AHEAD, bound.stopped(times_us[beyond[0]], named))
        if bound.on_future is OnFailure.DROP:
            unit.account.drop(future.DROPPED, len(beyond))
        else:
            part = frame.take(beyond)
            headers = [
                {**known, **headers_of(bound.reason(time_us), "", self._where, position=origin.source_position)}
                for known, time_us in zip(part.headers(), part.event_times_us(), strict=True)
            ]
            dead = replace(part, headers_column=columns.pack_headers(headers))
            unit.frames.extend(self._router.route_dead_letter(dead).frames)
            unit.account.dead_lettered += len(beyond)
        unit.account.input_bytes = frame.size
        bound.held_back(len(beyond), times_us[beyond[0]])
        return sorted(set(range(frame.records)).difference(beyond))

    def _watermark_after(self, units: Sequence[Unit]) -> int:
        for unit in units:
            if isinstance(unit, SourceUnit) and unit.observed is not None:
                unit.account.late = self._watermark.observe(unit.observed)
        return self._watermark.watermark_us

    async def _committed(self, units: Sequence[Unit]) -> None:
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Acknowledge committed input to the source."""
        with step("source.acknowledge", self.core.lane.vertex):
            await self._source.committed(self.core.committer.mark.position)

    async def _tick(self) -> None:
        """Advance the watermark of an idle source as the spec says."""
        self.core.publish(self._watermark.watermark_us)
        while self._watermark.moves_by_itself:
            await asyncio.sleep(OT_PUBLISH_INTERVAL_S * 2)
            waiting = self.core.is_quiet and not self.core.left
            held_up = self._held_up or is_held_up(self._source)
            now_us, now_s = self.core.clock.now_us(), self.core.clock.monotonic_s()
            watermark_us = self._watermark.tick(now_us, now_s, waiting=waiting, held_up=held_up)
            if waiting and watermark_us > self.core.watermark_us:
                self.core.publish(watermark_us, idle=True)


def _position_text(position: bytes) -> str:
    return position.decode(errors="backslashreplace")[:_POSITION_CHARACTERS_MAX]
