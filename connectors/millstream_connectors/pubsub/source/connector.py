"""The `pubsub` source, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.pubsub.settings import PubsubSource
from millstream_connectors.shared.looking import absent
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Pubsub(SourceConnector[PubsubSource]):
    encoded = True
    model = PubsubSource
    meaning = "Messages of a subscription of Google Cloud Pub/Sub."
    packages: ClassVar = {"google.pubsub_v1": "millstream[pubsub]"}
    promise = Guarantee(GuaranteeId.RECORD_IDS, "exactly once, as long as `idTtl` remembers the id of a message")
    untrusted = True

    def bounded(self, settings: PubsubSource) -> bool | None:
        return False

    def guarantee(self, settings: PubsubSource) -> Guarantee:
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            f"exactly once: the id of each message is remembered for {as_duration(settings.id_ttl_s)}",
        )

    def online_findings(self, settings: PubsubSource, place: Place) -> OnlineFindings:
        from millstream_connectors.pubsub.source.subscription import look

        looking, what = look(settings, place.base_dir), f"there is no subscription {settings.path}"
        return absent(place, "subscription", looking, what, "an existing pull subscription")

    def open(self, settings: PubsubSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.pubsub.source.subscription import KIND, subscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        return open_acknowledged(
            KIND,
            settings.path,
            owner,
            subscription(settings, owner),
            messages_max=settings.prefetch,
        )


PUBSUB = _Pubsub()
