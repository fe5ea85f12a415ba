"""What every OT store does, whatever it is made of: real servers of each kind, and memory with the same faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

from millstream.buffers.jetstream.ot_store import bucket_name, open_jetstream_ot_stores
from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.buffers.redis.connection import open_connection as open_redis_connection
from millstream.buffers.redis.keys import entries_key, revisions_key
from millstream.buffers.redis.ot_store import open_redis_ot_stores
from millstream.buffers.redis.scripts import PUT
from millstream.buffers.redis.server import RedisServer, open_redis_server
from millstream.clock import START_OF_TIME_US
from millstream.errors import RetryLaterError
from millstream.nats.connection import open_connection
from millstream.record import LaneId
from millstream.watermark import rereads as rereads_module
from millstream.watermark.memory import OtMemory, open_memory_ot_stores
from millstream.watermark.store import OtStore, OtStores, OtUpdate, follow
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

pytestmark = pytest.mark.asyncio

WAIT_S = 180.0
PIPELINE = "flights"
LANE = LaneId("clean", "in-clean", 0)
OTHER_LANE = LaneId("clean", "in-clean", 1)


class Broker(Protocol):
    """Where the stores under test live, and what can happen to it."""

    def open(
        self, pipeline: str = PIPELINE, *, publish_interval_s: float = 0.02
    ) -> AbstractAsyncContextManager[OtStores]:
        """A process's own way in."""

    async def stop(self) -> None: ...

    async def start(self) -> None: ...

    async def lose_answer(self, vertex: str, lane: LaneId, entry: OtEntry) -> None:
        """The next put of `lane` finds that an earlier one, which it took for lost, has been stored."""


class MemoryBroker:
    def __init__(self) -> None:
        self.memory = OtMemory()

    def open(
        self, pipeline: str = PIPELINE, *, publish_interval_s: float = 0.02
    ) -> AbstractAsyncContextManager[OtStores]:
        return open_memory_ot_stores(self.memory, pipeline, publish_interval_s=publish_interval_s)

    async def stop(self) -> None:
        self.memory.stop()

    async def start(self) -> None:
        self.memory.start()

    async def lose_answer(self, vertex: str, lane: LaneId, entry: OtEntry) -> None:
        self.memory.lose_answers(1)


class JetStreamBroker:
    def __init__(self, server: NatsServer) -> None:
        self._server = server

    @asynccontextmanager
    async def open(self, pipeline: str = PIPELINE, *, publish_interval_s: float = 0.02) -> AsyncIterator[OtStores]:
        async with (
            open_connection(self._server.access) as connection,
            open_jetstream_ot_stores(connection, pipeline, publish_interval_s=publish_interval_s) as stores,
        ):
            yield stores

    async def stop(self) -> None:
        await self._server.kill()

    async def start(self) -> None:
        await self._server.restart()

    async def lose_answer(self, vertex: str, lane: LaneId, entry: OtEntry) -> None:
        async with open_connection(self._server.access) as connection:
            await connection.request(f"$KV.{bucket_name(PIPELINE, vertex)}.{lane.key}", entry.SerializeToString())


class RedisBroker:
    def __init__(self, server: RedisServer) -> None:
        self._server = server

    @asynccontextmanager
    async def open(self, pipeline: str = PIPELINE, *, publish_interval_s: float = 0.02) -> AsyncIterator[OtStores]:
        async with (
            open_redis_connection(self._server.access) as connection,
            open_redis_ot_stores(connection, pipeline, publish_interval_s=publish_interval_s) as stores,
        ):
            yield stores

    async def stop(self) -> None:
        await self._server.kill()

    async def start(self) -> None:
        await self._server.restart()

    async def lose_answer(self, vertex: str, lane: LaneId, entry: OtEntry) -> None:
        keys = entries_key(PIPELINE, vertex), revisions_key(PIPELINE, vertex)
        async with open_redis_connection(self._server.access) as connection:
            revision = await connection.ask("HGET", keys[1], lane.key)
            await connection.change(PUT, keys, [lane.key, revision or 0, entry.SerializeToString()])


@pytest_asyncio.fixture(params=["memory", "jetstream", "redis"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    if request.param == "memory":
        yield MemoryBroker()
    elif request.param == "redis":
        async with open_redis_server(tmp_path / "redis") as redis:
            yield RedisBroker(redis)
    else:
        async with open_nats_server(tmp_path / "nats") as server:
            yield JetStreamBroker(server)


def entry(watermark_us: int, *, epoch: int = 1, idle: bool = False, ended: bool = False) -> OtEntry:
    return OtEntry(epoch=epoch, watermark_us=watermark_us, idle=idle, ended=ended)


async def within(seconds: float, holds: Callable[[], bool]) -> None:
    """Wait, for a bounded time, for something that no event tells."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - a counter, no event reports it
            await asyncio.sleep(0.002)


async def wait_for(updates: AsyncIterator[OtUpdate], lane: LaneId, watermark_us: int) -> list[int]:
    """The watermarks of a lane, up to the awaited one."""
    seen = []
    async with asyncio.timeout(WAIT_S):
        while True:
            update = await anext(updates)
            if update.key == lane.key:
                seen.append(update.entry.watermark_us)
                if update.entry.watermark_us >= watermark_us:
                    return seen


async def flush(store: OtStore) -> None:
    async with asyncio.timeout(WAIT_S):
        await store.flush()


async def test_what_is_published_is_there(broker: Broker) -> None:
    async with broker.open() as stores:
        store = await stores.store("clean")
        assert store.vertex == "clean"
        assert await store.get_all() == {}
        store.publish(LANE, entry(5, idle=True))
        store.publish(OTHER_LANE, entry(7, ended=True))
        await flush(store)
        found = await store.get_all()
        assert {key: (u.entry.watermark_us, u.entry.idle, u.entry.ended) for key, u in found.items()} == {
            LANE.key: (5, True, False),
            OTHER_LANE.key: (7, False, True),
        }
        assert await stores.store("clean") is store


async def test_a_watch_begins_with_what_is_stored_and_goes_on(broker: Broker) -> None:
    async with broker.open() as upstream, broker.open() as downstream:
        store = await upstream.store("clean")
        store.publish(LANE, entry(5))
        await flush(store)
        async with (await downstream.store("clean")).watch() as updates:
            assert await wait_for(updates, LANE, 5) == [5]
            store.publish(LANE, entry(6))
            assert await wait_for(updates, LANE, 6) == [6]


async def test_two_watches_do_not_take_from_each_other(broker: Broker) -> None:
    async with broker.open() as stores:
        store = await stores.store("clean")
        async with store.watch() as one, store.watch() as two:
            store.publish(LANE, entry(6))
            assert await wait_for(one, LANE, 6) == [6]
            assert await wait_for(two, LANE, 6) == [6]


async def test_the_first_goes_out_at_once_and_the_newest_of_the_rest_at_the_interval(broker: Broker) -> None:
    async with broker.open(publish_interval_s=3600) as stores:
        store = await stores.store("clean")
        async with store.watch() as updates:
            store.publish(LANE, entry(1))
            assert await wait_for(updates, LANE, 1) == [1]
            await within(WAIT_S, lambda: store.statistics().published == 1)
            for watermark_us in (2, 3, 4):
                store.publish(LANE, entry(watermark_us))
            # Another lane has an interval of its own.
            store.publish(OTHER_LANE, entry(9))
            assert await wait_for(updates, OTHER_LANE, 9) == [9]
            assert (await store.get_all())[LANE.key].entry.watermark_us == 1
            await flush(store)
            assert await wait_for(updates, LANE, 4) == [4]
        assert store.statistics().coalesced == 2
        assert store.statistics().published == 3


async def test_publishing_never_waits_and_never_reorders(broker: Broker) -> None:
    async with broker.open(publish_interval_s=0.001) as stores:
        store = await stores.store("clean")
        async with store.watch() as updates:
            for watermark_us in range(1, 301):
                store.publish(LANE, entry(watermark_us))
                if watermark_us % 10 == 0:
                    await asyncio.sleep(0)
            seen = await wait_for(updates, LANE, 300)
        assert seen == sorted(seen)


@pytest.mark.guarantee("I5")
async def test_a_broker_restart_loses_nothing_and_goes_back_nowhere(broker: Broker) -> None:
    async with broker.open() as stores, broker.open() as watching:
        store = await stores.store("clean")
        store.publish(OTHER_LANE, entry(3))
        store.publish(LANE, entry(5))
        await flush(store)
        async with (await watching.store("clean")).watch() as updates:
            seen = await wait_for(updates, LANE, 5)
            await broker.stop()
            store.publish(LANE, entry(6))
            store.publish(LANE, entry(7))
            await broker.start()
            seen += await wait_for(updates, LANE, 7)
            await flush(store)
            store.publish(LANE, entry(8))
            seen += await wait_for(updates, LANE, 8)
            await flush(store)
        assert seen == sorted(set(seen))
        stored = await store.get_all()
        assert (stored[LANE.key].entry.watermark_us, stored[OTHER_LANE.key].entry.watermark_us) == (8, 3)


@pytest.mark.guarantee("I5")
async def test_an_owner_that_was_replaced_cannot_put_its_entry_over_the_last_one(broker: Broker) -> None:
    async with broker.open() as old, broker.open() as new, broker.open() as reading:
        asleep, awake = await old.store("clean"), await new.store("clean")
        asleep.publish(LANE, entry(5, epoch=1))
        await flush(asleep)
        awake.publish(LANE, entry(50, epoch=2, ended=True))
        await flush(awake)
        asleep.publish(LANE, entry(6, epoch=1))
        await flush(asleep)
        assert asleep.statistics().fenced == 1
        asleep.publish(LANE, entry(7, epoch=1))
        await flush(asleep)
        # A reader that starts only now must find the end, not what the sleeper had to say.
        async with (await reading.store("clean")).watch() as updates:
            assert await wait_for(updates, LANE, 50) == [50]
        # The lane comes back to the process that had lost it.
        asleep.publish(LANE, entry(60, epoch=3))
        await flush(asleep)
        assert (await asleep.get_all())[LANE.key].entry.watermark_us == 60


@pytest.mark.guarantee("I5")
async def test_of_two_owners_of_one_epoch_the_one_behind_takes_no_promise_back(broker: Broker) -> None:
    # A ledger that was set back below an owner that slept gives its epoch out a second time.
    async with broker.open() as old, broker.open() as new:
        asleep, awake = await old.store("clean"), await new.store("clean")
        assert await asleep.take_over(LANE, 1) is None
        asleep.publish(LANE, entry(5, epoch=1))
        await flush(asleep)
        assert await awake.take_over(LANE, 1) is None
        awake.publish(LANE, entry(6, epoch=1))
        await flush(awake)
        asleep.publish(LANE, entry(90, epoch=1, ended=True))
        await flush(asleep)
        awake.publish(LANE, entry(7, epoch=1))
        await flush(awake)
        assert awake.statistics().fenced == 1
        assert (await awake.get_all())[LANE.key].entry.watermark_us == 90


@pytest.mark.guarantee("I5")
async def test_whoever_takes_a_lane_over_keeps_what_was_promised_and_ends_its_owners_promises(broker: Broker) -> None:
    async with broker.open() as old, broker.open() as new:
        asleep, awake = await old.store("clean"), await new.store("clean")
        asleep.publish(LANE, entry(5, epoch=1))
        await flush(asleep)
        found = await awake.take_over(LANE, 2)
        assert found is not None
        assert found.watermark_us == 5
        # The owner before goes on between the takeover and the first entry of its successor.
        asleep.publish(LANE, entry(90, epoch=1))
        await flush(asleep)
        assert asleep.statistics().fenced == 1
        assert (await awake.get_all())[LANE.key].entry.watermark_us == 5
        awake.publish(LANE, entry(6, epoch=2))
        await flush(awake)
        assert (await awake.get_all())[LANE.key].entry.watermark_us == 6


@pytest.mark.guarantee("I5")
async def test_a_lane_without_a_promise_can_be_taken_over(broker: Broker) -> None:
    async with broker.open() as old, broker.open() as new:
        asleep, awake = await old.store("clean"), await new.store("clean")
        found = await awake.take_over(LANE, 2)
        assert found is None
        asleep.publish(LANE, entry(90, epoch=1))
        await flush(asleep)
        assert (await awake.get_all())[LANE.key].entry.watermark_us == START_OF_TIME_US


async def test_promises_of_another_ledgers_lane_are_not_taken_over(broker: Broker) -> None:
    async with broker.open() as stores:
        store = await stores.store("clean")
        store.publish(LANE, entry(5, epoch=3))
        await flush(store)
        assert await store.take_over(LANE, 1) is None
        assert (await store.get_all())[LANE.key].entry.epoch == 3


async def test_a_put_whose_answer_was_lost_does_not_block_the_lane(broker: Broker) -> None:
    async with broker.open() as stores:
        store = await stores.store("clean")
        store.publish(LANE, entry(5))
        await flush(store)
        await broker.lose_answer("clean", LANE, entry(6))
        store.publish(LANE, entry(7))
        await flush(store)
        assert store.statistics().put_failures == 1
        assert store.statistics().last_error == ""
        assert (await store.get_all())[LANE.key].entry.watermark_us == 7


async def test_while_the_broker_is_away_publishing_goes_on_and_reading_says_so(broker: Broker) -> None:
    async with broker.open() as stores:
        store = await stores.store("clean")
        store.publish(LANE, entry(5))
        await flush(store)
        await broker.stop()
        store.publish(LANE, entry(6))
        with pytest.raises(RetryLaterError):
            await store.get_all()
        await within(WAIT_S, lambda: store.statistics().put_failures > 0)
        assert store.statistics().last_error
        await broker.start()
        await flush(store)
        assert (await store.get_all())[LANE.key].entry.watermark_us == 6


async def test_stores_of_other_vertices_and_pipelines_are_apart(broker: Broker) -> None:
    async with broker.open("one") as one, broker.open("two") as two:
        for stores, vertex, watermark_us in ((one, "clean", 1), (one, "sink", 2), (two, "clean", 3)):
            store = await stores.store(vertex)
            store.publish(LANE, entry(watermark_us))
            await flush(store)
        await one.delete()
        assert (await (await two.store("clean")).get_all())[LANE.key].entry.watermark_us == 3
    async with broker.open("one") as again:
        assert await (await again.store("clean")).get_all() == {}
        assert await (await again.store("sink")).get_all() == {}


async def test_one_watch_serves_many_listeners(broker: Broker) -> None:
    class Listener:
        def __init__(self) -> None:
            self.keys: set[str] = set()

        def observe(self, update: OtUpdate) -> None:
            self.keys.add(update.key)

    listeners = [Listener(), Listener()]
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(broker.open())
        store = await stores.store("clean")
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(store, [listener.observe for listener in listeners]))
            store.publish(LANE, entry(1))
            store.publish(OTHER_LANE, entry(1))
            await within(WAIT_S, lambda: all(len(listener.keys) == 2 for listener in listeners))
            following.cancel()


async def test_the_error_of_a_body_comes_out_as_it_is(broker: Broker) -> None:
    """Also when it comes while a put is in progress."""

    async def fail_while_publishing() -> None:
        async with broker.open() as stores:
            store = await stores.store("clean")
            store.publish(LANE, entry(1))
            async with store.watch() as updates:
                await wait_for(updates, LANE, 1)
                raise LookupError

    with pytest.raises(LookupError):
        await fail_while_publishing()


async def test_a_put_that_a_watch_missed_is_read_as_soon_as_it_hears_puts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Redis, the subscription has a connection of its own, which may be lost alone."""
    monkeypatch.setattr(rereads_module, "OT_REREAD_INTERVAL_S", 1e9)
    async with open_redis_server(tmp_path / "redis") as server, open_redis_connection(server.access) as operator:
        broker = RedisBroker(server)
        async with broker.open() as upstream, broker.open() as downstream:
            store, watched = await upstream.store("clean"), await downstream.store("clean")
            async with watched.watch() as updates:
                for watermark_us in range(1, 4):
                    store.publish(LANE, entry(watermark_us))
                    await wait_for(updates, LANE, watermark_us)
                    while not await operator.ask("CLIENT", "KILL", "TYPE", "pubsub"):  # noqa: ASYNC110 - no event reports it
                        await asyncio.sleep(0.01)
