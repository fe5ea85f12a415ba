"""A lane of a source: what it tells the source, and what it promises downstream, follows its commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import pytest

from millstream import limits
from millstream.account import Account
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US, SystemClock
from millstream.frame import Frame, frame_of_records
from millstream.record import BufferId, Record
from millstream.retry import OnFailure
from millstream.telemetry import Telemetry
from millstream.watermark.future import DROPPED, FutureBound
from millstream.watermark.source import SourceWatermark
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceBatch
from millstream_reader.tracker import Tracker
from millstream_vertex.lane import LaneCore
from millstream_vertex.map_step import ToBuffers
from millstream_vertex.source_lane import SourceVertexLane
from millstream_writer.backpressure import Backpressure
from millstream_writer.routing import Route, Router
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import UPSTREAM, Rig, open_backpressure, open_rig, records_of

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

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
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
) -> SourceVertexLane:
    router = Router([Route(BUFFER.edge, 1, None)], dead_letters)
    committer = await rig.committer(UPSTREAM, router, backpressure)
    tracker = Tracker(pieces_max=limits.FRAMES_IN_FLIGHT_MAX, bytes_max=limits.BYTES_IN_FLIGHT_MAX)
    store = await rig.stores.store(UPSTREAM.vertex)
    core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    outlet = ToBuffers(router)
    return SourceVertexLane(core, source, None, router, outlet, SourceWatermark(), seen, OnFailure.STOP, bound=bound)


class Heard(logging.Handler):
    """The first message with `words` in it."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.text = ""
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.text = record.getMessage()
            self.event.set()


@contextmanager
def hearing(words: str) -> Iterator[Heard]:
    """What the lane logs."""
    heard, logger = Heard(words), logging.getLogger("millstream_vertex.source_lane")
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
    publish = lane.core.publish

    def noted(watermark_us: int, *, idle: bool = False) -> None:
        promised.append(watermark_us)
        publish(watermark_us, idle=idle)

    lane.core.publish = noted  # type: ignore[method-assign]
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
