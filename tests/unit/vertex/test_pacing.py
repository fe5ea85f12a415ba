"""What waits for more to come, and what does not: commits of bare progress, and entries of a reduce lane's log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream.clock import END_OF_TIME_US, Clock, SystemClock
from millstream.limits import COMMIT_LINGER_RECORDS_MAX
from millstream.record import BufferId, Position
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import OtStore, follow
from millstream_reader.buffer import open_buffer_reader
from millstream_reader.tracker import Tracker, WorkInFlight
from millstream_reduce.lane.inputs import ReduceInput, ReduceInputs
from millstream_vertex.core import LaneCore
from millstream_vertex.gathering import Pace
from millstream_vertex.input import LaneInput
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit
from millstream_writer.routing import Route, Router
from tests.unit.vertex.lane_rig import INPUT, LANE, UPSTREAM, Rig, open_rig, records_of

OUT = BufferId("map-out", 0)
NEVER_S = 3600.0
"""A test that waited for it would not end."""
COMMITS_AT_ONCE = 16
"""So many wait for nothing before one checks whether a wait brings something."""


class SlowClock(SystemClock):
    """For it, every timer is early."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() / 2


class Pacing:
    """A lane that commits bare progress once an hour, or as often as is said."""

    def __init__(self, core: LaneCore, store: OtStore) -> None:
        self.core = core
        self.store = store
        self.commits: asyncio.Queue[int] = asyncio.Queue()
        """The sequence that the mark came to with each."""

    async def run(self) -> None:
        await self.core.commit_all(lambda units: 0, self._committed)

    def add(self, sequence: int, *values: bytes) -> None:
        done: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
        frames = [(OUT, records_of(*values))] if values else []
        done.set_result([Unit(position=Position(sequence), frames=frames, pieces=0)])
        self.core.units.add(done)

    async def until_it_waits(self) -> int:
        """Has commits follow one another until one waits for more. Returns the sequence that it would come to."""
        for sequence in range(1, COMMITS_AT_ONCE + 1):
            self.add(sequence, b"output")
            assert await self.commits.get() == sequence
        self.add(COMMITS_AT_ONCE + 1, b"output")
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.commits.empty()
        return COMMITS_AT_ONCE + 1

    async def _committed(self, units: Sequence[Unit]) -> None:
        self.commits.put_nowait(self.core.committer.mark.sequence)


@asynccontextmanager
async def open_pacing(clock: Clock | None = None, interval_s: float = NEVER_S) -> AsyncIterator[Pacing]:
    async with open_rig() as rig:
        committer = await rig.committer(LANE, Router([Route(OUT.edge, 1, None)]))
        store = await rig.stores.store(LANE.vertex)
        tracker = Tracker(pieces_max=1, bytes_max=1)
        core = LaneCore(
            LANE,
            committer,
            store,
            Telemetry(),
            clock or SystemClock(),
            tracker,
            watermarks=True,
            pace=Pace(commit_interval_s=interval_s, linger_s=NEVER_S),
        )
        yield Pacing(core, store)


async def test_progress_waits_until_there_is_output() -> None:
    async with open_pacing() as pacing, asyncio.TaskGroup() as tasks:
        tasks.create_task(pacing.run())
        pacing.add(1)
        assert await pacing.commits.get() == 1
        pacing.add(2)
        pacing.add(3)
        pacing.add(4, b"output")
        assert await pacing.commits.get() == 4
        pacing.add(5, b"more")
        assert await pacing.commits.get() == 5
        assert pacing.commits.empty()
        pacing.core.units.close()


async def test_a_timer_that_is_early_ends_no_wait() -> None:
    clock, interval_s = SlowClock(), 0.05
    async with open_pacing(clock, interval_s) as pacing, asyncio.TaskGroup() as tasks:
        tasks.create_task(pacing.run())
        begun_s = clock.monotonic_s()
        for sequence in (1, 2):
            pacing.add(sequence)
            assert await pacing.commits.get() == sequence
        assert clock.monotonic_s() >= begun_s + interval_s
        pacing.core.units.close()


async def test_progress_that_waits_is_committed_when_the_lane_is_done() -> None:
    async with open_pacing() as pacing, asyncio.TaskGroup() as tasks:
        tasks.create_task(pacing.run())
        pacing.add(1)
        assert await pacing.commits.get() == 1
        pacing.add(2)
        pacing.core.units.close()
        assert await pacing.commits.get() == 2


async def test_output_that_waits_is_committed_when_enough_has_come() -> None:
    async with open_pacing() as pacing, asyncio.TaskGroup() as tasks:
        tasks.create_task(pacing.run())
        last = await pacing.until_it_waits()
        pacing.add(last + 1, *[b"output"] * COMMIT_LINGER_RECORDS_MAX)
        assert await pacing.commits.get() == last + 1
        pacing.core.units.close()


async def test_output_that_waits_is_committed_when_the_lane_is_done() -> None:
    async with open_pacing() as pacing, asyncio.TaskGroup() as tasks:
        tasks.create_task(pacing.run())
        last = await pacing.until_it_waits()
        pacing.core.units.close()
        assert await pacing.commits.get() == last


async def test_output_that_waits_is_committed_when_nothing_can_come_before() -> None:
    async with open_pacing() as pacing, asyncio.TaskGroup() as tasks:
        tasks.create_task(pacing.run())
        tracker = pacing.core.tracker
        await tracker.begin(WorkInFlight(1, 1))
        last = await pacing.until_it_waits()
        next_piece = tasks.create_task(tracker.begin(WorkInFlight(1, 1)))
        assert await pacing.commits.get() == last
        next_piece.cancel()
        pacing.core.units.close()


async def test_output_that_waits_is_left_at_once_by_a_lane_that_leaves() -> None:
    async with open_pacing() as pacing, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pacing.run())
        await pacing.until_it_waits()
        pacing.core.leave()
        pacing.core.units.close()
        await running
        assert pacing.core.left
        assert pacing.commits.empty()


def nothing_is_due(watermark_us: int) -> bool:
    return False


@asynccontextmanager
async def open_inputs(rig: Rig) -> AsyncIterator[ReduceInputs]:
    """One input, which reads what is fed."""
    upstream = await rig.ledger("in")
    lane_input = LaneInput(INPUT, [UPSTREAM], back_edge=False)
    async with open_buffer_reader(upstream, INPUT, Position(0), lane_input) as reader, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow(await rig.stores.store("in"), [lane_input.observe]))
        inputs = ReduceInputs([ReduceInput(INPUT, reader, lane_input, upstream, Trimmer(upstream.trim))])
        async with inputs.running():
            yield inputs
            inputs.stop()
        following.cancel()


async def test_gathering_ends_when_the_watermark_behind_what_waits_is_due() -> None:
    async with open_rig() as rig, open_inputs(rig) as inputs, asyncio.TaskGroup() as tasks:
        gathering = tasks.create_task(inputs.gather(NEVER_S, 2**30, lambda watermark_us: watermark_us >= 50))
        await rig.feed(records_of(b"a"), records_of(b"b"), watermark_us=49)
        await inputs.wait(None)
        assert not gathering.done()
        await rig.feed(records_of(b"c"), watermark_us=50)
        await gathering
        # It was not taken yet; once it is, the watermark of the lane is as far.
        while inputs.watermark_us() < 50:
            await inputs.wait(None)
            inputs.take(2**30)


async def test_gathering_ends_when_enough_waits() -> None:
    frame = records_of(b"a" * 1000)
    async with open_rig() as rig, open_inputs(rig) as inputs, asyncio.TaskGroup() as tasks:
        gathering = tasks.create_task(inputs.gather(NEVER_S, 2000, nothing_is_due))
        await rig.feed(frame)
        await inputs.wait(None)
        assert not gathering.done()
        await rig.feed(frame)
        await gathering
        assert sum(taken.frame.records for taken in inputs.take(2**30)) == 2


async def test_gathering_ends_with_its_time_and_with_the_lane() -> None:
    async with open_rig() as rig, open_inputs(rig) as inputs, asyncio.TaskGroup() as tasks:
        await inputs.gather(0.01, 2**30, nothing_is_due)
        gathering = tasks.create_task(inputs.gather(NEVER_S, 2**30, nothing_is_due))
        await asyncio.sleep(0)
        inputs.stop()
        await gathering


async def test_gathering_looks_again_when_it_is_woken() -> None:
    may_hand_over = asyncio.Event()
    async with open_rig() as rig, open_inputs(rig) as inputs, asyncio.TaskGroup() as tasks:
        gathering = tasks.create_task(inputs.gather(NEVER_S, 2**30, lambda _: may_hand_over.is_set()))
        await asyncio.sleep(0)
        assert not gathering.done()
        may_hand_over.set()
        inputs.wake()
        await gathering


async def test_an_entry_of_a_lane_that_has_ended_says_so_with_the_end_of_time() -> None:
    # It is made when it is put, which may be after the last commit and before the lane publishes its end.
    async with open_pacing() as pacing, asyncio.timeout(30):
        core = pacing.core
        await core.committer.commit([], watermark_us=END_OF_TIME_US, ended=True)
        core.publisher.publish(5)
        await core.publisher.flush()
        stored = await pacing.store.stored(LANE)
        assert stored is not None
        assert (stored.entry.ended, stored.entry.watermark_us) == (True, END_OF_TIME_US)
