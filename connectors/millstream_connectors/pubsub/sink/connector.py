"""The `pubsub` sink, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.pubsub.settings import PubsubSink
from millstream_connectors.shared.looking import absent
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Pubsub(SinkConnector[PubsubSink]):
    encoded = True
    model = PubsubSink
    meaning = "To a topic of Google Cloud Pub/Sub."
    packages: ClassVar = {"google.pubsub_v1": "millstream[pubsub]"}
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


PUBSUB = _Pubsub()
