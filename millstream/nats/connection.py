"""The connection to a NATS server: opened once, retried forever. It reports lost answers as such.

Above it: the ledger and the watermark store. Below it: `nats-py`. It knows requests and answers; it does not know
streams.

    request ──► connection ──► server          an answer comes, or
       ▲            │                          AnswerLostError: it is unknown whether the request had an effect
       └────────────┘
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import ParseResult

from millstream import codes, limits
from millstream.errors import InfrastructureError
from millstream.json_parser import parse_json
from millstream.nats.access import BrokerAccess
from millstream.nats.client import Msg, TcpTransport, nats_errors
from millstream.nats.direct import DirectClient
from millstream.nats.incoming import AtOnce, PieceReader, nothing_at_once

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
"""How long the first connection is tried before the server counts as unreachable."""
API_TIMEOUT_S = 5.0
"""Timeout for the answer to a request."""

_RECONNECT_WAIT_S = 0.05
_PING_INTERVAL_S = 5
_PINGS_MAX = 2
"""A silent peer is given up after the third ping: 15 s."""
_PENDING_BYTES_MAX = 4 * limits.COMMIT_BYTES_MAX
"""Bytes that the client buffers before `publish` waits for the socket."""
_CLOSE_TIMEOUT_S = 1.0
_NO_RESPONDERS = "503"
_VIOLATION = re.compile(
    r'permissions violation for (?P<kind>publish|subscription) to "(?P<subject>[^"]*)"', re.IGNORECASE
)
_TIDYING = "$JS.API.CONSUMER.DELETE."
"""Requests whose answers no task needs: without them, the server does the same later."""
_NOT_ADMITTED = (
    "authorization violation",
    "authentication timeout",
    "authentication expired",
    "authentication revoked",
)


class AnswerLostError(Exception):
    """The connection broke, or no answer arrived in time: the request may or may not have taken effect."""


class UnansweredError(AnswerLostError):
    """The server reports that nothing answers such a request."""


class NotPermittedError(InfrastructureError):
    """The server does not permit this user to do that."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.BROKER_RIGHTS, message)


class ApiError(Exception):
    """The server answered a JetStream request with an error."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


def answered(data: bytes) -> dict[str, Any]:
    """The answer to a JetStream request, or to a publication in a stream. Raises `ApiError` for an error, and for an
    answer that is not one of JetStream's."""
    try:
        answer = parse_json(data)
    except ValueError as error:
        raise ApiError(0, f"the answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise ApiError(0, "the answer is not a JSON object")
    refused = answer.get("error")
    if refused is not None:
        raise ApiError(refused.get("err_code", refused.get("code", 0)), refused.get("description", ""))
    return answer


class BrokerConnection:
    """One connection. Opened by `open_connection`; used by any number of tasks."""

    def __init__(self, access: BrokerAccess, name: str) -> None:
        self._access = access
        self._name = name
        # A connection whose peer has vanished still has bytes to send: closing it must not wait for them.
        self._transport = _AbortingTransport(encrypted=access.tls is not None)
        self.client = DirectClient(self._transport)
        """The underlying client, for callers that need more than requests."""
        self._transport.at_once = self.client.take
        self._up = asyncio.Event()
        self._closing = False
        self._refusal: str | None = None
        self._opening: asyncio.Timeout | None = None
        self._hopeless: str | None = None
        """Why another attempt to open the connection would fail like the last one."""
        self.losses = 0
        """How often the connection was lost since it was opened."""
        self._answers: dict[str, asyncio.Future[Msg]] = {}
        self._asked: dict[str, str] = {}
        """The subject of each unanswered request."""
        self._denied: str | None = None
        """What the server does not permit this user, if there is no request to fail with it."""
        self._requests = 0
        self._inbox = ""
        self._loss_listeners: set[Callable[[], None]] = set()

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server reported about itself at the last connection: `server_id`, `cluster` and more."""
        # The library keeps this in a private attribute; a contract test checks that it still exists.
        return self.client._server_info

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now."""
        return self._up.is_set() and self.client.is_connected

    @property
    def place(self) -> str:
        """The server's place, without user or password."""
        return self._access.place

    def trouble(self) -> str | None:
        """Why nothing can be sent now; None if there is a connection."""
        return None if self.is_up else f"the connection to the NATS server at {self.place} is lost"

    async def open(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s) as self._opening:
                cancellations = self._transport.opening = _Cancellations()
                await self.client.connect(
                    self._access.url.split(","),
                    name=self._name,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_lost,
                    reconnected_cb=self._on_back,
                    closed_cb=self._on_closed,
                    reconnect_time_wait=_RECONNECT_WAIT_S,  # type: ignore[arg-type]  # seconds, used as a float
                    max_reconnect_attempts=-1,
                    ping_interval=_PING_INTERVAL_S,
                    max_outstanding_pings=_PINGS_MAX,
                    pending_size=_PENDING_BYTES_MAX,
                    **self._access.client_options(),
                )
                cancellations.check()
        except (TimeoutError, nats_errors.Error, OSError) as error:
            if self._hopeless is not None:
                raise InfrastructureError(codes.BROKER_REFUSES, self._hopeless) from error
            reason = self.client.last_error or error
            raise InfrastructureError(
                codes.BROKER_UNREACHABLE,
                f"the NATS server at {self.place} could not be reached in {timeout_s:g} s ({reason!r}). Check that "
                "it is running and that the address is right",
            ) from error
        finally:
            self._opening = self._transport.opening = None
        self._inbox = self.client.new_inbox()
        await self.client.listen(f"{self._inbox}.*", self._on_answer)
        self._up.set()

    async def close(self) -> None:
        cancellations = _Cancellations()
        self._closing = True
        self._fail_answers()
        # `asyncio.wait_for` loses a cancellation that arrives just as an attempt fails, and the client continues.
        self._transport.forbid()
        reconnecting = self.client._reconnection_task
        try:
            # Unsent data of a lost connection does not matter; uvloop raises an exception of its own for it.
            with suppress(OSError, RuntimeError):
                await self.client.close()
        finally:
            # Also if the close was cancelled.
            self._transport.abort()
            if reconnecting is not None:
                reconnecting.cancel()
                await asyncio.wait([reconnecting], timeout=_CLOSE_TIMEOUT_S)
        cancellations.check()

    async def connected(self) -> None:
        """Wait until there is a connection, without a limit."""
        if self._denied is not None:
            raise NotPermittedError(self._denied)
        while not self.client.is_connected or not self._up.is_set():
            if self._refusal is not None:
                raise InfrastructureError(
                    codes.BROKER_REFUSES, f"the NATS server at {self.place} closed the connection: {self._refusal}"
                )
            await self._up.wait()
            if not self.client.is_connected and self._refusal is None:
                # The connection is lost, but the client has not noticed it yet.
                await asyncio.sleep(_RECONNECT_WAIT_S)

    def on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever the connection is lost, until the returned function is called."""
        self._loss_listeners.add(listener)
        return lambda: self._loss_listeners.discard(listener)

    def expect_answer(self) -> tuple[str, asyncio.Future[Msg]]:
        """A subject for the answer, and a future for it, which fails with `AnswerLostError` when the connection is
        lost."""
        self._requests += 1
        token = str(self._requests)
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        answer.add_done_callback(lambda _: self._forget(token))
        return f"{self._inbox}.{token}", answer

    async def answer_of(self, answer: asyncio.Future[Msg], timeout_s: float) -> Msg:
        """The answer, if it arrives in time."""
        timer = asyncio.get_running_loop().call_later(timeout_s, self._too_late, answer, timeout_s)
        try:
            message = await answer
        finally:
            timer.cancel()
            answer.cancel()
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            raise UnansweredError("no server there answers JetStream requests")
        return message

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, reply: str = ""
    ) -> None:
        """Send one message. Returns before it is on the network."""
        if reply.startswith(self._inbox):
            self._asked[reply.rpartition(".")[2]] = subject
        if self.client.send(subject, payload, headers, reply):
            return
        try:
            await self.client.publish(subject, payload, reply=reply, headers=headers)
        except (nats_errors.OutboundBufferLimitError, nats_errors.ConnectionClosedError) as error:
            raise AnswerLostError(repr(error)) from error

    async def settled(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was sent. Raises what the client raises, and
        `NotPermittedError`."""
        async with asyncio.timeout(timeout_s):
            cancellations = _Cancellations()
            await self.client.flush(max(1, round(timeout_s)))
            cancellations.check()
        await self.connected()

    async def send_request(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> asyncio.Future[Msg]:
        """Send a request now. The future is for `answer_of`. Raises `AnswerLostError`."""
        reply, answer = self.expect_answer()
        try:
            await self.publish(subject, payload, headers, reply)
        except BaseException:
            answer.cancel()
            raise
        return answer

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        timeout_s: float = API_TIMEOUT_S,
    ) -> Msg:
        """Send a request, once there is a connection. Raises `AnswerLostError`."""
        await self.connected()
        return await self.answer_of(await self.send_request(subject, payload, headers), timeout_s)

    async def api(self, subject: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """One JetStream request, `$JS.API.<subject>`. Raises `ApiError` and `AnswerLostError`."""
        payload = b"" if body is None else json.dumps(body).encode()
        return answered((await self.request(f"$JS.API.{subject}", payload)).data)

    def _forget(self, token: str) -> None:
        self._answers.pop(token, None)
        self._asked.pop(token, None)

    def _on_violation(self, kind: str, subject: str) -> None:
        """The server has refused something because this user lacks the permission."""
        verb = "publish" if kind == "publish" else "subscribe"
        waiting = [token for token, asked in self._asked.items() if asked.lower() == subject and verb == "publish"]
        listening = [one.subject for one in self.client._subs.values()]
        # The client library converts the message to lower case.
        for known in (*(self._asked[token] for token in waiting), *listening):
            subject = known if known.lower() == subject else subject
        text = (
            f"the NATS server at {self.place} does not let {self._access.identity} {verb} to {subject}: grant it "
            f"{verb} rights on that subject"
            + (
                ""
                if self._access.outside
                else ", or create the users again with `millstream broker config` (deploy/README.md)"
            )
        )
        for token in waiting:
            self._fail(self._answers[token], NotPermittedError(text))
        if not waiting and not subject.startswith(_TIDYING.lower()):
            self._denied = text
            for answer in list(self._answers.values()):
                self._fail(answer, NotPermittedError(text))
            for listener in list(self._loss_listeners):
                listener()

    def _on_answer(self, message: Msg) -> None:
        answer = self._answers.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _on_lost(self) -> None:
        self._up.clear()
        self.losses += 1
        if not self._closing:
            _log.warning("connection to the NATS server at %s lost; reconnecting", self.place)
        # Those who wait for answers ask again; what is still unsent would be sent before they have looked.
        self.client.forget_unsent()
        self._fail_answers()
        for listener in list(self._loss_listeners):
            listener()

    async def _on_back(self) -> None:
        _log.info("reconnected to the NATS server at %s", self.place)
        self._up.set()

    async def _on_closed(self) -> None:
        # Not ours: the server has refused the connection permanently (credentials withdrawn, for example).
        if not self._closing:
            self._refusal = repr(self.client.last_error)
            self._fail_answers()
        self._up.set()

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats_errors.SlowConsumerError):
            _log.warning("the client dropped a message from %s: %r", self.place, error)
        elif not self._inbox and isinstance(error, ssl.SSLError):
            self._give_up_opening(
                f"cannot make an encrypted connection to the NATS server at {self.place}: "
                f"{getattr(error, 'verify_message', '') or error}; see `tls`"
                + ("" if self._access.outside else " in the broker's access file")
            )
        elif not self._inbox and any(sign in str(error).lower() for sign in _NOT_ADMITTED):
            # The client would try again, with the same credentials.
            reason = str(error).removeprefix("nats: ").strip("' \r\n")
            self._give_up_opening(
                f"the NATS server at {self.place} refuses {self._access.identity} ({reason}). Check that the "
                "credentials are those of a user that the server has"
            )
        elif (violation := _VIOLATION.search(str(error))) is not None:
            self._on_violation(violation["kind"], violation["subject"])
        else:
            _log.debug("NATS client: %r", error)

    def _give_up_opening(self, why: str) -> None:
        self._hopeless = why
        # Only once: a timeout that has expired cannot be rescheduled.
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.reschedule(asyncio.get_running_loop().time())

    def _fail_answers(self) -> None:
        for answer in list(self._answers.values()):
            self._fail(answer, AnswerLostError("the connection was lost"))

    def _too_late(self, answer: asyncio.Future[Msg], timeout_s: float) -> None:
        self._fail(answer, AnswerLostError(f"no answer in {timeout_s:g} s"))

    @staticmethod
    def _fail(answer: asyncio.Future[Msg], error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)
            # The caller may have stopped waiting.
            answer.exception()


class _Cancellations:
    """Cancellations of the current task since this was created, including those that the client swallows.

    In Python 3.11, `asyncio.wait_for` returns a result that arrives at the same moment as a cancellation, and the
    cancellation is lost: the task continues, and the timeout that cancelled it does not end it.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "created by a coroutine"
        self._task = task
        self._before = task.cancelling()

    def check(self) -> None:
        """Raise `CancelledError` if there was one."""
        if self._task.cancelling() > self._before:
            raise asyncio.CancelledError


class _AbortingTransport(TcpTransport):
    """A TCP connection whose `close` has a time limit, and which is closed before it is replaced."""

    def __init__(self, *, encrypted: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as its base class is
        self.at_once: AtOnce = nothing_at_once
        """Gets what arrives, before the task that reads it."""
        self.opening: _Cancellations | None = None
        """Of the task that opens the connection, until it is open."""
        self._must_encrypt = encrypted
        self._encrypts = False
        self._forbidden = False

    def __bool__(self) -> bool:
        # The client replaces a transport that is falsy, such as one that was never connected.
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        if self._forbidden:
            # Nothing else ends the client's attempts.
            raise asyncio.CancelledError
        if self.opening is not None:
            self.opening.check()
        # The client forgets a connection that broke before the server had sent its INFO.
        self.abort()
        self._encrypts = False
        # As the library does it, with a reader of our own.
        loop = asyncio.get_running_loop()
        reader = PieceReader(loop, self.at_once)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname or "", uri.port or 0)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        self._encrypts = True
        # The client creates the protocol itself, so the protocol does not know that it runs over TLS, and the loop
        # would log a warning at the end of each connection.
        protocol = self._io_writer.transport.get_protocol() if self._io_writer is not None else None
        # A server that refuses the client's certificate has closed the connection by now, and the transport has none.
        if protocol is not None:
            vars(protocol)["_over_ssl"] = True

    def write(self, payload: bytes) -> None:
        # The client encrypts only if the server asks for it, and would send its credentials to a server that does not.
        if self._must_encrypt and not self._encrypts:
            raise ssl.SSLError("it does not offer encryption")
        super().write(payload)  # type: ignore[no-untyped-call]  # as its base class is

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                # All tasks that wait for the end share one future: the cancellation of one must not reach the others.
                await asyncio.shield(super().wait_closed())  # type: ignore[no-untyped-call]  # as its base class is
        except TimeoutError:
            self.abort()

    def forbid(self) -> None:
        """Prevent further connections."""
        self._forbidden = True

    def abort(self) -> None:
        """Close the connection now, if there is one."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


@asynccontextmanager
async def open_connection(
    access: BrokerAccess, *, name: str = "millstream", timeout_s: float = CONNECT_TIMEOUT_S
) -> AsyncIterator[BrokerConnection]:
    """A connection to the server, or one of several.

    Raises `InfrastructureError` if there is no connection within `timeout_s`, and immediately if the server rejects the
    credentials. After the first success it reconnects without a limit.
    """
    connection = BrokerConnection(access, name)
    try:
        await connection.open(timeout_s)
        yield connection
    finally:
        await connection.close()
