"""What a lane of a sink vertex gives its sink at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest

from millstream import limits
from millstream.clock import SystemClock
from millstream.ledger.rewriting import rewritten
from millstream.ledger.witness import from_messages
from millstream.limits import FRAME_BYTES_MAX, FRAME_RECORDS_MAX
from millstream.record import Position
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import follow
from millstream_reader.buffer import open_buffer_reader
from millstream_reader.tracker import Tracker
from millstream_vertex.buffer_input import BufferInput
from millstream_vertex.core import LaneCore
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import Lane
from millstream_vertex.sink_output import SinkOutput
from millstream_vertex.stages import Stages
from millstream_vertex.to_sink import ChainSink
from millstream_vertex.trimming import Trimmer
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.routing import Router
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, UnkeptLane, WriteResult
from tests.unit.vertex.lane_rig import INPUT, LANE, STOP, UPSTREAM, Rig, open_rig, records_of


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


class OneByOne(UnkeptLane):
    """A sink that counts the records of each frame of each write."""

    def __init__(self, backlog: asyncio.Event) -> None:
        self.writes: list[list[int]] = []
        self.ids: list[str] = []
        self.ends: list[Position] = []
        self.lane: Lane | None = None
        self._backlog = backlog

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        self.writes.append([item.frame.records for item in frames])
        self.ids += [one for item in frames for one in item.record_ids()]
        self.ends.append(end)
        await self._backlog.wait()
        return WriteResult()


class Stopping(OneByOne):
    """One whose lane is stopped during its first write."""

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        assert self.lane is not None
        self.lane.stop()
        return await super().write(frames, end)


class Gathering(OneByOne):
    """One that gathers."""

    @property
    def gathers(self) -> bool:
        return True


class Positioned(OneByOne):
    """One whose target keeps a position."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE_TRANSACTIONAL


async def run(rig: Rig, sink: OneByOne, backlog: asyncio.Event, frames: int, fallback: SinkLane | None = None) -> None:
    """Let the lane write what is in its buffer, of which `frames` frames wait during the first write."""
    committer = await rig.committer(LANE, Router([]))
    lane_input = LaneInput(INPUT, [UPSTREAM], back_edge=False)
    tracker = Tracker(pieces_max=limits.FRAMES_IN_FLIGHT_MAX, bytes_max=limits.BYTES_IN_FLIGHT_MAX)
    store = await rig.stores.store(LANE.vertex)
    core = LaneCore(LANE, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
    upstream = await rig.ledger("in")
    delivery = Delivery(sink, fallback, STOP, DeliveryLimits(), where="p/map/in-map.0", rng=random.Random(1))
    witnesses = from_messages(committer.mark.read)
    start = Position(committer.mark.sequence, committer.mark.record_index)
    async with (
        asyncio.timeout(30),
        open_buffer_reader(upstream, INPUT, start, lane_input, witnesses=witnesses, in_parts=True) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        trimmer = Trimmer(upstream.trim)
        beside = (follow(await rig.stores.store("in"), [lane_input.observe]), trimmer.run())
        background = [tasks.create_task(one) for one in beside]
        target = ChainSink(LANE, delivery, None, core.telemetry, core.counters, core.clock)
        stages = Stages([], SinkOutput(core, target), core.clock)
        buffer_input = BufferInput(core, reader, lane_input, trimmer)
        lane = sink.lane = Lane(core, buffer_input, stages, paced=False, may_grow=False, leaves=True)
        running = tasks.create_task(lane.run())
        while len(tracker) < frames:  # noqa: ASYNC110 - a tracker has no event for it
            await asyncio.sleep(0)
        backlog.set()
        await running
        for task in background:
            task.cancel()


def fills(writes: list[list[int]], most: int) -> bool:
    """Whether each write but the first, which began before the rest had come, has all that fits."""
    return all(sum(write) <= most for write in writes) and all(
        sum(write) + following[0] > most for write, following in pairwise(writes[1:])
    )


@pytest.mark.parametrize("records", [[1] * 9, [1, FRAME_RECORDS_MAX - 1, 1, 1, 1], [FRAME_RECORDS_MAX] * 3])
async def test_a_sink_that_gathers_gets_a_backlog_in_writes_like_a_large_frame(rig: Rig, records: list[int]) -> None:
    backlog = asyncio.Event()
    sink = Gathering(backlog)
    await rig.feed(*(records_of(*[b"a"] * count) for count in records), ended=True)
    await run(rig, sink, backlog, len(records))
    assert [count for write in sink.writes for count in write] == records
    assert fills(sink.writes, FRAME_RECORDS_MAX)
    assert (await rig.account()).processed == sum(records)


@pytest.mark.guarantee("I1")
async def test_after_a_savepoint_records_and_positions_have_the_names_that_follow(rig: Rig) -> None:
    async with rewritten(await rig.ledger(LANE.vertex), LANE, "test") as mark:
        mark.continued.sequence = 40
    backlog = asyncio.Event()
    sink = OneByOne(backlog)
    await rig.feed(records_of(b"a", b"b"), records_of(b"c"), ended=True)
    await run(rig, sink, backlog, 2)
    mark = await rig.mark()
    first, last = 39 + mark.sequence, 40 + mark.sequence
    assert sink.ids == [f"map/in-map/0/{first}/0", f"map/in-map/0/{first}/1", f"map/in-map/0/{last}/0"]
    assert sink.ends[-1] == Position(last)
    # In the ledger, they are those of its frames.
    assert (mark.sequence < 40, mark.continued.sequence, mark.account.processed) == (True, 40, 3)


async def test_it_gets_no_more_bytes_than_a_frame_may_have(rig: Rig) -> None:
    backlog = asyncio.Event()
    sink = Gathering(backlog)
    await rig.feed(*(records_of(bytes(FRAME_BYTES_MAX // 3)) for _ in range(5)), ended=True)
    await run(rig, sink, backlog, 5)
    assert fills(sink.writes, 2)


async def test_another_sink_gets_one_frame_at_a_time(rig: Rig) -> None:
    backlog = asyncio.Event()
    sink = OneByOne(backlog)
    await rig.feed(*(records_of(b"a") for _ in range(4)), ended=True)
    await run(rig, sink, backlog, 4)
    assert sink.writes == [[1]] * 4


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2")
async def test_a_sink_that_stops_within_a_pack_goes_on_there(rig: Rig) -> None:
    # Two frames of so many records are not joined.
    count = FRAME_RECORDS_MAX // 2 + 1
    await rig.feed(*(records_of(*[b"a"] * count) for _ in range(3)), ended=True, together=True)
    stored, *_ = await (await rig.ledger("in")).peek(INPUT, 0, 100)
    backlog = asyncio.Event()
    first = Stopping(backlog)
    await run(rig, first, backlog, 3)
    assert first.writes == [[count]]
    mark = await rig.mark()
    assert (mark.sequence, mark.record_index) == (stored.sequence - 1, count)
    second = OneByOne(backlog)
    await run(rig, second, backlog, 0)
    assert second.writes == [[count]] * 2
    prefix = f"{LANE.vertex}/{LANE.input}/{LANE.partition}/{stored.sequence}/"
    assert first.ids + second.ids == [f"{prefix}{index}" for index in range(3 * count)]
    mark, account = await rig.mark(), await rig.account()
    assert (mark.sequence, mark.record_index, mark.ended) == (stored.sequence, 0, True)
    assert (account.inputs, account.processed) == (3 * count, 3 * count)
    assert account.input_bytes == len(stored.data)


@pytest.mark.parametrize(("fallback", "at_once"), [(OneByOne, False), (Gathering, True), (Positioned, True)])
async def test_a_fallback_may_get_several_frames_at_once_or_the_sink_gets_one_at_a_time(
    rig: Rig, fallback: type[OneByOne], at_once: bool
) -> None:
    backlog = asyncio.Event()
    sink = Gathering(backlog)
    await rig.feed(*(records_of(b"a") for _ in range(4)), ended=True)
    await run(rig, sink, backlog, 4, fallback(backlog))
    assert [count for write in sink.writes for count in write] == [1] * 4
    # The first write may have begun before the rest had come.
    assert len(sink.writes) <= 2 if at_once else sink.writes == [[1]] * 4
