"""A lane's connection to an external RabbitMQ server, and what its errors mean to the lane.

Above it: connectors. Below it: aiormq, AMQP 0.9.1. Every failure becomes a Millstream error, by who must act: one that
passes by itself becomes `RetryLaterError`, so the lane waits for a server that is away, restarts or is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiormq import Connection, exceptions, spec
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.connection import exception_by_code
from yarl import URL

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of, is_not_accepted
from millstream_connectors.rabbitmq.decoding import accept_any_content
from millstream_connectors.rabbitmq.settings import RabbitServer
from millstream_connectors.shared.failing import failure_of, on_failure_await, translating

FAILURES = (exceptions.AMQPError, OSError, TimeoutError, ValueError, RuntimeError)
"""Exceptions of the client: everything that can go wrong between a lane and its server. aiormq raises the last two for
unexpected frames."""
_HEARTBEAT_S = 10
_CLOSE_S = 2.0
_REFUSED = 403
"""The authentication mechanisms that aiormq supports."""
_PASSING = (
    "down or inaccessible",
    "' is down",
    "replica on the local node",
    "connection limit",
    "timed out",
    "in exclusive use",
)
"""Parts of messages about conditions that pass: the server is starting (it serves connections before it has started its
replicas of streams), it still knows an earlier consumer, or an acknowledgement took too long."""

accept_any_content()

# What aiormq logs becomes a Millstream error, which is reported once.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)


class _Connection(Connection):
    """A connection that keeps the reason why the server refuses a virtual host, which aiormq drops. Uses a private
    method of aiormq."""

    @staticmethod
    async def _rpc(request: Any, writer: Any, frame_receiver: Any, wait_response: bool = True) -> Any:
        receiver: Any = _Receiver(frame_receiver)
        return await Connection._rpc(request, writer, receiver, wait_response)


class _Receiver:
    """Frames of a connection that is being opened."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    async def get_frame(self) -> Any:
        weight, channel, frame = await self._receiver.get_frame()
        if isinstance(frame, spec.Connection.Close) and frame.reply_code != _REFUSED:
            raise exception_by_code(frame)
        return weight, channel, frame


class RabbitLink:
    """One connection and its channel. Opened by `open_link`, closed by `aclose`."""

    channel: Channel
    """Confirms publications."""

    def __init__(self, server: RabbitServer, where: str, connection: Connection) -> None:
        self._server = server
        self._where = where
        self._connection = connection

    async def connect(self) -> None:
        """Raises Millstream errors."""
        async with self.closed_on_failure(), asyncio.timeout(self._server.timeout_s):
            await self._connection.connect()
            channel = await self._connection.channel()
            assert isinstance(channel, Channel), "aiormq creates its own class"
            self.channel = channel

    async def aclose(self) -> None:
        """Has a short time limit: a silent server notices by itself."""
        with suppress(*FAILURES):
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.close()

    def translated(self) -> AbstractContextManager[None]:
        """Errors of the client become Millstream errors."""
        return translating(FAILURES, self.error_of)

    @asynccontextmanager
    async def closed_on_failure(self) -> AsyncIterator[None]:
        """As `translated`. Any error closes the connection."""
        async with on_failure_await(self.aclose):
            with self.translated():
                yield

    def on_loss(self, lost: Callable[[MillstreamError], object]) -> None:
        """Call `lost` when the channel or its connection ends, or the server cancels a consumer."""

        def ended(closing: asyncio.Future[Any]) -> None:
            reason = None if closing.cancelled() else closing.exception()
            lost(self.error_of(reason or ConnectionError("the connection was closed")))

        async def cancelled(_: object) -> None:
            lost(self.error_of(ConnectionError("the queue was removed, or has moved to another node")))

        self.channel.closing.add_done_callback(ended)
        self.channel.on_consumer_cancel_callbacks.add(cancelled)

    async def consume(
        self, queue: str, put: Callable[[DeliveredMessage], object], window: int, arguments: Any = None
    ) -> str:
        """Start a consumer, which passes each message to `put`; `window`: how many it gets before it acknowledges one.
        Returns its name. Raises errors of the client."""

        async def arrived(delivered: DeliveredMessage) -> None:
            put(delivered)

        timeout_s = self._server.timeout_s
        await self.channel.basic_qos(prefetch_count=window, timeout=timeout_s)
        answer = await self.channel.basic_consume(queue, arrived, arguments=arguments, timeout=timeout_s)
        return str(answer.consumer_tag)

    async def error_of_publishing(self, error: BaseException) -> MillstreamError:
        """The same for a publication. A server that is short of disk space or memory takes none, and says so."""
        if not isinstance(error, TimeoutError) or not await self._is_blocked():
            return self.error_of(error)
        return RetryLaterError(
            codes.TARGET_AWAY,
            f"{self._where}: RabbitMQ at {self._server.host}:{self._server.port} accepts no messages now: it is low on "
            "disk space or memory. Free some there; `rabbitmq-diagnostics alarms` says what is low",
        )

    async def _is_blocked(self) -> bool:
        try:
            # This does not wait unless the connection is blocked.
            async with asyncio.timeout(0):
                await self._connection.ready()
        except TimeoutError:
            return not self._connection.is_closed
        return False

    def error_of(self, error: BaseException) -> MillstreamError:
        """The Millstream error for an error of the client."""
        return error_of(error, self._server, self._where)


async def open_link(server: RabbitServer, base_dir: Path, where: str, name: str) -> RabbitLink:
    """A connection with a channel that confirms publications.

    Raises `UserError` if the user has to change something, and `RetryLaterError` if it cannot be reached now.
    """
    password = server.given_password(base_dir, where)
    tls = context_of(server.tls or ServerTls(), base_dir, where) if server.encrypted else None
    link = RabbitLink(server, where, _Connection(_url(server, password, name), context=tls))
    await link.connect()
    return link


def _url(server: RabbitServer, password: str | None, name: str) -> URL:
    return URL.build(
        scheme="amqps" if server.encrypted else "amqp",
        host=server.host,
        port=server.port,
        user=server.user,
        password=password,
        path=f"/{server.virtual_host}",
        query={
            "heartbeat": str(_HEARTBEAT_S),
            "name": name,
            "auth": "external" if server.by_certificate else "plain",
        },
    )


@asynccontextmanager
async def linked(server: RabbitServer, base_dir: Path) -> AsyncIterator[RabbitLink]:
    """A short-lived connection, for `validate --online`. Raises Millstream errors."""
    async with aclosing(await open_link(server, base_dir, "validate --online", "millstream validate")) as link:
        with link.translated():
            yield link


def error_of(error: BaseException, server: RabbitServer, where: str) -> MillstreamError:
    """The Millstream error for an error of the client."""
    place = f"{where}: RabbitMQ at {server.host}:{server.port}"
    said = str(error) or type(error).__name__
    if any(part in said for part in _PASSING):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}")
    if is_not_accepted(said):
        return UserError(codes.TARGET_REFUSES, f"{place} does not accept the client certificate: {said}")
    if isinstance(error, exceptions.AuthenticationError) and server.by_certificate:
        return UserError(
            codes.TARGET_REFUSES,
            f"{place} does not offer EXTERNAL, by which a client certificate says who connects, but {error.args[0]}. "
            "Enable the plugin rabbitmq_auth_mechanism_ssl on the server, or set `user` and `password`",
        )
    refusals = exceptions.AuthenticationError, exceptions.ProbableAuthenticationError, exceptions.ChannelAccessRefused
    if isinstance(error, refusals):
        return UserError(codes.TARGET_REFUSES, f"{place} refuses {server.shown_user}: {said}")
    if isinstance(error, exceptions.ConnectionNotAllowed):
        what = f"{place} refuses {server.shown_user} or has no virtual host {server.virtual_host}: {said}"
        return UserError(codes.TARGET_REFUSES, what)
    unfit = isinstance(error, exceptions.ChannelNotFoundEntity | exceptions.ChannelPreconditionFailed)
    if unfit or "NOT_IMPLEMENTED" in said:
        return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
    return failure_of(error, place)
