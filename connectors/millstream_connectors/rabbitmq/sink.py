"""Publishes records as messages to a RabbitMQ exchange, each confirmed by the server.

    write ─► published, a frame at a time ─► all are confirmed: written
                                          └► returned, because no queue accepts it: refused
                                          └► not confirmed, no answer: retried, with the same ids

RabbitMQ has no transaction for a position, so a message may be duplicated after a failure; its id identifies it.

Above it: the delivery. Below it: a connection to the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from aiormq import exceptions, spec
from aiormq.channel import Channel

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.errors import RetryLaterError
from millstream.limits import RABBITMQ_UNCONFIRMED_MAX
from millstream.record import Position
from millstream_connectors.rabbitmq.client import FAILURES, RabbitLink, linked, open_link
from millstream_connectors.rabbitmq.settings import RabbitSink
from millstream_connectors.shared.carried import RECORD_ID, converted, given_headers, message_id, own_headers
from millstream_connectors.shared.failing import Linked, on_failure_await
from millstream_connectors.shared.first_try import opened
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

UNROUTED = "no queue accepts it"
_SHORT_BYTES_MAX = 255
"""Maximum bytes of header names and ids."""
_DURABLE = 2
_SECONDS_MAX = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())

_log = logging.getLogger(__name__)


class _Put(NamedTuple):
    """The message of one record."""

    row: int
    value: bytes
    properties: spec.Basic.Properties


class RabbitSinkLane(Linked[RabbitLink], UnkeptLane):
    """A lane that publishes messages."""

    def __init__(self, settings: RabbitSink, owner: SinkOwner) -> None:
        self._settings = settings
        self._owner = owner

    async def open(self) -> None:
        """Connect, and check that the target exists."""
        owner, settings = self._owner, self._settings
        link = await open_link(settings, owner.base_dir, owner.where, f"millstream {owner.pipeline}/{owner.name}")
        async with link.closed_on_failure():
            await _check(link.channel, settings)
        self._link = link

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        if self._link is None or self._link.channel.is_closed:
            await self.close()
            await self.open()
        link = self._link
        assert link is not None, "it is open"
        # A failure abandons publications in progress, so this channel's confirmations cannot be used any more.
        async with on_failure_await(self.close):
            try:
                failures = [await self._publish(link.channel, item) for item in frames]
            except FAILURES as error:
                raise await link.error_of_publishing(error) from error
        return WriteResult(failures if any(failures) else ())

    async def _publish(self, channel: Channel, item: SinkFrame) -> list[SinkFailure]:
        """Publish a frame's records, in order. Returns the failures of single records."""
        run = self._owner.ledger_id

        def message(
            row: int, value: bytes, keys: Sequence[bytes], time_us: int, headers: Mapping[str, bytes], record_id: str
        ) -> _Put:
            return _Put(row, value, _properties(keys, time_us, headers, message_id(run, record_id, _SHORT_BYTES_MAX)))

        made, failures = converted(item, message)
        for start in range(0, len(made), RABBITMQ_UNCONFIRMED_MAX):
            failures += await self._confirmed(channel, made[start : start + RABBITMQ_UNCONFIRMED_MAX])
        return sorted(failures, key=lambda failure: failure.index)

    async def _confirmed(self, channel: Channel, made: Sequence[_Put]) -> list[SinkFailure]:
        settings = self._settings
        async with asyncio.timeout(settings.timeout_s):
            answers = await asyncio.gather(
                *(
                    channel.basic_publish(
                        put.value,
                        exchange=settings.exchange or "",
                        routing_key=settings.routing_key,
                        properties=put.properties,
                        mandatory=True,
                        wait=False,
                    )
                    for put in made
                ),
                return_exceptions=True,
            )
        refused: list[SinkFailure] = []
        for put, answer in zip(made, answers, strict=True):
            if isinstance(answer, exceptions.PublishError):
                detail = f"{settings.exchange or 'the default exchange'}, routing key {settings.routing_key}"
                refused.append(SinkFailure(put.row, UNROUTED, retryable=False, detail=detail))
            elif isinstance(answer, exceptions.DeliveryError):
                what = f"{self._owner.where}: RabbitMQ at {settings.host}:{settings.port} does not accept messages now"
                raise RetryLaterError(codes.TARGET_AWAY, f"{what}: its queue is full, or cannot be written to")
            elif isinstance(answer, BaseException):
                raise answer
        return refused


def _properties(keys: Sequence[bytes], time_us: int, given: Mapping[str, bytes], name: str) -> spec.Basic.Properties:
    """The properties of a record's message. Raises `ValueError`."""
    headers: dict[str, Any] = {}
    for header, value in given_headers(given):
        if len(header.encode()) > _SHORT_BYTES_MAX:
            raise ValueError(f"the name of {header[:80]!r} has more than {_SHORT_BYTES_MAX} bytes")
        headers[header] = _text_or_bytes(value)
    headers |= own_headers(keys, time_us, name)
    # The message has its id as a property.
    del headers[RECORD_ID]
    seconds = min(max(0, time_us // MICROSECONDS), _SECONDS_MAX)
    return spec.Basic.Properties(
        message_id=name,
        delivery_mode=_DURABLE,
        timestamp=datetime.fromtimestamp(seconds, UTC),
        headers=headers,
    )


def _text_or_bytes(value: bytes) -> str | bytearray:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return bytearray(value)


async def _check(channel: Channel, settings: RabbitSink) -> None:
    """Raises `FAILURES` if the exchange, or without one the queue, does not exist."""
    if settings.exchange is not None:
        await channel.exchange_declare(settings.exchange, passive=True, timeout=settings.timeout_s)
    else:
        await channel.queue_declare(settings.routing_key, passive=True, timeout=settings.timeout_s)


async def look(settings: RabbitSink, base_dir: Path) -> None:
    """Check for `validate --online` that the target exists. Raises Millstream errors."""
    async with linked(settings, base_dir) as link:
        await _check(link.channel, settings)


def open_rabbit_sink(settings: RabbitSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
    """The lane's target. If the server is away, the first write waits for it."""
    return opened(RabbitSinkLane(settings, owner), _log)
