"""Edges that share one stored copy: written once, read by each of them, and trimmed as one buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millstream.ledger.protocol import Ledger, LedgerLimits
from millstream.ledger.sharing import Sharing
from millstream.record import BufferId, LaneId
from tests.support.ledgers import Harness, LaneOwner

FIRST, SECOND, APART = BufferId("v-a", 0), BufferId("v-b", 0), BufferId("v-c", 0)
SHARING = Sharing.of({"_v-1": ("v-a", "v-b")})
LIMITS = LedgerLimits(frames_per_buffer_max=2000, sharing=SHARING)


@pytest.fixture
async def shared(harness: Harness) -> Ledger:
    return await harness.broker.ledger("v", LIMITS)


@pytest.fixture
async def writer(shared: Ledger) -> LaneOwner:
    lane = LaneId("v", "in-v", 0)
    return LaneOwner(shared, lane, await shared.take_over(lane, "first"))


async def stored(ledger: Ledger, buffer: BufferId) -> Sequence[tuple[int, bytes]]:
    return [(frame.sequence, frame.data) for frame in await ledger.peek(buffer, 0, 100)]


async def read(ledger: Ledger, buffer: BufferId, frames: int, after: int = 0) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(10), ledger.read(buffer, after, witnesses=[]) as arriving:
        async for frame in arriving:
            found.append(frame.data)
            if len(found) == frames:
                break
    return found


@pytest.mark.guarantee("I1", "I8")
async def test_a_frame_is_stored_once_and_read_by_each_edge(shared: Ledger, writer: LaneOwner) -> None:
    await writer.commit((FIRST, b"one"))
    await writer.commit((FIRST, b"two"), (APART, b"apart"))
    assert shared.statistics().commit_messages == 5, "the takeover, one frame with its mark, two frames and a mark"
    for buffer in (FIRST, SECOND):
        assert [data for _, data in await stored(shared, buffer)] == [b"one", b"two"]
        assert await read(shared, buffer, 2) == [b"one", b"two"]
        assert await shared.last_sequence(buffer) == (await stored(shared, FIRST))[-1][0]
    assert [data for _, data in await stored(shared, APART)] == [b"apart"]


@pytest.mark.guarantee("I1", "I8")
async def test_a_trim_of_one_edge_is_one_of_the_copy(shared: Ledger, writer: LaneOwner) -> None:
    for data in (b"one", b"two", b"three"):
        await writer.commit((FIRST, data))
    sequences = [sequence for sequence, _ in await stored(shared, FIRST)]
    await shared.trim({SECOND: sequences[0]})
    assert [sequence for sequence, _ in await stored(shared, FIRST)] == sequences[1:]
    assert await stored(shared, SECOND) == await stored(shared, FIRST)


async def test_a_ledger_keeps_what_it_was_created_with(harness: Harness, shared: Ledger) -> None:
    assert shared.sharing == SHARING
    other = LedgerLimits(frames_per_buffer_max=3000, sharing=Sharing.of({"_v-1": ("v-a", "v-b", "v-c")}))
    again = await (await harness.other_process()).ledger("v", other)
    assert again.sharing == SHARING
    assert again.ledger_id == shared.ledger_id
    found = await (await harness.other_process()).existing_ledger("v")
    assert found is not None
    assert found.sharing == SHARING


async def test_a_ledger_that_was_created_without_copies_has_none(harness: Harness) -> None:
    await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=2000))
    again = await (await harness.other_process()).ledger("v", LIMITS)
    assert not again.sharing


@pytest.mark.guarantee("I1", "I15")
async def test_an_edge_that_has_left_has_frames_of_its_own(harness: Harness, shared: Ledger, writer: LaneOwner) -> None:
    await writer.commit((FIRST, b"both"))
    after = await shared.last_sequence(FIRST)
    await shared.leave(["v-b"])
    ledger = await (await harness.other_process()).existing_ledger("v")
    assert ledger is not None
    assert ledger.sharing == Sharing({"v-a": "_v-1"})
    lane = LaneId("v", "in-v", 0)
    owner = LaneOwner(ledger, lane, await ledger.take_over(lane, "second"))
    await owner.commit((FIRST, b"first"), (SECOND, b"second"))
    assert [data for _, data in await stored(ledger, FIRST)] == [b"both", b"first"]
    assert [data for _, data in await stored(ledger, SECOND)] == [b"second"]
    assert await read(ledger, SECOND, 1, after) == [b"second"]
