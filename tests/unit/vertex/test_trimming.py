"""Trimming what the lanes of a process have consumed, all together."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping
from functools import partial

import pytest

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.ledger.sharing import Sharing
from millstream.limits import MIB
from millstream.record import BufferId
from millstream.watermark.store import OtUpdate
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry
from millstream_vertex.trimming import Trimmer

A, B = BufferId("in-map", 0), BufferId("in-map", 1)
OTHER = BufferId("in-out", 0)
"""Shares its copy with `A`."""
SHARING = Sharing.of({"_in-1": ("in-map", "in-out")})


class Trims:
    """A ledger's trim that fails at first."""

    def __init__(self, failures: int = 0) -> None:
        self._failures = failures
        self.done: list[Mapping[BufferId, int]] = []
        self.held = asyncio.Event()
        self.held.set()

    async def __call__(self, through: Mapping[BufferId, int]) -> None:
        if self._failures:
            self._failures -= 1
            raise RetryLaterError(codes.BROKER_AWAY, "the broker cannot do that now")
        self.done.append(through)
        await self.held.wait()


async def until_done(trims: Trims, times: int) -> None:
    async with asyncio.timeout(60):
        while len(trims.done) < times:  # noqa: ASYNC110 - a callable has no event for it
            await asyncio.sleep(0)


@pytest.mark.guarantee("I8", "I9")
async def test_a_trim_that_fails_is_made_up_for_later() -> None:
    trims = Trims(failures=2)
    trimmer = Trimmer(trims, interval_s=0.0)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        trimmer.consumed(A, 5)
        await until_done(trims, 1)
        running.cancel()
    assert trims.done == [{A: 5}]


async def test_the_last_trim_does_not_keep_a_process_from_ending() -> None:
    trimmer = Trimmer(Trims(failures=1))
    trimmer.consumed(A, 5)
    await trimmer.finish()


async def test_lanes_are_trimmed_together_and_those_that_stand_still_not_at_all() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, interval_s=0.0)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        for sequence in range(5):
            trimmer.consumed(A, sequence, 1)
        trimmer.consumed(B, 7)
        trims.held.clear()
        await until_done(trims, 1)
        # While that is in progress.
        trimmer.consumed(B, 9)
        trimmer.consumed(A, 2, 1)
        trims.held.set()
        await until_done(trims, 2)
        running.cancel()
    assert trims.done == [{A: 4, B: 4}, {B: 9}]
    # The last frame of a lane may go when its mark lies elsewhere.
    await trimmer.finish()
    assert trims.done[2:] == [{A: 4, B: 9}]


@pytest.mark.guarantee("I8")
async def test_what_is_left_behind_the_slowest_is_trimmed_when_nothing_more_comes() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, interval_s=0.0, little_s=0.01)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        trimmer.consumed(A, 4, 4 * MIB)
        trimmer.consumed(B, 7, 16 * MIB)
        await until_done(trims, 2)
        running.cancel()
    assert trims.done == [{A: 4, B: 4}, {B: 7}]


@pytest.mark.guarantee("I8")
async def test_a_reader_that_is_far_behind_does_not_keep_what_others_have_consumed() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, interval_s=0.0)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        # Of what was consumed, only the bytes behind the slowest reader count.
        trimmer.consumed(B, 3, 40 * MIB)
        trimmer.consumed(A, 4, 4 * MIB)
        # The frame that a reader has read last stays until it reads the next one, but its records are consumed.
        trimmer.consumed(B, 3, 10 * MIB)
        trimmer.consumed(B, 7, 6 * MIB)
        await until_done(trims, 1)
        trimmer.consumed(A, 5, MIB)
        trimmer.consumed(B, 9, 4 * MIB)
        await until_done(trims, 2)
        # However small the messages are, the server counts them.
        trimmer.consumed(A, 6, 1)
        trimmer.consumed(B, 6 + 4097, 1)
        await until_done(trims, 3)
        running.cancel()
    assert trims.done == [{A: 4, B: 4}, {A: 5, B: 9}, {A: 6, B: 6 + 4097}]


@pytest.mark.guarantee("I8")
async def test_little_waits_for_more_and_much_does_not_wait() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, interval_s=0.0, little_s=3600.0)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        # How much is there is not known before the first trim.
        trimmer.consumed(A, 5000, 0)
        await until_done(trims, 1)
        for sequence in range(5001, 5401):
            trimmer.consumed(A, sequence, 100)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(trims.done) == 1
        trimmer.consumed(A, 5401, 8 * MIB)
        await until_done(trims, 2)
        trimmer.consumed(A, 5500, 100)
        # Many messages, however small they are.
        trimmer.consumed(A, 6000, 100)
        await until_done(trims, 3)
        running.cancel()
    assert trims.done == [{A: 5000}, {A: 5401}, {A: 6000}]


async def test_what_is_little_is_trimmed_all_the_same() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, interval_s=0.0, little_s=0.01)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        trimmer.consumed(A, 1, 100)
        await until_done(trims, 1)
        trimmer.consumed(A, 2, 100)
        await until_done(trims, 2)
        running.cancel()
    assert trims.done == [{A: 1}, {A: 2}]


def heard(sequence: int, edge: str = "in-out") -> OtUpdate:
    """What a lane in another process publishes when it has committed so much."""
    return OtUpdate(f"{edge}.0", OtEntry(epoch=1, inputs=[BufferState(edge=edge, partition=0, sequence=sequence)]))


@pytest.mark.guarantee("I1", "I8")
async def test_a_copy_is_trimmed_behind_the_slowest_of_its_readers() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, sharing=SHARING)
    hears = partial(trimmer.consumed_elsewhere, OTHER)
    trimmer.consumed(A, 9)
    trimmer.consumed(B, 3)
    await trimmer.finish()
    assert trims.done == [], "nothing is known of the others yet"
    hears(heard(6))
    hears(heard(20, "in-map"))
    await trimmer.finish()
    # The frame that the other one has read last stays.
    assert trims.done == [{A: 5}]
    hears(heard(30))
    trimmer.consumed(BufferId("in-out", 1), 2)
    await trimmer.finish()
    assert trims.done[1:] == [{A: 9, B: 2}]


@pytest.mark.slow
async def test_a_reader_that_is_heard_often_and_stands_still_takes_no_memory() -> None:
    trimmer = Trimmer(Trims(), sharing=SHARING)
    hears = partial(trimmer.consumed_elsewhere, OTHER)
    hears(heard(6))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10_000):
            hears(heard(6))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000


async def test_a_copy_is_trimmed_once_for_all_readers_of_a_process() -> None:
    trims = Trims()
    trimmer = Trimmer(trims, interval_s=0.0, little_s=0.0, sharing=SHARING)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(trimmer.run())
        trimmer.consumed(A, 4)
        trimmer.consumed(OTHER, 7)
        await until_done(trims, 1)
        # The faster one alone changes nothing.
        trimmer.consumed(OTHER, 8)
        for _ in range(20):
            await asyncio.sleep(0)
        trimmer.consumed(A, 6)
        await until_done(trims, 2)
        running.cancel()
    assert trims.done == [{A: 4}, {A: 6}]
