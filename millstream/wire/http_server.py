"""An HTTP server for untrusted clients: limited connections, timeouts, and TLS with certificates that may be replaced.

    accept ─► a place left? ─► TLS handshake ─► head in time? ─► the application ─► idle for too long?
                 └─► 429, 503                      └─► 408                              └─► closed

Above it: code that has an aiohttp application, which parses and answers. Below it: a socket that listens. If a client
does not read its answer, the operating system ends the connection, by the user timeout of TCP.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from millstream.background import open_tasks
from millstream.clock import Clock
from millstream.limits import (
    HTTP_ANSWER_TIMEOUT_S,
    HTTP_HEAD_BYTES_MAX,
    HTTP_HEADERS_MAX,
    HTTP_LINGER_TIMEOUT_S,
    HTTP_RETRY_AFTER_S,
)
from millstream.statistics import ListenerStatistics
from millstream.wire.connections import TOO_MANY_OF_CLIENT, ConnectionLimits, Connections, Lease, Refusals

if TYPE_CHECKING:
    from aiohttp.web_server import Server

_ACCEPT_RETRY_S = 0.2
"""Pause before the next attempt to accept, if no descriptor was left."""
_REFUSED_LINGER_S = 1.0
_REFUSED_LINGERING_MAX = 64
"""Refused connections that stay open for a moment, so that the client reads its answer before a reset."""

_NO_HEAD = "no request in time"
_UNREADABLE = "unreadable requests"
_HANDSHAKE = "TLS handshakes"
_DESCRIPTORS = "no file descriptor left"


class HttpServer:
    """A running server, created by `open_http_server`."""

    def __init__(self, connections: Connections, refusals: Refusals) -> None:
        self.connections = connections
        self.refusals = refusals

    def statistics(self) -> ListenerStatistics:
        return ListenerStatistics(self.connections.count, dict(self.refusals.counts))


@asynccontextmanager
async def open_http_server(
    application: web.Application,
    listener: socket.socket,
    limits: ConnectionLimits,
    *,
    where: str,
    clock: Clock,
    tls: Callable[[], ssl.SSLContext] | None = None,
    shutdown_timeout_s: float,
    closing: Callable[[], None] = lambda: None,
) -> AsyncIterator[HttpServer]:
    """Serve on a non-blocking listening socket, which the caller has to close.

    `where` names the listener in messages; `tls` returns the context for the next connection; `closing` is called when
    the server no longer accepts connections, before it waits for the answers in progress. The server uses at most half
    of the descriptors that this process may open.
    """
    limits = limits.fitting(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    server = HttpServer(Connections(limits), Refusals(where, clock))
    application.middlewares.append(_note_begun)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=shutdown_timeout_s)
    await runner.setup()
    try:
        async with open_tasks() as tasks:
            accepting = _Accepting(server, listener, limits, cast("Server", runner.server), tls)
            task = tasks.create_task(accepting.run(tasks), name=f"accept {where}")
            try:
                yield server
            finally:
                task.cancel()
                accepting.stop()
    finally:
        closing()
        await runner.cleanup()


@web.middleware
async def _note_begun(request: web.Request, handler: Handler) -> web.StreamResponse:
    if isinstance(request.protocol, _Connection):
        request.protocol.begun()
    return await handler(request)


class _Accepting:
    """Accepts connections, or refuses them."""

    def __init__(
        self,
        server: HttpServer,
        listener: socket.socket,
        limits: ConnectionLimits,
        manager: Server,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._server = server
        self._listener = listener
        self._limits = limits
        self._manager = manager
        self._tls = tls
        self._lingering: dict[socket.socket, asyncio.Handle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        """Tasks of connections that are not served yet."""
        self._unopened: set[socket.socket] = set()
        """Accepted sockets whose task has not started yet."""

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError as error:
                # No descriptor is left, or the client has already disconnected.
                self._server.refusals.note(f"{_DESCRIPTORS} ({error.strerror})")
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            place = self._server.connections.admit(address[0])
            if isinstance(place, str):
                self._server.refusals.note(place, address[0])
                self._refuse(accepted, place)
                continue
            serving = tasks.create_task(self._serve(accepted, place), name=f"connection from {address[0]}")
            self._unopened.add(accepted)
            self._opening.add(serving)
            serving.add_done_callback(self._opening.discard)

    def stop(self) -> None:
        """Close all connections that are not served yet, and refused ones that are still open."""
        for serving in self._opening:
            serving.cancel()
        for accepted in self._unopened:
            accepted.close()
        for accepted in list(self._lingering):
            self._close(accepted)

    async def _serve(self, accepted: socket.socket, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        self._unopened.discard(accepted)
        _bound_answers(accepted)
        context = self._tls() if self._tls is not None else None
        seconds = self._limits.head_timeout_s if context is not None else None
        try:
            await loop.connect_accepted_socket(
                lambda: _Connection(self._manager, loop, lease, self._server.refusals, self._limits),
                accepted,
                ssl=context,
                ssl_handshake_timeout=seconds,
            )
        except OSError:
            # This includes TLS errors and timeouts.
            lease.release()
            accepted.close()
            if context is not None:
                self._server.refusals.note(_HANDSHAKE, lease.client)
        except BaseException:
            lease.release()
            raise

    def _refuse(self, accepted: socket.socket, reason: str) -> None:
        """Answer immediately, as far as possible without waiting."""
        status = 429 if reason == TOO_MANY_OF_CLIENT else 503
        with suppress(OSError):
            if self._tls is None:
                accepted.send(_answer(status, f"{reason}; try again", HTTP_RETRY_AFTER_S))
            accepted.shutdown(socket.SHUT_WR)
        if self._tls is not None or len(self._lingering) >= _REFUSED_LINGERING_MAX:
            accepted.close()
            return
        # Closing a socket with unread data resets the connection, possibly before the client has read the answer.
        loop = asyncio.get_running_loop()
        self._lingering[accepted] = loop.call_later(_REFUSED_LINGER_S, self._close, accepted)

    def _close(self, accepted: socket.socket) -> None:
        self._lingering.pop(accepted).cancel()
        with suppress(OSError):
            accepted.recv(HTTP_HEAD_BYTES_MAX)
        accepted.close()


class _Connection(web.RequestHandler):
    """One connection: aiohttp's parser and answers, with timeouts."""

    __slots__ = ("_head_timer", "_lease", "_refusals", "_timeout_s")

    def __init__(
        self,
        manager: Server,
        loop: asyncio.AbstractEventLoop,
        lease: Lease,
        refusals: Refusals,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.idle_timeout_s,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=HTTP_HEAD_BYTES_MAX,
            max_field_size=HTTP_HEAD_BYTES_MAX,
            max_headers=HTTP_HEADERS_MAX,
            lingering_time=HTTP_LINGER_TIMEOUT_S,
            auto_decompress=False,
        )
        self._lease = lease
        self._refusals = refusals
        self._timeout_s = limits.head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._head_timer = asyncio.get_running_loop().call_later(self._timeout_s, self._no_head)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.begun()
        self._lease.release()
        super().connection_lost(exc)

    def begun(self) -> None:
        """Stop the timer: the head of a request has arrived."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _no_head(self) -> None:
        self._refusals.note(_NO_HEAD, self._lease.client)
        if self.transport is not None:
            self.transport.write(_answer(408, f"no request came within {self._timeout_s:g} s"))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that cannot be read, without repeating any of it, and close the connection."""
        if status >= 500:
            logging.getLogger(__name__).error("a request from %s failed", request.remote, exc_info=exc)
        else:
            self._refusals.note(_UNREADABLE, self._lease.client)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has already been sent")
        reason = "the request is not valid HTTP" if status < 500 else http.HTTPStatus(status).phrase
        response = web.json_response({"error": reason}, status=status)
        response.force_close()
        return response


def _bound_answers(accepted: socket.socket) -> None:
    """Let the operating system end a connection whose client does not read its answers."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, option, round(HTTP_ANSWER_TIMEOUT_S * 1000))


def _answer(status: int, reason: str, retry_after_s: int | None = None) -> bytes:
    """A complete answer, after which the connection is closed."""
    body = json.dumps({"error": reason}).encode()
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {retry_after_s}")
    return "\r\n".join((*lines, "", "")).encode() + body
