"""The queue of a tap: few frames and few bytes, whatever the size of a frame."""

from __future__ import annotations

import asyncio

import pytest

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.ledger.memory import Faults, open_memory_broker
from millstream.ledger.protocol import LedgerLimits, StoredFrame
from millstream.record import BufferId
from millstream_runner.local.tapping import TapQueue, WatchedBuffer

SIZE = 10


@pytest.fixture
async def buffer() -> WatchedBuffer:
    async with open_memory_broker("p", Faults()) as broker:
        ledger = await broker.ledger("in", LedgerLimits(frames_per_buffer_max=10))
        return WatchedBuffer(BufferId("in-out", 0), ledger, 0)


async def is_put(putting: asyncio.Task[None]) -> bool:
    """Whether the task has ended after it could run."""
    for _ in range(5):
        await asyncio.sleep(0)
    return putting.done()


@pytest.mark.parametrize(("frames_max", "bytes_max"), [(2, 100 * SIZE), (100, 2 * SIZE), (100, 3 * SIZE - 1)])
async def test_what_does_not_fit_waits_for_room(buffer: WatchedBuffer, frames_max: int, bytes_max: int) -> None:
    arrived = TapQueue(frames_max, bytes_max)
    frames = [StoredFrame(number, bytes(SIZE)) for number in range(1, 4)]
    for frame in frames[:2]:
        await arrived.put(buffer, frame)
    putting = asyncio.create_task(arrived.put(buffer, frames[2]))
    assert not await is_put(putting)
    assert (await arrived.get())[1] == frames[0]
    assert await is_put(putting)
    assert [frame for _, frame in arrived.get_all()] == frames[1:]
    assert arrived.is_empty


async def test_a_frame_that_is_larger_than_the_queue_goes_through_it_alone(buffer: WatchedBuffer) -> None:
    arrived = TapQueue(bytes_max=SIZE)
    large, small = StoredFrame(1, bytes(5 * SIZE)), StoredFrame(2, b"x")
    await arrived.put(buffer, large)
    putting = asyncio.create_task(arrived.put(buffer, small))
    assert not await is_put(putting)
    assert (await arrived.get())[1] == large
    assert await is_put(putting)


async def test_an_error_takes_no_room(buffer: WatchedBuffer) -> None:
    arrived, error = TapQueue(bytes_max=SIZE), InfrastructureError(codes.BROKER_AWAY, "away")
    await arrived.put(buffer, StoredFrame(1, bytes(SIZE)))
    putting = asyncio.create_task(arrived.put(buffer, error))
    assert await is_put(putting)
    assert [what for _, what in arrived.get_all()][1:] == [error]
