"""A cluster of brokers, in which the operator says how many copies a stream has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from millstream.buffers.jetstream.server import find_nats_server
from millstream.buffers.jetstream.technology import TECHNOLOGY
from millstream.ledger.protocol import DurabilityLevel, LedgerLimits
from millstream.limits import MESSAGE_BYTES_MAX, MIB
from millstream.nats.access import BrokerAccess
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection, open_connection
from millstream.ports import free_ports
from tests.support.children import started

pytestmark = pytest.mark.asyncio

SERVERS = 3
STREAMS = ("p-v", "KV_p-v-OT")
"""The ledger of a vertex and its OT store."""


@asynccontextmanager
async def open_cluster(directory: Path) -> AsyncIterator[BrokerAccess]:
    """Servers that know each other."""
    first = free_ports(2 * SERVERS)
    clients, routes = range(first, first + SERVERS), range(first + SERVERS, first + 2 * SERVERS)
    async with AsyncExitStack() as stack:
        for number in range(SERVERS):
            config = directory / f"{number}.conf"
            settings = {
                "server_name": f"n{number}",
                "listen": f"127.0.0.1:{clients[number]}",
                "max_payload": MESSAGE_BYTES_MAX,
                "jetstream": {"store_dir": str(directory / f"store{number}"), "sync_interval": "always"},
                "cluster": {
                    "name": "c",
                    "listen": f"127.0.0.1:{routes[number]}",
                    "routes": [f"nats://127.0.0.1:{port}" for port in routes],
                },
            }
            config.write_text(json.dumps(settings))
            log = config.with_suffix(".log")
            await stack.enter_async_context(started(find_nats_server(), "-c", config, "-l", log))
        yield BrokerAccess(",".join(f"nats://127.0.0.1:{port}" for port in clients))


async def open_once(access: BrokerAccess, limits: LedgerLimits) -> None:
    """What a vertex opens."""
    opening = TECHNOLOGY.open(access, "p", name="test", require=DurabilityLevel.UNVERIFIED)
    async with opening as buffer:
        await buffer.broker.ledger("v", limits)
        await buffer.stores.store("v")


async def copies(connection: BrokerConnection) -> list[int]:
    return [(await connection.api(f"STREAM.INFO.{name}"))["config"]["num_replicas"] for name in STREAMS]


async def until_it_answers(connection: BrokerConnection) -> None:
    """The servers elect a leader first."""
    while True:
        try:
            await connection.api("STREAM.LIST", {})
        except (AnswerLostError, ApiError):
            await asyncio.sleep(0.1)
        else:
            return


async def test_streams_keep_the_number_of_copies_that_the_operator_has_set(tmp_path: Path) -> None:
    limits = LedgerLimits(frames_per_buffer_max=100, bytes_max=64 * MIB)
    async with asyncio.timeout(60), open_cluster(tmp_path) as access, open_connection(access) as connection:
        await until_it_answers(connection)
        await open_once(access, limits)
        assert await copies(connection) == [1, 1]
        for name in STREAMS:
            config = (await connection.api(f"STREAM.INFO.{name}"))["config"]
            await connection.api(f"STREAM.UPDATE.{name}", {**config, "num_replicas": SERVERS})
        await open_once(access, limits)
        assert await copies(connection) == [SERVERS, SERVERS]
        # A stream that has to change for another reason keeps it, too.
        await open_once(access, LedgerLimits(frames_per_buffer_max=200, bytes_max=64 * MIB))
        changed = (await connection.api(f"STREAM.INFO.{STREAMS[0]}"))["config"]
        assert (changed["max_msgs_per_subject"], changed["num_replicas"]) == (200, SERVERS)
