"""The `mqtt` sink, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.mqtt.settings import MqttSink
from millstream_connectors.shared.looking import no_findings
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Mqtt(SinkConnector[MqttSink]):
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
        from millstream_connectors.mqtt.sink.lane import open_mqtt_sink

        return open_mqtt_sink(settings, owner)


MQTT = _Mqtt()
