"""The queue of a watch: what comes twice, late, or faster than it is taken."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.watermark.store import OtStatistics, OtUpdate
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry


def update(key: str, watermark_us: int, *, epoch: int = 1, idle: bool = False) -> OtUpdate:
    return OtUpdate(key, OtEntry(epoch=epoch, watermark_us=watermark_us, idle=idle))


async def take_all(queue: UpdateQueue, statistics: OtStatistics) -> list[OtUpdate]:
    """Everything that waits: a last update of a lane of its own marks the end."""
    queue.on_update(update("end", 0, epoch=10**6 + statistics.updates))
    taken = []
    async with asyncio.timeout(60):
        while (newest := await anext(queue)).key != "end":
            taken.append(newest)
    return taken


@pytest.mark.guarantee("I5")
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_a_watch_never_goes_back_and_always_arrives(seed: int, count: int) -> None:
    """Two lanes publish in order; a re-read brings stored ones at any time, and stragglers come late."""
    chance = random.Random(seed)

    async def play() -> None:
        statistics = OtStatistics()
        queue = UpdateQueue(statistics, updates_max=8)
        published = [update(chance.choice("ab"), step, epoch=1 + step // 20) for step in range(count)]
        taken: list[OtUpdate] = []
        for index, newest in enumerate(published):
            queue.on_update(newest)
            straggler = published[chance.randint(0, index)]
            queue.begin_reading()
            queue.finish_reading([straggler])
            if chance.random() < 0.1:
                taken += await take_all(queue, statistics)
        taken += await take_all(queue, statistics)
        for key in "ab":
            given_out = [u.entry.watermark_us for u in taken if u.key == key]
            assert given_out == sorted(set(given_out))
            of_lane = [u.entry.watermark_us for u in published if u.key == key]
            assert given_out[-1:] == of_lane[-1:]

    asyncio.run(play())


@pytest.mark.asyncio
async def test_a_lane_heard_of_during_a_read_is_known_better_than_what_was_read() -> None:
    statistics = OtStatistics()
    queue = UpdateQueue(statistics)
    queue.on_update(update("a", 5))
    queue.begin_reading()
    queue.on_update(update("a", 5, idle=True))
    queue.finish_reading([update("a", 5), update("b", 1)])
    taken = await take_all(queue, statistics)
    assert [(u.key, u.entry.idle) for u in taken] == [("a", False), ("a", True), ("b", False)]


@pytest.mark.asyncio
async def test_a_slow_taker_is_given_the_newest_of_each_lane() -> None:
    statistics = OtStatistics()
    queue = UpdateQueue(statistics, updates_max=10)
    queue.on_update(update("quiet", 1))
    for step in range(1000):
        queue.on_update(update("busy", step))
    taken = await take_all(queue, statistics)
    assert len(taken) <= 11
    assert {u.key: u.entry.watermark_us for u in taken} == {"quiet": 1, "busy": 999}
