"""Faults that are not kills, as far as they need no run: the way to the broker, and which disks may be filled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from millstream import codes
from millstream_runner.chaos.faults import refuse_large_disk
from millstream_runner.chaos.lossy_path import LossyPath, open_lossy_path, with_answer_repeated
from tests.support.errors import raises

ANSWER = b'MSG _INBOX.1 1 28\r\n{"stream":"orders","seq":12}\r\n'
OTHER = b"MSG orders.d 2 3\r\nabc\r\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ANSWER, ANSWER + ANSWER),
        (OTHER + ANSWER + OTHER, OTHER + ANSWER + ANSWER + OTHER),
        (OTHER, OTHER),
        (ANSWER[:-4], ANSWER[:-4]),
        (b'MSG a 1 9\r\n{"a": 1}\n\r\n' + ANSWER, b'MSG a 1 9\r\n{"a": 1}\n\r\n' + ANSWER + ANSWER),
    ],
)
def test_a_whole_answer_to_a_commit_is_repeated_and_nothing_else(data: bytes, expected: bytes) -> None:
    assert with_answer_repeated(data) == expected


@asynccontextmanager
async def echo_over_a_path() -> AsyncIterator[tuple[LossyPath, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server that sends back what it gets, and a client that reaches it over a lossy path."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with open_lossy_path(lambda: server.sockets[0].getsockname()[1]) as path:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(path.url.rpartition(":")[2]))
            try:
                yield path, reader, writer
            finally:
                writer.transport.abort()
    finally:
        server.close()
        await server.wait_closed()


async def test_a_path_that_is_stalled_delivers_later_what_was_sent() -> None:
    async with asyncio.timeout(10), echo_over_a_path() as (path, reader, writer):
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        path.stall()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        path.flow()
        assert await reader.readexactly(3) == b"two"
        path.cut()
        assert await reader.read() == b""


async def test_a_path_to_a_server_nobody_knows_closes_the_connection() -> None:
    async with asyncio.timeout(10), open_lossy_path(lambda: None) as path:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(path.url.rpartition(":")[2]))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.transport.abort()


def test_a_disk_that_others_need_is_not_filled(tmp_path: Path) -> None:
    with raises(codes.EXPERIMENT_DISK, match=r"a disk is filled only if it is small|on the same file system as"):
        refuse_large_disk(tmp_path)


def test_a_small_disk_that_others_need_is_not_filled_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("millstream_runner.chaos.faults.SMALL_DISK_BYTES_MAX", 1 << 62)
    assert tmp_path.stat().st_dev == Path(os.environ.get("TMPDIR", "/tmp")).stat().st_dev
    with raises(codes.EXPERIMENT_DISK):
        refuse_large_disk(tmp_path)
