"""A lane has no more in flight than keeps its functions and its commits busy."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from millstream.clock import SystemClock
from millstream.errors import FencedError
from millstream.frame import Frame
from millstream.limits import (
    COMMIT_AHEAD_BYTES_MAX,
    FRAME_BYTES_MAX,
    FUNCTION_BYTES_MAX,
    MIB,
    SINK_AHEAD_BYTES_MAX,
)
from millstream.record import LaneId, Position
from millstream.telemetry.telemetry import Telemetry
from millstream_connectors.blackhole.sink import open_blackhole_sink
from millstream_reader.source import SourceBatch
from millstream_reader.tracker import Tracker, WorkInFlight
from millstream_vertex.core import LaneCore
from millstream_vertex.pacing import bound_by
from millstream_vertex.publishing import LaneCounters
from millstream_vertex.to_sink import ChainDeliverer, ChainSink
from millstream_writer.committer import Committer, Member, MemberCounts, SinkRecords, Unit
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.routing import Route, Router
from millstream_writer.sink import SinkFrame, UnkeptLane, WriteResult
from tests.unit.vertex.lane_rig import STOP, UPSTREAM, Rig, open_rig, open_stream, records_of, source_lane
from tests.unit.vertex.test_source_lane import GivenSource

ROUTES = [Route("map-out", 1, None)]
LARGE = FRAME_BYTES_MAX // 2


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


async def begun(tracker: Tracker, size: int) -> int:
    """How many pieces of this size may begin."""
    count = 0
    while True:
        beginning = asyncio.ensure_future(tracker.begin(WorkInFlight(1, size)))
        await asyncio.sleep(0)
        if not beginning.done():
            beginning.cancel()
            return count
        count += 1


@pytest.mark.guarantee("I8")
@pytest.mark.parametrize(
    ("concurrencies", "size", "pieces"),
    [
        # A function that takes one record after another: a few large pieces, at least two, and many small ones.
        ([1], LARGE, FUNCTION_BYTES_MAX // LARGE),
        ([1], 7 * MIB, 2),
        ([1], 1000, 64),
        # A chain of them.
        ([1, 1, 1], LARGE, 3 * FUNCTION_BYTES_MAX // LARGE),
        # One that processes many records at once, or whose concurrency is unknown.
        ([1, 1000], LARGE, 64),
        ([0], LARGE, 64),
        # No function: two commits.
        ([], LARGE, COMMIT_AHEAD_BYTES_MAX // LARGE),
    ],
)
async def test_what_may_begin(concurrencies: list[int], size: int, pieces: int) -> None:
    tracker = Tracker(pieces_max=64, bytes_max=64 * MIB)
    bound_by(tracker, concurrencies, COMMIT_AHEAD_BYTES_MAX)
    assert await begun(tracker, size) == pieces


@pytest.mark.guarantee("I8")
async def test_what_is_answered_makes_room_for_the_function_until_it_would_wait_for_commits() -> None:
    tracker = Tracker(pieces_max=64, bytes_max=64 * MIB)
    bound_by(tracker, [1], COMMIT_AHEAD_BYTES_MAX)
    in_flight: list[WorkInFlight] = []
    while len(in_flight) * LARGE < COMMIT_AHEAD_BYTES_MAX + FUNCTION_BYTES_MAX:
        waiting = asyncio.ensure_future(tracker.begin(WorkInFlight(1, LARGE)))
        await asyncio.sleep(0)
        if not waiting.done():
            # More waits for the function only: commits need not hurry.
            assert not tracker.crowded
            await tracker.answered(in_flight[0])
        await waiting
        in_flight.append(WorkInFlight(1, LARGE))
    for piece in in_flight[: FUNCTION_BYTES_MAX // LARGE]:
        await tracker.answered(piece)
    waiting = asyncio.ensure_future(tracker.begin(WorkInFlight(1, LARGE)))
    await asyncio.sleep(0)
    assert tracker.crowded
    await tracker.finish(1)
    await waiting


@pytest.mark.guarantee("I8")
@pytest.mark.parametrize(("concurrency", "calls"), [(1, FUNCTION_BYTES_MAX // LARGE), (1000, 12)])
async def test_a_lane_makes_no_more_calls_than_the_function_can_use(rig: Rig, concurrency: int, calls: int) -> None:
    release, answered = asyncio.Event(), False

    async def wait_after_the_first(value: bytes) -> bytes:
        nonlocal answered
        # The first call shows how fast the function is.
        if answered:
            await release.wait()
        answered = True
        return value

    await rig.feed(*(records_of(bytes(LARGE - 1000)) for _ in range(13)), ended=True)
    async with (
        asyncio.timeout(30),
        open_stream(wait_after_the_first) as stream,
        rig.map_lane(stream, ROUTES, concurrency=concurrency) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(lane.run())
        while len(stream.calls) < 1 + calls:  # noqa: ASYNC110 - a stream has no event for it
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(stream.calls) == 1 + calls
        release.set()
        await running
    assert (await rig.account()).processed == 13


class OneFrame(GivenSource):
    """A source that keeps nothing of what it has read."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if not self._frames:
            return SourceBatch(None, b"1", ended=True)
        (frame,), self._frames = self._frames, ()
        return SourceBatch(frame, b"1")


def deliverer_of(core: LaneCore, delivery: Delivery) -> ChainDeliverer:
    """Delivers for a chain of a source and a sink."""
    last = LaneId("out", "in-out", 0)
    return ChainDeliverer(core, ChainSink(last, delivery, None, core.telemetry, LaneCounters(), core.clock))


def kept(value: bytes) -> list[Frame]:
    """The frames of this process that have the value; another test may have left frames of the same size."""
    return [one for one in gc.get_objects() if isinstance(one, Frame) and value in one.contents.column]


@pytest.mark.slow
@pytest.mark.guarantee("I8")
async def test_records_that_a_sink_has_taken_are_kept_no_longer_although_their_commit_is_to_come(rig: Rig) -> None:
    committer = await rig.committer(UPSTREAM, Router([]), members=[Member("out", "in-out", frozenset())])
    store = await rig.stores.store(UPSTREAM.vertex)
    tracker = Tracker(pieces_max=64, bytes_max=64 * MIB)
    core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    value = uuid4().bytes
    source = OneFrame([records_of(value + bytes(LARGE))])
    assert kept(value)
    async with open_blackhole_sink() as sink, asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        delivery = Delivery(sink, None, STOP, DeliveryLimits(), where="p/out/in-out.0", rng=random.Random(1))
        output = deliverer_of(core, delivery)
        lane = source_lane(core, source, Router([]), output)
        rig.faults.hold()
        tasks.create_task(lane.run())
        await rig.faults.held()
        assert (len(tracker), kept(value)) == (0, [])
        rig.faults.release()
    assert committer.mark.delivered == 1


class CountingSink(UnkeptLane):
    """A target that keeps no position: how many bytes it has, and how many a kill would have repeated at most."""

    def __init__(self, committer: Committer | None = None, frame_size: int = 0) -> None:
        self.taken = 0
        self.repeated_max = 0
        self._committer = committer
        self._frame_size = frame_size

    @property
    def repeated(self) -> int:
        durable = self._committer.mark.delivered * self._frame_size if self._committer is not None else 0
        return self.taken - durable

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        self.taken += sum(item.frame.size for item in frames)
        self.repeated_max = max(self.repeated_max, self.repeated)
        return WriteResult()

    async def takes_no_more(self) -> None:
        """Wait until the lane has nothing to do but to wait."""
        before = -1
        while before != self.taken:
            before = self.taken
            for _ in range(1000):
                await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.guarantee("I8")
@pytest.mark.parametrize("prompt", [True, False], ids=["the first records at once", "after an interval"])
async def test_a_sink_takes_more_during_a_commit_but_no_more_than_a_kill_may_repeat(rig: Rig, prompt: bool) -> None:
    committer = await rig.committer(UPSTREAM, Router([]), members=[Member("out", "in-out", frozenset())])
    store = await rig.stores.store(UPSTREAM.vertex)
    tracker = Tracker(pieces_max=64, bytes_max=64 * MIB)
    core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    frames = [records_of(bytes(LARGE)) for _ in range(5 * COMMIT_AHEAD_BYTES_MAX // LARGE)]
    sink = CountingSink(committer, frames[0].size)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        delivery = Delivery(sink, None, STOP, DeliveryLimits(), where="p/out/in-out.0", rng=random.Random(1))
        output = deliverer_of(core, delivery)
        lane = source_lane(core, GivenSource(frames), Router([]), output)
        rig.faults.hold()
        running = tasks.create_task(lane.run())
        for _ in range(3):
            await rig.faults.held()
            durable, taken = committer.mark.delivered, sink.taken
            await sink.takes_no_more()
            assert sink.taken > taken
            # What waits for the sink is bounded, too.
            assert tracker.size <= SINK_AHEAD_BYTES_MAX
            assert not output.is_empty
            assert committer.mark.delivered == durable
            # This commit ends, and the next one waits.
            rig.faults.release()
            rig.faults.hold()
            while committer.mark.delivered == durable:  # noqa: ASYNC110 - a mark has no event for it
                await asyncio.sleep(0)
        rig.faults.release()
        await running
    assert COMMIT_AHEAD_BYTES_MAX // 2 < sink.repeated_max <= COMMIT_AHEAD_BYTES_MAX
    assert sink.taken == sum(frame.size for frame in frames)
    assert committer.mark.delivered == len(frames)


@pytest.mark.guarantee("I8")
async def test_a_write_above_what_a_kill_may_repeat_is_made_alone(rig: Rig) -> None:
    committer = await rig.committer(UPSTREAM, Router([]), members=[Member("out", "in-out", frozenset())])
    store = await rig.stores.store(UPSTREAM.vertex)
    tracker = Tracker(pieces_max=64, bytes_max=64 * MIB)
    core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    frame = records_of(bytes(LARGE))
    sink = CountingSink(committer, frame.size)
    delivery = Delivery(sink, None, STOP, DeliveryLimits(), where="p/out/in-out.0", rng=random.Random(1))
    output = deliverer_of(core, delivery)
    large = COMMIT_AHEAD_BYTES_MAX // frame.size + 1
    counts = [1, large, 1, large, large, 1]
    for number, count in enumerate(counts):
        delivered = [SinkRecords(frame, f"{number}/", row) for row in range(count)]
        unit = Unit(
            source_position=b"1", passed=[MemberCounts()], delivered=delivered, pieces=0, size=count * frame.size
        )
        done: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
        done.set_result([unit])
        core.units.add(done)
    core.units.close()

    async def committed(units: Sequence[Unit]) -> None:
        """There is nothing to acknowledge."""

    async with asyncio.timeout(30):
        await output.run(lambda units: 0, committed, prompt=False)
    assert sink.repeated_max == large * frame.size
    assert committer.mark.delivered == sum(counts)


async def test_a_commit_that_fails_while_a_lane_waits_for_records_ends_it(rig: Rig) -> None:
    committer = await rig.committer(UPSTREAM, Router([]), members=[Member("out", "in-out", frozenset())])
    store = await rig.stores.store(UPSTREAM.vertex)
    tracker = Tracker(pieces_max=64, bytes_max=64 * MIB)
    core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    delivery = Delivery(CountingSink(), None, STOP, DeliveryLimits(), where="p/out/in-out.0", rng=random.Random(1))
    output = deliverer_of(core, delivery)
    unit = Unit(
        source_position=b"1", passed=[MemberCounts()], delivered=[SinkRecords(records_of(b"a"), "x", 0)], pieces=0
    )
    done: asyncio.Future[Sequence[Unit]] = asyncio.get_running_loop().create_future()
    done.set_result([unit])
    core.units.add(done)
    # Another owner takes the lane over before the commit, while the lane waits for records.
    rig.faults.fence()

    async def committed(units: Sequence[Unit]) -> None:
        raise AssertionError("nothing was committed")

    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(output.run(lambda units: 0, committed, prompt=True), 10)
    assert raised.group_contains(FencedError)
