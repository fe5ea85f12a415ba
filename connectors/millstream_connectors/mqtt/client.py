"""A lane's connection to an external MQTT broker, and what its errors mean to the lane.

    loop of the lane ─ connect, subscribe, acknowledge, publish ─► paho, which has a thread of its own ─► broker
                     ◄─ messages, confirmations, the end ─────────┘

Above it: connectors. Below it: paho. Every failure becomes a Millstream error, by who must act: one that passes by
itself becomes `RetryLaterError`, so the lane waits for a broker that is away. Paho itself never reconnects.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import MQTT_UNCONFIRMED_MAX
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of
from millstream_connectors.mqtt.settings import MqttBroker
from millstream_connectors.shared.failing import failure_of, on_failure, on_failure_await, translating

_KEEPALIVE_S = 15
_SETTLE_S = 5.0
"""How long the broker may take to read the last acknowledgements."""
_CLOSE_S = 2.0
_KEPT_S = 0xFFFFFFFF
"""How long a broker keeps a session: forever."""
_REFUSED = (0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x9C, 0x9D)
"""Reason codes that stay until the user acts: the version, the session's name, the credentials, the permissions,
another address."""
PASSING = (0x83, 0x91, 0x97)
"""Reason codes that pass: an internal error of the broker, a packet id in use, a quota."""
_ONLY_IF_NEW = 1
"""Retained messages are sent only for a new subscription."""
_PACKET_BYTES_MAX = 268_435_455
"""The largest packet size that MQTT can express."""


class MqttSession(NamedTuple):
    """What the broker keeps for a reader while the reader is away."""

    name: str
    window: int
    """How many messages the broker sends before the first acknowledgement."""
    put: Callable[[MQTTMessage], object]
    """Receives each message. Those that the broker has kept arrive immediately, before any subscription."""
    lost: Callable[[MillstreamError], object]
    """Receives the reason when the connection ends."""


class _Socket(ssl.SSLSocket):
    """A socket that is closed if the handshake fails. Paho leaves it open."""

    def do_handshake(self, block: bool = False) -> None:
        with on_failure(self.close):
            super().do_handshake(block)


class _EndedError(ConnectionError):
    """The connection ended before the broker had answered."""


class MqttLink:
    """One connection. Opened by `open_link`, closed by `aclose`."""

    def __init__(self, broker: MqttBroker, where: str, client: Client, session: MqttSession | None) -> None:
        self._broker = broker
        self._where = where
        self._client = client
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._connecting: asyncio.Future[Any] | None = None
        self._connected: asyncio.Future[Any] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        """Answers to subscriptions and publications, by packet id."""
        self._early: dict[int, Any] = {}
        """Answers that arrived before they were awaited."""
        self.closed: MillstreamError | None = None
        """Why the connection has ended."""
        self.resumed = False
        """Whether the broker already had the session."""
        self.packet_bytes_max = _PACKET_BYTES_MAX
        """The largest packet that the broker accepts, in bytes."""
        self.unconfirmed_max = MQTT_UNCONFIRMED_MAX
        """How many publications may be unanswered."""
        client.on_connect = lambda c, u, flags, reason, given: self._call(self._note_connected, flags, reason, given)
        client.on_disconnect = lambda c, u, flags, reason, given: self._call(self._end, str(reason))
        client.on_subscribe = lambda c, u, mid, reasons, given: self._call(self._answered, mid, reasons[0])
        client.on_publish = lambda c, u, mid, reason, given: self._call(self._answered, mid, reason)
        client.on_message = lambda c, u, message: self._call(self._arrived, message)

    async def subscribe(self, topic: str) -> None:
        """Returns when the broker has processed everything that was sent before. Raises Millstream errors."""
        with translating(ValueError, lambda refused: self._unfit(f"{topic!r} is not a topic filter: {refused}")):
            error, mid = self._client.subscribe(topic, options=SubscribeOptions(qos=1, retainHandling=_ONLY_IF_NEW))
        self._check(error)
        reason = await self.answer(mid or 0)
        if reason.value in PASSING:
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._place} accepts no subscription now: {reason}")
        if reason.is_failure:
            what = f"{self._place} refuses the subscription to {topic}: {reason}"
            raise UserError(codes.TARGET_REFUSES, what)
        if reason.value == 0:
            what = f"the broker grants QoS 0 for {topic}, with which messages may be lost (expected: QoS 1)"
            raise self._unfit(what)

    def acknowledge(self, mid: int) -> None:
        """Raises `RetryLaterError`."""
        self._check(self._client.ack(mid, 1))

    def publish(self, topic: str, value: bytes, properties: Properties) -> int:
        """Returns the packet id, for `answer`. Raises Millstream errors."""
        info = self._client.publish(topic, value, qos=1, properties=properties)
        self._check(info.rc)
        return info.mid

    async def answer(self, mid: int) -> Any:
        """The broker's reason code for a subscription or a publication. Raises `RetryLaterError`."""
        if mid in self._early:
            return self._early.pop(mid)
        if self.closed is not None:
            raise self.closed
        answer = self._answers[mid] = self._loop.create_future()
        try:
            async with asyncio.timeout(self._broker.timeout_s):
                return await answer
        except TimeoutError as error:
            raise self._error_of(error) from error
        finally:
            self._answers.pop(mid, None)

    async def aclose(self, topic: str | None = None) -> None:
        """Wait until the broker has every acknowledgement, by subscribing to `topic` again.

        Paho closes its socket with unread data in it, so the system resets the connection, and the broker discards what
        it has not read. To subscribe to a topic again changes nothing, and the answer shows that the broker has read
        everything before it.
        """
        if topic is not None and self.closed is None:
            self._session = None
            with suppress(MillstreamError, TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await self.subscribe(topic)
        self._session = None
        if self._connecting is not None:
            # The call cannot be cancelled, and a socket that it opens has to be closed.
            await asyncio.wait((self._connecting,))
        self._client.disconnect()
        stopping = self._loop.run_in_executor(None, self._client.loop_stop)
        _, late = await asyncio.wait((stopping,), timeout=_CLOSE_S)
        if late:
            # The broker reads nothing; it notices by itself that the connection has ended.
            with suppress(OSError):
                connection: Any = self._client.socket()
                if connection is not None:
                    connection.shutdown(socket.SHUT_RDWR)
            await asyncio.wait(late)
        for answer in (self._connected, *self._answers.values()):
            answer.cancel()

    async def begin(self) -> None:
        """Connect. Raises Millstream errors."""
        broker, session = self._broker, self._session
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # as paho has it
        if session is not None:
            properties.SessionExpiryInterval = _KEPT_S
            properties.ReceiveMaximum = session.window

        def connect() -> None:
            self._client.connect(
                broker.host, broker.port, keepalive=_KEEPALIVE_S, clean_start=session is None, properties=properties
            )

        self._connecting = self._loop.run_in_executor(None, connect)
        with translating((OSError, TimeoutError, ValueError), self._error_of):
            await asyncio.shield(self._connecting)
            self._client.loop_start()
            async with asyncio.timeout(broker.timeout_s):
                reason = await self._connected
        if reason.is_failure:
            if reason.value in _REFUSED:
                who = f"user {broker.user}" if broker.user is not None else "connections without a user"
                raise UserError(codes.TARGET_REFUSES, f"{self._place} refuses {who}: {reason}")
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._place} cannot be used now: {reason}")

    @property
    def _place(self) -> str:
        return f"{self._where}: MQTT at {self._broker.host}:{self._broker.port}"

    def _unfit(self, what: str) -> UserError:
        return UserError(codes.TARGET_UNFIT, f"{self._place}: {what}")

    def _error_of(self, error: BaseException) -> MillstreamError:
        tls = self._broker.tls
        if isinstance(error, _EndedError) and tls is not None and tls.certificate is not None:
            # Paho does not say why.
            what = f"{self._place} cannot be used now, or does not accept `tls.certificate`: {error}"
            return RetryLaterError(codes.TARGET_AWAY, what)
        return failure_of(error, self._place)

    def _check(self, error: MQTTErrorCode) -> None:
        if error != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise self.closed or RetryLaterError(codes.TARGET_AWAY, f"{self._place} cannot be used now: {error.name}")

    # Callbacks from paho's thread, run in the event loop.

    def _call(self, what: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):
            # The event loop may have ended.
            self._loop.call_soon_threadsafe(what, *arguments)

    def _note_connected(self, flags: Any, reason: Any, given: Any) -> None:
        self.resumed = bool(flags.session_present)
        self.packet_bytes_max = getattr(given, "MaximumPacketSize", _PACKET_BYTES_MAX)
        self.unconfirmed_max = min(MQTT_UNCONFIRMED_MAX, getattr(given, "ReceiveMaximum", MQTT_UNCONFIRMED_MAX))
        if self._connected.done():
            return
        if not reason.is_failure and getattr(given, "MaximumQoS", 2) == 0:
            self._connected.set_exception(self._unfit("it offers QoS 0 only, with which messages may be lost"))
        else:
            self._connected.set_result(reason)

    def _arrived(self, message: MQTTMessage) -> None:
        if self._session is not None:
            self._session.put(message)

    def _answered(self, mid: int, reason: Any) -> None:
        answer = self._answers.get(mid)
        if answer is None:
            self._early[mid] = reason
        elif not answer.done():
            answer.set_result(reason)

    def _end(self, reason: str) -> None:
        error = self.closed = RetryLaterError(codes.TARGET_AWAY, f"{self._place}: the connection ended: {reason}")
        if not self._connected.done():
            self._connected.set_exception(_EndedError(reason))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        if self._session is not None:
            self._session.lost(error)


async def open_link(broker: MqttBroker, base_dir: Path, where: str, session: MqttSession | None = None) -> MqttLink:
    """A connection, with a session that the broker keeps or without one.

    Raises `UserError` if the user has to change something, and `RetryLaterError` if it cannot be reached now.
    """
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id=session.name if session is not None else "",
        protocol=MQTTProtocolVersion.MQTTv5,
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.connect_timeout = broker.timeout_s
    # The publisher counts what is not confirmed; paho's own limit does not follow the broker's.
    client.max_inflight_messages_set(0)
    if broker.user is not None:
        client.username_pw_set(broker.user, broker.given_password(base_dir, where))
    if broker.encrypted:
        context = context_of(broker.tls or ServerTls(), base_dir, where)
        context.sslsocket_class = _Socket
        client.tls_set_context(context)
    link = MqttLink(broker, where, client, session)
    async with on_failure_await(link.aclose):
        await link.begin()
    return link


async def look(broker: MqttBroker, base_dir: Path) -> None:
    """Raises Millstream errors if the broker cannot be reached or refuses the user."""
    async with aclosing(await open_link(broker, base_dir, "validate --online")):
        pass
