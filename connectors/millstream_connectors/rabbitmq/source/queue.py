"""Messages of a RabbitMQ queue, for a lane that acknowledges them.

    queue ─► consumer, with a small prefetch ────────┬─► message: message_id, headers, routing key ─► inbox
         └─► consumer, with as many more as fit ─────┘

The server limits the prefetch by messages, not by bytes. So the first consumer has a small prefetch, and a second one
on the same channel prefetches as many more messages as fit, judged by the largest message so far. Two consumers keep
the order of a quorum queue; one that is cancelled and recreated does not.

Above it: `acknowledged`. Below it: a connection to the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiormq.abc import DeliveredMessage

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.errors import UserError
from millstream.extract import EPOCH_S
from millstream_connectors.rabbitmq.client import RabbitLink, linked, open_link
from millstream_connectors.rabbitmq.decoding import UNREADABLE, text_bytes
from millstream_connectors.rabbitmq.settings import RabbitSource
from millstream_connectors.shared.acknowledged import AcknowledgedInbox, AcknowledgedMessage, PushedSubscription
from millstream_connectors.shared.failing import Linked
from millstream_connectors.shared.messages import event_time
from millstream_reader.connector import SourceOwner

KIND = "rabbitmq"
ROUTING_KEY = "RabbitMQ-Routing-Key"
CONTENT_TYPE = "Content-Type"
OFFSET = "x-stream-offset"
"""Header of the messages of a stream."""
_FIRST = 16
"""Prefetch of the first consumer."""


class RabbitSubscription(Linked[RabbitLink], PushedSubscription):
    """See `Subscription`."""

    def __init__(self, spec: RabbitSource, owner: SourceOwner) -> None:
        self._spec = spec
        self._owner = owner
        self._first = min(_FIRST, spec.prefetch)
        self._second = ""
        """Name of the second consumer; empty while there is none."""
        self._window = 0
        """Prefetch of all consumers together."""
        self._largest = 0
        """Bytes of the largest message so far."""
        self._seen = 0
        """Number of messages over this connection."""
        self._there = 0
        """How many of the messages that were in the queue at the connection's start still wait."""

    async def connect(self, inbox: AcknowledgedInbox) -> None:
        link = await open_link(self._spec, self._owner.base_dir, self._owner.where, f"millstream {self._owner.lane}")
        async with link.closed_on_failure():
            declared = await link.channel.queue_declare(self._spec.queue, passive=True, timeout=self._spec.timeout_s)
            self._there = int(declared.message_count or 0)
            self._second, self._window, self._seen = "", self._first, 0
            await link.consume(self._spec.queue, partial(self._arrived, inbox), self._first)
        link.on_loss(inbox.lose)
        self._link = link

    async def acknowledge(self, messages: Sequence[AcknowledgedMessage]) -> None:
        if self._link is not None:
            with self._link.translated():
                # Their tags are consecutive: one acknowledgement of the last covers all.
                await self._link.channel.basic_ack(messages[-1].tag, multiple=True)

    async def adjust(self, inbox: AcknowledgedInbox) -> None:
        link = self._link
        if link is None or not self._fits_badly(inbox):
            return
        with link.translated():
            if self._second:
                # After the cancellation of a consumer, a quorum queue redelivers its unacknowledged messages, out of
                # order.
                await link.channel.basic_cancel(self._second, timeout=self._spec.timeout_s)
                self._second, self._window = "", self._first
            more = self._fitting(inbox) - self._first
            if more > 0:
                self._second = await link.consume(self._spec.queue, partial(self._arrived, inbox), more)
                self._window += more

    def pending(self) -> int | None:
        return self._there

    def _arrived(self, inbox: AcknowledgedInbox, delivered: DeliveredMessage) -> None:
        if OFFSET in (delivered.header.properties.headers or {}):
            # Acknowledgements leave no trace in it: after a restart, only new messages would come.
            what = f"{self._owner.where}: {self._spec.queue} is a stream; add `stream: true`"
            inbox.lose(UserError(codes.TARGET_UNFIT, what))
            return
        message = message_of(delivered, self._owner.clock.now_us())
        self._largest = max(self._largest, message.size)
        self._seen += 1
        self._there = max(0, self._there - 1)
        inbox.put(message)
        if self._fits_badly(inbox):
            inbox.changed.set()

    def _fitting(self, inbox: AcknowledgedInbox) -> int:
        """Number of messages of the largest size that fit."""
        return min(inbox.messages_max, inbox.bytes_max // max(1, self._largest))

    def _fits_badly(self, inbox: AcknowledgedInbox) -> bool:
        """Whether the consumers prefetch too much or, as experience has shown, too little."""
        fitting = self._fitting(inbox)
        if self._second:
            return fitting * 2 <= self._window
        return self._seen >= self._first and fitting >= self._window * 2


def message_of(delivered: DeliveredMessage, now_us: int) -> AcknowledgedMessage:
    """A delivered message, converted for the inbox. Pure."""
    properties = delivered.header.properties
    delivery: Any = delivered.delivery
    headers: dict[str, bytes] = {}
    for name, value in (properties.headers or {}).items():
        text = _text(value)
        if text is not None:
            headers[name] = text
    headers[ROUTING_KEY] = text_bytes(str(delivery.routing_key or ""))
    if properties.content_type:
        headers[CONTENT_TYPE] = text_bytes(properties.content_type)
    time_us, fault = _time_us(properties.timestamp, now_us)
    if (unreadable := headers.pop(UNREADABLE, None)) is not None:
        fault = f"a header cannot be read: {unreadable.decode()}"
    return AcknowledgedMessage(
        value=delivered.body,
        tag=delivery.delivery_tag,
        time_us=time_us,
        fault=fault,
        record_id=properties.message_id or "",
        headers=headers,
        redelivered=bool(delivery.redelivered),
    )


def _time_us(sent: object, now_us: int) -> tuple[int, str]:
    """The event time, and what is wrong with the given one."""
    if isinstance(sent, datetime):
        return int(_utc(sent).timestamp()) * MICROSECONDS, ""
    # The decoder returns the number of a time that is not in the calendar.
    return event_time(EPOCH_S, sent) if isinstance(sent, int) else (now_us, "")


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _text(value: Any) -> bytes | None:
    """A field of a message's headers as text; None for a field without a value."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return _utc(value).isoformat().encode()
    if isinstance(value, Mapping | list | bool):
        return json.dumps(value, default=str, ensure_ascii=False).encode()
    return str(value).encode()


async def look(spec: RabbitSource, base_dir: Path) -> None:
    """Check for `validate --online` that the queue exists. Raises Millstream errors."""
    async with linked(spec, base_dir) as link:
        await link.channel.queue_declare(spec.queue, passive=True, timeout=spec.timeout_s)
