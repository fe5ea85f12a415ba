"""What `DirectClient` does itself looks to the server, and to those above it, as what the library does."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from millstream.nats.access import BrokerAccess
from millstream.nats.client import Client, Msg, nats_errors
from millstream.nats.connection import open_connection
from tests.nats_process import open_nats_process

LIMIT_S = 60.0
HEADERS = (
    {"Name": "value"},
    {"A-Name": "a:value: with colons", "Another": "", "X!#$%&'*+-.^_`|~": "  spaces around  "},
    {"Utf": "ä\u00a0— 界 \u00a0", "Tab": "\tone\ttwo\t"},
    {"Broken": "two\r\nlines: of it"},
)


async def test_headers_arrive_as_the_library_sends_and_reads_them(tmp_path: Path) -> None:
    async with open_nats_process(tmp_path) as server, open_connection(BrokerAccess(server.url)) as connection:
        library = Client()
        await library.connect(server.url)
        try:
            came: asyncio.Queue[Msg] = asyncio.Queue()
            await connection.client.listen("to.>", came.put_nowait)
            theirs = await library.subscribe("to.>")
            await connection.client.flush()
            # Its first ping overtakes what it has buffered.
            for _ in range(2):
                await library.flush()
            for number, headers in enumerate(HEADERS):
                for publish in (connection.publish, library.publish):
                    await publish(f"to.{number}", b"payload", headers=headers, reply="answer")
                    read, known = await asyncio.wait_for(came.get(), LIMIT_S), await theirs.next_msg(LIMIT_S)
                    assert (read.subject, read.reply, read.data) == (f"to.{number}", "answer", b"payload")
                    assert read.headers == known.headers
                    assert set(read.headers or {}) == set(headers)
        finally:
            await library.close()


async def test_a_flush_waits_for_what_is_buffered_too(tmp_path: Path) -> None:
    """The library's does not: its ping overtakes the buffer, and a subscription that was flushed misses messages."""
    came: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        open_nats_process(tmp_path) as server,
        open_connection(BrokerAccess(server.url)) as connection,
        open_connection(BrokerAccess(server.url)) as other,
    ):
        for _ in range(10):
            for _ in range(16):
                await connection.client.publish("elsewhere", bytes(1 << 19))
            subscription = await connection.client.listen("to", lambda message: came.put_nowait(message.data))
            await connection.client.flush()
            await other.publish("to", b"at once")
            assert await asyncio.wait_for(came.get(), LIMIT_S) == b"at once"
            await subscription.unsubscribe()


async def test_long_header_names_arrive_and_are_not_kept(tmp_path: Path) -> None:
    """Header names of any size come from any publisher."""
    size, messages = 16 * 1024, 100
    async with open_nats_process(tmp_path) as server, open_connection(BrokerAccess(server.url)) as connection:
        came: asyncio.Queue[set[str]] = asyncio.Queue()
        await connection.client.listen("to", lambda message: came.put_nowait(set(message.headers or {})))

        async def exchange(name: str) -> None:
            await connection.publish("to", b"", {name: "value"})
            assert await asyncio.wait_for(came.get(), LIMIT_S) == {name}

        await exchange("Name")
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(messages):
                await exchange(f"{number:0{size}}")
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < size * messages / 4


@pytest.mark.parametrize("subject", ["", "two words", "a\r\nPUB other  0\r\n\r\n"])
async def test_what_the_library_refuses_is_refused(tmp_path: Path, subject: str) -> None:
    async with open_nats_process(tmp_path) as server, open_connection(BrokerAccess(server.url)) as connection:
        with pytest.raises(nats_errors.BadSubjectError):
            await connection.publish(subject, b"")
        with pytest.raises(nats_errors.BadSubjectError):
            await connection.publish("to", b"", reply="two words")
        with pytest.raises(nats_errors.BadHeaderError):
            await connection.publish("to", b"", {"a name": "value"})
        with pytest.raises(nats_errors.MaxPayloadError):
            await connection.publish("to", bytes(connection.client.max_payload + 1))


async def test_messages_of_all_sizes_keep_their_order(tmp_path: Path) -> None:
    """More at once than a socket takes: some go through the library's buffer."""
    async with open_nats_process(tmp_path) as server, open_connection(BrokerAccess(server.url)) as connection:
        payloads = [bytes([number]) * size for number, size in enumerate([10, 900_000, 0, 20_000, 300_000] * 8)]
        came: asyncio.Queue[bytes] = asyncio.Queue()
        await connection.client.listen("to", lambda message: came.put_nowait(message.data))
        for number, payload in enumerate(payloads):
            await connection.publish("to", payload, {"Number": str(number)} if number % 2 else None)
        async with asyncio.timeout(LIMIT_S):
            assert [await came.get() for _ in payloads] == payloads


async def test_a_listener_that_fails_is_called_again_and_others_are(tmp_path: Path) -> None:
    async with open_nats_process(tmp_path) as server, open_connection(BrokerAccess(server.url)) as connection:
        came: asyncio.Queue[bytes] = asyncio.Queue()

        def hear(message: Msg) -> None:
            came.put_nowait(message.data)
            raise ValueError("a listener's fault")

        await connection.client.listen("one", hear)
        subscription = await connection.client.listen("two", lambda message: came.put_nowait(message.data))
        for number in range(3):
            await connection.publish("one", b"%d" % number)
            await connection.publish("two", b"%d" % number)
        async with asyncio.timeout(LIMIT_S):
            assert [await came.get() for _ in range(6)] == [b"0", b"0", b"1", b"1", b"2", b"2"]
        await subscription.unsubscribe()
        await connection.publish("two", b"not heard")
        await connection.publish("one", b"heard")
        async with asyncio.timeout(LIMIT_S):
            assert await came.get() == b"heard"
