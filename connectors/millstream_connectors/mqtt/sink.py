"""Publishes records as messages of QoS 1 to an MQTT topic, each confirmed.

    write ─► published ─► confirmed: written
                      └► refused by a reason code: refused
                      └► no confirmation, quota exceeded: retried, with the same ids

Above it: the delivery. Below it: a connection to the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream_connectors.mqtt.client import PASSING, MqttLink, open_link
from millstream_connectors.mqtt.settings import MqttSink
from millstream_connectors.shared.carried import (
    converted,
    given_headers,
    message_id,
    own_headers,
)
from millstream_connectors.shared.converting import RefusedRecordError
from millstream_connectors.shared.failing import Linked, on_failure_await
from millstream_connectors.shared.first_try import opened
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

REFUSED = "the broker refuses it"
UNANSWERED = "the broker has not answered"
TOO_LARGE = "record is larger than the broker accepts"
_TEXT_BYTES_MAX = 65_535
_OVERHEAD_BYTES = 32
"""Bytes of a packet besides topic, properties and value."""

_log = logging.getLogger(__name__)


class _Put(NamedTuple):
    """The target's form of a record."""

    row: int
    value: bytes
    properties: Any


class MqttSinkLane(Linked[MqttLink], UnkeptLane):
    """A lane that publishes messages."""

    def __init__(self, settings: MqttSink, owner: SinkOwner) -> None:
        self._settings = settings
        self._owner = owner

    async def open(self) -> MqttLink:
        """Connect."""
        self._link = await open_link(self._settings, self._owner.base_dir, self._owner.where)
        return self._link

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        # After a failure, it does not wait for messages in flight.
        async with on_failure_await(self.close):
            failures = [await self._publish(item) for item in frames]
        return WriteResult(failures if any(failures) else ())

    async def _reached(self) -> MqttLink:
        link = self._link
        if link is None or link.closed is not None:
            await self.close()
            link = await self.open()
        return link

    async def _publish(self, item: SinkFrame) -> list[SinkFailure]:
        """Publish a frame's records, in order. Returns the failures of single records."""
        link = await self._reached()
        made, failures = self._converted(item, link.packet_bytes_max)
        refused = False
        for start in range(0, len(made), link.unconfirmed_max):
            part = made[start : start + link.unconfirmed_max]
            for put, reason in zip(part, await self._answers(link, part), strict=True):
                if isinstance(reason, RetryLaterError):
                    # Some brokers end the connection after they have refused a message. Unanswered messages are retried
                    # without that message.
                    if not refused:
                        raise reason
                    failures.append(SinkFailure(put.row, UNANSWERED, retryable=True, detail=str(reason)))
                elif reason.is_failure:
                    refused = True
                    failures.append(SinkFailure(put.row, REFUSED, retryable=False, detail=str(reason)))
        return sorted(failures, key=lambda failure: failure.index)

    async def _answers(self, link: MqttLink, part: Sequence[_Put]) -> list[Any]:
        """For each record a reason code, or the error if there is none."""
        place = f"{self._owner.where}: MQTT at {self._settings.host}"
        sent: list[Awaitable[Any]] = []
        lost: RetryLaterError | None = None
        for put in part:
            try:
                sent.append(link.answer(link.publish(self._settings.topic, put.value, put.properties)))
            except RetryLaterError as error:
                lost = error
                break
        answers: list[Any] = await asyncio.gather(*sent, return_exceptions=True)
        answers += [lost] * (len(part) - len(sent))
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RetryLaterError):
                raise answer
            if not isinstance(answer, BaseException) and answer.value in PASSING:
                raise RetryLaterError(codes.TARGET_AWAY, f"{place} does not accept a message now: {answer}")
        return answers

    def _converted(self, item: SinkFrame, bytes_max: int) -> tuple[Sequence[_Put], list[SinkFailure]]:
        run, topic_bytes = self._owner.ledger_id, len(self._settings.topic.encode())

        def made(
            row: int, value: bytes, keys: Sequence[bytes], time_us: int, headers: Mapping[str, bytes], record_id: str
        ) -> _Put:
            properties = _properties(headers, own_headers(keys, time_us, message_id(run, record_id, _TEXT_BYTES_MAX)))
            size = len(value) + len(properties.pack()) + topic_bytes + _OVERHEAD_BYTES
            if size > bytes_max:
                # The broker would close the connection.
                raise RefusedRecordError(
                    TOO_LARGE, f"it has {size} bytes with its properties; the limit is {bytes_max}"
                )
            return _Put(row, value, properties)

        return converted(item, made)


def _properties(given: Mapping[str, bytes], own: Mapping[str, str]) -> Any:
    """User properties of a message: its headers and Millstream's own. Raises `ValueError`."""
    pairs = []
    for name, value in given_headers(given):
        try:
            pairs.append((name, value.decode()))
        except UnicodeDecodeError:
            raise ValueError(f"the value of {name[:80]!r} is not UTF-8 text") from None
    pairs += own.items()
    for name, text in pairs:
        if "\0" in name + text or len(text.encode()) > _TEXT_BYTES_MAX or len(name.encode()) > _TEXT_BYTES_MAX:
            raise ValueError(f"{name[:80]!r} has a zero character or more than {_TEXT_BYTES_MAX} bytes")
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # as paho has it
    properties.UserProperty = pairs
    return properties


def open_mqtt_sink(settings: MqttSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
    """The lane's target. If the broker is away, the first write waits for it."""
    return opened(MqttSinkLane(settings, owner), _log)
