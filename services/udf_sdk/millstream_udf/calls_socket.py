"""A second socket beside the server's: it carries calls and answers of streams, and gRPC carries everything else.

    client                                           server
      Hello (calls_socket) ──────── gRPC ──────────►
                           ◄─────── gRPC ──────────  Welcome (calls_token)
      the token, calls     ═══ <socket>.calls ═════►
                           ◄═══════════════════════  answers
                           ◄─────── gRPC ──────────  the status of the stream, at its end

For half a megabyte of columns, gRPC takes more processor time than everything else that is done with them; a socket
takes two copies. Above it: the server. Below it: the event loop. A connection identifies its stream with a token from
the stream's Welcome. The token is all that is read here, because calls are read in the function's thread. It does not
know gRPC.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from millstream_udf.message_socket import HEADER_BYTES, AbortableProtocol

SUFFIX = ".calls"
"""Suffix of its path, after that of the server's socket."""
TOKEN_BYTES = 16
PAIRING_TIMEOUT_S = 10.0
"""Maximum time that a stream waits for its client, which connects immediately."""
_CONNECTIONS_MAX = 64
"""Maximum number of connections that have not identified their stream."""
_PATH_BYTES_MAX = 107
"""The kernel's limit on Linux."""


class CallsSockets:
    """Connections by stream. Created by `open_calls_sockets`."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._expected: dict[bytes, asyncio.Future[socket.socket]] = {}
        self._unnamed: set[_Unnamed] = set()

    @contextmanager
    def expecting(self) -> Iterator[tuple[bytes, asyncio.Future[socket.socket]]]:
        """A token for one stream, and the connection that presents it. It is closed at the end, unless the caller has
        detached its file descriptor."""
        token = secrets.token_bytes(TOKEN_BYTES)
        arrived: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._expected[token] = arrived
        try:
            yield token, arrived
        finally:
            self._expected.pop(token, None)
            if arrived.done() and not arrived.cancelled():
                arrived.result().close()

    def close(self) -> None:
        """Close connections that have not identified their stream."""
        for connection in self._unnamed:
            connection.abort()

    def accept(self) -> asyncio.BufferedProtocol:
        """A protocol for a new connection."""
        connection = _Unnamed()
        self._tasks.create_task(self._pair(connection))
        return connection

    async def _pair(self, connection: _Unnamed) -> None:
        if len(self._unnamed) >= _CONNECTIONS_MAX:
            connection.abort()
            return
        self._unnamed.add(connection)
        try:
            async with asyncio.timeout(PAIRING_TIMEOUT_S):
                token = await connection.token
        except TimeoutError:
            token = None
        finally:
            self._unnamed.discard(connection)
        arrived = self._expected.get(token or b"")
        if arrived is not None and not arrived.done():
            try:
                arrived.set_result(connection.copy())
            except OSError as error:
                # Such as too many open files. It must not end the process: the client notices that its connection has
                # ended, and opens another stream.
                print(f"millstream_udf: a connection for calls was refused: {error}", file=sys.stderr)
        connection.abort()


class _Unnamed(AbortableProtocol):
    """A connection up to its token. Nothing after that is read here, because the function's thread reads it."""

    def __init__(self) -> None:
        super().__init__()
        self._read = bytearray(HEADER_BYTES + TOKEN_BYTES)
        self._filled = 0
        self.token: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        """None if the first message is not a token, or if the connection ends before it."""

    def copy(self) -> socket.socket:
        """The connection once more, as a socket of its own, which `abort` does not close."""
        assert self._transport is not None
        connection: socket.socket = self._transport.get_extra_info("socket")
        return socket.socket(fileno=os.dup(connection.fileno()))

    # Called by the event loop

    def connection_lost(self, error: Exception | None) -> None:
        self._found(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._read)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        header, token = self._read[:HEADER_BYTES], self._read[HEADER_BYTES:]
        if self._filled >= HEADER_BYTES and int.from_bytes(header, "little") != TOKEN_BYTES:
            self._found(None)
        elif self._filled == len(self._read):
            self._found(bytes(token))

    def _found(self, token: bytes | None) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.pause_reading()
        if not self.token.done():
            self.token.set_result(token)


@asynccontextmanager
async def open_calls_sockets(served: str, tasks: asyncio.TaskGroup) -> AsyncIterator[CallsSockets | None]:
    """Listens beside the socket `served` until the end of the block. None if there can be no such socket: then calls
    use gRPC."""
    path = served + SUFFIX
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        yield None
        return
    sockets = CallsSockets(tasks)
    try:
        server = await asyncio.get_running_loop().create_unix_server(sockets.accept, path)
    except OSError as error:
        print(
            f"millstream_udf: calls use gRPC, which is slower, because there is no socket at {path}: {error}",
            file=sys.stderr,
        )
        yield None
        return
    try:
        yield sockets
    finally:
        server.close()
        sockets.close()
