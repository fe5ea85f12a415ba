"""Protobuf values as JSON, and back, with a schema that is only known while running."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from millstream_connectors.shared.formats.confluent import indexes_read, indexes_written
from millstream_connectors.shared.formats.protobuf import decoder, encoder, parsed
from millstream_connectors.shared.formats.registry import Schema, SchemaReference
from tests.support.protobuf_schemas import ORDERS, serialized


def orders() -> Any:
    return parsed(Schema("PROTOBUF", serialized(ORDERS)))


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (1, 0, 200), (63,), (64,)])
def test_which_message_it_is(indexes: tuple[int, ...]) -> None:
    data = indexes_written(indexes) + b"rest"
    assert indexes_read(data) == (indexes, len(data) - 4)


def test_indexes_as_the_format_has_them() -> None:
    assert (indexes_written((0,)), indexes_written((1, 0))) == (b"\0", b"\x04\x02\x00")
    assert indexes_read(b"\x02\x00") == ((0,), 2)
    for damaged in (b"", b"\x02", b"\x01", b"\x80" * 9, b"\x02\x01", b"\xff\x7f"):
        with pytest.raises(ValueError, match="message"):
            indexes_read(damaged)


def test_every_field_comes_back() -> None:
    value = {
        "id": "9223372036854775807",
        "customer": "é",
        "state": "PAID",
        "lines": [{"sku": "a", "count": 2}],
        "at": "2024-01-31T08:00:00.123456Z",
        "payload": "AP8=",
        "labels": {"x": "y"},
    }
    data = encoder(orders(), "shop.Order")(json.dumps(value).encode())
    assert json.loads(decoder(orders())(data)) == value


def test_fields_that_are_not_set_have_a_value_unless_the_schema_knows_absence() -> None:
    made = json.loads(decoder(orders())(b"\0"))
    assert made == {"id": "0", "customer": "", "state": "NEW", "lines": [], "payload": "", "labels": {}}


@pytest.mark.parametrize(
    ("name", "head"), [("Order", b"\0"), ("shop.Order.Line", b"\x04\x00\x00"), ("Bill", b"\x02\x02")]
)
def test_a_message_by_its_name(name: str, head: bytes) -> None:
    assert encoder(orders(), name)(b"{}") == head


def test_a_message_that_the_schema_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"has no message Nope; it has shop\.Order, shop\.Bill"):
        encoder(orders(), "Nope")
    with pytest.raises(ValueError, match=r"no message \[7\]"):
        decoder(orders())(b"\x02\x0e")


@pytest.mark.parametrize("text", [b"[]", b'{"nope": 1}', b'{"id": "x"}', b'{"id": true}', b'"x"', b"1", b"null", b"{"])
def test_json_that_does_not_fit(text: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        encoder(orders(), None)(text)


@pytest.mark.parametrize("data", [b"\0\xff", b"\0\x0a\x05a", b"\0\x12\x01\xff"])
def test_bytes_that_are_not_a_message(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not a message shop\.Order"):
        decoder(orders())(data)


def test_a_schema_that_refers_to_another() -> None:
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3", dependency=["shop/order.proto"])
    field = file.message_type.add(name="Cart").field.add(name="order", number=1, label=1, type=11)
    field.type_name = ".shop.Order"
    schema = Schema("PROTOBUF", serialized(file), (SchemaReference("shop/order.proto", serialized(ORDERS)),))
    assert json.loads(decoder(parsed(schema))(b"\0\x0a\x02\x08\x05"))["order"]["id"] == "5"
    with pytest.raises(ValueError, match="cannot be used"):
        parsed(Schema("PROTOBUF", serialized(file)))


@pytest.mark.parametrize("text", ["", "?", b64encode(b"\xff").decode(), b64encode(b"").decode()])
def test_a_schema_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        parsed(Schema("PROTOBUF", text))


def test_two_schemas_may_define_the_same_message() -> None:
    other = descriptor_pb2.FileDescriptorProto(syntax="proto3", package="shop")
    other.message_type.add(name="Order").field.add(name="other", number=1, label=1, type=9)
    assert json.loads(decoder(parsed(Schema("PROTOBUF", serialized(other))))(b"\0\x0a\x01x")) == {"other": "x"}
    assert "customer" in json.loads(decoder(orders())(b"\0"))
    assert timestamp_pb2.DESCRIPTOR.name == "google/protobuf/timestamp.proto"
