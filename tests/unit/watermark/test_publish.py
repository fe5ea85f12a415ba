"""When entries are put: no clock runs, what waits would wait for an hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream import codes
from millstream.errors import FencedError
from millstream.watermark.publish import CoalescingPublisher
from millstream.watermark.store import OtStatistics
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

NEVER_S = 3600.0


class Puts:
    """What came of what was published."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[int] = asyncio.Queue()

    async def put(self, key: str, entry: OtEntry) -> None:
        self.arrived.put_nowait(entry.watermark_us)

    async def nothing_arrives(self) -> bool:
        for _ in range(20):
            await asyncio.sleep(0)
        return self.arrived.empty()


@asynccontextmanager
async def open_publisher() -> AsyncIterator[tuple[CoalescingPublisher, Puts]]:
    puts = Puts()
    async with asyncio.TaskGroup() as tasks:
        publisher = CoalescingPublisher(puts.put, OtStatistics(), tasks, interval_s=0.0, little_s=NEVER_S)
        try:
            yield publisher, puts
        finally:
            publisher.cancel()


async def test_what_is_not_wanted_soon_waits_for_what_is() -> None:
    async with open_publisher() as (publisher, puts):
        # The first waits for nothing: nothing was put before it.
        publisher.publish("lane", OtEntry(watermark_us=1), soon=False)
        assert await puts.arrived.get() == 1
        publisher.publish("lane", OtEntry(watermark_us=2), soon=False)
        publisher.publish("lane", OtEntry(watermark_us=3), soon=False)
        assert await puts.nothing_arrives()
        publisher.publish("lane", OtEntry(watermark_us=4), soon=True)
        assert await puts.arrived.get() == 4
        publisher.publish("lane", OtEntry(watermark_us=5), soon=False)
        assert await puts.nothing_arrives()


async def test_what_is_wanted_soon_is_not_held_back_by_a_newer_entry_that_is_not() -> None:
    async with open_publisher() as (publisher, puts):
        publisher.publish("lane", OtEntry(watermark_us=1), soon=True)
        assert await puts.arrived.get() == 1
        publisher.publish("lane", OtEntry(watermark_us=2), soon=True)
        publisher.publish("lane", OtEntry(watermark_us=3), soon=False)
        assert await puts.arrived.get() == 3


async def test_a_flush_waits_for_no_interval() -> None:
    async with open_publisher() as (publisher, puts):
        publisher.publish("lane", OtEntry(watermark_us=1), soon=False)
        assert await puts.arrived.get() == 1
        publisher.publish("lane", OtEntry(watermark_us=2), soon=False)
        assert await puts.nothing_arrives()
        await publisher.flush()
        assert await puts.arrived.get() == 2


async def test_what_makes_an_entry_is_asked_when_it_is_put() -> None:
    now, made = 1, 0

    def entry() -> OtEntry:
        nonlocal made
        made += 1
        return OtEntry(epoch=1, watermark_us=now)

    async with open_publisher() as (publisher, puts):
        publisher.publish("lane", entry, soon=True)
        assert await puts.arrived.get() == 1
        for _ in range(8):
            now += 1
            publisher.publish("lane", entry, soon=False)
        assert await puts.nothing_arrives()
        publisher.publish("lane", entry, soon=True)
        assert await puts.arrived.get() == 9
    assert made == 2


async def test_a_lane_that_comes_back_with_a_newer_epoch_is_published_again() -> None:
    arrived: asyncio.Queue[int] = asyncio.Queue()
    other = 2

    async def put(key: str, entry: OtEntry) -> None:
        if entry.epoch < other:
            raise FencedError(codes.LANE_TAKEN_OVER, "another has the lane")
        arrived.put_nowait(entry.epoch)

    statistics = OtStatistics()
    async with asyncio.TaskGroup() as tasks:
        publisher = CoalescingPublisher(put, statistics, tasks, interval_s=0.0)
        publisher.publish("lane", lambda: OtEntry(epoch=1), soon=True)
        await publisher.flush()
        assert statistics.fenced == 1
        publisher.publish("lane", lambda: OtEntry(epoch=1), soon=True)
        await publisher.flush()
        publisher.publish("lane", lambda: OtEntry(epoch=3), soon=True)
        await publisher.flush()
        publisher.cancel()
    assert arrived.get_nowait() == 3
    assert arrived.empty()
