"""Values become columns: fast and one by one alike, and malformed ones cost the others nothing."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_reduce.batches import as_bytes
from millstream_reduce.spark.decoding import AvroDecoder, CsvDecoder, Decoder, Field, JsonDecoder
from tests.support.arrow_tables import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = (
    Field("i", pa.int32()),
    Field("l", pa.int64()),
    Field("d", pa.float64()),
    Field("s", pa.string()),
    Field("b", pa.bool_()),
    Field("m", pa.decimal128(10, 2)),
    Field("day", pa.date32()),
    Field("t", pa.timestamp("us", tz="UTC")),
    Field("st", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    Field("li", pa.list_(pa.int64())),
)
DDL = (
    "i INT, l BIGINT, d DOUBLE, s STRING, b BOOLEAN, m DECIMAL(10, 2), day DATE, t TIMESTAMP, "
    "st STRUCT<x: BIGINT, y: STRING>, li ARRAY<BIGINT>"
)
JSON = JsonDecoder(FIELDS)

times = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001 - the zone is set below
    lambda moment: moment.replace(tzinfo=UTC).isoformat()
)
members: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-(2**31), 2**31 - 1),
    "l": st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "s": st.text(max_size=8),
    "b": st.booleans(),
    "m": st.integers(-(10**8) + 1, 10**8 - 1).map(lambda cents: cents / 100),
    "day": st.dates(date(1970, 1, 1), date(2200, 1, 1)).map(date.isoformat),
    "t": times,
    "st": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "y": st.text(max_size=3)}),
    "li": st.lists(st.integers(0, 9), max_size=3),
}
sound_objects = st.fixed_dictionaries(
    {}, optional={**{name: st.none() | values for name, values in members.items()}, "other": st.integers()}
)


def decode(decoder: Decoder, values: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    copy: Decoder = pickle.loads(pickle.dumps(decoder))
    columns, malformed = copy.decode(pa.array(values, pa.binary()))
    for column, field in zip(columns, copy.fields, strict=True):
        column.validate(full=True)
        assert column.type == field.kind
        assert len(column) == len(values)
    names = [field.name for field in copy.fields]
    rows = zip(*(map(comparable, column.to_pylist()) for column in columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows], malformed


def comparable(value: object) -> object:
    """A NaN is equal to nothing, itself included."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def alone(decoder: Decoder, values: list[bytes]) -> list[dict[str, Any]]:
    """Each by itself, with a neighbour that keeps it from the fast way."""
    return [decode(decoder, [value, b"no object"])[0][0] for value in values]


@settings(deadline=None)
@given(st.lists(sound_objects, min_size=1, max_size=12))
def test_json_is_decoded_fast_as_it_is_one_by_one(objects: list[dict[str, Any]]) -> None:
    values = [json.dumps(item).encode() for item in objects]
    fast, malformed = decode(JSON, values)
    assert malformed == 0
    assert fast == alone(JSON, values)


lines = st.one_of(
    sound_objects.map(lambda item: json.dumps(item).encode()),
    sound_objects.map(lambda item: json.dumps(item, indent=1).encode()),
    st.sampled_from([
        b"", b" ", b"{", b"}", b"{}", b'{"i": 1}{"i": 2}', b'{"i": 1}\n{"i": 2}', b'{"s": "}', b'{","i": 1}',
        b'{"st": ', b'{"x": 1}}', b"[]", b"7", b"null", b'{"i": "1"}', b'{"i": 1.5}', b'{"i": 99999999999}',
        b'{"s": 7}', b'{"s": {"a": [1, 2]}}', b'{"s": "\xff"}', b'{"s": "\\ud800"}', b'{"d": "NaN"}', b'{"d": "x"}',
        b'{"b": 1}', b'{"day": "yesterday"}', b'{"t": "2020-01-01 10:00:00"}', b'{"t": 1577872800}', b'{"t": true}',
        b'{"m": "12.345"}', b'{"m": 1e99}', b'{"li": [1, "x"]}', b'{"li": {}}', b'{"st": [1]}', b'{"i": 1, "i": 2}',
    ]),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(lines, min_size=1, max_size=200))
def test_a_malformed_value_changes_nothing_for_its_neighbours(values: list[bytes]) -> None:
    together, malformed = decode(JSON, values)
    assert together == alone(JSON, values)
    assert malformed == sum(decode(JSON, [value, b"{}"])[1] for value in values)


def test_large_batches_with_few_malformed_values() -> None:
    values = [b'{"i": %d}' % number for number in range(20_000)]
    values[7_777] = b"{"
    rows, malformed = decode(JsonDecoder(FIELDS[:1]), values)
    assert malformed == 1
    assert [row["i"] for row in rows] == [*range(7_777), None, *range(7_778, 20_000)]


MALFORMED = [
    b'{"i": 1, "l": 2, "d": 0.5, "s": "x", "b": true, "m": 12.34, "day": "2013-01-02"}',
    b'{"t": "2013-01-02T03:04:05.678Z", "st": {"x": 1, "y": "z"}, "li": [1, 2, 3]}',
    b'{"t": "2013-01-02T03:04:05+02:00"}',
    b'{"i": "text", "s": "kept"}', b'{"i": 1.5, "s": "kept"}', b'{"i": 99999999999, "s": "kept"}',
    b'{"s": 7}', b'{"s": true}', b'{"s": {"a":[1,2]}}', b'{"d": 1}', b'{"d": "NaN"}', b'{"d": "x", "i": 3}',
    b'{"b": "true", "i": 3}', b'{"i": null}', b"{}", b"{", b"no object", b'{"li": [1, null]}', b'{"st": {"x": 1}}',
    b'{"day": "nonsense", "i": 1}',
]  # fmt: skip


def test_json_is_what_sparks_own_permissive_reader_makes_of_it(spark_session: SparkSession) -> None:
    texts = [value.decode() for value in MALFORMED]
    table = spark_session.createDataFrame([(text,) for text in texts], "text STRING")
    parsed = table.selectExpr(f"from_json(text, '{DDL}') AS value").select("value.*").toArrow().to_pylist()
    ours = alone(JSON, MALFORMED)
    for text, our, their in zip(texts, ours, parsed, strict=True):
        assert our == {name: comparable(value) for name, value in their.items()}, text


KINDS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_()),
    *(pa.decimal128(20, 2), pa.date32(), pa.timestamp("us", tz="UTC"), pa.binary(), pa.list_(pa.string())),
]


@pytest.mark.slow
@settings(deadline=None)
@given(
    tables(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), rows_max=80),
    st.dictionaries(st.sampled_from("abcde"), st.sampled_from(KINDS), min_size=1),
)
def test_columns_are_decoded_as_the_json_that_they_stand_for(rows: pa.RecordBatch, kinds: dict[str, Any]) -> None:
    decoder = JsonDecoder(tuple(Field(*field) for field in kinds.items()))
    values = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    for part in (values, values.slice(1)) if len(values) > 1 else (values,):
        columns, malformed = decoder.decode(part)
        of_json, malformed_json = decoder.decode(as_bytes(part))
        assert malformed == malformed_json
        for column, other, field in zip(columns, of_json, decoder.fields, strict=True):
            column.validate(full=True)
            assert column.type == field.kind
            assert list(map(comparable, listed(column))) == list(map(comparable, listed(other)))


def listed(column: pa.Array[Any]) -> list[Any]:
    """Dates and times as numbers: Python has none after the year 9999."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type == pa.date32() else pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def test_columns_of_the_declared_types_are_not_copied() -> None:
    columns: dict[str, Any] = {"n": pa.array([1, 2]), "text": pa.array(["7", "x"]), "wrong": pa.array([1, 0])}
    values = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    fields = (Field("n", pa.int64()), Field("text", pa.string()), Field("wrong", pa.bool_()))
    (number, text, wrong), malformed = JsonDecoder(fields).decode(values)
    assert number.buffers()[1].address == columns["n"].buffers()[1].address
    assert text.buffers()[2].address == columns["text"].buffers()[2].address
    assert (wrong.to_pylist(), malformed) == ([None, None], 2)


CSV_FIELDS = (Field("i", pa.int32()), Field("s", pa.string()), Field("d", pa.float64()))
CSV = CsvDecoder(CSV_FIELDS, CSV_FIELDS)


@pytest.mark.parametrize(
    ("line", "row", "malformed"),
    [
        (b"1,a,0.5", (1, "a", 0.5), 0),
        (b",,", (None, None, None), 0),
        (b'2,"a,b",1', (2, "a,b", 1.0), 0),
        (b'2,"a\nb",1', (2, "a\nb", 1.0), 0),
        (b'2,"a""b",1', (2, 'a"b', 1.0), 0),
        (b"x,a,0.5", (None, "a", 0.5), 1),
        (b"1,a", (None, None, None), 1),
        (b"1,a,2,3", (None, None, None), 1),
        (b"1,a,1\n2,b,2", (None, None, None), 1),
        (b"1,\xff,1", (None, None, None), 1),
        (b"", (None, None, None), 1),
        (b'"1,a,1', (None, None, None), 1),
    ],
)
def test_csv(line: bytes, row: tuple[object, ...], malformed: int) -> None:
    expected = dict(zip(("i", "s", "d"), row, strict=True))
    assert decode(CSV, [line]) == ([expected], malformed)
    sound = {"i": 7, "s": "z", "d": 7.0}
    assert decode(CSV, [b"7,z,7", line, b"7,z,7"]) == ([sound, expected, sound], malformed)


def test_csv_columns_that_nobody_reads_may_hold_anything() -> None:
    decoder = CsvDecoder(CSV_FIELDS[2:], CSV_FIELDS, delimiter=";")
    assert decode(decoder, [b"what;ever;1.5", b'"what";"ever";2.5']) == ([{"d": 1.5}, {"d": 2.5}], 0)


SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "delay", "type": ["null", "double"]},
        {"name": "origin", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
    ],
}
AVRO_FIELDS = (
    Field("delay", pa.float64()),
    Field("origin", pa.string()),
    Field("at", pa.timestamp("us", tz="UTC")),
    Field("price", pa.decimal128(6, 2)),
    Field("stops", pa.list_(pa.string())),
)


def test_avro() -> None:
    moment = datetime(2013, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    row = {"delay": 1.5, "origin": "EWR", "at": moment, "price": Decimal("12.34"), "stops": ["a", "b"]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), row)
    nothing = dict.fromkeys(row)
    values = [stream.getvalue(), b"", stream.getvalue() + b"x", stream.getvalue()[:-3], stream.getvalue()]
    decoder = AvroDecoder(AVRO_FIELDS, json.dumps(SCHEMA))
    assert decode(decoder, values) == ([row, nothing, nothing, nothing, row], 3)


def test_a_schema_that_no_writer_can_have_is_no_fault_of_the_values() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long", "default": "x"}]}
    decoder = AvroDecoder((Field("a", pa.int64()),), json.dumps(schema))
    with pytest.raises(fastavro.schema.SchemaParseException):
        decode(decoder, [b"\x02"])


@pytest.mark.parametrize("decoder", [JSON, CSV], ids=["json", "csv"])
def test_slices_are_decoded_as_what_they_show(decoder: Decoder) -> None:
    make: Callable[[int], bytes] = (lambda n: b'{"i": %d}' % n) if decoder is JSON else (lambda n: b"%d,," % n)
    whole = pa.array([make(number) for number in range(10)], pa.binary())
    columns, _ = decoder.decode(whole.slice(3, 4))
    assert columns[0].to_pylist() == [3, 4, 5, 6]
