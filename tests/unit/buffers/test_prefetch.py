"""Frames that a reader has prefetched."""

from __future__ import annotations

import asyncio

from millstream import limits
from millstream.buffers.jetstream.prefetch import Arrival, Prefetch
from millstream.buffers.jetstream.references import FrameReference


def reference(sequence: int, size: int) -> Arrival:
    return Arrival(sequence, None, size, b"", FrameReference(sequence, size, None))


async def test_frames_that_are_stored_apart_are_requested_while_there_is_space() -> None:
    prefetch = Prefetch()
    prefetch.add(Arrival(1, None, 10, bytes(10)))
    size = limits.READ_AHEAD_BYTES_MAX
    for sequence in (2, 3):
        prefetch.add(reference(sequence, size))
    assert (len(prefetch), prefetch.bytes, prefetch.held_bytes) == (3, 10 + 2 * size, 10)
    assert prefetch.to_request() is None, "the frame in front of it takes the space"
    assert prefetch.pop().sequence == 1
    # The one that is returned next is requested whatever its size.
    assert prefetch.to_request() is prefetch.first
    answer = asyncio.get_running_loop().create_future()
    prefetch.requested(answer)
    assert prefetch.first.answer is answer
    assert prefetch.held_bytes == size
    assert prefetch.to_request() is None
    prefetch.clear()
    assert answer.cancelled()
    assert (len(prefetch), prefetch.bytes, prefetch.held_bytes) == (0, 0, 0)
