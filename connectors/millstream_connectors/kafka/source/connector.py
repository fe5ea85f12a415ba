"""The `kafka` source, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.kafka.settings import KafkaSource
from millstream_connectors.shared.looking import no_findings
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Kafka(SourceConnector[KafkaSource]):
    model = KafkaSource
    meaning = "Records of topics of Kafka."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues at the offsets in its last commit")
    ends = "never, without `stopAtEnd`"
    packages: ClassVar = {"confluent_kafka": "millstream[kafka]"}
    untrusted = True
    keys_are_bytes = True
    encoded = keys_encoded = True

    def bounded(self, settings: KafkaSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: KafkaSource, place: Place) -> OnlineFindings:
        from millstream_connectors.kafka.client import look_for_topics

        return no_findings(look_for_topics(settings, settings.topics, place.base_dir, "the kafka source"))

    def open(self, settings: KafkaSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.kafka.source.lane import open_kafka

        return open_kafka(settings, owner)


KAFKA = _Kafka()
