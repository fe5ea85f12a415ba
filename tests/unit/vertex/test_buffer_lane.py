"""What a lane does beside its work: trimming what it has consumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millstream.clock import START_OF_TIME_US
from millstream.limits import MARK_BEHIND_BYTES_MAX
from millstream.record import BufferId, Position
from millstream.wire.ledger.v1.mark_pb2 import Mark
from millstream_writer.committer import Unit
from millstream_writer.routing import Route, Router
from tests.unit.vertex.lane_rig import INPUT, LANE, Rig, open_backpressure, open_rig, open_stream, records_of

OUT = BufferId("map-out", 0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


def identity(value: bytes) -> bytes:
    return value


async def until_committed(rig: Rig, inputs: int) -> None:
    async with asyncio.timeout(10):
        while (await rig.account()).inputs < inputs:  # noqa: ASYNC110 - a ledger has no event for it
            await asyncio.sleep(0)


@pytest.mark.guarantee("I1", "I8")
async def test_what_is_committed_is_trimmed_and_nothing_else(rig: Rig) -> None:
    await rig.feed(records_of(b"a"), records_of(b"b"))
    async with open_stream(identity) as stream:
        async with rig.map_lane(stream, [Route("map-out", 1, None)]) as lane, asyncio.TaskGroup() as tasks:
            tasks.create_task(lane.run())
            await until_committed(rig, 2)
            lane.stop()
        # The last one stays, for the mark of the lane that wrote it.
        assert await rig.values(INPUT, "in") == [b"b"]
        await rig.feed(records_of(b"c"), ended=True)
        assert (await rig.values(INPUT, "in"))[-1:] == [b"c"]
        async with rig.map_lane(stream, [Route("map-out", 1, None)]) as lane:
            await lane.run()
    assert await rig.values(OUT) == [b"a", b"b", b"c"]


@pytest.mark.guarantee("I1")
async def test_what_is_read_and_not_committed_is_not_trimmed(rig: Rig) -> None:
    release = asyncio.Event()

    async def waiting(value: bytes) -> bytes:
        if value not in (b"a", b"b"):
            await release.wait()
        return value

    await rig.feed(*map(records_of, (b"a", b"b", b"c", b"d")))
    async with (
        open_stream(waiting) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)]) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(lane.run())
        await until_committed(rig, 2)
        assert rig.trimmer is not None
        await rig.trimmer.finish()
        # The last one that was committed stays, for the next reader to know it by.
        assert await rig.values(INPUT, "in") == [b"b", b"c", b"d"]
        release.set()
        lane.stop()


@pytest.mark.slow
@pytest.mark.guarantee("I8")
async def test_what_was_committed_before_a_kill_is_trimmed_after_it(rig: Rig) -> None:
    await rig.feed(records_of(b"a"), records_of(b"b"), records_of(b"c"))
    first, second, third = await (await rig.ledger("in")).peek(INPUT, 0, 3)
    assert first.witness
    assert second.witness
    killed = await rig.committer(LANE, Router([Route("map-out", 1, None)]))
    unit = Unit(Position(second.sequence, 0), (first.witness, second.witness))
    await killed.commit([unit], watermark_us=0)
    release = asyncio.Event()

    async def waiting(value: bytes) -> bytes:
        await release.wait()
        return value

    async with (
        open_stream(waiting) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)]) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(lane.run())
        async with asyncio.timeout(60):
            while not (await rig.ledger("in")).statistics().trims:  # noqa: ASYNC110 - a ledger has no event for it
                await asyncio.sleep(0)
        # The last one that was committed stays, for the next reader to know it by.
        left = await (await rig.ledger("in")).peek(INPUT, 0, 3)
        assert [stored.sequence for stored in left] == [second.sequence, third.sequence]
        release.set()
        await until_committed(rig, 1)
        lane.stop()
    assert await rig.values(OUT) == [b"c"]


@pytest.mark.guarantee("I5")
async def test_the_watermark_waits_for_what_is_read_and_not_committed(rig: Rig) -> None:
    release = asyncio.Event()

    async def waiting(value: bytes) -> bytes:
        await release.wait()
        return value

    await rig.feed(records_of(b"a", time_us=10), watermark_us=5)
    await rig.feed(records_of(b"b", time_us=20), watermark_us=15)
    async with (
        open_stream(waiting) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)]) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(lane.run())
        async with asyncio.timeout(60):
            while not stream.calls:  # noqa: ASYNC110 - a stream has no event for it
                await asyncio.sleep(0)
        assert lane.core.watermark_us == START_OF_TIME_US
        release.set()
        await until_committed(rig, 2)
        lane.stop()
    assert (await rig.mark()).watermark_us == 15


@pytest.mark.guarantee("I5")
async def test_the_watermark_of_a_silent_input_moves_the_lane_on(rig: Rig) -> None:
    async with (
        open_stream(identity) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)]) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(lane.run())
        # A mark without frames: the upstream lane commits nothing and says that time goes on.
        await rig.feed(watermark_us=0)
        await rig.feed(records_of(b"a"), watermark_us=100)
        await until_committed(rig, 1)
        async with asyncio.timeout(60):
            while lane.core.watermark_us < 100:  # noqa: ASYNC110 - a lane has no event for it
                await asyncio.sleep(0)
        lane.stop()


@pytest.mark.guarantee("I5", "I9")
async def test_a_watermark_that_is_heard_during_the_last_commit_moves_the_lane_on(rig: Rig) -> None:
    await rig.feed(records_of(b"a"), watermark_us=5)
    async with (
        open_stream(identity) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)]) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        rig.faults.hold()
        running = tasks.create_task(lane.run())
        async with asyncio.timeout(60):
            await rig.faults.held()
            assert rig.input is not None
            await rig.tell(watermark_us=100)
            while rig.input.watermark_at(2**40) < 100 or rig.input.changed.is_set():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            rig.faults.release()
            # Nothing else comes.
            while lane.core.watermark_us < 100:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
        lane.stop()
        await running


@pytest.mark.guarantee("I5")
async def test_a_watermark_that_is_heard_does_not_pass_what_is_read_and_not_committed(rig: Rig) -> None:
    await rig.feed(records_of(b"a"), watermark_us=5)
    async with (
        open_stream(identity) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)]) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        rig.faults.hold()
        tasks.create_task(lane.run())
        async with asyncio.timeout(60):
            await rig.faults.held()
            assert rig.input is not None
            await rig.tell(watermark_us=100)
            while rig.input.watermark_at(2**40) < 100 or rig.input.changed.is_set():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            assert lane.core.watermark_us == START_OF_TIME_US
            rig.faults.release()
            await until_committed(rig, 1)
        lane.stop()


@pytest.mark.guarantee("I1", "I8")
async def test_a_lane_without_output_commits_its_mark_again_behind_what_others_write(rig: Rig) -> None:
    backpressure = open_backpressure([OUT])
    await rig.feed(records_of(b"a"), watermark_us=5)
    async with (
        open_stream(identity) as stream,
        rig.map_lane(stream, [Route("map-out", 1, None)], backpressure=backpressure) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(lane.run())
        await until_committed(rig, 1)
        before = await rig.mark()

        async def later(watermark_us: int, written: int) -> None:
            """The lane hears of the watermark, and of what another lane has written in all."""
            backpressure.fills[OUT].wrote("another", 1, written)
            await rig.tell(watermark_us)
            async with asyncio.timeout(60):
                while lane.core.watermark_us < watermark_us:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)

        async def unlike(mark: Mark) -> Mark:
            async with asyncio.timeout(60):
                while (found := await rig.mark()) == mark:  # noqa: ASYNC110 - a ledger has no event for it
                    await asyncio.sleep(0)
            return found

        await later(10, MARK_BEHIND_BYTES_MAX - 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert await rig.mark() == before
        await later(20, MARK_BEHIND_BYTES_MAX)
        renewed = await unlike(before)
        assert (renewed.sequence, renewed.account, renewed.written) == (before.sequence, before.account, before.written)
        await later(30, MARK_BEHIND_BYTES_MAX + 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert await rig.mark() == renewed
        await later(40, 2 * MARK_BEHIND_BYTES_MAX)
        await unlike(renewed)
        lane.stop()
