"""A map lane between two ledgers in memory: what it commits, in which pieces, and what becomes of it at a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millstream import limits
from millstream.clock import END_OF_TIME_US
from millstream.errors import UserError
from millstream.frame import frame_of_records
from millstream.record import BufferId, Record
from millstream_udf import Message
from millstream_writer.routing import Route
from tests.unit.vertex.lane_rig import Rig, open_rig, open_stream, records_of

OUT = BufferId("map-out", 0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


def identity(value: bytes) -> bytes:
    return value


@pytest.mark.guarantee("I1", "I2")
async def test_a_lane_passes_everything_on_and_ends_with_its_input(rig: Rig) -> None:
    await rig.feed(records_of(b"a", b"b"), records_of(b"c"), watermark_us=7, ended=True)
    async with open_stream(identity) as stream, rig.map_lane(stream, [Route("map-out", 1, None)]) as lane:
        await lane.run()
    mark, account = await rig.mark(), await rig.account()
    assert await rig.values(OUT) == [b"a", b"b", b"c"]
    assert (mark.ended, mark.watermark_us) == (True, END_OF_TIME_US)
    assert (account.inputs, account.processed, account.outputs, account.difference) == (3, 3, 3, 0)


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I4")
async def test_outputs_that_do_not_fit_one_commit_are_committed_in_pieces_of_their_input(rig: Rig) -> None:
    def explode(value: bytes) -> list[bytes]:
        return [value + b"." * (limits.MIB // 8)] * 8

    values = [b"%03d" % number for number in range(40)]
    await rig.feed(records_of(*values), records_of(*values), ended=True)
    async with open_stream(explode) as stream, rig.map_lane(stream, [Route("map-out", 1, None)]) as lane:
        await lane.run()
    account = await rig.account()
    assert [value[:3] for value in await rig.values(OUT)] == [value for value in 2 * values for _ in range(8)]
    assert (account.inputs, account.outputs, account.difference) == (80, 640, 0)
    assert max(map(sum, await commits(rig))) <= limits.COMMIT_BYTES_MAX
    assert stream.calls[-14:] == [3] * 13 + [1], "the lane has learned how much to hand over"


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I4")
async def test_more_frames_than_a_commit_holds_are_committed_in_pieces(rig: Rig) -> None:
    # Each record goes to a partition of its own on every edge.
    routes = [Route(f"map-{edge}", 400, None) for edge in "abc"]
    values = [b"%03d" % number for number in range(600)]
    frame = frame_of_records([Record(value, 0, keys=(value.decode(),)) for value in values], ingest_time_us=0)
    await rig.feed(frame, ended=True)
    async with open_stream(identity) as stream, rig.map_lane(stream, routes) as lane:
        await lane.run()
    for edge in "abc":
        stored = [await rig.values(BufferId(f"map-{edge}", partition)) for partition in range(400)]
        assert sorted(value for part in stored for value in part) == values
        assert all(part == sorted(part) for part in stored)


@pytest.mark.slow
async def test_a_record_that_becomes_more_than_a_commit_holds_stops_the_lane_with_the_reason(rig: Rig) -> None:
    def explode(value: bytes) -> list[Message]:
        return [Message(value, keys=[str(number)]) for number in range(5_000)]

    await rig.feed(records_of(b"a"), ended=True)
    async with open_stream(explode) as stream:
        with pytest.RaisesGroup(
            pytest.RaisesExc(UserError, match=r"map/in-map\.0: .* would have 10\d\d frames; the limit is 968"),
            flatten_subgroups=True,
        ):
            async with rig.map_lane(stream, [Route("map-out", 1023, None)]) as lane:
                await lane.run()
    assert (await rig.account()).inputs == 0


@pytest.mark.guarantee("I1", "I2", "I4")
async def test_a_lane_killed_inside_a_frame_goes_on_inside_it(rig: Rig) -> None:
    stuck, release = asyncio.Event(), asyncio.Event()

    async def until_the_sixth(value: bytes) -> bytes:
        if value == b"6":
            stuck.set()
            await release.wait()
        return value

    values = [b"%d" % number for number in range(10)]
    await rig.feed(records_of(*values), watermark_us=7, ended=True)
    routes = [Route("map-out", 1, None)]
    async with (
        open_stream(until_the_sixth) as stream,
        rig.map_lane(stream, routes, slice_records_max=2) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(lane.run())
        async with asyncio.timeout(60):
            await stuck.wait()
            while (await rig.account()).inputs < 6:  # noqa: ASYNC110 - a ledger has no event for it
                await asyncio.sleep(0)
        running.cancel()
        release.set()
    mark = await rig.mark()
    assert (mark.record_index, mark.ended, mark.account.input_bytes) == (6, False, 0)
    assert mark.watermark_us < 7, "the frame is not done"
    async with open_stream(identity) as stream, rig.map_lane(stream, routes) as lane:
        await lane.run()
    account = await rig.account()
    assert await rig.values(OUT) == values
    assert (account.inputs, account.outputs, account.difference) == (10, 10, 0)
    assert account.input_bytes > 0


async def commits(rig: Rig) -> list[list[int]]:
    """Sizes of the stored frames in the buffer `OUT`, commit by commit: their names say which commit they belong to."""
    groups: dict[int, list[int]] = {}
    for _, data, witness in await (await rig.ledger("map")).peek(OUT, 0, 100_000):
        assert witness is not None
        groups.setdefault(witness.commit, []).append(len(data))
    return list(groups.values())
