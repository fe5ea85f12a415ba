"""The `rabbitmq` source, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.rabbitmq.settings import RabbitSource
from millstream_connectors.shared.looking import absent
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Rabbit(SourceConnector[RabbitSource]):
    encoded = True
    model = RabbitSource
    meaning = "Messages of a RabbitMQ queue."
    packages: ClassVar = {"aiormq": "millstream[rabbitmq]"}
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for messages of a stream, and for messages with a unique `message_id`, as long as `idTtl` "
        "remembers it; at least once without one",
    )
    untrusted = True

    def bounded(self, settings: RabbitSource) -> bool | None:
        return False

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


RABBITMQ = _Rabbit()
