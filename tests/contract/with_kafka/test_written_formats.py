"""`format` of sinks: what is written is what Confluent's own deserializers read, with the schemas of a stand-in for a
registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from pydantic import ValidationError

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.sink import SinkFrame, SinkLane, WriteResult
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.validating import validate_sink
from tests.support.errors import raises
from tests.support.kafka_server import KafkaServer
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.support.protobuf_schemas import ORDERS, ORDERS_SOURCE, serialized
from tests.support.registry_server import PASSWORD, USER, RegistryServer, encryption, open_registry_server
from tests.support.sizes import first
from tests.unit.writer.sink_frames import sink_frame

pytestmark = pytest.mark.asyncio

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"], "default": None}],
}
JSON_ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}},
    "required": ["a"],
}
VALUES = [{"a": n, "b": f"text {n}" if n % 2 else None} for n in range(20)]


@pytest.fixture
async def registry() -> AsyncIterator[RegistryServer]:
    async with open_registry_server() as server:
        yield server


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[OutsideNats]:
    async with open_outside_nats(tmp_path / "nats") as nats:
        await nats.create("orders", "orders", "positions.>", allow_atomic=True)
        yield nats


def opened(
    kind: str, settings: dict[str, Any], registry: RegistryServer, epoch: int = 1, **more: Any
) -> AbstractAsyncContextManager[SinkLane]:
    access = more.pop("access", {})
    written = {"encoding": "avro", "registry": {"url": registry.url, **access}, **more}
    return open_sink(FallbackSink.model_validate({kind: settings, "format": written}), sink_owner(epoch))


def to_stream(
    nats: OutsideNats, registry: RegistryServer, *, kept: bool = True, epoch: int = 1, **more: Any
) -> AbstractAsyncContextManager[SinkLane]:
    settings = {**nats.settings, "subject": "orders", **({"positions": "positions"} if kept else {})}
    return opened("jetstream", settings, registry, epoch, **{"subject": "orders-value", **more})


def frame(values: Sequence[Any], sequence: int = 1) -> SinkFrame:
    return sink_frame([one if isinstance(one, bytes) else json.dumps(one).encode() for one in values], sequence)


def refused(result: WriteResult) -> list[tuple[int, str]]:
    return [(failure.index, failure.detail) for failures in result.failures for failure in failures]


def deserializer(encoding: str, client: SchemaRegistryClient) -> Any:
    """Confluent's own."""
    if encoding == "avro":
        return AvroDeserializer(client)
    if encoding == "json":
        return JSONDeserializer(json.dumps(JSON_ORDER), schema_registry_client=client)
    pool = DescriptorPool()
    pool.AddSerializedFile(TIMESTAMP.serialized_pb)
    pool.Add(ORDERS)
    kind = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    of_message = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
    return lambda value, context: json_format.MessageToDict(of_message(value, context))


@pytest.mark.parametrize("encoding", ["avro", "json", "protobuf"])
async def test_confluents_deserializers_read_what_a_kafka_sink_has_written(
    kafka: KafkaServer, registry: RegistryServer, encoding: str
) -> None:
    topic = kafka.create(f"formats-{uuid4()}")
    values: list[dict[str, Any]] = VALUES
    more: dict[str, Any] = {}
    if encoding == "avro":
        registry.register(f"{topic}-value", ORDER)
    elif encoding == "json":
        registry.register(f"{topic}-value", JSON_ORDER, "JSON")
    else:
        values = [{"id": str(n), "customer": f"c{n}", "at": f"2024-01-31T08:00:{n:02}Z"} for n in range(1, 20)]
        registry.register(f"{topic}-value", ORDERS_SOURCE, "PROTOBUF", serialized=serialized(ORDERS))
        more["message"] = "shop.Order"
    async with opened(
        "kafka", {"brokers": [kafka.brokers], "topic": topic}, registry, encoding=encoding, **more
    ) as lane:
        assert await lane.write([frame([*values, b""])], Position(1)) == WriteResult()
    written = await asyncio.to_thread(kafka.values, topic)

    def read() -> list[Any]:
        context = SerializationContext(topic, MessageField.VALUE)
        with SchemaRegistryClient({"url": registry.url}) as client:
            deserialize = deserializer(encoding, client)
            return [deserialize(value, context) for value in written if value]

    assert await asyncio.to_thread(read) == values
    assert written[-1] == b""


KEYS: dict[str, tuple[Any, str, list[bytes], list[Any]]] = {
    "text": ({"type": "string"}, "AVRO", [b"a", b'"a"', "Zoë".encode(), b"5", b""], ["a", '"a"', "Zoë", "5", ""]),
    "number": ({"type": "long"}, "AVRO", [b"5", b"-9223372036854775808"], [5, -(2**63)]),
    "record": (ORDER, "AVRO", [b'{"a": 1, "b": "x"}'], [{"a": 1, "b": "x"}]),
    "json": (JSON_ORDER, "JSON", [b'{"a": 1, "b": "x"}'], [{"a": 1, "b": "x"}]),
    "protobuf": (ORDERS_SOURCE, "PROTOBUF", [b'{"id": "5"}'], [{"id": "5"}]),
}


@pytest.mark.parametrize("transactions", first(1, [True, False]))
@pytest.mark.parametrize("kind", KEYS)
async def test_confluents_deserializers_read_the_keys_that_a_kafka_sink_has_written(
    kafka: KafkaServer, registry: RegistryServer, kind: str, transactions: bool
) -> None:
    topic = kafka.create(f"formats-{uuid4()}")
    schema, type_, keys, read = KEYS[kind]
    compiled = {"serialized": serialized(ORDERS)} if type_ == "PROTOBUF" else {}
    registry.register(f"{topic}-key", schema, type_, **compiled)
    encoding = type_.lower()
    written = {"encoding": encoding, "registry": {"url": registry.url}}
    settings = {"brokers": [kafka.brokers], "topic": topic, "transactions": transactions}
    given = sink_frame([b"v"] * (len(keys) + 1), 1, keys=[*([key] for key in keys), []])
    spec = FallbackSink.model_validate({"kafka": settings, "keyFormat": written})
    async with open_sink(spec, sink_owner(1)) as lane:
        assert await lane.write([given], Position(1)) == WriteResult()
        await lane.flush()
    messages = await asyncio.to_thread(kafka.read, topic)
    assert [message.value() for message in messages] == [b"v"] * len(given.frame.values())
    assert messages[-1].key() is None

    def decoded() -> list[Any]:
        context = SerializationContext(topic, MessageField.KEY)
        with SchemaRegistryClient({"url": registry.url}) as client:
            deserialize = deserializer(encoding, client)
            return [deserialize(message.key(), context) for message in messages[:-1]]

    assert await asyncio.to_thread(decoded) == read


@pytest.mark.guarantee("I1")
async def test_a_key_that_does_not_fit_is_refused_and_others_are_written(
    kafka: KafkaServer, registry: RegistryServer
) -> None:
    topic = kafka.create(f"formats-{uuid4()}")
    registry.register(f"{topic}-key", {"type": "long"})
    written = {"encoding": "avro", "registry": {"url": registry.url}}
    settings = {"brokers": [kafka.brokers], "topic": topic}
    spec = FallbackSink.model_validate({"kafka": settings, "keyFormat": written})
    keys = [[b"1"], [b"one"], [b"1", b"2"], [b"2"]]
    async with open_sink(spec, sink_owner(1)) as lane:
        result = await lane.write([sink_frame([b"a", b"b", b"c", b"d"], 1, keys=keys)], Position(1))
    assert [(index, topic in detail) for index, detail in refused(result)] == [(1, True), (2, True)]
    assert {failure.reason for failures in result.failures for failure in failures} == {"key does not fit the schema"}
    # Nothing behind a refused record, before that one has been dealt with.
    assert await asyncio.to_thread(kafka.values, topic) == [b"a"]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_value_that_does_not_fit_is_refused_and_others_are_written(
    nats: OutsideNats, registry: RegistryServer, *, kept: bool
) -> None:
    schema_id = registry.register("orders-value", ORDER)
    values = [{"a": 1}, {"a": "x"}, {"a": 2}, b"{", {"a": 3, "extra": 1}, {"a": 4}]
    async with to_stream(nats, registry, kept=kept) as lane:
        result = await lane.write([frame(values)], Position(1))
        await lane.flush()
    found = dict(refused(result))
    schema = f"schema {schema_id} of orders-value: "
    assert found == {
        1: f"{schema}the value does not fit the schema: at a: 'x' is not a whole number of 64 bits (long)",
        3: found[3],
        4: f"{schema}the value does not fit the schema: at extra: the schema has no such field",
    }
    assert found[3].startswith(f"{schema}the value is not JSON")
    assert not any(failure.retryable for failures in result.failures for failure in failures)
    stored = await nats.values("orders", "orders")
    assert [value[5:] for value in stored] == [b"\x02\x00", b"\x04\x00", b"\x08\x00"]
    assert {value[:5] for value in stored} == {b"\0" + schema_id.to_bytes(4)}


@pytest.mark.guarantee("I1")
async def test_a_record_that_a_newer_schema_takes_is_not_lost_by_the_owner_before(
    nats: OutsideNats, registry: RegistryServer
) -> None:
    """The first owner dies before the record that it refused has been dealt with."""
    registry.register("orders-value", ORDER)
    values = [{"a": 1}, {"a": 2, "c": 5}, {"a": 3}]
    async with to_stream(nats, registry) as lane:
        assert len(refused(await lane.write([frame(values)], Position(1)))) == 1
    fields = [*ORDER["fields"], {"name": "c", "type": "int", "default": 0}]
    registry.register("orders-value", {**ORDER, "fields": fields})
    async with to_stream(nats, registry, epoch=2) as lane:
        assert await lane.write([frame(values)], Position(1)) == WriteResult()
    stored = await nats.values("orders", "orders")
    assert [value[5:] for value in stored] == [b"\x02\x00", b"\x04\x00\x0a", b"\x06\x00\x00"]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_registry_that_is_away_is_waited_for_and_nothing_is_lost(
    nats: OutsideNats, registry: RegistryServer, *, kept: bool
) -> None:
    registry.register("orders-value", ORDER)
    registry.away = True
    async with to_stream(nats, registry, kept=kept) as lane:
        for _ in range(2):
            with pytest.raises(RetryLaterError, match=r"answers .* with status 503; nothing was lost"):
                await lane.write([frame(VALUES)], Position(1))
        assert await nats.values("orders", "orders") == []
        registry.away = False
        assert await lane.write([frame(VALUES)], Position(1)) == WriteResult()
        # What is known is not asked for again.
        registry.away = True
        assert await lane.write([frame(VALUES, 2)], Position(2)) == WriteResult()
    assert len(await nats.values("orders", "orders")) == 2 * len(VALUES)


async def test_which_schema_is_used(nats: OutsideNats, registry: RegistryServer, tmp_path: Path) -> None:
    text = json.dumps(ORDER)
    with_schema = {"schema": text}

    sequences = count(1)

    async def write(**more: Any) -> bytes:
        sequence = next(sequences)
        async with to_stream(nats, registry, kept=False, **more) as lane:
            await lane.write([frame([{"a": 1}], sequence)], Position(sequence))
        return (await nats.values("orders", "orders"))[-1]

    with raises(codes.TARGET_UNFIT, "no subject 'orders-value'.*`autoRegister: true`"):
        await write()
    with raises(codes.TARGET_UNFIT, "not have this `schema` in subject 'orders-value'.*`autoRegister: true`"):
        await write(**with_schema)
    registry.read_only = True
    with raises(codes.TARGET_REFUSES, "status 403"):
        await write(**with_schema, autoRegister=True)
    registry.read_only = False
    assert not registry.schemas
    registered = await write(**with_schema, autoRegister=True)
    assert list(registry.schemas) == [1]
    (tmp_path / "order.avsc").write_text(text)
    by_file = {"schema": {"file": str(tmp_path / "order.avsc")}}
    assert await write(**by_file) == await write(**by_file, autoRegister=True) == await write() == registered
    newer = registry.register("orders-value", {**ORDER, "doc": "newer"})
    assert (await write())[1:5] == newer.to_bytes(4)
    assert await write(**with_schema) == registered
    registry.frozen.add("orders-value")
    with raises(codes.TARGET_UNFIT, "rejects the schema.*incompatible"):
        await write(schema=json.dumps({**ORDER, "doc": "other"}), autoRegister=True)


@pytest.mark.parametrize(
    ("kind", "schema", "encoding", "reason"),
    [
        ("JSON", "{}", "avro", "is of type JSON, and `format` says AVRO"),
        ("AVRO", '{"type": "nope"}', "avro", "cannot be used"),
        ("JSON", '{"type": "nope"}', "json", "cannot be used"),
        ("JSON", '{"$ref": "http://127.0.0.1:9/other"}', "json", "not among its references"),
        ("PROTOBUF", serialized(ORDERS), "protobuf", "has no message Nope"),
    ],
)
async def test_a_schema_that_cannot_be_used_stops_the_lane(
    nats: OutsideNats, registry: RegistryServer, kind: str, schema: str, encoding: str, reason: str
) -> None:
    registry.register("orders-value", schema, kind)
    message: dict[str, Any] = {"message": "Nope"} if encoding == "protobuf" else {}
    async with to_stream(nats, registry, encoding=encoding, **message) as lane:
        with raises(codes.TARGET_UNFIT, f"of 'orders-value' .*{reason}"):
            await lane.write([frame(VALUES)], Position(1))


async def test_tls_and_basic_authentication(nats: OutsideNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = await asyncio.to_thread(encryption, tmp_path)
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    known = {"user": USER, "password": {"env": "REGISTRY_PASSWORD"}}
    async with open_registry_server(context) as registry:
        registry.closed = True
        registry.register("orders-value", ORDER)
        trusted = {**known, "tls": {"ca": {"file": str(certificate)}}}
        async with to_stream(nats, registry, access=trusted) as lane:
            assert await lane.write([frame(VALUES)], Position(1)) == WriteResult()
        async with to_stream(nats, registry, kept=False, access=known) as lane:
            with pytest.raises(RetryLaterError, match="certificate"):
                await lane.write([frame(VALUES)], Position(1))
        monkeypatch.setenv("REGISTRY_PASSWORD", "wrong")
        async with to_stream(nats, registry, kept=False, access=trusted) as lane:
            with raises(codes.TARGET_REFUSES, registry.url):
                await lane.write([frame(VALUES)], Position(1))
    assert len(await nats.values("orders", "orders")) == len(VALUES)


async def test_validate_asks_the_registry(
    nats: OutsideNats, registry: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def validate(**more: Any) -> tuple[int, str]:
        settings = {**nats.settings, "subject": "orders"}
        written = {"encoding": "avro", "registry": {"url": registry.url}, "subject": "orders-value", **more}
        code = await asyncio.to_thread(validate_sink, "jetstream", settings, tmp_path, format=written)
        out, err = capsys.readouterr()
        return code, out + err

    code, said = await validate()
    assert code == 2
    assert "no subject 'orders-value'" in said
    assert "spec.vertices[1].sink.format" in said
    assert (await validate(schema=json.dumps(ORDER), autoRegister=True))[0] == 0
    assert not registry.schemas
    registry.register("orders-value", ORDER)
    assert (await validate())[0] == 0
    registry.away = True
    code, said = await validate()
    assert code == 2
    assert f"{registry.url} answers" in said


@pytest.mark.parametrize(
    ("sink", "written", "what"),
    [
        ({"log": {}}, {"subject": "s"}, "values of a log sink have no `format`"),
        ({"jetstream": {"url": "nats://h", "subject": "s"}}, {}, "a jetstream sink has no default subject"),
        (
            {"redisStreams": {"url": "redis://h", "mode": "hash", "prefix": "p:"}},
            {"subject": "s"},
            "values of this redisStreams sink have no `format`",
        ),
        ({"kafka": {"brokers": ["h:1"], "topic": "t"}}, {"autoRegister": True}, "no effect without a schema"),
        ({"kafka": {"brokers": ["h:1"], "topic": "t"}}, {"message": "M"}, "no effect with `encoding: avro`"),
    ],
)
async def test_what_cannot_be_meant_is_refused(sink: dict[str, Any], written: dict[str, Any], what: str) -> None:
    spec = {**sink, "format": {"encoding": "avro", "registry": {"url": "http://h"}, **written}}
    with pytest.raises(ValidationError, match=what):
        FallbackSink.model_validate(spec)


async def test_keys_have_a_format_where_they_are_keys_of_messages() -> None:
    written = {"encoding": "avro", "registry": {"url": "http://h"}, "subject": "s"}
    for sink, what in (
        ({"jetstream": {"url": "nats://h", "subject": "s"}}, "keys of a jetstream sink have no `keyFormat`"),
        ({"kafka": {"brokers": ["h:1"], "topic": "t", "setKey": False}}, "keys of this kafka sink have no `keyFormat`"),
    ):
        with pytest.raises(ValidationError, match=what):
            FallbackSink.model_validate({**sink, "keyFormat": written})
