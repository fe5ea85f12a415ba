"""`format` of sources: values in Confluent's wire format, with the schemas of a stand-in for a registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from pydantic import ValidationError

from millstream import codes
from millstream.codes.code import Code
from millstream.limits import REGISTRY_REQUESTS_MAX
from millstream.spec.formats import Format
from millstream.spec.models import Source
from millstream_connectors.shared.formats import decoding as decoding_module
from millstream_connectors.shared.formats.looking import look
from millstream_reader.source import SourceBatch, is_held_up
from tests.contract.sources.lanes import open_lane, read_to_end, read_until, records_of, values
from tests.support.errors import raises
from tests.support.kafka_server import KafkaServer
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.support.protobuf_schemas import ORDERS
from tests.support.pubsub_server import PubsubServer
from tests.support.pulsar_server import PulsarServer
from tests.support.rabbit_server import RabbitServer
from tests.support.redis_server import RedisServer
from tests.support.registry_server import PASSWORD, USER, RegistryServer, open_registry_server
from tests.support.sizes import first

pytestmark = pytest.mark.asyncio

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}
FOO = b"\x36\x06foo"
"""The value `{"a": 27, "b": "foo"}`, as Avro's specification encodes it."""


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + value


def avro(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


@pytest.fixture
async def registry() -> AsyncIterator[RegistryServer]:
    async with open_registry_server() as server:
        server.schemas[7] = {"schema": json.dumps(ORDER)}
        yield server


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[OutsideNats]:
    async with open_outside_nats(tmp_path / "nats") as nats:
        await nats.create("orders")
        yield nats


def spec(nats: OutsideNats, registry: RegistryServer, *, encoding: str = "avro", **more: Any) -> dict[str, Any]:
    jetstream = {**nats.settings, "stream": "orders", "stopAtEnd": True}
    access = more.pop("access", {})
    reader = {"readerSchema": more.pop("reader")} if "reader" in more else {}
    written = {"encoding": encoding, "registry": {"url": registry.url, **access}, **reader}
    return {"jetstream": jetstream, "format": written, **more}


async def publish(nats: OutsideNats, *messages: bytes) -> None:
    for message in messages:
        await nats.publish("orders.all", message)


async def test_a_kafka_topic_in_avro_is_read_as_json_from_any_position(
    kafka: KafkaServer, registry: RegistryServer
) -> None:
    topic = kafka.create(f"formats-{uuid4()}")
    kafka.produce(topic, [framed(7, avro(ORDER, {"a": n, "b": f"k{n % 3}"})) for n in range(60)])
    kafka.produce(topic, [framed(7, FOO)])
    written = {
        "kafka": {"brokers": [kafka.brokers], "topic": topic, "stopAtEnd": True},
        "format": {"encoding": "avro", "registry": {"url": registry.url}},
        "keys": ["b"],
        "eventTime": {"field": "a", "format": "epoch"},
    }
    async with open_lane(written) as lane:
        records, invalid, batches = await read_to_end(lane, records_max=23)
    whole: list[dict[str, Any]] = [{"a": n, "b": f"k{n % 3}"} for n in range(60)] + [{"a": 27, "b": "foo"}]
    assert [json.loads(record.value) for record in records] == whole
    assert [(r.event_time_us, r.keys) for r in records] == [(item["a"] * 1_000_000, (item["b"],)) for item in whole]
    assert not invalid
    assert registry.asked == ["/schemas/ids/7"]
    done: list[bytes] = []
    for batch in batches:
        done += values(records_of([batch]))
        async with open_lane(written, batch.position) as lane:
            rest, _, _ = await read_to_end(lane)
        assert done + values(rest) == values(records)


@pytest.mark.parametrize("valued", first(1, [False, True]))
async def test_keys_of_a_kafka_topic_are_decoded_with_a_format_of_their_own(
    kafka: KafkaServer, registry: RegistryServer, valued: bool
) -> None:
    topic = kafka.create(f"formats-{uuid4()}")
    text, number = registry.register("text", {"type": "string"}), registry.register("number", {"type": "long"})
    value = framed(7, FOO) if valued else b"plain"
    given: list[tuple[bytes | None, tuple[str, ...]]] = [
        (framed(text, avro("string", "Zoë")), ("Zoë",)),
        (framed(text, avro("string", '"quoted"')), ('"quoted"',)),
        # Not text as it is.
        (framed(number, avro("long", -(2**63))), (str(-(2**63)),)),
        (framed(7, FOO), ('{"a":27,"b":"foo"}',)),
        (None, ()),
        (b"", ("",)),
    ]
    for key, _ in given:
        kafka.produce(topic, [value], key=key)
    for key in (b"0000000001066162", b"\0\0\0\x01\x94x", b"\xff"):
        kafka.produce(topic, [value], key=key)
    form = {"encoding": "avro", "registry": {"url": registry.url}}
    written = {
        "kafka": {"brokers": [kafka.brokers], "topic": topic, "stopAtEnd": True},
        "keyFormat": form,
        **({"format": form} if valued else {}),
    }
    async with open_lane(written) as lane:
        records, invalid, batches = await read_to_end(lane, records_max=2)
    assert [record.keys for record in records] == [keys for _, keys in given]
    assert set(values(records)) == {b'{"a":27,"b":"foo"}' if valued else b"plain"}
    assert [item.value for item in invalid] == [value] * 3
    assert all(item.reason.startswith("the key: ") for item in invalid), invalid
    for batch in batches:
        async with open_lane(written, batch.position) as lane:
            rest, _, _ = await read_to_end(lane)
        assert [one.keys for one in rest] == [one.keys for one in records][len(records) - len(rest) :]


async def test_keys_that_cannot_be_decoded_yet_are_waited_for(kafka: KafkaServer, registry: RegistryServer) -> None:
    topic = kafka.create(f"formats-{uuid4()}")
    kafka.produce(topic, [b"v"], key=framed(7, FOO))
    registry.away = True
    form = {"encoding": "avro", "registry": {"url": registry.url}}
    written = {"kafka": {"brokers": [kafka.brokers], "topic": topic, "stopAtEnd": True}, "keyFormat": form}
    async with open_lane(written) as lane:
        while not registry.asked:
            assert (await lane.read(100, 1 << 20, 0.05)).frame is None
        registry.away = False
        records = await read_until(lane, lambda records: len(records) == 1, [])
    assert records[0].keys == ('{"a":27,"b":"foo"}',)


async def test_values_that_cannot_be_decoded_are_set_aside_with_the_reason(
    nats: OutsideNats, registry: RegistryServer
) -> None:
    registry.schemas[8] = {"schema": "{}", "schemaType": "JSON"}
    registry.schemas[9] = {"schema": '{"type": "no such"}'}
    good = framed(7, FOO)
    bad = {
        b'{"a": 1}': "Confluent's wire format",
        b"\0\0": "Confluent's wire format",
        framed(404, FOO): "schema 404 is not known to the registry",
        framed(8, b"{}"): "schema 8 is of type JSON, and `format` expects AVRO",
        framed(9, FOO): "schema 9 cannot be used",
        framed(7, FOO[:-1]): "schema 7: the value does not fit its schema",
        framed(7, FOO + b"x"): "1 bytes are left after it",
    }
    await publish(nats, good, *bad, good, b"")
    async with open_lane(spec(nats, registry)) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert values(records) == [b'{"a":27,"b":"foo"}', b'{"a":27,"b":"foo"}', b""]
    assert [item.value for item in invalid] == list(bad)
    for item in invalid:
        assert bad[item.value] in item.reason


async def test_a_registry_that_is_away_is_waited_for_and_nothing_is_lost(
    nats: OutsideNats, registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(nats, *[framed(7, FOO)] * 10)
    registry.away = True
    async with open_lane(spec(nats, registry)) as lane:
        while len(registry.asked) < 2:
            batch = await lane.read(100, 1 << 20, 0.05)
            assert (batch.frame, batch.position, batch.ended, batch.invalid) == (None, b"", False, ())
        assert is_held_up(lane)
        registry.away = False
        records = await read_until(lane, lambda records: len(records) >= 10)
        assert not is_held_up(lane)
        assert (await lane.read(100, 1 << 20, 0.01)).ended
    assert len(records) == 10
    (said,) = [entry.getMessage() for entry in caplog.records if entry.name.endswith("decoding_lane")]
    assert "503" in said
    assert registry.url in said


async def test_an_address_where_nothing_listens_is_waited_for(nats: OutsideNats) -> None:
    async with open_registry_server() as gone:
        pass
    await publish(nats, framed(7, FOO))
    async with open_lane(spec(nats, gone)) as lane:
        batch = await lane.read(100, 1 << 20, 0.05)
        assert (batch.frame, batch.position) == (None, b"")


async def test_a_schema_that_comes_later_is_asked_for_again(
    nats: OutsideNats, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_module, "REGISTRY_UNKNOWN_S", 0.0)
    await publish(nats, framed(11, FOO), framed(11, FOO))
    async with open_lane(spec(nats, registry)) as lane:
        first = await lane.read(1, 1 << 20, 5.0)
        registry.schemas[11] = {"schema": json.dumps(ORDER)}
        records = await read_until(lane, lambda records: len(records) == 1)
    assert len(first.invalid) == 1
    assert values(records) == [b'{"a":27,"b":"foo"}']


async def test_credentials(nats: OutsideNats, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.closed = True
    await publish(nats, framed(7, FOO))
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    access = {"user": USER, "password": {"env": "REGISTRY_PASSWORD"}}
    async with open_lane(spec(nats, registry, access=access)) as lane:
        records, _, _ = await read_to_end(lane)
    assert len(records) == 1
    monkeypatch.setenv("REGISTRY_PASSWORD", "wrong")
    async with open_lane(spec(nats, registry, access=access)) as lane:
        with raises(codes.TARGET_REFUSES, registry.url):
            await lane.read(100, 1 << 20, 5.0)


async def test_references_and_a_reader_schema(nats: OutsideNats, registry: RegistryServer) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "int"}]}
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "Money"}]}
    registry.versions["money/eur", 2] = {"schema": json.dumps(money)}
    references = [{"name": "Money", "subject": "money/eur", "version": 2}]
    registry.schemas[12] = {"schema": json.dumps(bill), "references": references}
    await publish(nats, framed(12, b"\x14"))
    async with open_lane(spec(nats, registry)) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert (values(records), invalid) == ([b'{"sum":{"cents":10}}'], [])


async def test_a_reader_schema_decides_which_fields_there_are(nats: OutsideNats, registry: RegistryServer) -> None:
    fields = [{"name": "b", "type": "string"}, {"name": "c", "type": "int", "default": 5}]
    registry.schemas[13] = {"schema": json.dumps({**ORDER, "fields": fields})}
    await publish(nats, framed(7, FOO))
    async with open_lane(spec(nats, registry, reader=13)) as lane:
        records, _, _ = await read_to_end(lane)
    assert values(records) == [b'{"b":"foo","c":5}']
    async with open_lane(spec(nats, registry, reader=14)) as lane:
        with raises(codes.TARGET_UNFIT, "14"):
            await lane.read(100, 1 << 20, 5.0)


async def test_json_with_a_schema_loses_its_frame_alone(nats: OutsideNats, registry: RegistryServer) -> None:
    registry.schemas[8] = {"schema": "{}", "schemaType": "JSON"}
    await publish(nats, framed(8, b'{"a": 1}'), framed(8, b"{"))
    async with open_lane(spec(nats, registry, encoding="json")) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert values(records) == [b'{"a": 1}']
    assert ["schema 8: the value is not JSON" in item.reason for item in invalid] == [True]


async def test_garbage_ids_do_not_fill_the_memory(
    nats: OutsideNats, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_module, "REGISTRY_SCHEMAS_MAX", 3)
    await publish(nats, *(framed(n, FOO) for n in range(100, 120)), framed(7, FOO))
    async with open_lane(spec(nats, registry)) as lane, asyncio.timeout(30):
        records, invalid, _ = await read_to_end(lane)
    assert (len(records), len(invalid)) == (1, 20)


async def test_what_validate_asks_of_a_source(registry: RegistryServer) -> None:
    def written(**more: Any) -> Format:
        return Format.model_validate({"encoding": "avro", "registry": {"url": registry.url}, **more})

    await look(written(), "", Path(), "p")
    await look(written(readerSchema=7), "", Path(), "p")
    with raises(codes.TARGET_UNFIT, "schema 8 is not known"):
        await look(written(readerSchema=8), "", Path(), "p")
    registry.closed = True
    with raises(codes.TARGET_REFUSES, registry.url):
        await look(written(), "", Path(), "p")
    registry.away = True
    with raises(codes.TARGET_AWAY, registry.url):
        await look(written(), "", Path(), "p")
    registry.raw = "[" * 200_000
    with raises(codes.TARGET_UNFIT, "unlike a schema registry"):
        await look(written(), "", Path(), "p")


async def test_schemas_that_are_not_known_are_asked_for_at_the_same_time(
    nats: OutsideNats, registry: RegistryServer
) -> None:
    for number in range(20, 40):
        registry.schemas[number] = {"schema": json.dumps({**ORDER, "doc": str(number)})}
    await publish(nats, *(framed(n, FOO) for n in range(20, 40)))
    async with open_lane(spec(nats, registry)) as lane:
        records, _, _ = await read_to_end(lane)
    assert len(records) == 20
    assert sorted(registry.asked) == [f"/schemas/ids/{number}" for number in range(20, 40)]
    assert 2 <= registry.open_max <= REGISTRY_REQUESTS_MAX


async def test_protobuf_that_confluents_serializer_has_written(nats: OutsideNats, registry: RegistryServer) -> None:
    def written() -> list[bytes]:
        pool = DescriptorPool()
        pool.AddSerializedFile(TIMESTAMP.serialized_pb)
        pool.Add(ORDERS)
        made = []
        for name, fields in (("Order", {"id": 5, "customer": "c"}), ("Order.Line", {"sku": "x"}), ("Bill", {"id": 7})):
            kind = GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
            with SchemaRegistryClient({"url": registry.url}) as client:
                serialize = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
                made.append(serialize(kind(**fields), SerializationContext("orders", MessageField.VALUE)))
        return [one for one in made if one is not None]

    messages = await asyncio.to_thread(written)
    await publish(nats, *messages, messages[0][:-1], framed(8, b"\x02"))
    async with open_lane(spec(nats, registry, encoding="protobuf")) as lane:
        records, invalid, _ = await read_to_end(lane)
    order, line, bill = (json.loads(value) for value in values(records))
    assert (order["id"], order["customer"], line, bill) == ("5", "c", {"sku": "x", "count": 0}, {"id": "7"})
    assert len(invalid) == 2
    assert "is not a message shop.Order" in invalid[0].reason
    assert "indexes" in invalid[1].reason


@pytest.mark.parametrize(
    "kind",
    ["redisStreams", *(pytest.param(one, marks=pytest.mark.sweep) for one in ("rabbitmq", "pubsub", "pulsar"))],
)
async def test_other_sources_of_messages(request: pytest.FixtureRequest, registry: RegistryServer, kind: str) -> None:
    written: dict[str, Any] = {"format": {"encoding": "avro", "registry": {"url": registry.url}}, "keys": ["b"]}
    name, messages = f"formats-{uuid4()}", [framed(7, FOO), b"garbage", framed(7, FOO)]
    if kind == "redisStreams":
        redis: RedisServer = request.getfixturevalue("redis")
        for message in messages:
            redis.command("XADD", name, "*", "value", message, "eventTime", 1)
        written[kind] = {**redis.settings, "stream": name, "format": "record"}
    elif kind == "pubsub":
        pubsub: PubsubServer = request.getfixturevalue("pubsub")
        subscribed = pubsub.queue()
        pubsub.send(subscribed, messages)
        written[kind] = pubsub.source(subscribed)
    elif kind == "pulsar":
        pulsar: PulsarServer = request.getfixturevalue("pulsar")
        topic = await asyncio.to_thread(pulsar.topic)
        await asyncio.to_thread(pulsar.send, topic, messages)
        written[kind] = {**pulsar.settings, "topic": topic, "subscriptionName": "s"}
    else:
        rabbit: RabbitServer = request.getfixturevalue("rabbit")
        queue = await asyncio.to_thread(rabbit.queue)
        await asyncio.to_thread(rabbit.send, queue, messages, ids="m")
        written[kind] = {**rabbit.settings, "queue": queue}
    registry.away = True
    async with open_lane(written) as lane:
        while not registry.asked:
            assert (await lane.read(100, 1 << 20, 0.05)).frame is None
        registry.away = False
        batches: list[SourceBatch] = []
        records = await read_until(lane, lambda records: len(records) == 2, batches)
    assert [(record.value, record.keys) for record in records] == [(b'{"a":27,"b":"foo"}', ("foo",))] * 2
    assert [item.value for batch in batches for item in batch.invalid] == [b"garbage"]


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ({"encoding": "avro", "registry": {"url": "ftp://h"}}, codes.VALUE_MALFORMED),
        ({"encoding": "avro", "registry": {"url": "http://u:p@h"}}, codes.VALUE_MALFORMED),
        ({"encoding": "avro", "registry": {"url": "http://h", "tls": {}}}, codes.FIELDS_CONFLICT),
        ({"encoding": "avro", "registry": {"url": "http://h", "user": "u"}}, codes.FIELDS_CONFLICT),
        ({"encoding": "json", "registry": {"url": "http://h"}, "readerSchema": 3}, codes.FIELDS_CONFLICT),
    ],
)
async def test_what_cannot_be_meant_is_refused(written: dict[str, Any], code: Code) -> None:
    with pytest.raises(ValidationError) as refused:
        Source.model_validate({"kafka": {"brokers": ["h:1"], "topic": "t"}, "format": written})
    assert [error["ctx"]["code"] for error in refused.value.errors()] == [code.number]
    fine = {"encoding": "json", "registry": {"url": "http://h"}}
    with pytest.raises(ValidationError, match="have no `format`"):
        Source.model_validate({"generator": {"records": 1}, "format": fine})
    with pytest.raises(ValidationError, match="keys of a rabbitmq source have no `keyFormat`"):
        Source.model_validate({"rabbitmq": {"url": "amqp://h", "queue": "q"}, "keyFormat": fine})
    with pytest.raises(ValidationError, match="`keyFormat` has no effect"):
        Source.model_validate({"kafka": {"brokers": ["h:1"], "topic": "t"}, "keyFormat": fine, "keys": ["a"]})
