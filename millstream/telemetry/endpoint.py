"""The HTTP endpoint of a process: metrics for Prometheus, and probes for the system that restarts the process.

    /metrics   Prometheus text
    /livez     200 while the event loop runs
    /readyz    200 when the process can do its work, otherwise 503 with the reason

It answers GET requests without an HTTP server: aiohttp's takes 10 MiB of each process that loads it.

    connection ─► head in time? ─► GET or HEAD of a known path ─► answer ─► idle for too long?
                     └─► 408, 431      └─► 400, 404, 405                        └─► closed

Requests of a connection are answered in order, each one when the client has read most of what was written before. A
request with a body is refused.

Above it: `open_telemetry`. Below it: two callbacks, for the metrics and for readiness, and `millstream.wire.accepting`,
which limits connections. It listens on the loopback interface by default. It requires no credentials; docs/telemetry.md
lists what it publishes.
"""

from __future__ import annotations

import asyncio
import http
import logging
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast
from urllib.parse import unquote

from millstream import codes
from millstream.background import beside, open_tasks
from millstream.clock import Clock
from millstream.errors import InfrastructureError
from millstream.limits import (
    HTTP_HEAD_BYTES_MAX,
    HTTP_HEADERS_MAX,
    METRICS_CLIENT_CONNECTIONS_MAX,
    METRICS_CONNECTIONS_MAX,
)
from millstream.wire.accepting import NO_HEAD, UNREADABLE, Accepting, refusal
from millstream.wire.connections import ConnectionLimits, Connections, Lease, Refusals

_log = logging.getLogger(__name__)

_END = b"\r\n\r\n"
_REQUEST = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([!-~]+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_TEXT = "text/plain; charset=utf-8"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def open_endpoint(
    host: str, port: int, metrics_text: Callable[[], bytes], not_ready: Callable[[], str | None], clock: Clock
) -> AsyncIterator[None]:
    """Serves until the context ends. `not_ready` returns the reason why the process is not ready; None when it is.

    Raises `InfrastructureError` if the endpoint cannot listen on the port.
    """

    def readyz() -> Answer:
        reason = not_ready()
        return Answer(b"ok\n") if reason is None else Answer(reason.encode() + b"\n", status=503)

    paths = {
        "/metrics": lambda: Answer(metrics_text(), _METRICS_TYPE),
        "/livez": lambda: Answer(b"ok\n"),
        "/readyz": readyz,
    }
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        # `create_server` puts the address into the error's text.
        code = error.errno or 0
        reason = os.strerror(code) if code > 0 else error.strerror
        raise InfrastructureError(
            codes.PORT_TAKEN,
            f"the metrics endpoint cannot listen on {host}:{port}: {reason}; "
            "choose another port: --metrics-port-base of `millstream run`, --metrics-port of a vertex process",
        ) from error
    limits = ConnectionLimits(METRICS_CONNECTIONS_MAX, METRICS_CLIENT_CONNECTIONS_MAX)
    limits = limits.fitting(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    refusals = Refusals(f"the metrics endpoint on port {port}", clock)
    probes = Probes(paths, limits, refusals)
    with listener:
        listener.setblocking(False)
        accepting = Accepting(listener, limits, Connections(limits), refusals, probes.connection)
        async with open_tasks() as tasks, beside(accepting.run(tasks), f"accept metrics on port {port}"):
            try:
                yield
            finally:
                accepting.stop()
                probes.close()


class Answer(NamedTuple):
    """What is answered to a request."""

    body: bytes
    content_type: str = _TEXT
    status: int = 200


@dataclass(frozen=True, slots=True)
class _Request:
    method: bytes
    path: str
    keeps: bool
    """Whether the client may send another request on this connection."""


class Probes:
    """The connections of one endpoint."""

    def __init__(self, paths: Mapping[str, Callable[[], Answer]], limits: ConnectionLimits, refusals: Refusals) -> None:
        self.paths = paths
        self.limits = limits
        self.refusals = refusals
        self.connections: set[_Connection] = set()

    def connection(self, lease: Lease) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return _Connection(self, lease)

    def close(self) -> None:
        """Close all connections, after what is written to them."""
        for connection in list(self.connections):
            connection.close()


class _Connection(asyncio.Protocol):
    def __init__(self, probes: Probes, lease: Lease) -> None:
        self._probes = probes
        self._lease = lease
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()
        self._answered = False
        self._is_full = False
        """Whether the client has yet to read what was written."""
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _give_way(self, reason: str) -> None:
        """End the connection: a newer one needs its slot. Probes are short, so an old one is silent or idle."""
        self._probes.refusals.note(reason, self._lease.client)
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have their own class.
        self._transport = cast("asyncio.Transport", transport)
        self._probes.connections.add(self)
        self._lease.give_way = self._give_way
        self._wait(self._probes.limits.head_timeout_s)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._probes.connections.discard(self)
        self._lease.release()

    def data_received(self, data: bytes) -> None:
        self._read += data
        self._proceed()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        assert self._transport is not None
        self._is_full = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._proceed()

    def _wait(self, seconds: float) -> None:
        """Give the client this long for the head of its next request."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timeout, seconds)

    def _on_timeout(self, seconds: float) -> None:
        if self._answered and not self._read:
            # An idle client opens another connection when it needs one.
            self.close()
            return
        self._refuse(408, f"no request came within {seconds:g} s", NO_HEAD)

    def _proceed(self) -> None:
        """Answer the requests that have arrived, as far as the client reads the answers."""
        assert self._transport is not None
        while not self._is_full and not self._transport.is_closing():
            if self._read.startswith((b"\r", b"\n")):
                # Some clients send an empty line after a request. It is not the start of another one.
                self._read = self._read.lstrip(b"\r\n")
            end = self._read.find(_END)
            if end > HTTP_HEAD_BYTES_MAX or (end < 0 and len(self._read) > HTTP_HEAD_BYTES_MAX):
                self._refuse(431, f"the head of a request has at most {HTTP_HEAD_BYTES_MAX} bytes", UNREADABLE)
                return
            if end < 0:
                return
            head = bytes(self._read[:end])
            del self._read[: end + len(_END)]
            request = _parsed(head)
            if request is None:
                self._refuse(400, "the request is not valid HTTP, or has a body", UNREADABLE)
                return
            self._answered = True
            self._wait(self._probes.limits.idle_timeout_s)
            self._transport.write(self._answer(request))
            if not request.keeps:
                self._transport.close()

    def _answer(self, request: _Request) -> bytes:
        make = self._probes.paths.get(request.path)
        allow = ""
        if make is None:
            answer = Answer(b"404: Not Found\n", status=404)
        elif request.method not in (b"GET", b"HEAD"):
            answer, allow = Answer(b"405: Method Not Allowed\n", status=405), "Allow: GET, HEAD\r\n"
        else:
            try:
                answer = make()
            except Exception:  # noqa: BLE001 - it is logged
                # One request must not end the process.
                _log.exception("a request for %s failed", request.path)
                answer = Answer(b"500: Internal Server Error\n", status=500)
        head = (
            f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n{allow}"
            f"Connection: {'keep-alive' if request.keeps else 'close'}\r\n\r\n"
        ).encode()
        return head if request.method == b"HEAD" else head + answer.body

    def _refuse(self, status: int, reason: str, counted_as: str) -> None:
        self._probes.refusals.note(counted_as, self._lease.client)
        assert self._transport is not None
        self._read.clear()
        self._transport.write(refusal(status, reason))
        self._transport.close()


def _parsed(head: bytes) -> _Request | None:
    """The request of a head; None if it is not valid, or announces a body."""
    first, *lines = head.split(b"\r\n")
    found = _REQUEST.fullmatch(first)
    headers = [_HEADER.fullmatch(line) for line in lines]
    if found is None or len(headers) > HTTP_HEADERS_MAX:
        return None
    named: dict[bytes, bytes] = {}
    for header in headers:
        if header is None:
            return None
        name, value = header[1].lower(), header[2].strip().lower()
        # A header that is sent twice is one with both values.
        named[name] = named[name] + b", " + value if name in named else value
    if b"transfer-encoding" in named or named.get(b"content-length", b"0") != b"0":
        return None
    closes = b"close" in named.get(b"connection", b"") or found[3] == b"0"
    return _Request(found[1], _path(found[2].decode("ascii")), keeps=not closes)


def _path(target: str) -> str:
    """The path of a request's target, which may be a whole address."""
    origin = _ORIGIN.match(target)
    return unquote((target[origin.end() :] if origin is not None else target).partition("?")[0])
