"""The `mqtt` sink on a real broker: what a message carries, and what becomes of those that the broker does not take."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.mqtt.sink import REFUSED, TOO_LARGE, UNANSWERED
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.shared.carried import HEADER
from tests.contract.sinks.file_target import sink_owner
from tests.support.errors import raises
from tests.support.mqtt_broker import PACKET_BYTES_MAX, PASSWORD, USER, MqttServer, carried
from tests.unit.writer.sink_frames import sink_frame


def spec(server: MqttServer, topic: str, **settings: Any) -> FallbackSink:
    return FallbackSink.model_validate({"mqtt": {**server.settings, "topic": topic, **settings}})


@pytest.mark.guarantee("I1")
async def test_what_a_message_carries(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    frame = sink_frame(
        [b"\xff\0", b""], 1, keys=[[b"a", "ü".encode()], []], headers=[{"h": "é".encode(), "millstream-x": b"2"}, {}]
    )
    mqtt.keep(topic)
    async with open_sink(spec(mqtt, topic), sink_owner(1)) as sink:
        assert not (await sink.write([frame], Position(1))).failures
        # Once more, as after a failure: the ids are the same.
        await sink.write([frame], Position(1))
    found = await asyncio.to_thread(mqtt.kept, topic)
    first, second, *again = found
    properties = carried(first)
    assert (first.payload, first.qos, properties["h"]) == (b"\xff\0", 1, "é")
    assert json.loads(properties["Millstream-Keys"]) == ["a", "ü"]
    assert properties["Millstream-Event-Time"] == str(frame.frame.event_times_us()[0] // 1000)
    assert "millstream-x" not in properties
    assert second.payload == b""
    ids = [carried(message)["Millstream-Id"] for message in (first, second)]
    assert [carried(message)["Millstream-Id"] for message in again] == ids
    assert len(set(ids)) == 2


async def test_records_that_cannot_be_sent_fail_alone(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    values = [b"a", b"b", b"c", b"x" * PACKET_BYTES_MAX, b"d"]
    frame = sink_frame(values, 1, headers=[{}, {"h": b"\xff"}, {"h": b"\0"}, {}, {}])
    mqtt.keep(topic)
    async with open_sink(spec(mqtt, topic), sink_owner(1)) as sink:
        (failures,) = (await sink.write([frame], Position(1))).failures
    found = await asyncio.to_thread(mqtt.kept, topic)
    assert [(failure.index, failure.reason) for failure in failures] == [(1, HEADER), (2, HEADER), (3, TOO_LARGE)]
    assert [message.payload for message in found] == [b"a", b"d"]


@pytest.mark.sweep
async def test_a_topic_that_may_not_be_written_refuses_each_record(mqtt: MqttServer) -> None:
    frame = sink_frame([b"a", b"b"], 1)
    async with open_sink(spec(mqtt, "closed"), sink_owner(1)) as sink:
        # This version of Mosquitto refuses a message, and then closes the connection.
        ((first, second), (third,)) = (await sink.write([frame, sink_frame([b"c"], 2)], Position(2))).failures
    assert (first.index, first.reason, first.retryable, first.detail) == (0, REFUSED, False, "Not authorized")
    assert (second.index, second.reason, second.retryable) == (1, UNANSWERED, True)
    assert (third.reason, third.retryable) == (REFUSED, False)


@pytest.mark.sweep
async def test_more_is_written_than_may_be_unconfirmed(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    mqtt.keep(topic)
    async with open_sink(spec(mqtt, topic), sink_owner(1)) as sink:
        await sink.write([sink_frame([b"%d" % n for n in range(2500)], 1)], Position(1))
    found = await asyncio.to_thread(mqtt.kept, topic)
    assert [message.payload for message in found] == [b"%d" % n for n in range(2500)]


@pytest.mark.sweep
@pytest.mark.guarantee("I9")
async def test_a_broker_that_is_away_or_stands_still_is_waited_for(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with open_sink(spec(mqtt, topic, timeout="1s"), sink_owner(1)) as sink:
        mqtt.pause()
        try:
            with pytest.raises(RetryLaterError, match="did not answer in time"):
                await sink.write([sink_frame([b"a"], 1)], Position(1))
        finally:
            mqtt.go_on()
        mqtt.stop()
        try:
            with pytest.raises(RetryLaterError, match="cannot be used now"):
                await sink.write([sink_frame([b"a"], 1)], Position(1))
        finally:
            mqtt.start()
        mqtt.keep(topic)
        await sink.write([sink_frame([b"a"], 1)], Position(1))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"password": "wrong"}, codes.TARGET_REFUSES, f"refuses user {USER}"),
        ({"url": "mqtts://127.0.0.1:PORT", "timeout": "1s"}, codes.TARGET_REFUSES, "no encrypted connection"),
    ],
)
async def test_what_does_not_fit_is_said(mqtt: MqttServer, change: dict[str, str], code: Code, said: str) -> None:
    change = {name: text.replace("PORT", str(mqtt.tls_port)) for name, text in change.items()}
    with raises(code, said) as stopped:
        async with open_sink(spec(mqtt, "t/x", **change), sink_owner(1)):
            pass
    assert "wrong" not in str(stopped.value)
    assert PASSWORD not in str(stopped.value)
