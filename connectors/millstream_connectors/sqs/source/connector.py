"""The `sqs` source, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.shared.looking import absent
from millstream_connectors.sqs.settings import SqsSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Sqs(SourceConnector[SqsSource]):
    model = SqsSource
    meaning = "Messages of an Amazon SQS queue."
    packages: ClassVar = {"aiobotocore": "millstream[sqs]"}
    promise = Guarantee(GuaranteeId.RECORD_IDS, "exactly once, as long as `idTtl` remembers the id of a message")
    untrusted = True

    def bounded(self, settings: SqsSource) -> bool | None:
        return False

    def guarantee(self, settings: SqsSource) -> Guarantee:
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            f"exactly once: the id of each message is remembered for {as_duration(settings.id_ttl_s)}",
        )

    def online_findings(self, settings: SqsSource, place: Place) -> OnlineFindings:
        from millstream_connectors.sqs.client import look

        looking = look(settings, place.base_dir)
        return absent(place, "queueUrl", looking, "there is no such queue", "an existing one", sign="there is no queue")

    def open(self, settings: SqsSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.shared.acknowledged import open_acknowledged
        from millstream_connectors.sqs.source.queue import KIND, subscription

        return open_acknowledged(
            KIND,
            settings.queue_url,
            owner,
            subscription(settings, owner),
            messages_max=settings.prefetch,
        )


SQS = _Sqs()
