"""The `rabbitmq` sink, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.rabbitmq.settings import RabbitSink
from millstream_connectors.shared.looking import absent
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Rabbit(SinkConnector[RabbitSink]):
    encoded = True
    model = RabbitSink
    meaning = "To an exchange or a queue of RabbitMQ."
    packages: ClassVar = {"aiormq": "millstream[rabbitmq]"}
    promise = Guarantee(
        GuaranteeId.AT_LEAST_ONCE,
        "at least once; each message has an id (`message_id`) that is the same on every attempt, by which a reader "
        "can drop duplicates",
    )
    whole = True

    def online_findings(self, settings: RabbitSink, place: Place) -> OnlineFindings:
        from millstream_connectors.rabbitmq.sink.lane import look

        kind, setting, name = (
            ("exchange", "exchange", settings.exchange)
            if settings.exchange
            else ("queue", "routingKey", settings.routing_key)
        )
        what = f"there is no {kind} {name} in the virtual host {settings.virtual_host}"
        return absent(place, setting, look(settings, place.base_dir), what, "an existing one", sign="NOT_FOUND")

    def open(self, settings: RabbitSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.rabbitmq.sink.lane import open_rabbit_sink

        return open_rabbit_sink(settings, owner)


RABBITMQ = _Rabbit()
