"""Packs: several frames that are stored as one, and what readers and committers make of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from millstream.compression import Compression
from millstream.errors import DamageError
from millstream.frame import Frame
from millstream.ledger.compression import decompressed, is_compressed
from millstream.ledger.frames import decoded
from millstream.ledger.packs import Pack, finished_bytes, frames_in, is_pack, shares_of
from millstream.limits import FRAME_RECORDS_MAX, KIB, PACK_RECORDS_MAX
from millstream.record import BufferId, Position
from millstream_reader.buffer import ReadFrame, open_buffer_reader
from millstream_vertex.lane import Lane
from millstream_vertex.pacing import FIRST_SLICE_RECORDS
from millstream_writer.committer import Changes, Unit, batch_of, packed
from millstream_writer.routing import FrameLimits, Route, Router
from tests.unit.reader.test_buffer import Timeline
from tests.unit.vertex.lane_rig import INPUT, UPSTREAM, Rig, open_rig, open_stream, records_of

ROUTES = [Route("map-out", 1, None)]
OTHER = BufferId("in-other", 0)
WIDE = FRAME_RECORDS_MAX // 2 + 1
"""Two frames of so many records are not joined."""


@pytest.fixture(params=[Compression.NONE, Compression.LZ4])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        opened.compression = request.param
        yield opened


def frame(number: int, records: int = WIDE) -> Frame:
    return records_of(*(b"%d-%d" % (number, index) for index in range(records)))


FRAMES = [frame(number) for number in range(3)]
VALUES = [value for one in FRAMES for value in one.values()]


async def read(rig: Rig, start: Position, count: int, *, in_parts: bool) -> list[ReadFrame]:
    opening = open_buffer_reader(await rig.ledger("in"), INPUT, start, Timeline(), in_parts=in_parts)
    async with opening as reader:
        found = [await reader.next() for _ in range(count)]
    return [one for one in found if one is not None]


def test_a_pack_is_read_as_its_frames() -> None:
    data = Pack(FRAMES).encode()
    assert is_pack(data)
    assert not is_pack(FRAMES[0].encode())
    assert frames_in(data) == FRAMES
    assert frames_in(FRAMES[0].encode()) == FRAMES[:1]


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:1], lambda data: data + b"\x0a"])
def test_a_damaged_pack_is_named(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(DamageError):
        frames_in(damage(Pack(FRAMES).encode()))


@pytest.mark.guarantee("I1")
async def test_the_frames_of_a_commit_to_one_buffer_are_one_message_with_the_mark(rig: Rig) -> None:
    await rig.feed(*FRAMES, together=True)
    ledger = await rig.ledger("in")
    (stored,) = await ledger.peek(INPUT, 0, 100)
    mark = await ledger.mark(UPSTREAM)
    assert mark is not None
    assert mark.sequence == stored.sequence
    assert [(total.frames, total.records) for total in mark.mark.written] == [(1, len(VALUES))]
    assert decoded("in", INPUT, stored).values() == VALUES


@pytest.mark.guarantee("I1", "I2")
async def test_a_commit_with_ids_or_to_several_buffers_has_a_pack_for_each(rig: Rig) -> None:
    router = Router([Route(INPUT.edge, 1, None), Route(OTHER.edge, 1, None)])
    committer = await rig.committer(UPSTREAM, router, ids_ttl_s=60.0)
    pairs = [(INPUT, FRAMES[0]), (OTHER, FRAMES[2]), (INPUT, FRAMES[1])]
    await committer.commit([Unit(frames=pairs, changes=Changes(b"x" * 16))], watermark_us=0)
    await committer.commit([Unit(frames=pairs)], watermark_us=0)
    ledger = await rig.ledger("in")
    stored = await ledger.peek(INPUT, 0, 100)
    assert [is_pack(decompressed(one.data)) for one in stored] == [True, True]
    assert [is_pack(decompressed(one.data)) for one in await ledger.peek(OTHER, 0, 100)] == [False, False]
    assert [decoded("in", INPUT, one).values() for one in stored] == [VALUES[: 2 * WIDE]] * 2
    mark = await ledger.mark(UPSTREAM)
    assert mark is not None
    assert {total.edge: (total.frames, total.records) for total in mark.mark.written} == {
        INPUT.edge: (2, 4 * WIDE),
        OTHER.edge: (2, 2 * WIDE),
    }


def test_packs_keep_the_order_and_their_bounds() -> None:
    one, two = frame(1, 10), frame(2, 20)
    frames = [(INPUT, one), (INPUT, two), (INPUT, one), (OTHER, one), (INPUT, two)]
    limits = FrameLimits(30, KIB * KIB)
    assert packed(frames, lambda _: limits) == [
        (INPUT, Pack([one, two])),
        (INPUT, one),
        (OTHER, one),
        (INPUT, two),
    ]
    assert packed(frames, lambda _: FrameLimits(1, 1)) == frames
    assert packed(frames[:2], lambda _: FrameLimits(30, one.size + two.size)) == [(INPUT, Pack([one, two]))]
    assert packed(frames[:2], lambda _: FrameLimits(30, one.size + two.size - 1)) == frames[:2]


async def test_an_edge_that_discards_has_no_packs(rig: Rig) -> None:
    committer = await rig.committer(UPSTREAM, Router([Route(INPUT.edge, 1, None, discard_when_full=True)]))
    await committer.commit([Unit(frames=[(INPUT, one) for one in FRAMES])], watermark_us=0)
    assert len(await (await rig.ledger("in")).peek(INPUT, 0, 100)) == len(FRAMES)


@pytest.mark.guarantee("I1", "I4")
async def test_the_frames_of_a_pack_are_handed_out_one_by_one_or_as_one(rig: Rig) -> None:
    await rig.feed(*FRAMES, together=True)
    (stored,) = await (await rig.ledger("in")).peek(INPUT, 0, 100)
    parts = await read(rig, Position(0), 3, in_parts=True)
    assert [part.frame for part in parts] == FRAMES
    assert [part.first_index for part in parts] == [0, WIDE, 2 * WIDE]
    assert [part.last for part in parts] == [False, False, True]
    within = [Position.within(stored.sequence, WIDE), Position.within(stored.sequence, 2 * WIDE)]
    assert [part.end for part in parts] == [*within, Position(stored.sequence)]
    assert [part.size for part in parts] == shares_of(FRAMES, len(stored.data))
    assert sum(part.size for part in parts) == len(stored.data)
    (whole,) = await read(rig, Position(0), 1, in_parts=False)
    assert (whole.frame.values(), whole.size, whole.last) == (VALUES, len(stored.data), True)


@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("done", [1, WIDE - 1, WIDE, WIDE + 1, 3 * WIDE - 1])
async def test_reading_goes_on_inside_a_pack(rig: Rig, done: int) -> None:
    await rig.feed(*FRAMES, together=True)
    (stored,) = await (await rig.ledger("in")).peek(INPUT, 0, 100)
    start = Position.within(stored.sequence, done)
    before = done // WIDE
    parts = await read(rig, start, 3 - before, in_parts=True)
    assert [value for part in parts for value in part.frame.values()] == VALUES[done:]
    assert parts[0].first_index == done
    assert [part.last for part in parts] == [*([False] * (2 - before)), True]
    # The bytes of the frames before were counted with these.
    counted = sum(shares_of(FRAMES, len(stored.data))[:before])
    assert sum(part.size for part in parts) == len(stored.data) - counted
    assert finished_bytes(FRAMES, len(stored.data), done) == counted
    (whole,) = await read(rig, start, 1, in_parts=False)
    assert (whole.first_index, whole.frame.values()) == (done, VALUES[done:])


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("first", [WIDE, FIRST_SLICE_RECORDS], ids=["in a frame", "between frames"])
async def test_a_lane_that_stopped_inside_a_pack_goes_on_there(rig: Rig, first: int) -> None:
    frames = [frame(0, first), *(frame(number, FRAME_RECORDS_MAX) for number in (1, 2))]
    values = [value for one in frames for value in one.values()]
    await rig.feed(*frames, together=True, ended=True)
    stored, *_ = await (await rig.ledger("in")).peek(INPUT, 0, 100)
    assert is_compressed(stored.data) == (rig.compression is not Compression.NONE)
    assert is_pack(decompressed(stored.data))
    lanes: list[Lane] = []

    def stops(value: bytes) -> bytes:
        if value == values[0]:
            lanes[0].stop()
        return value

    async with open_stream(stops) as stream, rig.map_lane(stream, ROUTES, concurrency=1) as lane:
        lanes.append(lane)
        await lane.run()
    mark = await rig.mark()
    assert (mark.sequence, mark.record_index) == (stored.sequence - 1, FIRST_SLICE_RECORDS)
    async with open_stream(lambda value: value) as stream, rig.map_lane(stream, ROUTES) as lane:
        await lane.run()
    mark, account = await rig.mark(), await rig.account()
    assert (mark.sequence, mark.record_index, mark.ended) == (stored.sequence, 0, True)
    assert await rig.values(BufferId("map-out", 0)) == values
    assert (account.inputs, account.input_bytes) == (len(values), len(stored.data))


def test_a_commit_takes_what_fits_a_pack() -> None:
    pack = Router([Route("e", 1, None)]).pack
    unit = Unit(frames=[(BufferId("e", 0), frame(0, FRAME_RECORDS_MAX))], size=100 * KIB)
    assert batch_of([unit] * 20, pack) == PACK_RECORDS_MAX // FRAME_RECORDS_MAX
    assert batch_of([unit] * 20) == 20
    other = Unit(frames=[(BufferId("e", 1), frame(0, 1))], size=KIB)
    assert batch_of([unit, other, *[unit] * 20], pack) == 22, "it is a batch in any case"
    ids = Unit(frames=unit.frames, size=100 * KIB, changes=Changes(b"x" * 16))
    assert batch_of([ids] * 20, pack) == 20
    large = Unit(frames=[(BufferId("e", 0), frame(0, FRAME_RECORDS_MAX))] * 8, size=900 * KIB)
    assert batch_of([large] * 3, pack) == 3, "its first unit is a batch in any case"
    assert batch_of([Unit(), large, large], pack) == 3, "what has no frames needs no commit of its own"


def test_packs_are_as_small_as_the_buffer_needs() -> None:
    router = Router(
        [Route("e", 1, None, piece=FrameLimits(5000, 1 << 20)), Route("d", 1, None, discard_when_full=True)]
    )
    assert router.pack(BufferId("e", 0)) == FrameLimits(5000, 1 << 20)
    assert router.pack(BufferId("d", 0)) == FrameLimits(0, 0)
