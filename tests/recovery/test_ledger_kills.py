"""The broker is killed, stopped and paused under load: everything is there once, in order, and reading just goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.ledger.protocol import Ledger, LedgerLimits, StoredFrame
from millstream.record import BufferId, LaneId
from tests.support.ledgers import JetStreamHarness, LaneOwner, open_jetstream_harness

A = BufferId("v-a", 0)
B = BufferId("v-b", 0)
LANES = [LaneId("v", "in-v", number) for number in range(3)]
BOUNDS = LedgerLimits(frames_per_buffer_max=100_000)
WAIT_S = 180.0
KILLS = 6
SILENCE_S = 3.0
"""After this much silence a reader looks for itself; one that notices the loss of its connection waits for less."""


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


async def write(owner: LaneOwner, done: asyncio.Event, counts: dict[int, int]) -> None:
    """Numbered frames, the same ones into both buffers, until told to stop. Some in batches, some one by one."""
    lane = owner.lane.partition
    while not done.is_set():
        first = counts[lane]
        dice = random.Random(first)
        frames = [b"%d %d" % (lane, number) for number in range(first, first + dice.randint(1, 9))]
        if dice.random() < 0.5:
            await owner.commit(*((buffer, frame) for frame in frames for buffer in (A, B)))
        else:
            for frame in frames:
                await owner.commit((A, frame))
                await owner.commit((B, frame))
        counts[lane] = first + len(frames)


async def read(ledger: Ledger, buffer: BufferId, seen: list[StoredFrame]) -> None:
    async with ledger.read(buffer, 0) as frames:
        while True:
            seen.append(await anext(frames))


async def reached(seen: list[StoredFrame], count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(seen) < count:  # noqa: ASYNC110  # the reader is the thing under test, and has no event for this
            await asyncio.sleep(0.005)


def by_lane(frames: list[StoredFrame]) -> dict[int, list[int]]:
    numbers: dict[int, list[int]] = {lane.partition: [] for lane in LANES}
    for frame in frames:
        lane, number = frame.data.split()
        numbers[int(lane)].append(int(number))
    return numbers


@pytest.mark.guarantee("I1", "I4", "I6", "I9")
@pytest.mark.parametrize("fault", ["kill", "stop", "cut"])
async def test_the_broker_goes_away_again_and_again(harness: JetStreamHarness, fault: str) -> None:
    ledger = await harness.broker.ledger("v", BOUNDS)
    owners = [LaneOwner(ledger, lane, await ledger.take_over(lane, "writer")) for lane in LANES]
    counts = {lane.partition: 0 for lane in LANES}
    seen_a: list[StoredFrame] = []
    seen_b: list[StoredFrame] = []
    done = asyncio.Event()
    async with asyncio.timeout(WAIT_S):
        async with asyncio.TaskGroup() as readers:
            reading = [readers.create_task(read(ledger, A, seen_a)), readers.create_task(read(ledger, B, seen_b))]
            async with asyncio.TaskGroup() as writers:
                for owner in owners:
                    writers.create_task(write(owner, done, counts))
                for _ in range(KILLS):
                    # Always in the middle of something: as soon as more has arrived than before.
                    await reached(seen_a, len(seen_a) + 20)
                    if fault == "cut":
                        harness.path.cut()
                    else:
                        await harness.server.restart(kill=fault == "kill")
                await reached(seen_a, len(seen_a) + 20)
                done.set()
            await reached(seen_a, sum(counts.values()))
            await reached(seen_b, sum(counts.values()))
            for task in reading:
                task.cancel()
    expected = {lane: list(range(count)) for lane, count in counts.items()}
    assert by_lane(seen_a) == expected
    assert by_lane(seen_b) == expected
    for seen in (seen_a, seen_b):
        sequences = [frame.sequence for frame in seen]
        assert sequences == sorted(set(sequences))
    # What readers saw is what is stored: nothing was withdrawn.
    assert await ledger.peek(A, 0, len(seen_a) + 1) == seen_a
    assert ledger.statistics().read_restarts >= KILLS


@pytest.mark.guarantee("I9")
async def test_reading_goes_on_at_once_when_the_broker_is_back(harness: JetStreamHarness) -> None:
    ledger = await harness.broker.ledger("v", BOUNDS)
    owner = LaneOwner(ledger, LANES[0], await ledger.take_over(LANES[0], "writer"))
    async with ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        for number in range(3):
            waiting = asyncio.ensure_future(anext(frames))
            await owner.commit((A, b"%d" % number))
            assert (await waiting).data == b"%d" % number
            waiting = asyncio.ensure_future(anext(frames))
            await harness.server.restart()
            await owner.commit((A, b"again"))
            committed_s = asyncio.get_running_loop().time()
            assert (await waiting).data == b"again"
            assert asyncio.get_running_loop().time() - committed_s < SILENCE_S


@pytest.mark.guarantee("I1", "I9")
async def test_a_broker_that_was_paused_loses_nothing(
    harness: JetStreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the pause outlasts it, and the commit is sent again while the first attempt is still on its way.
    monkeypatch.setattr("millstream.limits.COMMIT_TIMEOUT_S", 0.2)
    ledger = await harness.broker.ledger("v", BOUNDS)
    owner = LaneOwner(ledger, LANES[0], await ledger.take_over(LANES[0], "writer"))
    async with ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        harness.server.pause()
        committing = asyncio.ensure_future(owner.commit((A, b"a1"), (B, b"b1")))
        done, _ = await asyncio.wait([committing], timeout=1.0)
        assert not done
        harness.server.resume()
        await committing
        assert (await anext(frames)).data == b"a1"
        await owner.commit((A, b"a2"))
        assert (await anext(frames)).data == b"a2"
    assert [frame.data for frame in await ledger.peek(B, 0, 10)] == [b"b1"]


@pytest.mark.guarantee("I1")
async def test_a_lane_goes_on_under_a_new_owner_where_a_killed_one_stopped(harness: JetStreamHarness) -> None:
    ledger = await harness.broker.ledger("v", BOUNDS)
    old = LaneOwner(ledger, LANES[0], await ledger.take_over(LANES[0], "old"))
    await old.commit((A, b"0"))
    async with asyncio.timeout(WAIT_S):
        committing = asyncio.ensure_future(old.commit((A, b"1")))
        await harness.server.kill()
        # Its process is gone while it is unknown whether the commit has landed.
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        await harness.server.start()
        again = await (await harness.other_process()).ledger("v", BOUNDS)
        taken = await again.take_over(LANES[0], "new")
        new = LaneOwner(again, LANES[0], taken)
        for number in range(taken.mark.sequence, 4):
            await new.commit((A, b"%d" % number))
    assert [frame.data for frame in await again.peek(A, 0, 10)] == [b"0", b"1", b"2", b"3"]
