"""The `sqs` sink, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.shared.looking import absent
from millstream_connectors.sqs.settings import SqsSink
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Sqs(SinkConnector[SqsSink]):
    model = SqsSink
    meaning = "To an Amazon SQS queue."
    packages: ClassVar = {"aiobotocore": "millstream[sqs]"}
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

    def online_findings(self, settings: SqsSink, place: Place) -> OnlineFindings:
        from millstream_connectors.sqs.client import look

        looking = look(settings, place.base_dir)
        return absent(place, "queueUrl", looking, "there is no such queue", "an existing one", sign="there is no queue")

    def open(self, settings: SqsSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.sqs.sink.lane import open_sqs_sink

        return open_sqs_sink(settings, owner)


SQS = _Sqs()
