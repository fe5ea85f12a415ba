"""What Redis and Valkey alone can do to a ledger: settings that keep less, a log that is lost, a refill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream import codes
from millstream.buffers.redis.connection import open_connection
from millstream.buffers.redis.durability import judge
from millstream.buffers.redis.technology import TECHNOLOGY
from millstream.ledger.protocol import DurabilityLevel, LedgerLimits
from millstream.record import BufferId, LaneId
from tests.support.errors import raises
from tests.support.ledgers import PIPELINE, LaneOwner, RedisHarness, open_redis_harness

A = BufferId("v-a", 0)
LANE = LaneId("v", "in-v", 0)
LIMITS = LedgerLimits(frames_per_buffer_max=1000)
WAIT_S = 60.0
KEEPS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RedisHarness]:
    async with open_redis_harness(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("setting", "level"),
    [
        ({}, DurabilityLevel.FSYNC),
        ({"appendfsync": "no"}, DurabilityLevel.PROCESS),
        ({"no-appendfsync-on-rewrite": "yes"}, DurabilityLevel.PROCESS),
        ({"appendfsync": "everysec"}, DurabilityLevel.MEMORY),
        ({"appendonly": "no"}, DurabilityLevel.MEMORY),
        ({"maxmemory": "1000000", "maxmemory-policy": "allkeys-lru"}, DurabilityLevel.MEMORY),
        ({"maxmemory": "1000000"}, DurabilityLevel.FSYNC),
    ],
)
def test_what_a_server_keeps_follows_from_its_settings(setting: dict[str, str], level: DurabilityLevel) -> None:
    assert judge({**KEEPS, **setting}).level is level


@pytest.mark.guarantee("I1")
async def test_a_server_that_may_answer_before_it_writes_is_refused_and_the_setting_named(
    harness: RedisHarness,
) -> None:
    async with open_connection(harness.server.access) as connection:
        await connection.ask("CONFIG", "SET", "appendfsync", "everysec")
    for require in (DurabilityLevel.FSYNC, DurabilityLevel.PROCESS):
        async with TECHNOLOGY.open(harness.server.access, PIPELINE, name="test", require=require) as buffer:
            with raises(codes.NOT_DURABLE):
                await buffer.broker.ledger("v", LIMITS)


@pytest.mark.guarantee("I10")
async def test_a_log_that_was_lost_is_noticed_by_writer_and_reader(harness: RedisHarness) -> None:
    ledger = await harness.broker.ledger("v", LIMITS)
    owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
    await owner.commit((A, b"0"))
    async with ledger.read(A, 0, []) as frames:
        await anext(frames)
        await harness.server.kill()
        for path in (harness.server.store_dir / "appendonlydir").iterdir():
            path.unlink()
        await harness.server.start()
        async with asyncio.timeout(WAIT_S):
            with raises(codes.LEDGER_GONE, match=r"no longer exists.*millstream repair"):
                await owner.commit((A, b"1"))
            with raises(codes.LEDGER_GONE):
                await anext(frames)


@pytest.mark.guarantee("I10", "I15")
async def test_a_ledger_that_was_emptied_and_made_anew_while_the_server_ran_is_noticed(harness: RedisHarness) -> None:
    ledger = await harness.broker.ledger("v", LIMITS)
    owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
    await owner.commit((A, b"0"))
    async with ledger.read(A, 0, []) as frames:
        await anext(frames)
        async with open_connection(harness.server.access) as connection:
            await connection.ask("FLUSHALL")
        anew = await (await harness.other_process()).ledger("v", LIMITS)
        assert anew.ledger_id != ledger.ledger_id
        async with asyncio.timeout(WAIT_S):
            with raises(codes.LEDGER_CUT):
                await anext(frames)
            with raises(codes.LEDGER_GONE):
                await owner.commit((A, b"1"))


async def test_a_server_without_memory_refuses_a_commit_whole(harness: RedisHarness) -> None:
    ledger = await harness.broker.ledger("v", LIMITS)
    owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
    commit = owner.commit_of((A, b"0"))
    async with open_connection(harness.server.access) as connection:
        await connection.ask("CONFIG", "SET", "maxmemory", "1")
        with raises(codes.BROKER_STORAGE_FULL):
            await owner.send(commit)
        await connection.ask("CONFIG", "SET", "maxmemory", "0")
    await owner.send(commit)
    assert [frame.data for frame in await ledger.peek(A, 0, 10)] == [b"0"]


@pytest.mark.guarantee("I1")
async def test_a_commit_survives_a_kill_of_the_server_and_a_torn_log(harness: RedisHarness) -> None:
    ledger = await harness.broker.ledger("v", LIMITS)
    owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
    await owner.commit((A, b"0"), (A, b"1"))
    kept = owner.stored
    await owner.commit((A, b"2"), (A, b"3"))
    await harness.server.kill()
    log = next((harness.server.store_dir / "appendonlydir").glob("*.incr.aof"))
    # In the middle of the last commit, as a power cut in the middle of its write leaves it.
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 50)
    await harness.server.start()
    again = await (await harness.other_process()).ledger("v", LIMITS)
    assert await again.mark(LANE) == kept
    assert [frame.data for frame in await again.peek(A, 0, 10)] == [b"0", b"1"]
