"""Messages from a NATS server: the same as with the library's own reader and parser, wherever the data are cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from millstream.nats.client import nats_errors
from millstream.nats.client import parser as library
from millstream.nats.incoming import UNREAD_BYTES, PieceParser, PieceReader

LIMIT_S = 60.0
HEADERS = b"NATS/1.0\r\nName: value\r\n\r\n"


class Heard:
    """What a parser tells its client."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.calls.append((sid, bytes(subject), bytes(reply), data, headers))

    async def _process_err(self, text: str) -> None:
        self.calls.append(("error", text))

    async def _process_ping(self) -> None:
        self.calls.append(("ping",))

    async def _process_pong(self) -> None:
        self.calls.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.calls.append(("info", info))


def message(subject: bytes, payload: bytes, headers: bytes = b"", reply: bytes = b"") -> bytes:
    kind, sizes = (
        (b"HMSG", b"%d %d" % (len(headers), len(headers) + len(payload))) if headers else (b"MSG", b"%d" % len(payload))
    )
    return b"%b %b 7 %b%b\r\n%b%b\r\n" % (kind, subject, reply and reply + b" ", sizes, headers, payload)


SENT = [
    message(b"a", b""),
    message(b"a.b", b"MSG a 1 5\r\nhello\r\n", reply=b"answer"),
    message(b"a", b"", HEADERS),
    message(b"a", b"\r\n" * 30, HEADERS, b"$JS.ACK.1.2"),
    message(b"a", b"x" * 3000, HEADERS, b"5"),
    message(b"a", b"y" * 700),
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b"-ERR 'Permissions Violation'\r\n",
    b'INFO {"a": 1}\r\n',
]


async def heard(kind: type[library.Parser], pieces: list[bytes]) -> list[tuple[Any, ...]]:
    told = Heard()
    parser = kind(told)
    for piece in pieces:
        await parser.parse(piece)
    return told.calls


def cut(data: bytes, rng: random.Random, most: int) -> list[bytes]:
    pieces = []
    while data:
        size = rng.randint(1, most)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 3, 40, 1000, 5000])
async def test_messages_are_those_of_the_library(most: int) -> None:
    rng = random.Random(most)
    for _ in range(20):
        sent = [rng.choice(SENT) for _ in range(12)]
        pieces = cut(b"".join(sent), rng, most)
        told = await heard(PieceParser, pieces)
        assert told == await heard(library.Parser, pieces)
        assert len(told) == sum(not part.startswith(b"+OK") for part in sent)


class Listening(Heard):
    """A client that has a listener for most messages."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.at_once = 0
        self.errors: list[Exception] = []

    def hear(self, sid: int, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bool:
        if self._rng.random() < 0.2:
            return False
        self.at_once += 1
        self.calls.append((sid, subject, reply, data, headers or None))
        if self._rng.random() < 0.2:
            raise ValueError(self.at_once)
        return True

    async def _error_cb(self, error: Exception) -> None:
        self.errors.append(error)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 40, 1000, 20_000])
async def test_messages_that_are_taken_at_once_are_the_same_in_the_same_order(most: int) -> None:
    rng = random.Random(most)
    at_once = failed = 0
    for _ in range(40):
        pieces = cut(b"".join(rng.choice(SENT) for _ in range(12)), rng, most)
        client = Listening(rng)
        parser = PieceParser(client)
        for piece in pieces:
            rest = parser.take(piece)
            if rest is not None:
                await parser.parse(rest)
        assert client.calls == await heard(library.Parser, pieces)
        at_once += client.at_once
        failed += len(client.errors)
    assert (at_once > 0) == (failed > 0) == (most > 1)


async def test_what_is_no_message_is_refused_as_by_the_library() -> None:
    for kind in (library.Parser, PieceParser):
        with pytest.raises(nats_errors.ProtocolError):
            await heard(kind, [SENT[1] + b"what is this\r\n"])


async def test_nothing_of_a_lost_connection_is_heard_after_a_reset() -> None:
    class Resetting(Heard):
        async def _process_msg(self, *told: Any) -> None:
            await super()._process_msg(*told)
            parser.reset()

        def hear(self, *told: Any) -> bool:
            self.calls.append(told)
            parser.reset()
            return True

    client = Resetting()
    parser = PieceParser(client)
    assert parser.take(SENT[5] * 3) is None
    assert len(client.calls) == 1
    client.calls.clear()
    await parser.parse(SENT[5] * 3)
    assert len(client.calls) == 1
    await parser.parse(SENT[4][:1000])
    parser.reset()
    await parser.parse(SENT[5])
    assert [len(data) for _, _, _, data, _ in client.calls] == [700, 700]


@contextlib.asynccontextmanager
async def connected(data: bytes) -> Any:
    """A reader of a socket to which a server writes."""

    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(write, "127.0.0.1", 0) as server:
        loop = asyncio.get_running_loop()
        reader = PieceReader(loop)
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), *server.sockets[0].getsockname()
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                yield reader
        finally:
            transport.abort()


async def test_lines_come_first_and_then_pieces() -> None:
    data = random.Random(1).randbytes(3_000_000)
    async with connected(b"one\r\ntwo\r\n" + data) as reader:
        assert [await reader.readline() for _ in range(2)] == [b"one\r\n", b"two\r\n"]
        read = bytearray()
        while piece := await reader.read(10):
            assert not reader.at_eof() or len(read) + len(piece) == len(data)
            read += piece
        assert read == data
        assert reader.at_eof()


async def test_what_nobody_reads_stays_in_the_socket() -> None:
    data = bytes(32 * UNREAD_BYTES)
    async with connected(data) as reader:
        size = len(await reader.read())
        while not reader._paused:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.001)
        assert 2 * UNREAD_BYTES < reader._held < 4 * UNREAD_BYTES
        while piece := await reader.read():
            size += len(piece)
            assert reader._held < 4 * UNREAD_BYTES
        assert size == len(data)


async def test_a_lost_connection_ends_a_read() -> None:
    async with connected(b"") as reader:
        assert await reader.read() == b""
        reader.set_exception(ConnectionResetError())
        with pytest.raises(ConnectionResetError):
            await reader.read()
