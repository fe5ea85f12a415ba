"""A second socket beside the server's: it carries calls and answers of streams, and gRPC carries everything else.

    client                                           server
      Hello (calls_socket) ──────── gRPC ──────────►
                           ◄─────── gRPC ──────────  Welcome (calls_token)
      the token, calls     ═══ <socket>.calls ═════►
                           ◄═══════════════════════  answers
                           ◄─────── gRPC ──────────  the status of the stream, at its end

For half a megabyte of columns, gRPC takes more processor time than everything else that is done with them; a socket
takes two copies. Above it: the server. Below it: `message_socket`. A connection identifies its stream with a token from
the stream's Welcome. It knows neither gRPC nor the contents of a call.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from millstream_udf.message_socket import MessageSocket

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

    def __init__(self, bytes_max: int, tasks: asyncio.TaskGroup) -> None:
        self._bytes_max = bytes_max
        self._tasks = tasks
        self._expected: dict[bytes, asyncio.Future[MessageSocket]] = {}
        self._unnamed: set[MessageSocket] = set()

    @contextmanager
    def expecting(self) -> Iterator[tuple[bytes, asyncio.Future[MessageSocket]]]:
        """A token for one stream, and the connection that presents it."""
        token = secrets.token_bytes(TOKEN_BYTES)
        arrived: asyncio.Future[MessageSocket] = asyncio.get_running_loop().create_future()
        self._expected[token] = arrived
        try:
            yield token, arrived
        finally:
            self._expected.pop(token, None)
            if arrived.done() and not arrived.cancelled():
                arrived.result().abort()

    def close(self) -> None:
        """Close connections that have not identified their stream."""
        for socket in self._unnamed:
            socket.abort()

    def accept(self) -> MessageSocket:
        """A protocol for a new connection."""
        socket = MessageSocket(self._bytes_max)
        self._tasks.create_task(self._pair(socket))
        return socket

    async def _pair(self, socket: MessageSocket) -> None:
        if len(self._unnamed) >= _CONNECTIONS_MAX:
            socket.abort()
            return
        self._unnamed.add(socket)
        try:
            async with asyncio.timeout(PAIRING_TIMEOUT_S):
                named = await socket.receive()
        except TimeoutError:
            named = None
        finally:
            self._unnamed.discard(socket)
        arrived = self._expected.get(named or b"")
        if arrived is None or arrived.done():
            socket.abort()
        else:
            arrived.set_result(socket)


@asynccontextmanager
async def open_calls_sockets(
    socket: str, bytes_max: int, tasks: asyncio.TaskGroup
) -> AsyncIterator[CallsSockets | None]:
    """Listens beside `socket` until the end of the block. None if the socket cannot be created: then calls use gRPC."""
    path = socket + SUFFIX
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        yield None
        return
    sockets = CallsSockets(bytes_max, tasks)
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
