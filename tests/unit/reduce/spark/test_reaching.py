"""Where a Spark is to be reached, and what is said when it is not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.errors import InfrastructureError
from millstream.ports import free_ports
from millstream_reduce.spark.session import addresses_of, await_server


@pytest.mark.parametrize(
    ("place", "addresses"),
    [
        ("spark://host:7077", [("host", 7077)]),
        ("spark://a:1,b:2", [("a", 1), ("b", 2)]),
        ("spark://host", [("host", 7077)]),
        ("sc://host", [("host", 15002)]),
        ("sc://host:15003/;use_ssl=true;token=a:b", [("host", 15003)]),
        ("k8s://https://host:6443", [("host", 6443)]),
        ("k8s://https://host", [("host", 443)]),
        ("k8s://http://host:8080", [("host", 8080)]),
        ("k8s://host:6443", [("host", 6443)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("yarn", []),
        ("local[2]", []),
    ],
)
def test_addresses(place: str, addresses: list[tuple[str, int]]) -> None:
    assert addresses_of(place) == addresses


async def test_what_refuses_is_named_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    place = f"spark://127.0.0.1:{free_ports()}"
    with pytest.raises(
        InfrastructureError, match=rf"cannot be reached at {place} \(127.0.0.1:\d+: connection refused\)"
    ):
        await await_server(place, wait_s=0.0)
    assert not caplog.records


@pytest.mark.slow
async def test_it_is_waited_for_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    port = free_ports()
    connected = asyncio.Event()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(await_server(f"sc://127.0.0.1:{port}"))
        while not caplog.records:
            assert not waiting.done()
            await asyncio.sleep(0.01)
        async with await asyncio.start_server(connect, "127.0.0.1", port):
            await waiting
            await connected.wait()
    assert [(record.levelno, "trying again" in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]


async def test_one_of_several_masters_is_enough() -> None:
    refused = free_ports()
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await await_server(f"spark://127.0.0.1:{refused},127.0.0.1:{port}", wait_s=0.0)
