"""Messages of an MQTT session, for a lane that acknowledges them.

    topics ─► session at the broker, kept while the pipeline is down ─► message, QoS 1 ─► inbox
                       ◄─ acknowledged in the order of arrival, once committed

When the session reconnects, the broker repeats every unacknowledged message. It reuses its packet ids for other
messages, so they do not identify a message.

Above it: `acknowledged`. Below it: a connection to the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from paho.mqtt.client import MQTTMessage

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream_connectors.mqtt.client import MqttLink, MqttSession, open_link
from millstream_connectors.mqtt.settings import SHARED, MqttSource
from millstream_connectors.shared.acknowledged import AcknowledgedInbox, AcknowledgedMessage, PushedSubscription
from millstream_connectors.shared.failing import on_failure_await
from millstream_reader.connector import SourceOwner

KIND = "mqtt"
TOPIC, CONTENT_TYPE = "MQTT-Topic", "Content-Type"

_log = logging.getLogger(__name__)


class MqttSubscription(PushedSubscription):
    """See `Subscription`."""

    def __init__(self, spec: MqttSource, owner: SourceOwner) -> None:
        self._spec = spec
        self._owner = owner
        self._link: MqttLink | None = None
        self._window = spec.prefetch
        self._largest = 0
        """Bytes of the largest message so far."""
        self._known = bool(owner.position)
        """Whether a lane has read from the session before, so the broker should have it."""
        self._warned_dropped = False

    async def connect(self, inbox: AcknowledgedInbox) -> None:
        spec, owner = self._spec, self._owner
        session = MqttSession(spec.session, self._window, lambda message: self._arrived(message, inbox), inbox.lose)
        link = await open_link(spec, owner.base_dir, owner.where, session)
        async with on_failure_await(link.aclose):
            await link.subscribe(spec.topic)
        if self._known and not link.resumed:
            _log.warning(
                "lane %s: the broker no longer has the session %s, from which earlier runs read: messages that arrived "
                "while the source was not connected may be lost",
                owner.lane,
                spec.session,
            )
        self._link, self._known = link, True

    async def acknowledge(self, messages: Sequence[AcknowledgedMessage]) -> None:
        if self._link is not None:
            for message in messages:
                if message.tag is not None:
                    self._link.acknowledge(message.tag)

    async def adjust(self, inbox: AcknowledgedInbox) -> None:
        fitting = max(1, inbox.bytes_max // max(1, self._largest))
        if inbox.size >= inbox.bytes_max and fitting < self._window:
            # The broker limits the number of messages, not their bytes. Only a new connection can change the limit.
            self._window = fitting
            what = f"{self._owner.where}: messages of {self._spec.topic} have up to {self._largest} bytes"
            raise RetryLaterError(codes.TARGET_AWAY, f"{what}, so it takes {fitting} at a time from now on")

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose(self._spec.topic)

    def pending(self) -> int | None:
        """MQTT does not report it."""
        return None

    def _arrived(self, found: MQTTMessage, inbox: AcknowledgedInbox) -> None:
        if not found.qos and inbox.full:
            # The broker does not count messages of QoS 0, so nothing else limits them.
            if not self._warned_dropped:
                self._warned_dropped = True
                _log.warning(
                    "lane %s: messages of QoS 0 arrive faster than they are processed, and some are dropped",
                    self._owner.lane,
                )
            return
        message = message_of(found, self._spec.id_property, self._owner.clock.now_us())
        self._largest = max(self._largest, message.size)
        inbox.put(message)
        if inbox.size >= inbox.bytes_max:
            inbox.changed.set()


def message_of(found: MQTTMessage, id_property: str, now_us: int) -> AcknowledgedMessage:
    """A delivered message, converted for the inbox. Pure."""
    # If a property is repeated, the first one counts.
    headers = {name: text.encode() for name, text in reversed(getattr(found.properties, "UserProperty", ()))}
    record_id = headers.pop(id_property, b"").decode()
    headers[TOPIC] = found.topic.encode()
    if content_type := getattr(found.properties, "ContentType", ""):
        headers[CONTENT_TYPE] = content_type.encode()
    return AcknowledgedMessage(
        value=bytes(found.payload),
        tag=found.mid if found.qos else None,
        time_us=now_us,
        record_id=record_id,
        headers=headers,
        redelivered=bool(found.dup),
    )


async def look(spec: MqttSource, base_dir: Path) -> list[tuple[str, str]]:
    """What on the broker does not fit the settings, with what is expected. Raises Millstream errors if it cannot be
    reached."""
    async with aclosing(await open_link(spec, base_dir, "validate --online")) as link:
        if not spec.topic.startswith(SHARED):
            # A subscription to a shared one would take messages from its other members.
            try:
                await link.subscribe(spec.topic)
            except UserError as error:
                return [(str(error), "a topic filter that the user may read")]
    return []
