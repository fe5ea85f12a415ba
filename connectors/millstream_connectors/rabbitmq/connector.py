"""The `rabbitmq` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.rabbitmq.settings import RabbitSink, RabbitSource
from millstream_connectors.shared.looking import absent
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Rabbit(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"aiormq": "millstream[rabbitmq]"}
    encoded = True


class _Source(_Rabbit, EndlessSource[RabbitSource]):
    model = RabbitSource
    meaning = "Messages of a RabbitMQ queue."
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for messages of a stream, and for messages with a unique `message_id`, as long as `idTtl` "
        "remembers it; at least once without one",
    )
    untrusted = True

    def guarantee(self, settings: RabbitSource) -> Guarantee:
        if settings.stream:
            return Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            "exactly once for messages with a unique `message_id`, which is remembered for "
            f"{as_duration(settings.id_ttl_s)}; at least once without one",
        )

    def online_findings(self, settings: RabbitSource, place: Place) -> OnlineFindings:
        from millstream_connectors.rabbitmq.source.queue import look

        what = f"there is no queue {settings.queue} in the virtual host {settings.virtual_host}"
        return absent(place, "queue", look(settings, place.base_dir), what, "an existing queue", sign="NOT_FOUND")

    def open(self, settings: RabbitSource, owner: SourceOwner) -> SourceOpening:
        if settings.stream:
            from millstream_connectors.rabbitmq.source.stream import open_stream

            return open_stream(settings, owner)
        from millstream_connectors.rabbitmq.source.queue import KIND, RabbitSubscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        return open_acknowledged(
            KIND, settings.queue, owner, RabbitSubscription(settings, owner), messages_max=settings.prefetch
        )


class _Sink(_Rabbit, SinkConnector[RabbitSink]):
    model = RabbitSink
    meaning = "To an exchange or a queue of RabbitMQ."
    promise = Guarantee(
        GuaranteeId.AT_LEAST_ONCE,
        "at least once; each message has an id (`message_id`) that is the same on every attempt, by which a reader "
        "can drop duplicates",
    )
    whole = True

    def online_findings(self, settings: RabbitSink, place: Place) -> OnlineFindings:
        from millstream_connectors.rabbitmq.sink import look

        kind, setting, name = (
            ("exchange", "exchange", settings.exchange)
            if settings.exchange
            else ("queue", "routingKey", settings.routing_key)
        )
        what = f"there is no {kind} {name} in the virtual host {settings.virtual_host}"
        return absent(place, setting, look(settings, place.base_dir), what, "an existing one", sign="NOT_FOUND")

    def open(self, settings: RabbitSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.rabbitmq.sink import open_rabbit_sink

        return open_rabbit_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
