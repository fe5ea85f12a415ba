"""The `sqs` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.shared.looking import absent
from millstream_connectors.sqs.settings import SqsQueue, SqsSink, SqsSource
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Sqs(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"aiobotocore": "millstream[sqs]"}

    def online_findings(self, settings: SqsQueue, place: Place) -> OnlineFindings:
        from millstream_connectors.sqs.client import look

        looking = look(settings, place.base_dir)
        return absent(place, "queueUrl", looking, "there is no such queue", "an existing one", sign="there is no queue")


class _Source(_Sqs, EndlessSource[SqsSource]):
    model = SqsSource
    meaning = "Messages of an Amazon SQS queue."
    promise = Guarantee(GuaranteeId.RECORD_IDS, "exactly once, as long as `idTtl` remembers the id of a message")
    untrusted = True

    def guarantee(self, settings: SqsSource) -> Guarantee:
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            f"exactly once: the id of each message is remembered for {as_duration(settings.id_ttl_s)}",
        )

    def open(self, settings: SqsSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.shared.acknowledged import open_acknowledged
        from millstream_connectors.sqs.source import KIND, subscription

        return open_acknowledged(
            KIND,
            settings.queue_url,
            owner,
            subscription(settings, owner),
            messages_max=settings.prefetch,
        )


class _Sink(_Sqs, SinkConnector[SqsSink]):
    model = SqsSink
    meaning = "To an Amazon SQS queue."
    promise = Guarantee(
        GuaranteeId.AT_LEAST_ONCE,
        "at least once; each message has an id (the attribute `Millstream-Id`) that is the same on every attempt, by "
        "which a reader can drop duplicates",
    )
    whole = True

    def guarantee(self, settings: SqsSink, *, fallback: bool) -> Guarantee:
        if not settings.fifo:
            return self.promise
        return Guarantee(
            GuaranteeId.AT_LEAST_ONCE,
            "at least once; the FIFO queue drops a message that is sent again within five minutes",
        )

    def open(self, settings: SqsSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.sqs.sink.lane import open_sqs_sink

        return open_sqs_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
