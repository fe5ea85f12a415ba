"""A lane of a source: what it tells the source, and what it promises downstream, follows its commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import millstream_udf as udf
from millstream import codes, limits
from millstream.account import Account
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US, SystemClock
from millstream.errors import RetryLaterError
from millstream.frame import Frame, frame_of_records
from millstream.record import BufferId, LaneId, Record
from millstream.retry import OnFailure
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.future import DROPPED, FutureBound
from millstream.watermark.source import IdlePolicy, SourceWatermark
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceBatch
from millstream_reader.tracker import Tracker
from millstream_vertex.core import LaneCore
from millstream_vertex.lane import Lane
from millstream_vertex.mapping import MapStage
from millstream_vertex.outputs import ToBuffers
from millstream_vertex.stages import Step
from millstream_writer.backpressure import Backpressure
from millstream_writer.committer import Member
from millstream_writer.routing import Route, Router
from tests.support.errors import raises
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import (
    UPSTREAM,
    Rig,
    open_backpressure,
    open_rig,
    open_stream,
    records_of,
    source_lane,
    stage_of,
)

BUFFER = BufferId("in-map", 0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


class GivenSource:
    """A source of frames that are given, its position their number."""

    replayable = True

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames
        self._given = 0
        self.all_read = asyncio.Event()
        self.acknowledged: list[bytes] = []
        self.asked: list[int] = []
        """For how many records at most."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        self.asked.append(records_max)
        if self._given == len(self._frames):
            self.all_read.set()
            return SourceBatch(None, b"%d" % self._given, ended=True)
        self._given += 1
        return SourceBatch(self._frames[self._given - 1], b"%d" % self._given)

    async def committed(self, position: bytes) -> None:
        self.acknowledged.append(position)

    def pending(self) -> int | None:
        return None

    async def drain(self) -> None:
        return None


class RepeatingSource(GivenSource):
    """One that gives ids, and has no position to go back to."""

    replayable = False


async def lane_of(
    rig: Rig,
    source: GivenSource,
    backpressure: Backpressure | None = None,
    seen: SeenIds | None = None,
    bound: FutureBound | None = None,
    dead_letters: Sequence[Route] = (),
    transformer: MapStage | None = None,
    following: MapStage | None = None,
    watermark: SourceWatermark | None = None,
    call_records_max: int | None = None,
) -> Lane:
    """`following`: of a vertex that follows in a chain."""
    router = Router([Route(BUFFER.edge, 1, None)], dead_letters)
    members = [Member("map", "inside", frozenset({BUFFER.edge}))] if following is not None else []
    ids_ttl_s = seen.ttl_s if seen is not None else 0.0
    committer = await rig.committer(UPSTREAM, router, backpressure, members=members, ids_ttl_s=ids_ttl_s)
    tracker = Tracker(pieces_max=limits.FRAMES_IN_FLIGHT_MAX, bytes_max=limits.BYTES_IN_FLIGHT_MAX)
    store = await rig.stores.store(UPSTREAM.vertex)
    core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    steps = []
    if following is not None:
        lane = LaneId("map", "inside", 0)
        steps.append(Step(lane, following, router, core.telemetry, core.counters_of(lane), number=1))
    return source_lane(
        core,
        source,
        router,
        ToBuffers(core, router),
        steps=steps,
        transformer=transformer,
        watermark=watermark,
        seen=seen,
        bound=bound,
        call_records_max=call_records_max,
    )


class Heard(logging.Handler):
    """The messages with `words` in them."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.texts: list[str] = []
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.texts.append(record.getMessage())
            self.event.set()

    @property
    def text(self) -> str:
        """The last one."""
        return self.texts[-1]


@contextmanager
def hearing(words: str) -> Iterator[Heard]:
    """What the lane logs."""
    heard, logger = Heard(words), logging.getLogger("millstream_vertex")
    logger.addHandler(heard)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)


@pytest.mark.guarantee("I1", "I5")
async def test_nothing_is_acknowledged_or_promised_before_it_is_committed(rig: Rig) -> None:
    source = GivenSource([records_of(b"a", time_us=10), records_of(b"b", time_us=20)])
    lane = await lane_of(rig, source)
    rig.faults.hold()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        await rig.faults.held()
        await source.all_read.wait()
        assert source.acknowledged == []
        assert lane.core.watermark_us == START_OF_TIME_US
        rig.faults.release()
    assert source.acknowledged[-1] == b"2"
    assert (await rig.mark(UPSTREAM)).position == b"2"
    assert await rig.values(BUFFER, "in") == [b"a", b"b"]


@pytest.mark.guarantee("I1")
async def test_what_was_committed_and_not_acknowledged_is_acknowledged_by_the_next_process(rig: Rig) -> None:
    async with asyncio.timeout(10):
        await (await lane_of(rig, GivenSource([records_of(b"a", time_us=10)]))).run()
        source = GivenSource([])
        await (await lane_of(rig, source)).run()
    assert source.acknowledged == [b"1"]


class QuietSource(GivenSource):
    """One that gives nothing, and does not end before `ending` is set."""

    def __init__(self) -> None:
        super().__init__([])
        self.ending = False
        self.reads = 0

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        self.reads += 1
        await asyncio.sleep(0)
        return SourceBatch(None, b"", ended=self.ending)


@pytest.mark.guarantee("I1", "I8")
async def test_a_lane_without_input_commits_its_mark_again_behind_what_others_write(rig: Rig) -> None:
    source, backpressure = QuietSource(), open_backpressure([BUFFER])
    lane = await lane_of(rig, source, backpressure)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        before = await rig.mark(UPSTREAM)
        tasks.create_task(lane.run())
        for written, reads in ((limits.MARK_BEHIND_BYTES_MAX - 1, 100), (limits.MARK_BEHIND_BYTES_MAX, 200)):
            backpressure.fills[BUFFER].wrote("another", 1, written)
            while source.reads < reads:  # noqa: ASYNC110 - a source has no event for it
                await asyncio.sleep(0)
            renewed = await rig.mark(UPSTREAM)
            assert (renewed == before) == (written < limits.MARK_BEHIND_BYTES_MAX)
        assert (renewed.position, renewed.account, renewed.written) == (b"", before.account, before.written)
        source.ending = True


@pytest.mark.guarantee("I1")
async def test_a_source_told_to_stop_leaves_what_is_not_being_committed_to_the_next_run(rig: Rig) -> None:
    frames = [records_of(b"%d" % number, time_us=number) for number in range(20)]
    source = GivenSource(frames)
    lane = await lane_of(rig, source, open_backpressure([BUFFER], records_usable=8))
    rig.faults.hold()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        await rig.faults.held()
        await source.all_read.wait()
        lane.stop()
        rig.faults.release()
    mark = await rig.mark(UPSTREAM)
    # What was read to its end was not committed to its end.
    assert not mark.ended
    committed = int(mark.position)
    assert 0 < committed <= 8
    assert await rig.values(BUFFER, "in") == [b"%d" % number for number in range(committed)]
    async with asyncio.timeout(10):
        await (await lane_of(rig, GivenSource(frames[committed:]))).run()
    assert await rig.values(BUFFER, "in") == [b"%d" % number for number in range(20)]
    assert (await rig.mark(UPSTREAM)).ended


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I8")
async def test_a_source_waits_while_its_ids_cannot_be_remembered(rig: Rig) -> None:
    clock = SettableClock()
    # Room for the messages of two commits with few ids each.
    seen = SeenIds(ttl_s=16.0, ids_max=12, clock=clock)
    frames = [
        frame_of_records([Record(name.encode(), 1, id=name) for name in names], ingest_time_us=0)
        for names in (("a", "b"), ("a", "c"), ("d", "e"), ("f",))
    ]
    source = GivenSource(frames)
    lane = await lane_of(rig, source, seen=seen)
    with hearing("waits: ") as heard:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(lane.run())
            await heard.event.wait()
            assert "idsMax" in heard.text
            clock.time_s += 17.1
    assert await rig.values(BUFFER, "in") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert (await rig.mark(UPSTREAM)).ended


@pytest.mark.slow
@pytest.mark.guarantee("I1")
async def test_a_source_that_is_told_to_stop_while_it_waits_leaves_all_behind_to_the_next_run(
    rig: Rig,
) -> None:
    seen = SeenIds(ttl_s=16.0, ids_max=5, clock=SettableClock())
    names = (("a",), ("b",), ("a",))
    frames = [frame_of_records([Record(b"v", 1, id=name) for name in ids], ingest_time_us=0) for ids in names]
    lane = await lane_of(rig, RepeatingSource(frames), seen=seen)
    with hearing("waits: ") as heard:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(lane.run())
            await heard.event.wait()
            lane.stop()
    assert (await rig.mark(UPSTREAM)).position == b"1"
    assert not (await rig.mark(UPSTREAM)).ended


class AwaySource(GivenSource):
    """One whose system is away at these reads."""

    def __init__(self, frames: Sequence[Frame], away: Sequence[int]) -> None:
        super().__init__(frames)
        self._away = away
        self._reads = 0

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        self._reads += 1
        if self._reads in self._away:
            raise RetryLaterError(codes.TARGET_AWAY, "the system does not answer")
        return await super().read(records_max, bytes_max, timeout_s)


@pytest.mark.slow
@pytest.mark.guarantee("I9")
async def test_a_source_whose_system_is_away_is_read_again(rig: Rig) -> None:
    source = AwaySource([records_of(b"a"), records_of(b"b")], away=(1, 3, 4))
    with hearing("waits to read") as heard:
        await (await lane_of(rig, source)).run()
    assert heard.texts == [
        "/in/source.0: waits to read what follows the beginning: the system does not answer",
        "/in/source.0: waits to read what follows source position 1: the system does not answer",
    ]
    assert await rig.values(BUFFER, "in") == [b"a", b"b"]
    assert (await rig.account(UPSTREAM)).inputs == 2


@pytest.mark.parametrize("replayable", [True, False])
async def test_a_source_whose_system_is_away_can_be_stopped(rig: Rig, replayable: bool) -> None:
    source = AwaySource([records_of(b"a")], away=range(2, 1000))
    source.replayable = replayable
    lane = await lane_of(rig, source)
    with hearing("waits to read what follows source position 1") as heard:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(lane.run())
            await heard.event.wait()
            lane.stop()
            await running
    assert not (await rig.mark(UPSTREAM)).ended


class TimedWatermark(SourceWatermark):
    """One of a source that is idle as soon as it is silent, which tells when its timer has passed a few times."""

    def __init__(self) -> None:
        super().__init__(idle=IdlePolicy(threshold_s=0.001, increment_by_s=0.001))
        self.passed = asyncio.Event()
        self._passes = 0

    def tick(self, now_us: int, monotonic_s: float, *, waiting: bool = True, held_up: bool = False) -> int:
        self._passes += 1
        if self._passes > 4:
            self.passed.set()
        return super().tick(now_us, monotonic_s, waiting=waiting, held_up=held_up)


@pytest.mark.guarantee("I5")
async def test_a_source_that_cannot_be_read_is_not_silent(rig: Rig) -> None:
    watermark = TimedWatermark()
    source = AwaySource([records_of(b"a", time_us=10), records_of(b"b", time_us=11)], away=range(2, 1000))
    lane = await lane_of(rig, source, watermark=watermark)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        await watermark.passed.wait()
        assert watermark.watermark_us == lane.core.watermark_us == 10
        lane.stop()


@pytest.mark.slow
@pytest.mark.guarantee("I5")
async def test_a_source_whose_ids_cannot_be_remembered_is_not_silent(rig: Rig) -> None:
    watermark = TimedWatermark()
    frames = [frame_of_records([Record(b"v", 10, id=name)], ingest_time_us=0) for name in ("a", "b")]
    seen = SeenIds(ttl_s=16.0, ids_max=5, clock=SettableClock())
    lane = await lane_of(rig, RepeatingSource(frames), seen=seen, watermark=watermark)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        await watermark.passed.wait()
        assert watermark.watermark_us == lane.core.watermark_us == 10
        lane.stop()


@pytest.mark.guarantee("I2", "I5")
@pytest.mark.parametrize("edge", [True, False])
async def test_records_beyond_the_bound_of_event_time_move_no_watermark(rig: Rig, edge: bool) -> None:
    clock, dead = SettableClock(), BufferId("in-dead", 0)
    now_us = clock.now_us()
    times = [now_us, now_us + 60_000_000, now_us + 60_000_001]
    frame = frame_of_records([Record(b"%d" % at, at, headers={"h": b"1"}) for at in times], ingest_time_us=0)
    far = frame_of_records([Record(b"far", END_OF_TIME_US - 1)], ingest_time_us=0)
    on_future = OnFailure.DEAD_LETTER if edge else OnFailure.DROP
    bound = FutureBound(clock, 60.0, on_future, where="p/in/source.0")
    lane = await lane_of(rig, GivenSource([frame, far]), bound=bound, dead_letters=[Route(dead.edge, 1, None)])
    promised: list[int] = []
    publish = lane.core.publisher.publish

    def noted(watermark_us: int, *, idle: bool = False) -> None:
        promised.append(watermark_us)
        publish(watermark_us, idle=idle)

    lane.core.publisher.publish = noted  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await lane.run()
    mark = await rig.mark(UPSTREAM)
    assert mark.position == b"2"
    assert max(us for us in promised if us != END_OF_TIME_US) == times[1]
    assert await rig.values(BUFFER, "in") == [b"%d" % at for at in times[:2]]
    assert await rig.values(dead, "in") == ([b"%d" % times[2], b"far"] if edge else [])
    account = Account.from_message(mark.account)
    counted = (account.inputs, account.processed, account.dead_lettered, account.dropped.get(DROPPED, 0))
    assert counted == ((4, 2, 2, 0) if edge else (4, 2, 0, 2))
    assert (account.late, account.difference) == (0, 0)


@pytest.mark.parametrize("more", [0, 1])
async def test_what_comes_after_the_end_is_not_read_and_a_warning_says_so(rig: Rig, more: int) -> None:
    first = await lane_of(rig, GivenSource([records_of(b"a", time_us=10)]))
    await first.run()
    with hearing("ended in an earlier run") as heard:
        second = await lane_of(rig, GivenSource([records_of(b"b", time_us=20)] * more))
        await second.run()
    assert heard.event.is_set() == bool(more)
    mark = await rig.mark(UPSTREAM)
    assert mark.ended
    assert Account.from_message(mark.account).inputs == 1


LARGE = 2_000_000
"""Bytes of an output. Four fit a commit."""
NUMBERED = [b"%d" % number for number in range(16)]


def large(value: bytes) -> bytes:
    return value.ljust(LARGE)


def numbered(*sizes: int, ids: bool = False) -> list[Frame]:
    """All records, in frames of so many."""
    records = [Record(value, n, id=value.decode() if ids else None) for n, value in enumerate(NUMBERED)]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    parts = [records[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return [frame_of_records(part, ingest_time_us=0) for part in parts]


async def stop_within_a_read(rig: Rig, source: GivenSource, seen: SeenIds | None = None) -> None:
    """Run a lane that is asked to stop when the first part of what it has read is committed."""
    async with open_stream(large) as stream:
        await stop_after_a_part(rig, await lane_of(rig, source, seen=seen, transformer=stage_of(stream)), source)


async def stop_after_a_part(rig: Rig, lane: Lane, source: GivenSource) -> None:
    rig.faults.hold()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        await rig.faults.held()
        await source.all_read.wait()
        lane.core.leave()
        rig.faults.release()


async def run_to_the_end(rig: Rig, source: GivenSource, seen: SeenIds | None = None) -> Account:
    async with asyncio.timeout(20), open_stream(large) as stream:
        await (await lane_of(rig, source, seen=seen, transformer=stage_of(stream))).run()
    assert [value.strip() for value in await rig.values(BUFFER, "in")] == NUMBERED
    mark = await rig.mark(UPSTREAM)
    assert mark.ended
    assert not mark.HasField("ahead")
    return await rig.account(UPSTREAM)


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize(
    "sizes", [(3, 5, 8), *(pytest.param(sizes, marks=pytest.mark.sweep) for sizes in ((16,), (4, 12), (1,) * 16))]
)
async def test_a_read_that_became_more_than_a_commit_is_committed_in_parts_and_goes_on_within(
    rig: Rig, sizes: Sequence[int]
) -> None:
    await stop_within_a_read(rig, GivenSource(numbered(16)))
    mark = await rig.mark(UPSTREAM)
    assert (mark.position, mark.ahead.records) == (b"", 4)
    assert len(await rig.values(BUFFER, "in")) == 4
    # Stopped once more, in what is left: the source may cut its records in another way.
    await stop_within_a_read(rig, GivenSource(numbered(*sizes)))
    account = await run_to_the_end(rig, ResumedSource(numbered(*sizes), (await rig.mark(UPSTREAM)).position))
    assert (account.inputs, account.processed, account.repeated_ids) == (16, 16, 0)


class ResumedSource(GivenSource):
    """One that goes on at a position."""

    def __init__(self, frames: Sequence[Frame], position: bytes) -> None:
        super().__init__(frames)
        self._given = int(position or 0)


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2")
async def test_the_ids_of_a_part_are_remembered_with_it(rig: Rig) -> None:
    def seen() -> SeenIds:
        return SeenIds(ttl_s=60.0, ids_max=100, clock=SystemClock())

    await stop_within_a_read(rig, RepeatingSource(numbered(16, ids=True)), seen())
    assert not (await rig.mark(UPSTREAM)).HasField("ahead")
    remembered = seen()
    async for stored in (await rig.ledger("in")).ids(UPSTREAM):
        remembered.restore(stored.digests, stored.age_s)
    assert len(remembered) == 4
    account = await run_to_the_end(rig, RepeatingSource(numbered(16, ids=True)), remembered)
    assert (account.inputs, account.processed, account.repeated_ids) == (16, 16, 4)


@pytest.mark.slow
@pytest.mark.guarantee("I10")
async def test_a_source_that_gives_other_records_where_some_are_committed_is_noticed(rig: Rig) -> None:
    await stop_within_a_read(rig, GivenSource(numbered(16)))
    before = await rig.values(BUFFER, "in")
    for other in (records_of(b"0", b"1", b"two", b"3", b"4"), records_of(b"0", b"1")):
        with pytest.RaisesGroup(raises(codes.SOURCE_DIFFERS), flatten_subgroups=True):
            await (await lane_of(rig, GivenSource([other]))).run()
    assert await rig.values(BUFFER, "in") == before


def named_and_large(record: udf.Record) -> udf.Message:
    return udf.Message(str(record.id).encode().ljust(LARGE))


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2")
async def test_a_read_of_a_chain_is_committed_in_parts_and_its_records_keep_their_names(rig: Rig) -> None:
    for stopped in (True, False):
        position = (await rig.mark(UPSTREAM)).position if not stopped else b""
        source = ResumedSource(numbered(16), position)
        async with open_stream(named_and_large) as stream, asyncio.timeout(20):
            lane = await lane_of(rig, source, following=stage_of(stream))
            if stopped:
                await stop_after_a_part(rig, lane, source)
            else:
                await lane.run()
        mark = await rig.mark(UPSTREAM)
        assert mark.numbered == mark.members[0].account.processed == (4 if stopped else 16)
    expected = [b"map/inside/0/%d" % number for number in range(16)]
    assert [value.strip() for value in await rig.values(BUFFER, "in")] == expected


class SilentSource(GivenSource):
    """One that has nothing until it is drained."""

    def __init__(self) -> None:
        super().__init__([])
        self.reads = asyncio.Event()
        self._drained = asyncio.Event()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        self.reads.set()
        await self._drained.wait()
        return SourceBatch(None, b"")

    async def drain(self) -> None:
        self._drained.set()


@pytest.mark.parametrize("calls", [False, True])
async def test_only_a_read_that_calls_a_function_has_a_task(rig: Rig, calls: bool) -> None:
    names: list[str] = []

    def counted(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        names.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **options)

    async with open_stream(udf.source_transform(lambda value: value)) as stream:
        source = GivenSource([records_of(b"a"), records_of(b"b")])
        lane = await lane_of(rig, source, transformer=stage_of(stream) if calls else None)
        asyncio.get_running_loop().set_task_factory(counted)
        await lane.run()
    assert names.count("Lane._process") == (2 if calls else 0)
    assert (await rig.account(UPSTREAM)).processed == 2


async def test_functions_that_follow_get_no_more_at_once_than_their_limit(rig: Rig) -> None:
    async with open_stream(udf.map(lambda value: value)) as stream:
        source = GivenSource([records_of(b"a"), records_of(b"b"), records_of(b"c")])
        lane = await lane_of(rig, source, following=stage_of(stream), call_records_max=5)
        await lane.run()
    assert set(source.asked) == {5}


class HeldUpSource(SilentSource):
    """One that may say that it cannot be read."""

    def __init__(self, held_up: bool) -> None:
        super().__init__()
        self._is_held_up = held_up

    def is_held_up(self) -> bool:
        return self._is_held_up


@pytest.mark.slow
@pytest.mark.guarantee("I5")
@pytest.mark.parametrize("held_up", [True, False])
async def test_a_source_that_says_that_it_cannot_be_read_is_not_silent(rig: Rig, held_up: bool) -> None:
    watermark = TimedWatermark()
    watermark.observe(records_of(b"a", time_us=10))
    source = HeldUpSource(held_up)
    lane = await lane_of(rig, source, watermark=watermark)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        await watermark.passed.wait()
        assert (watermark.watermark_us == 10) == held_up
        lane.stop()
        await source.drain()


@pytest.mark.parametrize("policy", [None, IdlePolicy(threshold_s=60.0, increment_by_s=1.0)])
async def test_a_silent_source_without_a_policy_has_no_timer(rig: Rig, policy: IdlePolicy | None) -> None:
    source = SilentSource()
    lane = await lane_of(rig, source, watermark=SourceWatermark(idle=policy))
    running = asyncio.create_task(lane.run())
    await source.reads.wait()
    await asyncio.sleep(0)
    ticking = f"watermark {UPSTREAM}" in {task.get_name() for task in asyncio.all_tasks()}
    assert ticking == (policy is not None)
    running.cancel()
    await asyncio.wait((running,))
