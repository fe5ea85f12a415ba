"""A consumer of a JetStream stream that is pulled in order, and replaced when messages may be missing.

    create ─► request ─► messages, each with the next delivery number ─► on_message
       ▲                     │
       └──── restart ◄───────┘ a number is missing, heartbeats are missing, the connection was lost,
                               or the server reports that the consumer or its leader is gone

It acknowledges nothing: the position of its owner, after which the next consumer begins, is the acknowledgement.

Above it: the reader of a buffer, and the lane of a JetStream source; they decide how much to request and where a
consumer begins. Below it: the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from millstream.nats.client import Msg, Subscription, nats_errors
from millstream.nats.connection import AnswerLostError, BrokerConnection

_log = logging.getLogger(__name__)

HEARTBEAT_S = 1
"""Interval of the server's heartbeats while a pull waits for messages."""
EXPIRES_MIN_S = 2 * HEARTBEAT_S
"""The server refuses pulls that expire earlier: heartbeats must not be longer than half of this."""
_SILENCE_MAX_S = 3.0
"""Three missed heartbeats."""
_READING_S = 0.1
"""What a process gets to read what has come, before it takes the server for silent."""
_INACTIVE_S = 120
"""The server removes a consumer without requests for this long. An owner that continues after that creates a new
one."""
_NANOSECONDS = 1_000_000_000
_HEARTBEAT, _EXPIRED, _LIMIT_REACHED = "100", "408", "409"
"""Statuses of a pull."""


class MessageOrigin(NamedTuple):
    """Where a message comes from."""

    consumer: str
    sequence: int
    """Sequence in the stream."""
    delivered: int
    """How many messages the consumer has delivered, including this one."""
    time_ns: int
    """When the message was stored."""
    waiting: int
    """How many messages the consumer has still to deliver."""


def origin_of(reply: str) -> MessageOrigin:
    """ "$JS.ACK.<stream>.<consumer>.<count>.<stream sequence>.<delivery>.<time>.<waiting>", or with <domain>.<account>
    before the stream and a random token at the end."""
    tokens = reply.split(".")
    first = 3 if len(tokens) == 9 else 5
    sequence, delivered, time_ns, waiting = (int(token) for token in tokens[first + 2 : first + 6])
    return MessageOrigin(tokens[first], sequence, delivered, time_ns, waiting)


class PullConsumer:
    """One consumer at a time, of one stream; for one task."""

    def __init__(
        self,
        connection: BrokerConnection,
        stream: str,
        *,
        on_message: Callable[[Msg, MessageOrigin], None],
        on_expired: Callable[[], None],
    ) -> None:
        """`on_message`: gets each message, in order and without a gap. `on_expired`: called when a pull has expired,
        because there were no more messages."""
        self._connection = connection
        self._stream = stream
        self._on_message = on_message
        self._on_expired = on_expired
        self._inbox = connection.client.new_inbox()
        self._round = 0
        """Counts consumers, to recognize statuses of earlier ones."""
        self.name = ""
        """Empty if there is none."""
        self.losses = -1
        """How often the connection had been lost when the consumer was created."""
        self.delivered = 0
        """Number of messages that have arrived."""
        self.requested = 0
        """Number of requested messages that have not arrived."""
        self.restart: str | None = ""
        """Why a new consumer is needed, empty for the first one; None while this one works."""
        self._news = asyncio.Event()
        self._heard_s = 0.0
        self._waits = False
        """Whether a task waits for news."""
        self._watchdog: asyncio.TimerHandle | None = None
        """One timer for many messages: it looks at `_heard_s` when it is due."""
        self._subscription: Subscription | None = None
        self._stop_listening: Callable[[], None] | None = None

    async def open(self) -> None:
        """Start to listen. The first consumer is created with `create`."""
        self._subscription = await self._connection.client.listen(f"{self._inbox}.*", self._received)
        self._stop_listening = self._connection.on_loss(self._news.set)

    async def close(self) -> None:
        """Remove the consumer, if the server can be reached."""
        if self._stop_listening is not None:
            self._stop_listening()
        if self._watchdog is not None:
            self._watchdog.cancel()
        try:
            if self._subscription is not None and not self._connection.client.is_closed:
                await self._subscription.unsubscribe()
            await self._remove()
        except (nats_errors.Error, AnswerLostError) as error:
            _log.debug("consumer of %s not removed: %r", self._stream, error)

    @property
    def is_over(self) -> bool:
        """Whether a new consumer is needed."""
        return self.restart is not None or self.losses != self._connection.losses

    def reset(self) -> None:
        """Ignore everything that the server still sends for this consumer. `create` follows."""
        if self.restart is None:
            self.restart = "reconnected"
        self._round += 1
        self.losses = self._connection.losses
        self.delivered = self.requested = 0

    async def create(self, settings: Mapping[str, Any]) -> int:
        """Replace the consumer by one with these settings: where it begins, and which subjects it reads. Returns the
        number of messages that wait for it. Raises `ApiError` and `AnswerLostError`."""
        await self._remove()
        name = f"r{uuid4().hex}"
        config = {
            "name": name,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_S * _NANOSECONDS,
            **settings,
        }
        subject = f".{settings['filter_subject']}" if "filter_subject" in settings else ""
        answer = await self._connection.api(
            f"CONSUMER.CREATE.{self._stream}.{name}{subject}", {"stream_name": self._stream, "config": config}
        )
        self.name = name
        self.restart = None
        self._heard_s = self._now_s()
        return int(answer["num_pending"])

    async def request(self, messages: int, bytes_max: int, expires_s: float) -> None:
        """Send a pull for at most that many messages and bytes. Raises `AnswerLostError`."""
        if not self.requested:
            # The server had no request until now, so its silence meant nothing.
            self._heard_s = self._now_s()
        self.requested += messages
        pull = {
            "batch": messages,
            "max_bytes": bytes_max,
            "expires": int(expires_s * _NANOSECONDS),
            "idle_heartbeat": HEARTBEAT_S * _NANOSECONDS,
        }
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self.name}",
            json.dumps(pull).encode(),
            reply=f"{self._inbox}.{self._round}",
        )

    def forget_news(self) -> None:
        """Let `wait` wait for what comes from now on."""
        self._news.clear()

    async def wait(self) -> None:
        """Wait until messages have arrived, a pull has ended, or a new consumer is needed."""
        self._waits = True
        if self._watchdog is None:
            self._set_watchdog()
        try:
            await self._news.wait()
        finally:
            self._waits = False

    def needs_restart(self, reason: str) -> None:
        """The current consumer is of no more use."""
        self.restart = reason
        self._news.set()

    async def _remove(self) -> None:
        name, self.name = self.name, ""
        if name and self._connection.client.is_connected:
            # No task waits for the answer. Without this request, the server would remove the consumer later.
            await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}", b"")

    def _set_watchdog(self) -> None:
        self._watchdog = asyncio.get_running_loop().call_at(self._heard_s + _SILENCE_MAX_S, self._on_watchdog)

    def _on_watchdog(self) -> None:
        """Ask for a new consumer if the server has been silent for too long; otherwise, look again when that may be
        so."""
        self._watchdog = None
        if not self._waits:
            return
        if self._is_silent():
            # A process that stood still has yet to read what has come meanwhile.
            self._watchdog = asyncio.get_running_loop().call_later(_READING_S, self._on_silence)
        else:
            self._set_watchdog()

    def _on_silence(self) -> None:
        self._watchdog = None
        if self._is_silent():
            self.needs_restart("the server does not answer")
        elif self._waits:
            self._set_watchdog()

    def _is_silent(self) -> bool:
        return self._now_s() >= self._heard_s + _SILENCE_MAX_S

    def _received(self, message: Msg) -> None:
        # A message has its own subject, and its reply subject names the consumer. A status arrives at our inbox.
        if not message.reply.startswith("$JS.ACK."):
            if message.subject == f"{self._inbox}.{self._round}":
                self._heard_s = self._now_s()
                self._on_status(message.headers or {})
            return
        origin = origin_of(message.reply)
        if origin.consumer != self.name or self.restart is not None:
            return
        self._heard_s = self._now_s()
        if origin.delivered != self.delivered + 1:
            self.needs_restart(f"delivery {origin.delivered} came after {self.delivered}")
            return
        self.delivered = origin.delivered
        self.requested -= 1
        self._on_message(message, origin)
        self._news.set()

    def _on_status(self, headers: Mapping[str, str]) -> None:
        status, description = headers.get("Status", ""), headers.get("Description", "")
        if status == _HEARTBEAT:
            last_delivered = int(headers.get("Nats-Last-Consumer", self.delivered))
            if last_delivered > self.delivered:
                self.needs_restart(
                    f"deliveries up to {last_delivered} were sent, but only those up to {self.delivered} arrived"
                )
            return
        not_sent = headers.get("Nats-Pending-Messages")
        if status not in (_EXPIRED, _LIMIT_REACHED) or not_sent is None:
            self.needs_restart(f"the server answered {status} {description}")
            return
        self.requested -= int(not_sent)
        if status == _EXPIRED:
            self._on_expired()
        self._news.set()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
