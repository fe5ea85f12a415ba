"""What Avro values become in JSON: every type, without loss."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_writer

from millstream_connectors.shared.formats.avro import decoder, parsed
from millstream_connectors.shared.formats.registry import Schema

_ID = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 0.1, 0.1),
        ("double", float("nan"), "NaN"),
        ({"type": "array", "items": "double"}, [1.5, float("inf"), float("-inf")], [1.5, "Infinity", "-Infinity"]),
        ("bytes", b"\0\xff", "AP8="),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "YWI="),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        (["null", "string"], None, None),
        (["null", "string"], "é", "é"),
        ({"type": "map", "values": "int"}, {"x": 1}, {"x": 1}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 9}, Decimal("-1.500000000"), None),
        ({"type": "int", "logicalType": "date"}, date(2024, 2, 29), "2024-02-29"),
        ({"type": "long", "logicalType": "time-micros"}, time(1, 2, 3, 4), "01:02:03.000004"),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            datetime(2024, 1, 31, 8, 0, 0, 123456, tzinfo=UTC),
            "2024-01-31T08:00:00.123456Z",
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            datetime(2024, 1, 31, 8),  # noqa: DTZ001  # it has no zone
            "2024-01-31T08:00:00",
        ),
        ({"type": "string", "logicalType": "uuid"}, UUID(_ID), _ID),
    ],
)
def test_a_value_of_each_type(kind: Any, value: Any, wanted: Any) -> None:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(kind), value)
    made = json.loads(decoder(parsed(Schema("AVRO", json.dumps(kind), ())), None)(stream.getvalue()))
    assert made == ("-1.500000000" if isinstance(value, Decimal) else wanted)


def test_values_of_a_schema_that_refers_to_itself_end_at_a_limit() -> None:
    chain = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    decode = decoder(parsed(Schema("AVRO", json.dumps(chain), ())), None)
    assert json.loads(decode(b"\2\2\0")) == {"next": {"next": {"next": None}}}
    for levels in (2000, 5000, 200_000):
        with pytest.raises(ValueError, match="is nested more than"):
            decode(b"\2" * levels + b"\0")


@pytest.mark.parametrize("levels", [1, 2])
def test_a_record_that_always_contains_itself_has_no_values(levels: int) -> None:
    kind: Any = "Outer"
    for level in range(levels):
        name = "Outer" if level == levels - 1 else "Inner"
        kind = {"type": "record", "name": name, "fields": [{"name": "a", "type": kind}]}
    with pytest.raises(ValueError, match="always contains itself"):
        decoder(parsed(Schema("AVRO", json.dumps(kind), ())), None)


def test_schemas_of_any_depth_are_parsed_or_refused() -> None:
    deep = '{"type": "array", "items": ' * 100_000 + '"int"' + "}" * 100_000
    with pytest.raises(ValueError, match="cannot be used"):
        parsed(Schema("AVRO", deep, ()))


def test_a_time_that_python_has_no_day_for_is_refused_and_named() -> None:
    schema = Schema("AVRO", '{"type": "long", "logicalType": "timestamp-millis"}', ())
    stream = BytesIO()
    schemaless_writer(stream, "long", 2**62)
    with pytest.raises(ValueError, match="does not fit its schema"):
        decoder(parsed(schema), None)(stream.getvalue())
