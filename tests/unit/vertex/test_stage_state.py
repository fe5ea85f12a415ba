"""Stages with a state: it is committed with their results, and so are the effects of watermarks, timers and the end."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from millstream import limits
from millstream.account import Account
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.errors import UserError
from millstream.frame import Frame, build_frame
from millstream.record import BufferId
from millstream_vertex.lane import Lane
from millstream_vertex.stage import Stage, StageInput, StageResult
from millstream_writer.routing import Route
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import Rig, open_rig, records_of

OUT = BufferId("map-out", 0)
ROUTES = [Route(OUT.edge, 1, None)]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


def frame_at(time_us: int, *values: bytes) -> Frame:
    return build_frame(values, array("q", [time_us] * len(values)), ingest_time_us=0)


class Keeping(Stage):
    """Keeps what it gets until the watermark, a timer, or the end, and puts it out then with what it is."""

    waits = False
    is_stateful = True

    def __init__(self, *, timer_after_us: int | None = None, until_us: int | None = None) -> None:
        self._timer_after_us = timer_after_us
        self._until_us = until_us
        self.kept: list[tuple[int, str]] = []
        self.restored: list[list[tuple[int, str]]] = []

    async def on_frame(self, given: StageInput) -> StageResult:
        times = given.frame.event_times_us()
        self.kept += [(time, value.decode()) for time, value in zip(times, given.frame.values(), strict=True)]
        return StageResult(Account(inputs=given.frame.records, filtered=given.frame.records))

    async def on_watermark(self, watermark_us: int) -> StageResult | None:
        if self._until_us is None or watermark_us < self._until_us:
            return None
        return self._put_out("watermark")

    async def on_timer(self, now_us: int) -> StageResult | None:
        return self._put_out("timer")

    async def on_end(self) -> StageResult | None:
        return self._put_out("end")

    def _put_out(self, why: str) -> StageResult | None:
        kept, self.kept = self.kept, []
        if not kept:
            return None
        values = [f"{why} {value}".encode() for _, value in kept]
        frame = build_frame(values, array("q", [time for time, _ in kept]), ingest_time_us=0)
        return StageResult(Account(outputs=len(kept)), frame)

    @property
    def timer_us(self) -> int | None:
        return self.kept[0][0] + self._timer_after_us if self.kept and self._timer_after_us is not None else None

    @property
    def holds_us(self) -> int:
        return min((time for time, _ in self.kept), default=END_OF_TIME_US)

    @property
    def state(self) -> bytes:
        return json.dumps(self.kept).encode()

    def restore(self, state: bytes) -> None:
        self.kept = [(time, value) for time, value in json.loads(state or b"[]")]
        self.restored.append(list(self.kept))


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(20):
        while not await look():  # noqa: ASYNC110 - neither a mark nor a watermark has an event for it
            await asyncio.sleep(0.001)


async def until_stored(rig: Rig, state: bytes) -> None:
    async def is_stored() -> bool:
        return (await rig.mark()).states.get("map") == state

    await until(is_stored)


async def until_published(lane: Lane, watermark_us: int) -> None:
    async def is_published() -> bool:
        return lane.core.watermark_us >= watermark_us

    await until(is_published)


async def values_of(rig: Rig, count: int) -> list[bytes]:
    """What is in the buffer of the lane, once that is so much."""

    async def is_there() -> bool:
        return len(await rig.values(OUT)) >= count

    await until(is_there)
    return await rig.values(OUT)


@pytest.mark.guarantee("I1", "I5")
async def test_what_a_stage_keeps_holds_the_watermark_back_until_it_is_out(rig: Rig) -> None:
    await rig.feed(frame_at(10, b"a"), frame_at(20, b"b"), watermark_us=5)
    async with rig.stage_lane(Keeping(until_us=100), ROUTES, SettableClock()) as lane, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(lane.run())
        await rig.tell(50)
        await until_stored(rig, b'[[10, "a"], [20, "b"]]')
        await until_published(lane, 10)
        assert lane.core.watermark_us == 10
        await rig.tell(100)
        assert await values_of(rig, 2) == [b"watermark a", b"watermark b"]
        await until_published(lane, 100)
        lane.stop()
        await running


@pytest.mark.guarantee("I1", "I2")
async def test_a_timer_goes_on_where_its_former_owner_was_killed(rig: Rig) -> None:
    clock = SettableClock()
    clock.time_s = 0.001
    await rig.feed(frame_at(10, b"a"))
    async with rig.stage_lane(Keeping(timer_after_us=5_000), ROUTES, clock) as lane:
        running = asyncio.create_task(lane.run())
        await until_stored(rig, b'[[10, "a"]]')
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert await rig.values(OUT) == []
    clock.time_s = 0.010
    stage = Keeping(timer_after_us=5_000)
    async with rig.stage_lane(stage, ROUTES, clock) as lane, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(lane.run())
        assert await values_of(rig, 1) == [b"timer a"]
        lane.stop()
        await running
    assert stage.restored == [[(10, "a")]]
    assert (await rig.mark()).states["map"] == b"[]"
    account = await rig.account()
    assert (account.inputs, account.outputs) == (1, 1)


@pytest.mark.guarantee("I1")
async def test_the_end_of_the_input_is_the_end_of_what_is_kept(rig: Rig) -> None:
    await rig.feed(frame_at(10, b"a"), frame_at(20, b"b"), ended=True)
    async with asyncio.timeout(20), rig.stage_lane(Keeping(), ROUTES, SettableClock()) as lane:
        await lane.run()
    assert await rig.values(OUT) == [b"end a", b"end b"]
    mark = await rig.mark()
    assert (mark.ended, mark.states["map"]) == (True, b"[]")


class Numbering(Stage):
    """Numbers its records, from one frame to the next, and makes much of each."""

    waits = False
    is_stateful = True

    def __init__(self) -> None:
        self._next = 0

    async def on_frame(self, given: StageInput) -> StageResult:
        numbers = range(self._next, self._next + given.frame.records)
        self._next = numbers.stop
        frame = records_of(*[b"%d" % number + b" " * (3 * limits.MIB) for number in numbers])
        return StageResult(Account(len(numbers), processed=len(numbers), outputs=len(numbers)), frame)

    @property
    def state(self) -> bytes:
        return b"%d" % self._next

    def restore(self, state: bytes) -> None:
        self._next = int(state or b"0")


@pytest.mark.slow
@pytest.mark.guarantee("I1")
async def test_a_frame_that_is_processed_again_in_parts_begins_with_the_state_before_it(rig: Rig) -> None:
    await rig.feed(records_of(*[b"x"] * 8), records_of(*[b"x"] * 8), ended=True)
    async with asyncio.timeout(20), rig.stage_lane(Numbering(), ROUTES, SettableClock()) as lane:
        await lane.run()
    assert [int(value) for value in await rig.values(OUT)] == list(range(16))
    assert (await rig.mark()).states["map"] == b"16"


class Hoarding(Numbering):
    """Has a state that is too large."""

    @property
    def state(self) -> bytes:
        return bytes(limits.STAGE_STATE_BYTES_MAX + 1)

    def restore(self, state: bytes) -> None:
        """It has none yet."""


async def test_a_state_that_is_too_large_is_refused_by_name(rig: Rig) -> None:
    await rig.feed(records_of(b"x"), ended=True)
    async with asyncio.timeout(20), rig.stage_lane(Hoarding(), ROUTES, SettableClock()) as lane:
        with pytest.raises(ExceptionGroup) as raised:
            await lane.run()
    assert raised.group_contains(UserError, match="the state of the vertex has 262145 bytes")
    assert (await rig.mark()).account.inputs == 0


async def test_records_of_a_stage_without_a_state_leave_no_trace_in_the_mark(rig: Rig) -> None:
    class Passing(Stage):
        waits = False

        async def on_frame(self, given: StageInput) -> StageResult:
            records = given.frame.records
            return StageResult(Account(records, processed=records, outputs=records), replace(given.frame))

    await rig.feed(records_of(b"a"), ended=True, watermark_us=START_OF_TIME_US)
    async with asyncio.timeout(20), rig.stage_lane(Passing(), ROUTES, SettableClock()) as lane:
        await lane.run()
    assert not (await rig.mark()).states
    assert await rig.values(OUT) == [b"a"]
