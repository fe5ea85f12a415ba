"""The `kafka` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.kafka.settings import KafkaSink, KafkaSource
from millstream_connectors.shared.looking import no_findings
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Kafka(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"confluent_kafka": "millstream[kafka]"}
    encoded = keys_encoded = True


class _Source(_Kafka, SourceConnector[KafkaSource]):
    model = KafkaSource
    meaning = "Records of topics of Kafka."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues at the offsets in its last commit")
    ends = "never, without `stopAtEnd`"
    untrusted = True
    keys_are_bytes = True

    def bounded(self, settings: KafkaSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: KafkaSource, place: Place) -> OnlineFindings:
        from millstream_connectors.kafka.client import look_for_topics

        return no_findings(look_for_topics(settings, settings.topics, place.base_dir, "the kafka source"))

    def open(self, settings: KafkaSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.kafka.source.lane import open_kafka

        return open_kafka(settings, owner)


class _Sink(_Kafka, SinkConnector[KafkaSink]):
    whole = True
    keeps_position_in = "topic"
    model = KafkaSink
    meaning = "To a Kafka topic."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once for readers with `isolation.level=read_committed`: a transaction contains records and the "
        "position after them",
    )

    def guarantee(self, settings: KafkaSink, *, fallback: bool) -> Guarantee:
        if fallback or settings.transactions:
            return super().guarantee(settings, fallback=fallback)
        return Guarantee(
            GuaranteeId.AT_LEAST_ONCE,
            "at least once: after a crash or a lost connection, records since the last mark are sent again; "
            "`transactions: true` makes it exactly once",
        )

    def subject(self, settings: KafkaSink) -> str | None:
        return f"{settings.topic}-value"

    def keys_unencoded(self, settings: KafkaSink) -> str | None:
        return None if settings.set_key else "`setKey: true` of `kafka`"

    def key_subject(self, settings: KafkaSink) -> str | None:
        return f"{settings.topic}-key"

    def online_findings(self, settings: KafkaSink, place: Place) -> OnlineFindings:
        from millstream_connectors.kafka.client import look_for_topics

        return no_findings(look_for_topics(settings, [settings.topic], place.base_dir, "the kafka sink"))

    def open(self, settings: KafkaSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.kafka.sink.lane import open_kafka_sink

        return open_kafka_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
