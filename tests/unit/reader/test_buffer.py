"""A reader of a buffer in memory: order, positions inside frames, watermarks, and when the input has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import START_OF_TIME_US
from millstream.errors import DamageError
from millstream.frame import frame_of_records
from millstream.record import Position, Record
from millstream.values import Values
from millstream_reader.buffer import BufferReader, open_buffer_reader
from millstream_udf import arrow_values
from tests.support.errors import raises
from tests.unit.vertex.lane_rig import INPUT, Rig, open_rig, records_of


class Timeline:
    """An input watermark that a test sets."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.end: int | None = None
        self._wake = asyncio.Event()

    def watermark_at(self, sequence: int) -> int:
        return max((value for step, value in self.steps.items() if step <= sequence), default=START_OF_TIME_US)

    def end_sequence(self) -> int | None:
        return self.end

    def bind(self, wake_reader: asyncio.Event) -> None:
        self._wake = wake_reader

    def ends_at(self, sequence: int) -> None:
        self.end = sequence
        self._wake.set()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


async def sequences(rig: Rig) -> list[int]:
    return [stored.sequence for stored in await (await rig.ledger("in")).peek(INPUT, 0, 100)]


async def waits(reader: BufferReader) -> asyncio.Future[object]:
    waiting: asyncio.Future[object] = asyncio.ensure_future(reader.next())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


@pytest.mark.guarantee("I4")
async def test_frames_come_in_order_each_with_the_watermark_before_it(rig: Rig) -> None:
    await rig.feed(*(records_of(b"%d" % number) for number in range(20)))
    stored = await sequences(rig)
    timeline = Timeline()
    timeline.steps = {stored[4]: 50, stored[9]: 90}
    async with open_buffer_reader(await rig.ledger("in"), INPUT, Position(0), timeline) as reader:
        reads = [await reader.next() for _ in range(20)]
    assert [read.frame.values() for read in reads if read] == [[b"%d" % number] for number in range(20)]
    assert [read.sequence for read in reads if read] == stored
    assert [read.watermark_us for read in reads if read] == [START_OF_TIME_US] * 5 + [50] * 5 + [90] * 10


@pytest.mark.parametrize("takes_arrow", [False, True])
async def test_only_who_takes_columns_gets_them(rig: Rig, takes_arrow: bool) -> None:
    rows = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    frame = replace(records_of(b"", b"", b""), contents=Values(arrow=arrow_values.packed(rows)))
    await rig.feed(frame)
    (sequence,) = await sequences(rig)
    start = Position(sequence - 1, 1)
    opening = open_buffer_reader(await rig.ledger("in"), INPUT, start, Timeline(), takes_arrow=takes_arrow)
    async with opening as reader:
        read = await reader.next()
    assert read is not None
    assert bool(read.frame.contents.arrow) == takes_arrow
    assert read.frame.values() == [b'{"n":2}', b'{"n":3}']
    # What it counts does not depend on the form in which it is read.
    (stored,) = await (await rig.ledger("in")).peek(INPUT, 0, 100)
    assert read.size == len(stored.data)


async def test_stored_columns_that_cannot_be_read_are_damage(rig: Rig) -> None:
    await rig.feed(replace(records_of(b"a"), contents=Values(arrow=b"not Arrow")))
    with pytest.RaisesGroup(raises(codes.FRAME_UNREADABLE, match="not Arrow columns.*No record of it was used")):
        async with open_buffer_reader(await rig.ledger("in"), INPUT, Position(0), Timeline()) as reader:
            await reader.next()


@pytest.mark.guarantee("I1")
async def test_reading_goes_on_inside_a_frame(rig: Rig) -> None:
    await rig.feed(records_of(b"a"), records_of(b"b", b"c", b"d"), records_of(b"e", b"f"))
    first, second, third = await sequences(rig)
    start = Position(first, 2)
    async with open_buffer_reader(await rig.ledger("in"), INPUT, start, Timeline()) as reader:
        rest, whole = await reader.next(), await reader.next()
    assert rest is not None
    assert whole is not None
    assert (rest.sequence, rest.first_index, rest.frame.values()) == (second, 2, [b"d"])
    assert (whole.sequence, whole.first_index, whole.frame.values()) == (third, 0, [b"e", b"f"])


@pytest.mark.guarantee("I5")
async def test_the_input_has_ended_only_when_its_last_frame_was_read(rig: Rig) -> None:
    timeline = Timeline()
    async with open_buffer_reader(await rig.ledger("in"), INPUT, Position(0), timeline) as reader:
        waiting = await waits(reader)
        # The end is heard of before the frame that it counts on.
        timeline.ends_at(2)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        await rig.feed(records_of(b"a"))
        assert await sequences(rig) == [2]
        assert await waiting is not None
        assert not reader.ended
        assert await reader.next() is None
        assert reader.ended


async def test_an_input_that_never_had_a_record_ends(rig: Rig) -> None:
    timeline = Timeline()
    async with open_buffer_reader(await rig.ledger("in"), INPUT, Position(0), timeline) as reader:
        waiting = await waits(reader)
        timeline.ends_at(0)
        assert await waiting is None
        assert reader.ended


async def test_a_reader_that_is_stopped_has_not_ended(rig: Rig) -> None:
    await rig.feed(records_of(b"a"))
    async with open_buffer_reader(await rig.ledger("in"), INPUT, Position(0), Timeline()) as reader:
        assert await reader.next() is not None
        waiting = await waits(reader)
        reader.stop()
        assert await waiting is None
        await rig.feed(records_of(b"b"))
        assert await reader.next() is None
        assert not reader.ended


async def test_a_reader_takes_no_more_than_a_few_frames_ahead(rig: Rig) -> None:
    await rig.feed(*(records_of(b"%d" % number) for number in range(50)))
    ledger = await rig.ledger("in")
    async with open_buffer_reader(ledger, INPUT, Position(0), Timeline()) as reader:
        for _ in range(100):
            await asyncio.sleep(0)
        assert ledger.statistics().frames_read < 10
        assert await reader.next() is not None


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(-(2**63), 2**63 - 1))
def test_late_is_what_is_older_than_the_watermark(times: list[int], watermark_us: int) -> None:
    frame = frame_of_records([Record(b"", time_us) for time_us in times], ingest_time_us=0)
    assert frame.late_records(watermark_us) == len([time_us for time_us in times if time_us < watermark_us])


@pytest.mark.guarantee("I10")
async def test_frames_that_were_trimmed_before_they_were_read_are_damage(rig: Rig) -> None:
    await rig.feed(*(records_of(b"%d" % number) for number in range(20)))
    stored = await sequences(rig)
    ledger = await rig.ledger("in")

    async def read_all() -> None:
        async with open_buffer_reader(ledger, INPUT, Position(0), Timeline(), witnesses=[]) as reader:
            await reader.next()
            # As another owner of the lane does that has committed them, or a process that should not.
            await ledger.trim({INPUT: stored[15]})
            while await reader.next() is not None:
                pass

    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(read_all(), 10)
    assert raised.value.subgroup(DamageError) is not None
