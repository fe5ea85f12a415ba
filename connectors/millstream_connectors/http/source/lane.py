"""HTTP push: clients send records by POST, and get 200 when the records are committed.

Above it: a source lane. Below it: an HTTP server of its own. Accepted records wait in memory. Their sender keeps them
and sends them again if this process dies before it answers. The lane above drops a record whose id was already
committed, so sending it again has no effect.

    POST ─► allowed? space? ─► records in order ─ read ─► lane … commit ─ committed ─► 200
                  └─► 401 404 413 429 503 immediately

The server decides who may connect, and for how long: `millstream_connectors.http.source.server`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import ssl
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import accumulate

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from millstream import codes
from millstream.errors import InfrastructureError, UserError
from millstream.frame import Frame, join_frames
from millstream.limits import (
    BYTES_IN_FLIGHT_MAX,
    HTTP_BODY_GRACE_S,
    HTTP_BODY_RATE_MIN,
    HTTP_BODY_TIMEOUT_S,
    HTTP_RETRY_AFTER_S,
    MESSAGE_BYTES_MAX,
)
from millstream.spec.references import resolve
from millstream.statistics import ListenerStatistics
from millstream.wire.connections import TOO_MANY_OF_CLIENT, ConnectionLimits, is_loopback
from millstream_connectors.http.settings import HttpSource
from millstream_connectors.http.source.records import RequestRefusedError, Unpacker, read_records
from millstream_connectors.http.source.replaced import RebuiltValue, Tokens, server_context
from millstream_connectors.http.source.server import HttpServer
from millstream_connectors.shared.positioned_lane import PositionedLane, number_in
from millstream_reader.connector import SourceOwner
from millstream_reader.ids import FULL_REPORTED_EVERY_S, full
from millstream_reader.source import SourceBatch

BODY_BYTES_MAX = MESSAGE_BYTES_MAX
"""Largest body in bytes, after decompression."""
_SENT_AGAIN_S = 1.0
"""How much later than `Retry-After` says a sender may send a record again."""
_ANSWER_TIMEOUT_S = 5.0
"""Time limit for the answers to requests in flight when the source is closed."""

_BACKLOG = 512
"""Connections that wait to be accepted. The system drops further ones, and clients try again."""
_NOT_LOGGED = frozenset((400, 404, 413, 415, 429, 503))
"""Ordinary statuses, which are counted and not logged."""

_log = logging.getLogger(__name__)


def _tokens(settings: HttpSource, owner: SourceOwner) -> Callable[[], Tokens] | None:
    """The current bearer tokens, one of which senders must present. Errors: `UserError` if they are not available."""
    auth = settings.auth
    if auth is None:
        return None
    what = f"{owner.where}: the token of `auth`"
    return RebuiltValue(lambda: [resolve(auth.token, owner.base_dir, what)], Tokens, what, owner.clock).newest


def _contexts(settings: HttpSource, owner: SourceOwner) -> Callable[[], ssl.SSLContext] | None:
    """The TLS context for the next connection. Errors: `UserError` if the certificates are not available."""
    tls = settings.tls
    if tls is None:
        return None
    certificates = f"{owner.where}: `tls`"
    named = {"certificate": tls.certificate, "key": tls.key, "clientCa": tls.client_ca}
    given = {f"{certificates}, its `{name}`": value for name, value in named.items() if value is not None}
    return RebuiltValue(
        lambda: [resolve(value, owner.base_dir, name) for name, value in given.items()],
        lambda texts: server_context(texts, certificates),
        certificates,
        owner.clock,
    ).newest


@dataclass(slots=True)
class _Request:
    """An accepted request that is not answered yet."""

    end: int
    """Number of its last record, counted from 1 over the lane's lifetime."""
    committed: asyncio.Future[None]


@asynccontextmanager
async def open_http(settings: HttpSource, owner: SourceOwner) -> AsyncIterator[HttpSourceLane]:
    """A lane that listens. Errors: `InfrastructureError` if it cannot listen, `UserError` if it would accept records
    from every machine, or if the token or the certificates are not available."""
    lane = owner.lane
    tokens, contexts = _tokens(settings, owner), _contexts(settings, owner)
    extraction = owner.extraction
    if extraction.time_header is not None:
        owner = replace(owner, extraction=replace(extraction, time_header=extraction.time_header.lower()))
    limits = ConnectionLimits(settings.connections_max, settings.client_connections_max)
    server = HttpServer(limits, owner.where, owner.clock)
    http = HttpSourceLane(settings, tokens, owner, server)
    listener = _listen(settings, owner)
    try:
        host, port = listener.getsockname()[:2]
        scheme = "http" if contexts is None else "https"
        http.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/vertices/{lane.vertex}"
        # The limit on bodies applies while they are read, to their decompressed size.
        application = web.Application()
        # Found without a pattern. The other route answers for the names of other vertices.
        application.router.add_post(f"/vertices/{lane.vertex}", http.take_in)
        application.router.add_post("/vertices/{vertex}", http.take_in)
        application.router.add_get("/health", http.tell_health)
        async with server.running(
            application, listener, tls=contexts, shutdown_timeout_s=_ANSWER_TIMEOUT_S, closing=http.give_up
        ):
            _log.info("lane %s: accepts records at %s", lane, http.address)
            yield http
    finally:
        listener.close()


def _listen(settings: HttpSource, owner: SourceOwner) -> socket.socket:
    host, port = settings.host, settings.port
    if port:
        port += owner.lane.partition
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        if not (settings.asks_who or settings.allow_unauthenticated) and not is_loopback(str(address[0])):
            raise UserError(
                codes.HTTP_SOURCE_OPEN,
                f"{owner.where}: the http source would accept records from any machine, without authentication, on "
                f"{host} ({address[0]}): set `http.auth` or `http.tls.clientCa`, or `http.allowUnauthenticated: "
                "true` if that is intended",
            )
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` includes the address in its text; the message below names it better.
        code = error.errno or 0
        reason = os.strerror(code) if code > 0 else error.strerror or str(error)
        raise InfrastructureError(
            codes.PORT_TAKEN,
            f"{owner.where}: the http source cannot listen on {host} port {port}: {reason}. Stop the process that "
            "uses the port, or choose another `http.host` or `http.port` (0 takes a free port)",
        ) from error
    listener.setblocking(False)
    return listener


class HttpSourceLane(PositionedLane):
    """One lane of an HTTP source. See `SourceLane`."""

    kind, noun = "http", "an http source"
    replayable = False

    def __init__(
        self,
        settings: HttpSource,
        tokens: Callable[[], Tokens] | None,
        owner: SourceOwner,
        server: HttpServer,
    ) -> None:
        super().__init__(owner)
        body = self._unpacked(owner.position)
        with self._restoring():
            taken = 0 if body is None else number_in(body, "taken")
        self.address = ""
        """The URL to POST to, once the lane listens."""
        self._settings = settings
        self._tokens = tokens
        self._server = server
        self._clock = owner.clock
        self._ids_waiting = 0
        """Waiting records with an id from their sender."""
        self._full_reported_at_s: float | None = None
        self._refused_until_s = -math.inf
        """When senders whose records were refused for lack of room for their ids may have sent them again."""
        self._waiting: deque[tuple[Frame, bool]] = deque()
        """Unread records by request, and whether their ids are made up."""
        self._unanswered: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._read = taken
        """Records that the lane has read, over its lifetime."""
        self._taken = taken
        """Records accepted over the lane's lifetime; `_taken - _committed` are unanswered."""
        self._committed = taken
        self._body_bytes = 0
        """Bytes of unanswered requests."""

    # The lane's side.

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if not self._waiting and not self._draining:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
        frame, made_up = self._next_frame(records_max, bytes_max)
        return SourceBatch(frame, self._packed({"taken": self._read}), made_up=made_up)

    def _next_frame(self, records_max: int, bytes_max: int) -> tuple[Frame | None, bytes]:
        if not self._waiting:
            return None, b""
        parts = list(self._next_parts(records_max, bytes_max))
        made_up = b"".join((b"\1" if ids_are_made_up else b"\0") * part.records for part, ids_are_made_up in parts)
        self._read += len(made_up)
        self._ids_waiting -= made_up.count(0)
        return join_frames([part for part, _ in parts]), made_up

    def _next_parts(self, records_max: int, bytes_max: int) -> Iterator[tuple[Frame, bool]]:
        """Removes the next waiting records, at least one, within the limits."""
        taken = size = 0
        while self._waiting and taken < records_max:
            part, made_up = self._waiting.popleft()
            if taken + part.records > records_max or size + part.size > bytes_max:
                ends = list(accumulate(part.record_sizes()[: records_max - taken], initial=size))
                count = max(bisect_right(ends, bytes_max) - 1, 0 if taken else 1)
                if count < part.records:
                    self._waiting.appendleft((part.slice(count, part.records), made_up))
                    if count:
                        yield part.slice(0, count), made_up
                    return
            taken, size = taken + part.records, size + part.size
            yield part, made_up

    async def committed(self, position: bytes) -> None:
        body = self._unpacked(position)
        if body is None:
            return
        self._committed = max(self._committed, body["taken"])
        while self._unanswered and self._unanswered[0].end <= self._committed:
            request = self._unanswered.popleft()
            if not request.committed.done():
                request.committed.set_result(None)

    def pending(self) -> int | None:
        return self._taken - self._read

    def listener(self) -> ListenerStatistics:
        return self._server.statistics()

    def is_held_up(self) -> bool:
        return self._clock.monotonic_s() < self._refused_until_s

    async def drain(self) -> None:
        self._draining = True
        self._arrived.set()

    def give_up(self) -> None:
        """Ends the lane: senders have to repeat uncommitted records."""
        self._draining = True
        while self._unanswered:
            request = self._unanswered.popleft()
            if not request.committed.done():
                request.committed.set_exception(_later(503, "not committed: the source is stopping"))

    # The senders' side.

    async def tell_health(self, request: web.Request) -> web.Response:
        """Whether records are accepted now."""
        if self._draining:
            return web.json_response({"status": "draining"}, status=503)
        return web.json_response({"status": "ready"})

    async def take_in(self, request: web.Request) -> web.Response:
        """One POST, from its first byte to its answer."""
        try:
            self._check_allowed(request)
            count = await self._commit(request)
        except RequestRefusedError as refusal:
            worth_logging = refusal.status not in _NOT_LOGGED
            self._server.refusals.note(f"status {refusal.status}", request.remote or "", logged=worth_logging)
            headers = {}
            # The unread part of the body would be parsed as the next request.
            if not request.content.at_eof():
                headers["Connection"] = "close"
            if refusal.retry_after_s is not None:
                headers["Retry-After"] = str(refusal.retry_after_s)
            if refusal.status == 401:
                headers |= {"WWW-Authenticate": "Bearer", "Connection": "close"}
            return web.json_response({"error": refusal.reason}, status=refusal.status, headers=headers)
        return web.json_response({"committed": count})

    def _check_allowed(self, request: web.Request) -> None:
        if self._tokens is not None:
            scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
            valid = self._tokens().holds(_text(shown).strip().encode())
            if scheme.lower() != "bearer" or not valid:
                raise RequestRefusedError(401, "a bearer token is required: `Authorization: Bearer <token>`")
        if not self._server.show(request, partial(self._identity, request)):
            raise _later(429, f"{TOO_MANY_OF_CLIENT}; use fewer, or try again later")
        here = self._owner.lane.vertex
        vertex = request.match_info.get("vertex", here)
        if vertex != here:
            raise RequestRefusedError(404, f"there is no source {vertex!r} here; this is {here!r}")
        if self._draining:
            raise _later(503, "the source accepts no new records: it is stopping")

    def _identity(self, request: web.Request) -> str:
        """A digest of what a sender has shown to be allowed to send: its token and its certificate."""
        tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        token = request.headers.get("Authorization", "") if self._tokens is not None else ""
        return blake2b(_text(token).encode() + b"\0" + (certificate or b""), digest_size=16).hexdigest()

    async def _commit(self, request: web.Request) -> int:
        """Accept the request's records and wait until they are committed. Returns their number."""
        with self._holding() as reserve:
            body = await self._body(request, reserve)
            came_us = self._clock.now_us()
            # Names are lower case; if a header is repeated, the first one counts.
            headers = {name.lower(): _text(value) for name, value in reversed(list(request.headers.items()))}
            records = read_records(body, request.content_type, headers, self._owner.extraction, now_us=came_us)
            if records.frame is None:
                return 0
            await self._admit(records.frame, records.ids_are_made_up)
            return records.frame.records

    async def _body(self, request: web.Request, reserve: Callable[[int], None]) -> bytes:
        if (request.content_length or 0) > BODY_BYTES_MAX:
            raise RequestRefusedError(
                413, f"the body has {request.content_length} bytes; the limit is {BODY_BYTES_MAX}"
            )
        unpacker = Unpacker(request.headers.get("Content-Encoding", ""))
        parts: list[bytes] = []
        loop, came = asyncio.get_running_loop(), 0
        begun_s = loop.time()
        try:
            # Most bodies are here with their heads, and need no timer.
            async with asyncio.timeout(None if request.content.is_eof() else HTTP_BODY_GRACE_S) as waiting:
                while part := await request.content.readany():
                    came += len(part)
                    if not request.content.is_eof():
                        allowed_s = HTTP_BODY_GRACE_S + came / HTTP_BODY_RATE_MIN
                        waiting.reschedule(begun_s + min(HTTP_BODY_TIMEOUT_S, allowed_s))
                    for text in unpacker.add(part):
                        reserve(len(text))
                        parts.append(text)
            unpacker.finish()
        except TimeoutError:
            raise RequestRefusedError(
                408, f"only {came} bytes of the body arrived in {loop.time() - begun_s:.0f} s, which is too slow"
            ) from None
        except (web.RequestPayloadError, HttpProcessingError, ConnectionError, zlib.error) as error:
            raise RequestRefusedError(400, f"the body cannot be read: {error}") from None
        return b"".join(parts)

    async def _admit(self, frame: Frame, ids_are_made_up: bool) -> None:
        room = self._settings.buffer
        if frame.records > room:
            raise RequestRefusedError(
                413,
                f"the batch has {frame.records} records; the source holds at most {room} (`http.buffer`). Send "
                "smaller batches",
            )
        if self._taken - self._committed + frame.records > room:
            raise _later(429, f"{self._taken - self._committed} records are waiting to be committed; try again later")
        # The body may have taken long, and the source may be stopping by now.
        if self._draining:
            raise _later(503, "the source accepts no new records: it is stopping")
        if not ids_are_made_up:
            self._check_ids(frame.id_bytes() or ())
        self._taken += frame.records
        request = _Request(self._taken, asyncio.get_running_loop().create_future())
        self._unanswered.append(request)
        self._waiting.append((frame, ids_are_made_up))
        self._arrived.set()
        await request.committed

    def _check_ids(self, given: Sequence[bytes]) -> None:
        """Check that there is space to remember these ids from a sender. Ids of records that were already committed
        need none."""
        seen = self._owner.seen
        if seen is not None and not seen.has_room(given, self._ids_waiting):
            reason = full(seen)
            now_s = self._clock.monotonic_s()
            if self._full_reported_at_s is None or now_s >= self._full_reported_at_s + FULL_REPORTED_EVERY_S:
                self._full_reported_at_s = now_s
                _log.warning("lane %s refuses records with new ids: %s", self._owner.lane, reason)
            again_s = max(HTTP_RETRY_AFTER_S, math.ceil(seen.frees_in_s))
            self._refused_until_s = max(self._refused_until_s, now_s + again_s + _SENT_AGAIN_S)
            raise RequestRefusedError(503, reason, again_s)
        self._ids_waiting += len(given)

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Space for the body of one request. It yields a function that reserves more bytes of it, and raises
        `RequestRefusedError` if there are none."""
        held = 0

        def reserve(count: int) -> None:
            nonlocal held
            if held + count > BODY_BYTES_MAX:
                raise RequestRefusedError(413, f"the body exceeds the limit of {BODY_BYTES_MAX} bytes")
            if self._body_bytes + count > BYTES_IN_FLIGHT_MAX:
                raise _later(429, f"{self._body_bytes} bytes are waiting to be committed; try again later")
            self._body_bytes += count
            held += count

        try:
            yield reserve
        finally:
            self._body_bytes -= held


def _text(header: str) -> str:
    """A header's value, with replacement characters for bytes that are not UTF-8."""
    return header if header.isascii() else header.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _later(status: int, reason: str) -> RequestRefusedError:
    return RequestRefusedError(status, reason, HTTP_RETRY_AFTER_S)
