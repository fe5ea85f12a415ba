"""The lane of a vertex, or of a chain of them: from its input, through its stages, to its output.

    input ─► batch ─► stages (several batches at once) ─► InOrder ─► output ─► commit
      └────► watermark, timers, end of the input ─┘

Only this runs records through stages: it owns calls in progress, their order and their halves. What is special about a
buffer or a source is in the input; what is special about a sink is in the output. Above it: the worker. Below it: the
input, stages and the output.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from typing import Protocol

from millstream.background import beside
from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.frame import Frame
from millstream.ledger.protocol import StoredFrame
from millstream.limits import MARK_BEHIND_BYTES_MAX, SLICE_TARGET_S
from millstream.statistics import LaneStatistics
from millstream.udf.states import StateClock
from millstream_reader.tracker import WorkInFlight
from millstream_vertex.core import LaneCore
from millstream_vertex.lineage import Lineage
from millstream_vertex.pacing import Slicer, bound_by
from millstream_vertex.stages import Stages
from millstream_writer.committer import Unit

TIMERS_MAX = 4096
"""Timers in a call."""
TIMERS_TARGET_S = SLICE_TARGET_S / 20
"""A call with timers should not take longer: when many are due, results are committed meanwhile."""


class Batch(Protocol):
    """Consecutive records of a lane's input."""

    @property
    def frame(self) -> Frame | None:
        """The records; None if there was only input that cannot be read."""

    @property
    def lineage(self) -> Lineage:
        """The names of the records."""

    @property
    def watermark_us(self) -> int:
        """The watermark that is valid before them."""

    @property
    def sequence(self) -> int:
        """Sequence of the stored frame that they are from; 0 for those of a source."""

    @property
    def tracked(self) -> WorkInFlight:
        """The batch as work in flight."""

    def finish(self, parts: Sequence[tuple[int, Unit]]) -> Sequence[Unit]:
        """Add to the units of its parts, each with the index after its last record, where the lane is after them."""


class Input(Protocol):
    """Where the records of a lane come from."""

    async def begin(self, *, ended: bool) -> None:
        """Called once, before anything else. `ended`: whether the lane ended in an earlier run."""

    async def next(self, records_max: Callable[[], int | None], nothing: Callable[[], None]) -> Batch | None:
        """The next records, at most `records_max()`; None when nothing follows, or nothing more may be read after
        `stop`. Calls `nothing` when there is nothing to read for now."""

    def stop(self) -> None:
        """Bring no new input."""

    @property
    def has_read_all(self) -> bool:
        """Whether nothing will ever follow what was read."""

    @property
    def ended(self) -> bool:
        """Whether nothing will ever follow what is committed."""

    @property
    def prompt(self) -> bool:
        """Whether an external system waits for each commit."""

    def watermark_after(self, units: Sequence[Unit]) -> int:
        """The watermark once these units are committed. Called once per commit, in order; without units, it is the
        present watermark."""

    async def committed(self, units: Sequence[Unit]) -> None:
        """These units are durable."""

    @property
    def moves_by_itself(self) -> bool:
        """Whether the watermark may advance without a commit."""

    async def moved(self) -> None:
        """Wait until the watermark may have advanced without a commit."""

    def advance(self, *, quiet: bool) -> int:
        """The watermark then. `quiet`: whether everything that was read is committed."""

    def statistics(self, numbers: LaneStatistics) -> LaneStatistics:
        """The statistics of the lane, with what only its input knows."""


class Lane:
    """One lane. `run` returns when its input has ended, or when what is in progress is finished after `stop`."""

    def __init__(
        self,
        core: LaneCore,
        lane_input: Input,
        stages: Stages,
        *,
        paced: bool,
        may_grow: bool,
        leaves: bool,
        records_max: int | None = None,
    ) -> None:
        """`paced`: whether batches are as large as the functions can process in a short time. `may_grow`: whether the
        output of a batch may be too large for one commit. `leaves`: whether a stop leaves what is in progress to the
        next owner. `records_max`: the most records in a batch."""
        self.core = core
        self._input = lane_input
        self._stages = stages
        self._output = stages.output
        self._may_grow = may_grow
        self._leaves = leaves
        self._records_max = records_max
        self._pace = Slicer(target_s=SLICE_TARGET_S, records_max=records_max) if paced else None
        self._first_answer = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held while a stage with a state works: one thing after another."""
        self._reading = False
        """Whether everything that was read has passed the stages, and the lane waits for more."""
        self._timers_changed = asyncio.Event()
        """Set when such a stage may have set a timer."""
        self._passed_us = START_OF_TIME_US
        """The watermark that the stages know."""
        self._holds_us: deque[int] = deque((END_OF_TIME_US,))
        """What the stages held back after the last unit that is committed, and after each one that follows it. Only for
        stages with a state."""
        self._promised_us = START_OF_TIME_US
        """The watermark of the newest commit that has begun."""
        self._timers_pace = Slicer(target_s=TIMERS_TARGET_S, records_max=TIMERS_MAX)
        self._renewing = False
        self._calls = bool(stages.concurrencies) and not stages.is_stateful
        """Whether batches wait for functions at the same time. A task costs as much as routing a small frame."""
        bound_by(core.tracker, stages.concurrencies, self._output.ahead_bytes_max)

    def stop(self) -> None:
        """Accept no new input."""
        self._input.stop()
        if self._leaves:
            self._output.leave()

    def statistics(self) -> LaneStatistics:
        self._output.count()
        return self._input.statistics(self.core.statistics(pending=None))

    async def run(self) -> None:
        core = self.core
        ended = core.committer.mark.ended
        await self._input.begin(ended=ended)
        if ended:
            await core.end()
            return
        self._stages.restore(core.committer.mark.states)
        if self._stages.is_stateful:
            self._holds_us[0] = self._stages.holds_us
        async with asyncio.TaskGroup() as background:
            clocks = [background.create_task(self._follow_watermark(), name=f"watermark {core.lane}")]
            if self._stages.is_stateful:
                clocks.append(background.create_task(self._follow_timers(), name=f"timers {core.lane}"))
            async with asyncio.TaskGroup() as work:
                committing = self._output.run(self._watermark_after, self._committed, prompt=self._input.prompt)
                work.create_task(committing, name=f"commit {core.lane}")
                async with self._with_edits(self._stages.edits()):
                    await self._take_all(work)
                self._output.units.close()
            for clock in clocks:
                clock.cancel()
        # A lane that was stopped leaves work; it has ended only if everything that was read is committed.
        if self._input.ended and not core.left:
            await core.end()

    async def _take_all(self, work: asyncio.TaskGroup) -> None:
        while True:
            self._reading = True
            batch = await self._input.next(self._batch_records, self._renew_mark)
            self._reading = False
            if batch is None:
                break
            await self._begin(batch, work)
        if self._stages.is_stateful and self._input.has_read_all:
            async with self._lock:
                await self._reach(END_OF_TIME_US)
                self._add(await self._stages.on_end(END_OF_TIME_US))

    @asynccontextmanager
    async def _with_edits(
        self, edits: AbstractAsyncContextManager[AsyncIterator[StoredFrame]] | None
    ) -> AsyncIterator[None]:
        """Make edits of the state during the block."""
        if edits is None:
            yield
            return
        async with beside(self._follow_edits(edits), f"edits {self.core.lane}"):
            yield
            # So that none ends in its midst.
            await self._lock.acquire()
        self._lock.release()

    async def _follow_edits(self, edits: AbstractAsyncContextManager[AsyncIterator[StoredFrame]]) -> None:
        async with edits as coming:
            async for edit in coming:
                async with self._lock:
                    self._stages.begin()
                    self._add(await self._stages.on_edit(edit, self._passed_us))
                    # A timer may have been set for a time that has come.
                    await self._fire_due()

    def _batch_records(self) -> int | None:
        return self._pace.records() if self._pace is not None else self._records_max

    async def _begin(self, batch: Batch, work: asyncio.TaskGroup) -> None:
        """Start processing a batch, as soon as there is room for it."""
        if self._stages.is_stateful:
            async with self._lock:
                await self._reach(batch.watermark_us)
                await self._admit(batch.tracked)
                units = await self._finished(batch)
                self._holds_us.extend(unit.holds_us for unit in units)
                self._output.units.add_done(units)
                # Some may have been set for a time that has come.
                await self._fire_due()
            self._timers_changed.set()
            return
        await self._admit(batch.tracked)
        if self._calls and batch.frame is not None:
            self._output.units.add(work.create_task(self._process(batch, batch.frame, batch.tracked)))
        else:
            self._output.units.add_done(await self._finished(batch))
        if self._pace is not None and not self._pace.learned and batch.frame is not None:
            # The first call shows how fast the functions are; more is read only after that.
            await self._first_answer.wait()

    async def _admit(self, tracked: WorkInFlight) -> None:
        """Wait until there is room for work."""
        pace = self._pace
        records_max = pace.records_in_flight_max() if pace is not None else None
        await self.core.tracker.begin(tracked, records_max=records_max)

    async def _finished(self, batch: Batch) -> Sequence[Unit]:
        """The units of a batch."""
        if batch.frame is not None:
            return await self._process(batch, batch.frame, batch.tracked)
        await self.core.tracker.answered(batch.tracked)
        return batch.finish([])

    async def _process(self, batch: Batch, frame: Frame, tracked: WorkInFlight) -> Sequence[Unit]:
        """The units of a batch: one, unless its output is too large for one commit."""
        try:
            parts = await self._parts(batch, frame, 0)
        finally:
            self._first_answer.set()
        units = batch.finish(parts)
        for unit in units[:-1]:
            unit.pieces = 0
        await self.core.tracker.answered(tracked)
        return units

    async def _parts(self, batch: Batch, frame: Frame, start: int) -> list[tuple[int, Unit]]:
        """The units of records of a batch, the first of which has the index `start`."""
        ahead, begun_s = self.core.tracker.records, self.core.clock.monotonic_s()
        self._stages.begin()
        lineage = batch.lineage.part(start, frame.records)
        unit = await self._stages.take(frame, lineage, batch.watermark_us, batch.sequence)
        if self._pace is not None:
            self._pace.answered(max(ahead, frame.records), self.core.clock.monotonic_s() - begun_s)
            self._pace.gave(frame.records, unit.size)
        if frame.records == 1 or not self._may_grow or unit.fits_a_commit:
            return [(start + frame.records, unit)]
        # The first attempt had no effect, so both halves may pass the stages again.
        self._stages.undo()
        half = frame.records // 2
        first = await self._parts(batch, frame.slice(0, half), start)
        return first + await self._parts(batch, frame.slice(half, frame.records), start + half)

    def _add(self, unit: Unit | None) -> None:
        """Commit what stages made of the watermark, of a timer, or of the end."""
        if unit is None:
            return
        if self._stages.is_stateful:
            self._holds_us.append(unit.holds_us)
        self._output.units.add_done((unit,))
        self._timers_changed.set()

    async def _reach(self, watermark_us: int) -> None:
        """Let the stages know a watermark. With the lock."""
        if watermark_us <= self._passed_us:
            return
        self._passed_us = watermark_us
        # First: a timer sees what expires with it.
        await self._fire_due()
        self._add(await self._stages.on_watermark(watermark_us))

    async def _fire_due(self) -> None:
        """Fire every timer whose event time has come. With the lock: they come before the records that follow."""
        while await self._fire(StateClock.EVENT_TIME, self._passed_us):
            pass

    async def _fire(self, clock: StateClock, until_us: int) -> bool:
        """Fire some of the timers that are due by a clock; their result is a unit of its own. Returns whether there
        were any. With the lock."""
        pace, core, begun_s = self._timers_pace, self.core, self.core.clock.monotonic_s()
        most, held_us = pace.records(), self._holds_us[-1]
        while True:
            self._stages.begin()
            floor_us = max(core.watermark_us, self._promised_us)
            # Nothing more is promised until the result is committed.
            self._holds_us[-1] = min(held_us, floor_us)
            unit = await self._stages.fire(clock, until_us, watermark_us=self._passed_us, floor_us=floor_us, most=most)
            if unit is None:
                self._holds_us[-1] = held_us
                return False
            timers = unit.account.timers
            if timers == 1 or not self._may_grow or unit.fits_a_commit:
                break
            # The first attempt had no effect, as in `_parts`.
            self._stages.undo()
            most = timers // 2
        pace.answered(timers, core.clock.monotonic_s() - begun_s)
        pace.gave(timers, unit.size)
        tracked = WorkInFlight(timers, unit.size)
        await core.tracker.begin(tracked)
        await core.tracker.answered(tracked)
        self._add(unit)
        return True

    @property
    def _is_quiet(self) -> bool:
        """Whether everything that was read is committed, and nothing is being made."""
        return len(self.core.tracker) == 0 and self._output.is_empty and not self._lock.locked()

    def _watermark_after(self, units: Sequence[Unit]) -> int:
        if units:
            # Also those that are made after them.
            later_us = islice(self._holds_us, len(units), None)
            self._promised_us = min(self._input.watermark_after(units), units[-1].holds_us, *later_us)
            return self._promised_us
        # Also what is made and not committed may be older than what has been read.
        return min(self._input.watermark_after(units), *self._holds_us)

    async def _committed(self, units: Sequence[Unit]) -> None:
        self._renewing = False
        if self._stages.is_stateful:
            for _ in units:
                self._holds_us.popleft()
            # The watermark may have passed a timer meanwhile.
            self._timers_changed.set()
        self._stages.committed(units, self.core.committer.sequences)
        await self._input.committed(units)

    async def _follow_watermark(self) -> None:
        """Advance the lane's watermark even while nothing is committed, and do not let its mark stay behind."""
        self.core.publisher.publish(self._watermark_after(()))
        while self._input.moves_by_itself:
            await self._input.moved()
            watermark_us = self._input.advance(quiet=self._is_quiet and not self.core.left)
            if self._stages.is_stateful:
                await self._pass_watermark()
            watermark_us = min(watermark_us, *self._holds_us)
            if watermark_us > self.core.watermark_us:
                self.core.publisher.publish(watermark_us, idle=self._is_quiet)
            self._renew_mark()

    async def _pass_watermark(self) -> None:
        """Let the stages know the watermark while nothing is read."""
        async with self._lock:
            watermark_us = self._input.watermark_after(())
            # What is read and not committed has passed the stages, and this is a promise about the rest.
            if self._reading:
                await self._reach(watermark_us)

    async def _follow_timers(self) -> None:
        """Let the stages know when their timers are due."""
        while True:
            self._timers_changed.clear()
            await self._pass_watermark()
            timer_us, now_us = self._stages.timer_us, self.core.clock.now_us()
            if timer_us is not None and timer_us <= now_us:
                async with self._lock:
                    if max(self._passed_us, self._promised_us, self.core.watermark_us) >= END_OF_TIME_US:
                        # The input has ended: those that are still set wait for more.
                        return
                    if await self._fire(StateClock.PROCESSING_TIME, now_us):
                        await self._fire_due()
                    else:
                        self._add(await self._stages.on_timer(now_us, self._passed_us))
                continue
            try:
                async with asyncio.timeout(None if timer_us is None else (timer_us - now_us) / MICROSECONDS):
                    await self._timers_changed.wait()
            except TimeoutError:
                continue

    def _renew_mark(self) -> None:
        """Commit the mark again if the lane has nothing to commit and other lanes have written much since its last
        commit. The mark would be the first message of the ledger, and what is removed behind it would keep its place
        (docs/decisions/0108-trims-let-the-broker-remove-whole-files.md)."""
        core = self.core
        if self._renewing or core.leaving or not self._is_quiet or len(core.units):
            return
        if core.committer.behind_bytes >= MARK_BEHIND_BYTES_MAX:
            self._renewing = True
            unit = self._stages.unit()
            unit.pieces = 0
            self._add(unit)
