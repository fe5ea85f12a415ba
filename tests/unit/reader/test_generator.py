"""The generator: what its records are, and when they are due."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import MICROSECONDS, SystemClock
from millstream.record import Record
from millstream_reader.source import SourceBatch
from tests.contract.sources.lanes import open_lane, read_to_end, records_of
from tests.support.errors import raises
from tests.support.ledgers import SettableClock

START_US = 1_704_067_200 * MICROSECONDS


async def generated(**settings: Any) -> list[Record]:
    async with open_lane({"generator": {"rpu": 0, **settings}}) as lane:
        return (await read_to_end(lane))[0]


@settings(deadline=None)
@given(
    count=st.integers(1, 300),
    made=st.sampled_from([0, 9_990, 10_000, 99_900, 10**9]),
    size=st.integers(1, 60),
    partitions=st.integers(1, 12_000),
    step=st.integers(1, 300),
    keys=st.sampled_from([0, 1, 7, 1000, 40_000]),
)
def test_each_number_is_a_json_object_of_the_size_asked_for_and_has_its_key(
    count: int, made: int, size: int, partitions: int, step: int, keys: int
) -> None:
    async def run() -> list[Record]:
        partition = partitions // 2
        spec = {"generator": {"rpu": 0, "msgSize": size, "keyCount": keys}}
        position = {"source": "generator", "version": 1, "partitions": partitions, "made": made, "origin_us": 0}
        batches: list[SourceBatch] = []
        async with open_lane(spec, json.dumps(position).encode(), partition=partition, partitions=partitions) as lane:
            while sum(batch.frame.records for batch in batches if batch.frame is not None) < count:
                batches.append(await lane.read(step, 1 << 20, 1.0))
        return records_of(batches)

    records = asyncio.run(run())
    for index, record in enumerate(records):
        number = partitions // 2 + (made + index) * partitions
        assert json.loads(record.value) == {"lane": partitions // 2, "number": number}
        shortest = len(json.dumps({"lane": partitions // 2, "number": number}, separators=(",", ":")))
        assert len(record.value) == max(size, shortest)
        assert record.keys == ((f"key-{number % keys}",) if keys else ())


@pytest.mark.parametrize("body", [{}, {"made": 7.9, "origin_us": 5}, {"made": 7, "origin_us": "5"}])
async def test_a_position_of_another_form_is_damage(body: dict[str, Any]) -> None:
    position = {"source": "generator", "version": 1, "partitions": 1, **body}
    with raises(codes.POSITION_UNREADABLE):
        async with open_lane({"generator": {"rpu": 0}}, json.dumps(position).encode()):
            pass


async def test_values_and_keys() -> None:
    records = await generated(records=5, value=7, keyCount=2)
    assert [json.loads(record.value) for record in records] == [
        {"lane": 0, "value": 7, "number": number} for number in range(5)
    ]
    assert [record.keys for record in records] == [(f"key-{number % 2}",) for number in range(5)]
    assert [record.value for record in await generated(records=2, valueBlob="AP8=")] == [b"\x00\xff"] * 2
    assert [record.keys for record in await generated(records=1)] == [()]


@pytest.mark.slow
async def test_event_times_step_from_the_start_and_move_back_by_share() -> None:
    count = 20_000
    stepped = {"records": count, "start": "2024-01-01T00:00:00Z", "eventTimeStep": "10ms"}
    times = [record.event_time_us for record in await generated(**stepped)]
    assert times == [START_US + number * 10_000 for number in range(count)]

    shares = {"lateShare": 0.05, "lateBy": "1h", "outOfOrderShare": 0.2, "outOfOrderBy": "1s"}
    moved = [record.event_time_us for record in await generated(**stepped, **shares)]
    back = [time_us - moved_us for time_us, moved_us in zip(times, moved, strict=True)]
    assert set(back) == {0, 1_000_000, 3_600_000_000}
    assert back.count(3_600_000_000) / count == pytest.approx(0.05, rel=0.1)
    assert back.count(1_000_000) / count == pytest.approx(0.2, rel=0.1)

    jittered = [record.event_time_us for record in await generated(**stepped, jitter="5ms")]
    back = [time_us - moved_us for time_us, moved_us in zip(times, jittered, strict=True)]
    assert (min(back) >= 0, max(back) <= 5000, len(set(back)) > 1000) == (True, True, True)

    again = [record.event_time_us for record in await generated(**stepped, **shares, seed=1)]
    assert again != moved
    assert again == [record.event_time_us for record in await generated(**stepped, **shares, seed=1)]


async def test_without_a_start_stepped_event_times_begin_when_the_lane_was_first_opened() -> None:
    clock = SettableClock()
    first_us = clock.now_us()
    spec = {"generator": {"rpu": 0, "records": 4, "eventTimeStep": "1s"}}
    async with open_lane(spec, clock=clock) as lane:
        batch = await lane.read(2, 1 << 20, 1.0)
    clock.time_s += 1000
    async with open_lane(spec, batch.position, clock=clock) as lane:
        records = records_of([batch]) + (await read_to_end(lane))[0]
    assert [record.event_time_us for record in records] == [first_us + second * MICROSECONDS for second in range(4)]


async def test_a_rate_gives_what_is_due_and_forgets_nothing() -> None:
    clock = SettableClock()
    start_us = clock.now_us()
    async with open_lane({"generator": {"rpu": 10, "duration": "1s", "records": 40}}, clock=clock) as lane:
        first = await lane.read(4096, 1 << 20, 0.0)
        assert (first.frame is not None and first.frame.records, lane.pending()) == (1, 0)
        assert (await lane.read(4096, 1 << 20, 0.0)).frame is None
        clock.time_s += 0.35
        some = (await lane.read(2, 1 << 20, 0.0)).frame
        assert some is not None
        assert (some.records, lane.pending()) == (2, 1)
        # It came when the first of them was due, not when it was read.
        assert some.ingest_time_us == pytest.approx(start_us + 100_000, abs=2)
        clock.time_s += 10.0
        rest = await lane.read(4096, 1 << 20, 0.0)
        assert rest.frame is not None
        assert (rest.frame.records, rest.ended) == (37, True)
        assert rest.frame.event_times_us().tolist() == pytest.approx(
            [start_us + number * 100_000 for number in range(3, 40)], abs=2
        )


async def test_lanes_share_the_rate() -> None:
    clock = SettableClock()
    for partition in range(3):
        async with open_lane({"generator": {"rpu": 300}}, clock=clock, partition=partition, partitions=3) as lane:
            clock.time_s += 1.0
            frame = (await lane.read(4096, 1 << 20, 0.0)).frame
            assert frame is not None
            assert frame.records == pytest.approx(100, abs=1)


async def test_event_times_stay_in_order_when_the_wall_clock_is_set_back() -> None:
    clock = SettableClock()
    async with open_lane({"generator": {"rpu": 0}}, clock=clock) as lane:
        first = (await lane.read(5, 1 << 20, 0.0)).frame
        clock.time_s -= 100
        second = (await lane.read(5, 1 << 20, 0.0)).frame
    assert first is not None
    assert second is not None
    assert second.event_time_min_us >= first.event_time_max_us


@pytest.mark.slow
async def test_at_a_low_rate_records_come_when_they_are_due_and_alone() -> None:
    clock = SystemClock()
    waits_us: list[int] = []
    records: list[int] = []
    async with open_lane({"generator": {"rpu": 500}}, clock=clock) as lane:
        while len(waits_us) < 50:
            frame = (await lane.read(4096, 1 << 20, 1.0)).frame
            if frame is not None:
                waits_us.append(clock.now_us() - frame.ingest_time_us)
                records.append(frame.records)
    # A busy machine makes some of them late, and half of them not by much. Filling a frame would take 8 s.
    assert sorted(waits_us)[25] < 50_000
    assert sorted(records)[25] < 25
