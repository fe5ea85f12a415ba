"""The `mqtt` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.values import as_duration
from millstream_connectors.mqtt.settings import MqttSink, MqttSource
from millstream_connectors.shared.looking import no_findings, unfit_setting
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Source(EndlessSource[MqttSource]):
    model = MqttSource
    meaning = "Messages of MQTT topics."
    packages: ClassVar = {"paho": "millstream[mqtt]"}
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for messages of QoS 1 with the user property `idProperty`, as long as `idTtl` remembers it; at "
        "least once without it; at most once for messages of QoS 0",
    )
    untrusted = True

    def guarantee(self, settings: MqttSource) -> Guarantee:
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            f"exactly once for messages of QoS 1 with the user property `{settings.id_property}`, which is remembered "
            f"for {as_duration(settings.id_ttl_s)}; at least once without it; at most once for messages of QoS 0",
        )

    def online_findings(self, settings: MqttSource, place: Place) -> OnlineFindings:
        from millstream_connectors.mqtt.source import look

        return unfit_setting(place, "topic", look(settings, place.base_dir))

    def open(self, settings: MqttSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.mqtt.source import KIND, MqttSubscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        return open_acknowledged(
            KIND, settings.topic, owner, MqttSubscription(settings, owner), messages_max=settings.prefetch
        )


class _Sink(SinkConnector[MqttSink]):
    model = MqttSink
    meaning = "To a topic of an MQTT broker."
    packages: ClassVar = {"paho": "millstream[mqtt]"}
    promise = Guarantee(
        GuaranteeId.AT_LEAST_ONCE,
        "at least once; each message has an id (the user property `Millstream-Id`), the same at every attempt, by "
        "which a reader can drop duplicates",
    )
    whole = True

    def online_findings(self, settings: MqttSink, place: Place) -> OnlineFindings:
        from millstream_connectors.mqtt.client import look

        # MQTT has no way to ask whether a client may publish to a topic.
        return no_findings(look(settings, place.base_dir))

    def open(self, settings: MqttSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.mqtt.sink import open_mqtt_sink

        return open_mqtt_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
