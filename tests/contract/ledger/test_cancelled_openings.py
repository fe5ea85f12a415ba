"""What is cancelled ends, also where the library swallows the cancellation: it came with a result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.buffers.jetstream.server import open_nats_server
from millstream.nats.access import BrokerAccess
from millstream.nats.client import Client, TcpTransport
from millstream.nats.connection import open_connection


async def _cancelled_with_line(access: BrokerAccess, count: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Open a connection, and cancel that when line `count` of the server has come. Whether there were so many."""
    lines = 0
    readline = TcpTransport.readline

    async def cancelling(transport: TcpTransport) -> bytes:
        nonlocal lines
        line: bytes = await readline(transport)  # type: ignore[no-untyped-call]  # as its class is
        lines += 1
        if lines == count:
            opening.cancel()
        return line

    async def open_it() -> None:
        async with open_connection(access, name="test", timeout_s=60):
            pass

    with monkeypatch.context() as patched:
        patched.setattr(TcpTransport, "readline", cancelling)
        opening = asyncio.create_task(open_it())
        done, _ = await asyncio.wait([opening], timeout=30)
        opening.cancel()
        assert done, "it went on"
        assert opening.cancelled() == (lines >= count), opening
    return lines >= count


async def test_a_cancellation_that_comes_with_an_answer_ends_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_nats_server(tmp_path) as server:
        count = 1
        while await _cancelled_with_line(server.access, count, monkeypatch):
            count += 1
    assert count > 2


async def test_no_further_attempt_follows_a_cancellation_that_comes_with_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"not a NATS server\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await _cancelled_with_line(BrokerAccess(f"nats://127.0.0.1:{port}"), 2, monkeypatch)


async def test_a_cancellation_that_comes_with_a_pong_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_nats_server(tmp_path) as server, open_connection(server.access, name="test") as connection:
        answer = Client._process_pong

        async def cancelling(client: Client) -> None:
            await answer(client)
            waiting.cancel()

        monkeypatch.setattr(Client, "_process_pong", cancelling)
        waiting = asyncio.create_task(connection.settled(30))
        await asyncio.wait([waiting], timeout=30)
        assert waiting.cancelled(), waiting
