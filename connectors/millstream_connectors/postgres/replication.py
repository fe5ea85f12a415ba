"""A connection for logical replication from PostgreSQL, with its streaming protocol.

    open_replication ─► login by asyncpg ─► the transport is ours ─► ask, start
    start ─► take: messages of the output plugin, and the server's position ─► confirm: our position

asyncpg supports all of PostgreSQL's protocol except this part. So asyncpg logs in, with TLS and all kinds of passwords,
and this module handles what follows: a command, rows, and messages in both directions. Above it: sources. Below it: a
transport.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import asyncpg

from millstream.limits import POSTGRES_PREFETCH_BYTES
from millstream_connectors.postgres.client import Login
from millstream_connectors.postgres.settings import PostgresCdc

_HEAD_BYTES = 5
_DATA_HEAD_BYTES = 25
_EPOCH_US = 946_684_800_000_000
_ERROR, _ROW, _DONE, _READY, _BOTH, _DATA = b"EDCZWd"
_ENDS = b"c"[0]
_SENT, _ALIVE = b"wk"


class ServerPosition(NamedTuple):
    """The server has sent everything that was committed before this position."""

    lsn: int


class Replication(asyncio.Protocol):
    """One connection. Its methods raise what asyncpg raises."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._transport = cast("asyncio.Transport", cast("Any", connection)._transport)
        self._bytes = bytearray()
        self._arrived = asyncio.Event()
        self._lost: Exception | None = None
        self.is_asked = False
        """Whether the server asks for a reply."""
        self.server_lsn = 0
        """How far the server's log was at its last message."""
        self._transport.set_protocol(self)

    # Called by asyncio

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        self._arrived.set()
        if len(self._bytes) > POSTGRES_PREFETCH_BYTES:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionResetError("the server closed the connection")
        self._arrived.set()

    # Called by a lane

    @property
    def is_closed(self) -> bool:
        return self._lost is not None

    async def ask(self, command: str) -> list[tuple[str | None, ...]]:
        """The rows of the answer to a command."""
        return await self._answer(command, _READY)

    async def start(self, slot: str, lsn: int, publication: str) -> None:
        """Start to receive changes that were committed at `lsn` or later."""
        names = publication.replace('"', '""').replace("'", "''")
        options = f"proto_version '1', publication_names '\"{names}\"'"
        await self._answer(f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(lsn)} ({options})", _BOTH)

    async def take(self, timeout_s: float) -> Sequence[bytes | ServerPosition]:
        """What has arrived, in order: messages of the plugin, and the server's position. Empty after the timeout."""
        await self._wait(timeout_s)
        taken: list[bytes | ServerPosition] = []
        for kind, body in self._messages():
            if kind == _ENDS:
                raise ConnectionResetError("the server has ended replication")
            if kind != _DATA:
                continue
            if body[0] == _SENT:
                self.server_lsn = int.from_bytes(body[9:17], "big")
                taken.append(body[_DATA_HEAD_BYTES:])
            elif body[0] == _ALIVE:
                self.server_lsn = int.from_bytes(body[1:9], "big")
                taken.append(ServerPosition(self.server_lsn))
                self.is_asked |= bool(body[17])
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return taken

    def confirm(self, lsn: int, *, asks: bool = False) -> None:
        """Tell the server that changes committed before `lsn` are not needed any more. `asks`: request the server's
        position."""
        self._write(b"d", struct.pack("!cQQQqB", b"r", lsn, lsn, lsn, time.time_ns() // 1000 - _EPOCH_US, asks))
        self.is_asked = False

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()
        self._connection.terminate()

    def _write(self, kind: bytes, body: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(kind + struct.pack("!I", len(body) + 4) + body)

    async def _answer(self, command: str, until: int) -> list[tuple[str | None, ...]]:
        """The rows of the answer to a command, which ends with a message of the kind `until`."""
        self._write(b"Q", command.encode() + b"\0")
        rows: list[tuple[str | None, ...]] = []
        while True:
            for kind, body in self._messages(until):
                if kind == _ROW:
                    rows.append(_fields(body))
                elif kind == until:
                    return rows
            await self._wait(None)

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until something has arrived. Raises if nothing will."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        if self._lost is None:
            self._arrived.clear()
        elif not self._bytes:
            raise self._lost

    def _messages(self, until: int = 0) -> list[tuple[int, bytes]]:
        """Complete messages that have arrived, up to one of the kind `until`."""
        found: list[tuple[int, bytes]] = []
        at, size = 0, len(self._bytes)
        if size < _HEAD_BYTES or size <= int.from_bytes(self._bytes[1:_HEAD_BYTES], "big"):
            # No message is complete, and a large one is not copied for each of its parts.
            if self._lost is not None:
                self._bytes.clear()
            return found
        data = bytes(self._bytes)
        while size - at >= _HEAD_BYTES:
            kind, end = data[at], at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > size:
                break
            if kind == _ERROR:
                del self._bytes[:end]
                raise _error(data[at + _HEAD_BYTES : end])
            found.append((kind, data[at + _HEAD_BYTES : end]))
            at = end
            if kind == until:
                break
        del self._bytes[:at]
        if self._bytes and at and until:
            self._arrived.set()
        return found


@dataclass(frozen=True, slots=True)
class CdcLogin(Login):
    """As whom a lane connects that reads changes, and which."""

    cdc: PostgresCdc

    async def open_replication(self) -> Replication:
        """A connection for replication. Raises Millstream errors."""
        return Replication(await self.connect(replicates=True))


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The inverse of `lsn_text`. Raises `ValueError`."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def _fields(body: bytes) -> tuple[str | None, ...]:
    found: list[str | None] = []
    at = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        found.append(None if size < 0 else body[at : at + size].decode("utf-8", "backslashreplace"))
        at += max(size, 0)
    return tuple(found)


def _error(body: bytes) -> Exception:
    """The server's error, as asyncpg would raise it."""
    fields = {part[:1].decode(): part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    return cast("Exception", asyncpg.exceptions.PostgresError.new(fields))
