"""Commits of one lane on a ledger in memory, with its faults."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import pytest

from millstream import codes
from millstream.account import OTHER_REASONS, REASONS_MAX, Account
from millstream.clock import END_OF_TIME_US
from millstream.errors import FencedError
from millstream.ledger.memory import MemoryBroker
from millstream.record import BufferId, LaneId, Position
from millstream_writer.committer import Committer, Unit
from millstream_writer.routing import Route, Router
from tests.support.errors import raises
from tests.unit.vertex.lane_rig import LANE, Rig, open_backpressure, open_rig, records_of

A, B = BufferId("map-a", 0), BufferId("map-b", 0)
ROUTER = Router([Route("map-a", 1, None, discard_when_full=True), Route("map-b", 1, None)])


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig(hard_frames_max=4) as opened:
        yield opened


def unit(sequence: int, *values: bytes, to: tuple[BufferId, ...] = (A, B)) -> Unit:
    frame = records_of(*values)
    account = Account(inputs=frame.records, processed=frame.records, outputs=frame.records)
    return Unit(Position(sequence), frames=[(buffer, frame) for buffer in to], account=account)


async def commit_each(committer: Committer, *units: Unit) -> None:
    for one in units:
        await committer.commit([one], watermark_us=0)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("landed", [True, False])
async def test_a_lost_answer_changes_nothing(rig: Rig, landed: bool) -> None:
    committer = await rig.committer(LANE, ROUTER)
    rig.faults.lose_answer(landed=landed)
    await commit_each(committer, unit(1, b"x"), unit(2, b"y"))
    assert await rig.values(A) == await rig.values(B) == [b"x", b"y"]
    assert (await rig.mark()).sequence == 2
    assert (await rig.account()).inputs == 2


@pytest.mark.guarantee("I15")
async def test_a_lane_that_has_ended_looks_whether_its_last_commit_is_still_there(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    assert isinstance(rig.broker, MemoryBroker)
    restore = rig.broker.save(LANE.vertex)
    await commit_each(committer, unit(1, b"x"))
    await committer.confirm()
    restore()
    with raises(codes.LEDGER_CUT, match=r"is back at \d+: the ledger of vertex map lost its latest data"):
        await committer.confirm()
    await rig.committer(LANE, ROUTER)
    with raises(codes.LANE_TAKEN_OVER):
        await committer.confirm()


@pytest.mark.guarantee("I1")
async def test_an_owner_that_was_replaced_stores_nothing(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    await commit_each(committer, unit(1, b"x"))
    rig.faults.fence()
    with pytest.raises(FencedError):
        await commit_each(committer, unit(2, b"y"))
    assert await rig.values(A) == [b"x"]
    successor = await rig.committer(LANE, ROUTER)
    assert (successor.mark.sequence, successor.mark.epoch) == (1, 3)
    await commit_each(successor, unit(2, b"y"))
    assert await rig.values(B) == [b"x", b"y"]


@pytest.mark.guarantee("I5")
async def test_the_mark_never_lowers_its_watermark(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    await committer.commit([unit(1, b"x")], watermark_us=50)
    await committer.commit([unit(2, b"y")], watermark_us=40)
    assert (await rig.mark()).watermark_us == 50
    assert (await rig.committer(LANE, ROUTER)).mark.watermark_us == 50
    await committer_end(rig)


async def committer_end(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    await committer.commit([], watermark_us=END_OF_TIME_US, ended=True)
    mark = await rig.mark()
    assert (mark.ended, mark.watermark_us, mark.sequence) == (True, END_OF_TIME_US, 2)


async def test_small_frames_of_a_commit_become_one_and_totals_are_kept(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    await committer.commit([unit(1, b"x"), unit(2, b"y", b"z"), unit(3, b"w", to=(B,))], watermark_us=0)
    assert [frame.records for frame in await rig.stored(A)] == [3]
    assert [frame.values() for frame in await rig.stored(B)] == [[b"x", b"y", b"z", b"w"]]
    written = {entry.edge: (entry.frames, entry.records, entry.bytes) for entry in (await rig.mark()).written}
    sizes = {buffer.edge: len((await rig.stored(buffer))[0].encode()) for buffer in (A, B)}
    assert written == {"map-a": (1, 3, sizes["map-a"]), "map-b": (1, 4, sizes["map-b"])}
    # A commit begins after its lane's first mark: the frames have sequences 2 and 3, in the order of the buffers.
    assert committer.sequences == {A: 2, B: 3}


async def test_a_full_buffer_makes_the_writer_wait(rig: Rig) -> None:
    backpressure = open_backpressure([A, B], records_usable=2)
    committer = await rig.committer(LANE, ROUTER, backpressure)
    await commit_each(committer, unit(1, b"x", b"y", to=(B,)))
    waiting = asyncio.ensure_future(commit_each(committer, unit(2, b"z", to=(B,))))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert [statistics.full for statistics in backpressure.statistics()] == [False, True]
    backpressure.fills[B].consumed(1, 0)
    await waiting
    assert await rig.values(B) == [b"x", b"y", b"z"]


async def test_a_commit_takes_no_more_than_its_buffers_have_room_for(rig: Rig) -> None:
    for writers, taken in ((1, 4), (2, 2), (9, 1)):
        backpressure = open_backpressure([A, B], records_usable=8, writers=writers)
        committer = await rig.committer(LANE, ROUTER, backpressure)
        backpressure.fills[B].wrote("other", 4, 0)
        # What an edge would discard is not a reason to commit less.
        waiting = deque([unit(number, b"x") for number in range(9)])
        assert len(committer.take(waiting)) == taken
        assert len(waiting) == 9 - taken
        backpressure.fills[B].wrote("other", 8, 0)
        assert len(committer.take(waiting)) == 1, "of a buffer that is full, only what the commit waits with"
        backpressure.drain()
        assert len(committer.take(waiting)) == 9 - taken - 1


async def test_an_edge_that_discards_keeps_to_its_bound_within_a_commit(rig: Rig) -> None:
    backpressure = open_backpressure([A, B], records_usable=1000)
    committer = await rig.committer(LANE, ROUTER, backpressure)
    units = [unit(number, *[b"x"] * 600) for number in range(3)]
    await committer.commit(units, watermark_us=0)
    assert len(await rig.values(A)) == 1200
    assert len(await rig.values(B)) == 1800
    assert (await rig.account()).discarded == 600


@pytest.mark.guarantee("I2")
async def test_what_a_full_buffer_of_its_edge_discards_is_counted(rig: Rig) -> None:
    backpressure = open_backpressure([A, B], records_usable=2)
    committer = await rig.committer(LANE, ROUTER, backpressure)
    await commit_each(committer, unit(1, b"x", b"y", to=(A,)), unit(2, b"z"))
    assert await rig.values(A) == [b"x", b"y"]
    assert await rig.values(B) == [b"z"]
    assert (await rig.account()).discarded == 1
    assert (await rig.mark()).sequence == 2


@pytest.mark.guarantee("I2")
async def test_an_edge_that_discards_does_so_at_the_servers_bound_too(rig: Rig) -> None:
    # Frames of one record each reach the server's bound on frames long before that on records.
    committer = await rig.committer(LANE, ROUTER)
    await commit_each(committer, *(unit(number, b"%d" % number, to=(A,)) for number in range(1, 5)), unit(5, b"5"))
    assert await rig.values(A) == [b"1", b"2", b"3", b"4"]
    assert await rig.values(B) == [b"5"]
    assert (await rig.account()).discarded == 1


async def test_an_edge_discards_nothing_because_another_is_at_the_servers_bound(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    await commit_each(committer, *(unit(number, b"%d" % number, to=(B,)) for number in range(1, 5)))
    waiting = asyncio.ensure_future(commit_each(committer, unit(5, b"5")))
    ledger = await rig.ledger("map")
    async with asyncio.timeout(60):
        while ledger.statistics().full_refusals < 2:  # noqa: ASYNC110 - the ledger has no event for it
            await asyncio.sleep(0)
    await ledger.trim({B: committer.sequences[B]})
    await waiting
    assert await rig.values(A) == [b"5"]
    # The last one of those that were trimmed stayed: it held the mark.
    assert await rig.values(B) == [b"4", b"5"]
    assert (await rig.account()).discarded == 0


@pytest.mark.slow
@pytest.mark.guarantee("I1")
async def test_storage_that_is_full_only_delays(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    for _ in range(3):
        rig.faults.refuse_storage()
    await commit_each(committer, unit(1, b"x"))
    assert await rig.values(A) == await rig.values(B) == [b"x"]
    assert (await rig.account()).discarded == 0


async def test_what_is_full_of_records_that_open_windows_need_is_said(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router([Route("map-a", 1, None, keeps=True), Route("map-b", 1, None)])
    for kept in (ROUTER, router):
        committer = await rig.committer(LANE, kept)
        rig.faults.refuse_storage()
        await commit_each(committer, unit(1, b"x"))
    first, second = (record.message for record in caplog.records)
    assert "keepInput" not in first
    assert "Records on map-a are kept until their windows are committed (`keepInput`)" in second


@pytest.mark.guarantee("I8")
async def test_a_mark_stays_small_however_many_reasons_a_function_gives(rig: Rig) -> None:
    committer = await rig.committer(LANE, ROUTER)
    for number in range(3 * REASONS_MAX):
        account = Account(inputs=1)
        account.drop(f"record {number} " + "x" * 1000)
        await committer.commit([Unit(Position(number + 1), account=account)], watermark_us=0)
    account = await rig.account()
    assert len(account.dropped) == REASONS_MAX + 1
    assert account.dropped[OTHER_REASONS] == 2 * REASONS_MAX
    assert account.difference == 0
    assert (await rig.mark()).ByteSize() < 8192


async def test_lanes_of_a_vertex_commit_side_by_side(rig: Rig) -> None:
    other = LaneId("map", "in-map", 1)
    backpressure = open_backpressure([A, B])
    committers = [await rig.committer(lane, ROUTER, backpressure) for lane in (LANE, other)]
    rig.faults.hold()
    async with asyncio.TaskGroup() as commits:
        for committer in committers:
            commits.create_task(commit_each(committer, unit(1, b"x")))
        await rig.faults.held(2)
        rig.faults.release()
    assert await rig.values(A) == [b"x", b"x"]
    assert backpressure.fills[A].records == 2
    assert (await rig.mark(LANE)).sequence == (await rig.mark(other)).sequence == 1


async def test_a_lane_that_closes_a_cycle_does_not_wait_for_the_buffers_inside(rig: Rig) -> None:
    backpressure = open_backpressure([A, B], records_usable=1)
    committer = await rig.committer(LANE, ROUTER, backpressure, never_waits_for=[B])
    await commit_each(committer, unit(1, b"x", to=(B,)), unit(2, b"y", to=(B,)))
    assert await rig.values(B) == [b"x", b"y"]


async def test_a_vertex_that_drains_does_not_wait_for_room(rig: Rig) -> None:
    backpressure = open_backpressure([A, B], records_usable=1)
    committer = await rig.committer(LANE, ROUTER, backpressure)
    await commit_each(committer, unit(1, b"x", to=(B,)))
    waiting = asyncio.ensure_future(commit_each(committer, unit(2, b"y", to=(B,))))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    backpressure.drain()
    await waiting
    await commit_each(committer, unit(3, b"z"))
    assert await rig.values(B) == [b"x", b"y", b"z"]
    assert await rig.values(A) == [b"z"]
