"""Accepts connections of untrusted clients, or refuses them before a byte of theirs is read.

    accept ─► a place left? ─► TLS handshake ─► the protocol of the connection
                 └─► 429, 503

Above it: HTTP servers. Below it: a socket that listens. If a client does not read its answer, the operating system ends
the connection, by the user timeout of TCP. It imports no HTTP server, because some processes only answer probes.
"""

from __future__ import annotations

import asyncio
import http
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from millstream.limits import HTTP_ANSWER_TIMEOUT_S, HTTP_HEAD_BYTES_MAX, HTTP_RETRY_AFTER_S
from millstream.wire.connections import TOO_MANY_OF_CLIENT, ConnectionLimits, Connections, Lease, Refusals

NO_HEAD = "no request in time"
UNREADABLE = "unreadable requests"

_ACCEPT_RETRY_S = 0.2
"""Pause before the next attempt to accept, if no descriptor was left."""
_REFUSED_LINGER_S = 1.0
_REFUSED_LINGERING_MAX = 64
"""Refused connections that stay open for a moment, so that the client reads its answer before a reset."""
_HANDSHAKE = "TLS handshakes"
_DESCRIPTORS = "no file descriptor left"
STOPPING = "stopping"
_FINISH_S = 1.0
"""Time limit for TLS handshakes in progress when the server stops."""


class Accepting:
    """Accepts connections, or refuses them."""

    def __init__(
        self,
        listener: socket.socket,
        limits: ConnectionLimits,
        connections: Connections,
        refusals: Refusals,
        protocol: Callable[[Lease], asyncio.BaseProtocol],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`protocol` serves a connection with a slot, and releases the slot when the connection is lost; it sets the
        slot's `give_way`. `tls` returns the context for the next connection."""
        self._listener = listener
        self._limits = limits
        self._connections = connections
        self._refusals = refusals
        self._protocol = protocol
        self._tls = tls
        self._lingering: dict[socket.socket, asyncio.Handle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        """Tasks of connections that are not served yet."""
        self._unopened: set[socket.socket] = set()
        """Accepted sockets whose task has not started yet."""

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                accepted, address = await self._accepted()
            except OSError as error:
                # No descriptor is left, or the client has already disconnected.
                self._refusals.note(f"{_DESCRIPTORS} ({error.strerror})")
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            place = self._connections.admit(address[0])
            if isinstance(place, str):
                self._refusals.note(place, address[0])
                self._refuse(accepted, place)
                continue
            serving = tasks.create_task(self._serve(accepted, place), name=f"connection from {address[0]}")
            place.give_way = partial(self._abandon, serving, accepted, place)
            self._unopened.add(accepted)
            self._opening.add(serving)
            serving.add_done_callback(self._opening.discard)

    def _abandon(self, serving: asyncio.Task[None], accepted: socket.socket, lease: Lease, reason: str) -> None:
        """End a connection that is not served yet."""
        self._refusals.note(reason, lease.client)
        serving.cancel()
        if accepted in self._unopened:
            # Its task will never run.
            self._unopened.discard(accepted)
            accepted.close()

    async def _accepted(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection. A call that is cancelled has accepted none, unlike the event loop's own method."""
        loop = asyncio.get_running_loop()
        while True:
            # Other tasks run between two connections, however many wait.
            await asyncio.sleep(0)
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                readable = loop.create_future()
                loop.add_reader(self._listener, _set, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(self._listener)
            else:
                accepted.setblocking(False)
                return accepted, address

    async def finish(self) -> None:
        """Answer the connections that still wait to be accepted, and let accepted ones be served. After it, the
        listening socket is closed, so that clients are refused instead of waiting. `run` has to be cancelled before."""
        with suppress(OSError):
            # The last attempt finds none.
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                self._refuse(accepted, STOPPING)
        self._listener.close()
        if self._opening:
            # To cancel one of them would close a connection whose request may have been read already.
            await asyncio.wait(self._opening, timeout=_FINISH_S)

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
                lambda: self._protocol(lease),
                accepted,
                ssl=context,
                ssl_handshake_timeout=seconds,
            )
        except OSError:
            # This includes TLS errors and timeouts.
            lease.release()
            accepted.close()
            if context is not None:
                self._refusals.note(_HANDSHAKE, lease.client)
        except BaseException:
            lease.release()
            raise

    def _refuse(self, accepted: socket.socket, reason: str) -> None:
        """Answer immediately, as far as possible without waiting."""
        status = 429 if reason == TOO_MANY_OF_CLIENT else 503
        with suppress(OSError):
            if self._tls is None:
                accepted.send(refusal(status, f"{reason}; try again", HTTP_RETRY_AFTER_S))
            accepted.shutdown(socket.SHUT_WR)
        if self._tls is not None or len(self._lingering) >= _REFUSED_LINGERING_MAX:
            accepted.close()
            return
        # Closing a socket with unread data resets the connection, possibly before the client has read the answer.
        self._lingering[accepted] = asyncio.get_running_loop().call_later(_REFUSED_LINGER_S, self._close, accepted)

    def _close(self, accepted: socket.socket) -> None:
        self._lingering.pop(accepted).cancel()
        with suppress(OSError):
            accepted.recv(HTTP_HEAD_BYTES_MAX)
        accepted.close()


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _bound_answers(accepted: socket.socket) -> None:
    """Let the operating system end a connection whose client does not read its answers."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, option, round(HTTP_ANSWER_TIMEOUT_S * 1000))


def refusal(status: int, reason: str, retry_after_s: int | None = None) -> bytes:
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
