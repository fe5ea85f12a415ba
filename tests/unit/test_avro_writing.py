"""JSON as Avro values: every type, exactly, and what does not fit is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_connectors.shared.formats.avro import decoder, parsed
from millstream_connectors.shared.formats.avro_writing import encoder
from millstream_connectors.shared.formats.registry import Schema, SchemaReference

_ID = "12345678-1234-5678-1234-567812345678"


def written(schema: Any, value: Any, *references: SchemaReference) -> Any:
    """What a value is when it has been written and read."""
    known = parsed(Schema("AVRO", json.dumps(schema), references))
    data = encoder(known)(json.dumps(value).encode())
    return json.loads(decoder(parsed(Schema("AVRO", json.dumps(schema), references)), None)(data))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("long", 2**63 - 1),
        ("long", -(2**63)),
        ("double", 0.1),
        ("double", "NaN"),
        ({"type": "array", "items": "double"}, [1.5, "Infinity", "-Infinity"]),
        ("bytes", "AP8="),
        ({"type": "fixed", "name": "F", "size": 2}, "YWI="),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        (["null", "string"], None),
        (["null", "string"], "é"),
        (["null", "long", {"type": "int", "logicalType": "date"}], "2024-02-29"),
        ({"type": "map", "values": "int"}, {"x": 1}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 9}, "-1.500000000"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "-1.28"),
        ({"type": "fixed", "name": "F", "size": 6, "logicalType": "decimal", "precision": 9, "scale": 2}, "-12.34"),
        ({"type": "int", "logicalType": "date"}, "1969-12-31"),
        ({"type": "long", "logicalType": "time-micros"}, "01:02:03.000004"),
        ({"type": "int", "logicalType": "time-millis"}, "01:02:03.004000"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "2024-01-31T08:00:00.123456Z"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "1931-01-31T08:00:00.123000Z"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "2024-01-31T08:00:00"),
        ({"type": "string", "logicalType": "uuid"}, _ID),
        (
            {
                "type": "record",
                "name": "Tree",
                "namespace": "n",
                "fields": [
                    {"name": "v", "type": "int"},
                    {"name": "left", "type": ["null", "Tree"]},
                    {"name": "kind", "type": ["null", {"type": "enum", "name": "E", "symbols": ["X"]}]},
                ],
            },
            {"v": 1, "left": {"v": 2, "left": None, "kind": "X"}, "kind": None},
        ),
    ],
)
def test_a_value_of_each_type_comes_back_as_it_was(schema: Any, value: Any) -> None:
    assert written(schema, value) == value


def test_defaults_stand_for_what_is_missing() -> None:
    fields = [
        {"name": "a", "type": ["null", "int"], "default": None},
        {"name": "b", "type": "bytes", "default": "\u00ff"},
        {"name": "c", "type": {"type": "array", "items": ["string", "int"]}, "default": ["x"]},
        {"name": "d", "type": "double", "default": 1},
    ]
    made = written({"type": "record", "name": "R", "fields": fields}, {})
    assert made == {"a": None, "b": "/w==", "c": ["x"], "d": 1.0}


def test_a_type_of_another_schema() -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "int"}]}
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "Money"}]}
    value = {"sum": {"cents": 10}}
    assert written(bill, value, SchemaReference("Money", json.dumps(money))) == value


def test_of_a_union_the_first_branch_that_takes_the_value() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    other = {"type": "record", "name": "S", "fields": [{"name": "b", "type": "int"}]}
    known = parsed(Schema("AVRO", json.dumps([record, other, "boolean"])))
    encode = encoder(known)
    assert [encode(text)[0] for text in (b'{"a":1}', b'{"b":1}', b"true")] == [0, 2, 4]


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("int", 2**31, "2147483648 is not a whole number of 32 bits"),
        ("long", 1.0, "1.0 is not a whole number"),
        ("long", True, "True is not a whole number"),
        ("float", 1e39, "the range of a float"),
        ("string", 1, "1 is not text"),
        ("string", "\ud800", "an unpaired surrogate"),
        ("bytes", "?", "'?' is not text in base64"),
        ("null", 0, "0 is not null"),
        ("boolean", 0, "0 is not a boolean"),
        (["null", "int"], "x", "'x' is not a whole number"),
        (["string", "int"], [], r"as string: \[\] is not text; as int: \[\] is not a whole number"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "'B' is not one of the symbols of E"),
        ({"type": "fixed", "name": "F", "size": 2}, "YQ==", "it has 1 bytes instead of 2"),
        ({"type": "array", "items": "int"}, [1, "x"], r"at \[1\]: 'x'"),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, {"a": [None]}, r"at a\[0\]: None"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.234", "more than 4 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "100", "more than 4 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1e999999999", "more than 4 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "NaN", "is not a decimal number"),
        ({"type": "int", "logicalType": "date"}, "2024-02-30", "2024-02-30.*day"),
        ({"type": "int", "logicalType": "time-millis"}, "01:02:03.000004", "more precise than milliseconds"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2024-01-31T08:00:00", "no zone"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "2024-01-31T08:00:00Z", "has no zone"),
        ({"type": "string", "logicalType": "uuid"}, "x", "is not a UUID"),
    ],
)
def test_what_does_not_fit(schema: Any, value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        written(schema, value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "at a: it is missing"),
        ({"a": {"b": "x"}}, "at a.b: 'x' is not"),
        ({"a": {"b": 1}, "c": 1}, "at c: the schema has no such field"),
        ([], r"\[\] is not an object"),
    ],
)
def test_the_place_is_named(value: Any, reason: str) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "int"}]}
    with pytest.raises(ValueError, match=reason):
        written({"type": "record", "name": "R", "fields": [{"name": "a", "type": inner}]}, value)


@pytest.mark.parametrize("text", [b"{", b"NaN", b"[" * 100_000, b"\xff"])
def test_what_is_not_json(text: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        encoder(parsed(Schema("AVRO", '"double"')))(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**7) + 1, max_value=10**7 - 1, places=3))
def test_decimals_are_exact(number: Any) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 3}
    assert written(kind, f"{number:f}") in (f"{number:f}", f"{abs(number):f}" if not number else "")


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_exact(single: float, whole: int) -> None:
    assert written({"type": "array", "items": ["long", "float"]}, [whole, single]) == [whole, single]
