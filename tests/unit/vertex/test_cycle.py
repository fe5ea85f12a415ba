"""When a cycle is empty: asked of ledgers in memory while something still moves in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millstream.clock import END_OF_TIME_US
from millstream.record import BufferId, LaneId, Position
from millstream_vertex.input import Cycle, wait_until_empty
from millstream_writer.committer import Committer, Unit
from millstream_writer.routing import Route, Router
from tests.unit.vertex.lane_rig import Rig, open_rig, records_of

OUTSIDE = LaneId("enter", "in-enter", 0)
BACK = LaneId("enter", "map-enter", 0)
FORWARD = LaneId("map", "enter-map", 0)
TO_MAP, TO_ENTER = BufferId("enter-map", 0), BufferId("map-enter", 0)
CYCLE = Cycle(entering=[OUTSIDE], inside=[(BACK, TO_ENTER, "map"), (FORWARD, TO_MAP, "enter")])


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


async def committers(rig: Rig) -> tuple[Committer, Committer, Committer]:
    enter, back = Router([Route("enter-map", 1, None)]), Router([Route("map-enter", 1, None)])
    return await rig.committer(OUTSIDE, enter), await rig.committer(BACK, enter), await rig.committer(FORWARD, back)


async def end(committer: Committer) -> None:
    await committer.commit([], watermark_us=END_OF_TIME_US, ended=True)


async def pass_on(committer: Committer, read: int, to: BufferId | None) -> int:
    """Consume the frame at sequence `read` and write one; its sequence."""
    frames = [(to, records_of(b"x"))] if to is not None else []
    await committer.commit([Unit(Position(read), frames=frames)], watermark_us=0)
    return committer.sequences[to] if to is not None else 0


async def looks(waiting: asyncio.Future[None], count: int = 20) -> None:
    """Let it look a few times."""
    for _ in range(count):
        await asyncio.sleep(0)
    assert not waiting.done()


@pytest.mark.guarantee("I1")
async def test_a_cycle_is_empty_when_its_entries_have_ended_and_nothing_is_unread(rig: Rig) -> None:
    outside, back, forward = await committers(rig)
    ledgers = {vertex: await rig.ledger(vertex) for vertex in ("enter", "map")}
    waiting = asyncio.ensure_future(wait_until_empty(CYCLE, ledgers, interval_s=0.0))
    await looks(waiting)
    sequence = await pass_on(outside, 0, TO_MAP)
    await end(outside)
    await looks(waiting)
    for _ in range(3):
        sequence = await pass_on(forward, sequence, TO_ENTER)
        await looks(waiting)
        sequence = await pass_on(back, sequence, TO_MAP)
        await looks(waiting)
    await pass_on(forward, sequence, None)
    async with asyncio.timeout(60):
        await waiting


async def test_a_frame_that_is_done_in_part_is_still_in_the_cycle(rig: Rig) -> None:
    outside, _, forward = await committers(rig)
    ledgers = {vertex: await rig.ledger(vertex) for vertex in ("enter", "map")}
    sequence = await pass_on(outside, 0, TO_MAP)
    await end(outside)
    await forward.commit([Unit(Position(sequence - 1, 1))], watermark_us=0)
    waiting = asyncio.ensure_future(wait_until_empty(CYCLE, ledgers, interval_s=0.0))
    await looks(waiting)
    await forward.commit([Unit(Position(sequence))], watermark_us=0)
    async with asyncio.timeout(60):
        await waiting


async def test_a_cycle_that_nothing_ever_entered_is_empty(rig: Rig) -> None:
    outside, _, _ = await committers(rig)
    ledgers = {vertex: await rig.ledger(vertex) for vertex in ("enter", "map")}
    await end(outside)
    async with asyncio.timeout(60):
        await wait_until_empty(CYCLE, ledgers, interval_s=0.0)


async def test_what_is_trimmed_was_read(rig: Rig) -> None:
    outside, _, forward = await committers(rig)
    ledgers = {vertex: await rig.ledger(vertex) for vertex in ("enter", "map")}
    sequence = await pass_on(outside, 0, TO_MAP)
    await pass_on(forward, sequence, None)
    await ledgers["enter"].trim({TO_MAP: sequence})
    await end(outside)
    async with asyncio.timeout(60):
        await wait_until_empty(CYCLE, ledgers, interval_s=0.0)
