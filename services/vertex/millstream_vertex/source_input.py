"""The input of a source's lane: reads the source, drops repeated ids, and sets aside what cannot be read.

source ─► ids seen before? ─► (the lane) ─► committed: frames + ids + position ─► ack
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millstream.account import Account
from millstream.clock import START_OF_TIME_US
from millstream.durable import step
from millstream.errors import MillstreamError, RetryLaterError
from millstream.frame import Frame
from millstream.limits import COMMIT_FRAMES_MAX, FRAME_BYTES_MAX, FRAME_RECORDS_MAX, OT_PUBLISH_INTERVAL_S
from millstream.pauses import Pauses, RepeatedFailure, until_next
from millstream.statistics import LaneStatistics
from millstream.watermark.future import FutureBound
from millstream.watermark.source import SourceWatermark
from millstream_reader.ids import FULL_REPORTED_EVERY_S, NewRecords, SeenIds, full
from millstream_reader.source import (
    ListeningLane,
    SourceBatch,
    SourceLane,
    is_held_up,
    pending_bytes,
    pending_versions,
)
from millstream_reader.tracker import WorkInFlight
from millstream_vertex.core import LaneCore
from millstream_vertex.lineage import Lineage
from millstream_vertex.source_parts import LeftOut, RecordsAfter, digests_of
from millstream_vertex.stages import Stages
from millstream_vertex.unreadable import Unreadable, position_text
from millstream_writer.committer import Unit, size_of
from millstream_writer.routing import FrameLimits

_CHECK_TIMEOUT_S = 5.0
"""How long a lane that has ended checks for more input."""
_log = logging.getLogger(__name__)

_AWAY_FIRST_S, _AWAY_LAST_S = 0.1, 5.0
"""Pauses between reads of a source that cannot be read now."""

READ_TIMEOUT_S = 0.25
"""How long one read waits for data; the lane notices a request to stop within this time."""


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """The new records of one read, without those that were seen before."""

    frame: Frame | None
    lineage: Lineage
    watermark: SourceWatermark
    position: bytes
    """The source's position after the read."""
    digests: bytes
    """Digests of the ids to remember."""
    remembers: bool
    """Whether ids show which records are committed; otherwise, their place after the position does."""
    after: RecordsAfter
    """The committed records between the previous position and the records of the read."""
    aside: Unit
    """The unit for input that is not in the frame."""
    tracked: WorkInFlight
    numbered: int | None
    """Number of the first record, if the vertices that follow in a chain name records by number."""

    @property
    def watermark_us(self) -> int:
        return self.watermark.watermark_us

    @property
    def sequence(self) -> int:
        return 0

    def finish(self, parts: Sequence[tuple[int, Unit]]) -> Sequence[Unit]:
        """Record in each unit what the next owner of the lane has to leave out: ids, or a number of records."""
        units = [unit for _, unit in parts]
        if not units:
            return [self.aside]
        digests = list(digests_of(self._records, self.digests)) if self.remembers and len(units) > 1 else []
        start = 0
        for stop, unit in parts:
            if len(units) == 1:
                unit.changes.ids = self.digests
            else:
                unit.changes.ids = b"".join(digests[start:stop])
            if unit is not units[-1]:
                unit.ahead = None if self.remembers else self.after.ahead(self._records.slice(0, stop))
            if self.numbered is not None:
                unit.numbered = self.numbered + stop
            start = stop
        # Input that cannot be read is committed with the position, because it may be anywhere before it.
        last = units[-1]
        last.source_position = self.position
        last.account.add(self.aside.account)
        last.frames = self.aside.frames + last.frames
        for unit in units:
            unit.size = len(unit.changes.ids) + sum(part.size for _, part in unit.frames) + size_of(unit.delivered)
        return units

    @property
    def _records(self) -> Frame:
        assert self.frame is not None, "it has parts"
        return self.frame


class SourceInput:
    """An open source, as the input of one lane."""

    def __init__(
        self,
        core: LaneCore,
        source: SourceLane,
        watermark: SourceWatermark,
        seen: SeenIds | None,
        unreadable: Unreadable,
        stages: Stages,
        *,
        pipeline: str = "",
        bound: FutureBound | None = None,
        run: str = "",
    ) -> None:
        """`seen` is needed for a source that may repeat records. `bound`: the bound of event times. `run`: id of the
        lane's ledger, for the dead letters of vertices that follow in a chain."""
        self._core = core
        self._source = source
        self._watermark = watermark
        self._seen = seen
        self._unreadable = unreadable
        self._stages = stages
        self._where = f"{pipeline}/{core.lane}"
        self._bound = bound
        self._run = run
        self._stopping = asyncio.Event()
        self._draining = False
        self._away, self._failure = Pauses(_AWAY_FIRST_S, _AWAY_LAST_S), RepeatedFailure()
        self._held_up = False
        """Whether records were refused, or there may be some that could not be read: that is not silence."""
        self._busy = False
        """Whether the last read has brought records."""
        self.has_read_all = False
        # The records of one read are committed together, and each may go to a different partition on every edge.
        written = core.committer.router
        records_max = min(FRAME_RECORDS_MAX, written.piece.records)
        if len(written.buffers) > COMMIT_FRAMES_MAX // 2:
            records_max = max(1, min(records_max, COMMIT_FRAMES_MAX // written.copies_max))
        self.read_max = FrameLimits(records_max, min(FRAME_BYTES_MAX, written.piece.size))
        """The most that one read brings."""
        self._position = core.committer.mark.position
        self._left_out = LeftOut(core.lane, core.committer.mark.ahead)
        # Vertices that follow in a chain name records by number.
        self._numbered = core.committer.mark.numbered if stages.unit().passed else None

    def stop(self) -> None:
        """Accept no new input. Input that the source has already accepted is still finished; input that can be read
        again and is not being committed is left for the next run."""
        self._stopping.set()

    async def begin(self, *, ended: bool) -> None:
        if self._core.committer.mark.position:
            # The process that committed it may have been killed before it acknowledged it to the source.
            await self._acknowledge()
        if ended:
            await self._check_for_more()
        elif self._bound is not None and self._watermark.watermark_us > self._bound.latest_us:
            _log.warning("%s: %s", self._where, self._bound.passed(self._watermark.watermark_us))

    async def _check_for_more(self) -> None:
        """Warn about input that came after the source ended: it cannot be read, because event time has ended."""
        if not self._source.replayable:
            return
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                batch = await self._source.read(1, self.read_max.size, 0.0)
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

    async def next(self, records_max: Callable[[], int | None], nothing: Callable[[], None]) -> ReadRecords | None:
        while not self.has_read_all:
            if self._stopping.is_set() and not self._draining:
                self._draining = True
                await self._source.drain()
                if self._source.replayable:
                    return None
            given = await self._read(records_max(), nothing)
            if given is None:
                if self._draining:
                    # The next run reads the rest.
                    return None
                continue
            batch = self._left_out.rest(given)
            if batch is None:
                continue
            self.has_read_all = batch.ended
            if batch.frame is not None or batch.invalid or batch.position != self._position:
                self._position = batch.position
                read = await self._admitted(batch)
                if read is None:
                    self.has_read_all = False
                return read
            if self._draining:
                return None
        return None

    async def _read(self, records_max: int | None, nothing: Callable[[], None]) -> SourceBatch | None:
        """The next batch; None, after a pause, if the source cannot be read now."""
        wanted = self.read_max.records if records_max is None else min(records_max, self.read_max.records)
        # An idle lane wakes up when its process does anyway.
        timeout_s = READ_TIMEOUT_S if self._busy else until_next(READ_TIMEOUT_S)
        try:
            batch = await self._source.read(wanted, self.read_max.size, timeout_s)
        except RetryLaterError as error:
            self._held_up = True
            place = f"source position {position_text(self._position)}" if self._position else "the beginning"
            self._failure.warn(_log, f"{self._where}: ", f"waits to read what follows {place}: {error}")
            await self._away.wait(unless=self._stopping)
            return None
        self._away.begin_again()
        self._failure.over(_log, f"{self._where}: ")
        self._held_up = False
        self._busy = batch.frame is not None
        if not self._busy:
            nothing()
        return batch

    async def _admitted(self, batch: SourceBatch) -> ReadRecords | None:
        """The new records of a batch. None if the lane was asked to stop before it could remember the ids: the source
        returns the batch again later, with everything after it."""
        new, after, remembers = NewRecords(batch.frame), self._left_out.taken(), False
        if batch.frame is not None and (batch.frame.ids_column or not self._source.replayable):
            seen = self._seen
            if seen is not None and not await self._room_for_ids(seen, batch.frame, batch.made_up):
                return None
            new = seen.admit(batch.frame, batch.made_up) if seen is not None else new
            remembers = True
        aside = self._stages.unit()
        aside.source_position, aside.account = batch.position, Account(repeated_ids=new.repeated)
        self._unreadable.set_aside(batch, aside)
        aside.size = sum(part.size for _, part in aside.frames)
        tracked, first = WorkInFlight(len(batch.invalid), aside.size), self._numbered
        if new.frame is not None:
            tracked = WorkInFlight(new.frame.records, new.frame.size)
            if self._numbered is not None:
                self._numbered += new.frame.records
        return ReadRecords(
            new.frame,
            Lineage("", first or 0, None, position_text(batch.position), self._run),
            self._watermark,
            batch.position,
            new.digests,
            remembers,
            after,
            aside,
            tracked,
            first,
        )

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
            now_s = self._core.clock.monotonic_s()
            if warned_at_s is None or now_s >= warned_at_s + FULL_REPORTED_EVERY_S:
                warned_at_s = now_s
                _log.warning("%s waits: %s", self._core.lane, full(seen))
            await asyncio.sleep(READ_TIMEOUT_S)
        self._held_up = False
        return True

    @property
    def ended(self) -> bool:
        return self.has_read_all

    @property
    def prompt(self) -> bool:
        return not self._source.replayable

    def watermark_after(self, units: Sequence[Unit]) -> int:
        for unit in units:
            if unit.observed is not None:
                unit.account.late = self._watermark.observe(unit.observed)
        return self._watermark.watermark_us

    async def committed(self, units: Sequence[Unit]) -> None:
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Acknowledge committed input to the source."""
        with step("source.acknowledge", self._core.lane.vertex):
            await self._source.committed(self._core.committer.mark.position)

    @property
    def moves_by_itself(self) -> bool:
        return self._watermark.moves_by_itself

    async def moved(self) -> None:
        await asyncio.sleep(OT_PUBLISH_INTERVAL_S * 2)

    def advance(self, *, quiet: bool) -> int:
        """The watermark of an idle source, as the spec says."""
        held_up = self._held_up or is_held_up(self._source)
        now_us, now_s = self._core.clock.now_us(), self._core.clock.monotonic_s()
        watermark_us = self._watermark.tick(now_us, now_s, waiting=quiet, held_up=held_up)
        return watermark_us if quiet else START_OF_TIME_US

    def statistics(self, numbers: LaneStatistics) -> LaneStatistics:
        source = self._source
        numbers = replace(
            numbers,
            pending=source.pending(),
            pending_bytes=pending_bytes(source),
            pending_versions=pending_versions(source),
        )
        return replace(numbers, listener=source.listener()) if isinstance(source, ListeningLane) else numbers
