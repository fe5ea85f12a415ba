"""The `pubsub` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.pubsub.settings import PubsubSink, PubsubSource
from millstream_connectors.shared.looking import absent
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Pubsub(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"google.pubsub_v1": "millstream[pubsub]"}
    encoded = True


class _Source(_Pubsub, EndlessSource[PubsubSource]):
    model = PubsubSource
    meaning = "Messages of a subscription of Google Cloud Pub/Sub."
    promise = Guarantee(GuaranteeId.RECORD_IDS, "exactly once, as long as `idTtl` remembers the id of a message")
    untrusted = True

    def guarantee(self, settings: PubsubSource) -> Guarantee:
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            f"exactly once: the id of each message is remembered for {as_duration(settings.id_ttl_s)}",
        )

    def online_findings(self, settings: PubsubSource, place: Place) -> OnlineFindings:
        from millstream_connectors.pubsub.source import look

        looking, what = look(settings, place.base_dir), f"there is no subscription {settings.path}"
        return absent(place, "subscription", looking, what, "an existing pull subscription")

    def open(self, settings: PubsubSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.pubsub.source import KIND, subscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        return open_acknowledged(
            KIND,
            settings.path,
            owner,
            subscription(settings, owner),
            messages_max=settings.prefetch,
        )


class _Sink(_Pubsub, SinkConnector[PubsubSink]):
    model = PubsubSink
    meaning = "To a topic of Google Cloud Pub/Sub."
    promise = Guarantee(
        GuaranteeId.AT_LEAST_ONCE,
        "at least once; each message has an id (the attribute `Millstream-Id`) that is the same on every attempt, by "
        "which a reader can drop duplicates",
    )
    whole = True

    def online_findings(self, settings: PubsubSink, place: Place) -> OnlineFindings:
        from millstream_connectors.pubsub.sink.lane import look

        looking, what = look(settings, place.base_dir), f"there is no topic {settings.path}"
        return absent(place, "topic", looking, what, "an existing topic")

    def open(self, settings: PubsubSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.pubsub.sink.lane import open_pubsub_sink

        return open_pubsub_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
