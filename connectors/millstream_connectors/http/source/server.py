"""An HTTP server for untrusted clients: limited connections, timeouts, and TLS with certificates that may be replaced.

    accept ─► a place left? ─► TLS handshake ─► head in time? ─► the application ─► idle for too long?
                 └─► 429, 503                      └─► 408                              └─► closed

A connection gives way to a new one until the application says whose it is (`HttpServer.show`).

Above it: code that has an aiohttp application, which parses and answers. Below it: `accepting`.
"""

from __future__ import annotations

import asyncio
import http
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from millstream.background import open_tasks
from millstream.clock import Clock
from millstream.limits import HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX, HTTP_LINGER_TIMEOUT_S, HTTP_RETRY_AFTER_S
from millstream.statistics import ListenerStatistics
from millstream.wire.accepting import NO_HEAD, UNREADABLE, Accepting, refusal
from millstream.wire.connections import TOO_MANY_OF_CLIENT, ConnectionLimits, Connections, Lease, Refusals

if TYPE_CHECKING:
    from aiohttp.web_server import Server


class HttpServer:
    """A server, which runs in `running`."""

    def __init__(self, limits: ConnectionLimits, where: str, clock: Clock) -> None:
        """`where` names it in messages. It uses at most half of the descriptors that this process may open."""
        self._limits = limits.fitting(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._connections = Connections(self._limits)
        self._where = where
        self.refusals = Refusals(where, clock)

    @staticmethod
    def show(request: web.Request, identity: Callable[[], str]) -> bool:
        """The client has shown that it is this sender. Returns False if the sender has too many connections: see
        `Lease.show`. `identity` is called once for each connection."""
        return not isinstance(request.protocol, _Connection) or request.protocol.show(identity)

    def statistics(self) -> ListenerStatistics:
        return ListenerStatistics(self._connections.count, dict(self.refusals.counts))

    @asynccontextmanager
    async def running(
        self,
        application: web.Application,
        listener: socket.socket,
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        shutdown_timeout_s: float,
        closing: Callable[[], None],
    ) -> AsyncIterator[None]:
        """Serve on a non-blocking listening socket, which the caller has to close.

        `tls` returns the context for the next connection; `closing` is called when the server no longer accepts
        connections, before it waits for the answers in progress. At the end, each request that has arrived gets an
        answer, and the socket is closed.
        """
        application.middlewares.append(_note_begun)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=shutdown_timeout_s)
        await runner.setup()
        try:
            async with open_tasks() as tasks:
                loop, manager = asyncio.get_running_loop(), cast("Server", runner.server)

                def connection(lease: Lease) -> asyncio.BaseProtocol:
                    return _Connection(manager, loop, lease, self.refusals, self._limits)

                accepting = Accepting(listener, self._limits, self._connections, self.refusals, connection, tls)
                task = tasks.create_task(accepting.run(tasks), name=f"accept {self._where}")
                try:
                    yield
                finally:
                    task.cancel()
                    await asyncio.wait((task,))
                    # From now on, requests are answered that they come too late.
                    closing()
                    await accepting.finish()
                    accepting.stop()
        finally:
            await runner.cleanup()


@web.middleware
async def _note_begun(request: web.Request, handler: Handler) -> web.StreamResponse:
    if isinstance(request.protocol, _Connection):
        request.protocol.begun()
    return await handler(request)


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
        self._lease.give_way = self._give_way
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

    def show(self, identity: Callable[[], str]) -> bool:
        """See `Lease.show`."""
        return self._lease.sender is not None or self._lease.show(identity())

    def _give_way(self, reason: str) -> None:
        """End a connection whose client has shown nothing: another one needs its slot."""
        self._refusals.note(reason, self._lease.client)
        if self.transport is not None and self._head_timer is not None:
            # Nothing was answered on it, and no answer is in progress.
            status = 429 if reason == TOO_MANY_OF_CLIENT else 503
            self.transport.write(refusal(status, f"{reason}; try again", HTTP_RETRY_AFTER_S))
        self.force_close()

    def _no_head(self) -> None:
        self._refusals.note(NO_HEAD, self._lease.client)
        if self.transport is not None:
            self.transport.write(refusal(408, f"no request came within {self._timeout_s:g} s"))
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
            self._refusals.note(UNREADABLE, self._lease.client)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has already been sent")
        reason = "the request is not valid HTTP" if status < 500 else http.HTTPStatus(status).phrase
        response = web.json_response({"error": reason}, status=status)
        response.force_close()
        return response
