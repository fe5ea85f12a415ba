"""What only the JetStream store has to get right: other people's buckets, damage, size, a frozen server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes, limits
from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.nats.connection import BrokerConnection, open_connection
from millstream.record import LaneId
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from tests.support.errors import raises

pytestmark = pytest.mark.asyncio

LANE = LaneId("clean", "in-clean", 0)


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[tuple[NatsServer, BrokerConnection]]:
    async with open_nats_server(directory / "nats") as server, open_connection(server.access) as connection:
        yield server, connection


async def test_a_bucket_that_belongs_to_another_pipeline_is_not_used(tmp_path: Path) -> None:
    async with (
        connected(tmp_path) as (_, connection),
        open_jetstream_ot_stores(connection, "a-b") as one,
        open_jetstream_ot_stores(connection, "a") as other,
    ):
        await one.store("c")
        with raises(codes.LEDGER_NAME_TAKEN, match="belongs to vertex c of pipeline a-b"):
            await other.store("b-c")
        await other.delete()
        assert await (await one.store("c")).get_all() == {}


async def test_a_bucket_keeps_one_entry_per_lane_on_disk_for_ever(tmp_path: Path) -> None:
    async with (
        connected(tmp_path) as (_, connection),
        open_jetstream_ot_stores(connection, "p", publish_interval_s=0.001) as stores,
    ):
        store = await stores.store("clean")
        for watermark_us in range(20):
            store.publish(LANE, OtEntry(epoch=1, watermark_us=watermark_us))
            await store.flush()
        info = await connection.api("STREAM.INFO.KV_p-clean-OT")
        assert (info["config"]["storage"], info["config"]["max_age"], info["state"]["messages"]) == ("file", 0, 1)


@pytest.mark.guarantee("I10")
async def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, connection), open_jetstream_ot_stores(connection, "p") as stores:
        store = await stores.store("clean")
        async with store.watch() as updates:
            await connection.request("$KV.p-clean-OT.in-clean.0", b"\xff\xff")
            with raises(codes.WATERMARK_UNREADABLE, match=r"in-clean\.0 in bucket p-clean-OT"):
                async with asyncio.timeout(10):
                    await anext(updates)
        with raises(codes.WATERMARK_UNREADABLE, match=r"in-clean\.0"):
            await store.get_all()
        async with store.watch() as updates:
            with raises(codes.WATERMARK_UNREADABLE, match=r"in-clean\.0"):
                async with asyncio.timeout(10):
                    await anext(updates)


async def test_more_lanes_than_one_request_can_ask_for(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, connection), open_jetstream_ot_stores(connection, "p") as stores:
        store = await stores.store("clean")
        lanes = [LaneId("clean", "in-clean", partition) for partition in range(1003)]
        for lane in lanes:
            store.publish(lane, OtEntry(epoch=1, watermark_us=lane.partition))
        async with asyncio.timeout(30):
            await store.flush()
        found = await store.get_all()
        assert {key: update.entry.watermark_us for key, update in found.items()} == {
            lane.key: lane.partition for lane in lanes
        }


async def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    async with (
        connected(tmp_path) as (server, writing),
        open_connection(server.access) as reading,
        open_jetstream_ot_stores(writing, "p", publish_interval_s=0.001) as stores,
        open_jetstream_ot_stores(reading, "p") as others,
    ):
        store, other = await stores.store("clean"), await others.store("clean")
        lanes = [LaneId("clean", "in-clean", partition) for partition in range(100)]
        for lane in lanes:
            store.publish(lane, OtEntry(epoch=1, watermark_us=1))
        await store.flush()
        first = await other.get_all()
        assert len(first) == len(lanes)
        messages = reading.client.stats["in_msgs"]
        assert await other.get_all() == first
        # The newest, to see that it is still there, and the end.
        assert reading.client.stats["in_msgs"] - messages <= 2
        for watermark_us in (2, 3):
            store.publish(lanes[0], OtEntry(epoch=1, watermark_us=watermark_us))
            store.publish(lanes[-1], OtEntry(epoch=1, watermark_us=watermark_us))
            await store.flush()
            found = await other.get_all()
            assert {key for key, update in found.items() if update != first[key]} == {lanes[0].key, lanes[-1].key}
            assert found[lanes[-1].key].entry.watermark_us == watermark_us
        assert reading.client.stats["in_msgs"] - messages < len(lanes) / 2


async def test_a_bucket_that_was_set_back_is_read_as_it_is_now(tmp_path: Path) -> None:
    async with (
        connected(tmp_path) as (_, connection),
        open_jetstream_ot_stores(connection, "p") as stores,
    ):
        store = await stores.store("clean")
        lanes = [LaneId("clean", "in-clean", partition) for partition in range(3)]
        for lane in lanes:
            store.publish(lane, OtEntry(epoch=1, watermark_us=1))
        await store.flush()
        assert len(await store.get_all()) == len(lanes)
        await connection.api("STREAM.DELETE.KV_p-clean-OT")
        await store.create("p")
        assert await store.get_all() == {}
        for lane in lanes[:2]:
            await connection.request(f"$KV.p-clean-OT.{lane.key}", OtEntry(epoch=2).SerializeToString())
        assert {key: update.entry.epoch for key, update in (await store.get_all()).items()} == {
            lane.key: 2 for lane in lanes[:2]
        }
        await store.forget(lanes[0])
        assert set(await store.get_all()) == {lanes[1].key}


async def test_a_server_that_freezes_costs_a_retry_and_no_entry(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, connection), open_jetstream_ot_stores(connection, "p") as stores:
        store = await stores.store("clean")
        store.publish(LANE, OtEntry(epoch=1, watermark_us=1))
        await store.flush()
        server.pause()
        store.publish(LANE, OtEntry(epoch=1, watermark_us=2))
        async with asyncio.timeout(3 * limits.OT_PUT_TIMEOUT_S):
            while not store.statistics().put_failures:  # noqa: ASYNC110 - a counter, no event reports it
                await asyncio.sleep(0.01)
        server.resume()
        async with asyncio.timeout(10):
            await store.flush()
        assert (await store.get_all())[LANE.key].entry.watermark_us == 2
