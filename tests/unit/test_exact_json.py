"""Numbers of records keep their digits wherever a JSON value is parsed, or are refused with a reason."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from google.cloud.bigquery_storage_v1 import types as bigquery_types
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import types as sql_types

from millstream.exact_json import double_of, parse, parse_all, text_of
from millstream.extract import key_text
from millstream.limits import NUMBER_EXPONENT_MAX
from millstream.spec.programs import FilterArguments
from millstream.udf.builtin import _condition
from millstream_connectors.bigquery.sink.rows import RowType
from millstream_connectors.file.sink.avro import Avro
from millstream_connectors.file.sink.formats import Csv
from millstream_connectors.file.sink.parquet import Parquet
from millstream_connectors.http_poll.settings import HttpPollSource
from millstream_connectors.http_poll.source.answers import read_answer
from millstream_connectors.postgres.settings import PostgresSink
from millstream_connectors.postgres.sink.rows import CopyFormat
from millstream_connectors.redis_streams.settings import RedisSink
from millstream_connectors.redis_streams.sink.entries import convert
from millstream_connectors.shared.columns import Column
from millstream_connectors.shared.formats import avro, avro_writing, json_values, protobuf
from millstream_connectors.shared.formats.registry import Schema
from millstream_connectors.sql.settings import SqlSink
from millstream_connectors.sql.sink.rows import SqlFormat
from tests.unit.writer.sink_frames import sink_frame

WIDE = [
    "1234567890123456789.12345678901234567890",
    "12345678901234567.89",
    "100000000000000000000.01",
    "1.234567890123456789",
    "0.100000000000000000001",
    "-12345678901234567.5",
    "123456789012345678901234567890",
]
"""Numbers that floats do not hold."""
NUMBER = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=20).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,40})\.[0-9]{1,40}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def documents(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON texts with these texts of numbers."""
    plain = st.sampled_from(["null", "true", "false"]) | TEXT.map(json.dumps) | leaf
    return st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
            | st.dictionaries(TEXT.map(json.dumps), inner, max_size=3).map(
                lambda members: "{" + ",".join(f"{name}: {one}" for name, one in members.items()) + "}"
            )
        ),
        max_leaves=8,
    )


def exactly(text: str) -> Any:
    """The value by Python's own parser, with exact numbers."""
    return json.loads(text, parse_float=Decimal)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(documents(NUMBER))
def test_what_is_parsed_and_written_has_the_same_digits(text: str) -> None:
    value = parse(text.encode())
    assert value == exactly(text)
    assert parse_all([text.encode()]) == [value]
    assert exactly(text_of(value)) == value
    # The other parser is used for texts that the fast one does not accept.
    assert parse(text.encode() + b" ") == json.loads(text, parse_float=Decimal)


def test_unpaired_surrogates_are_written_as_they_were_read() -> None:
    assert parse_all([b'{"a": ["\\ud800", 1.50]}']) is None
    value = parse(b'{"a": ["\\ud800", 1.50, true, null]}')
    assert text_of(value) == '{"a":["\ud800",1.50,true,null]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "1 2",
        "NaN",
        "[Infinity]",
        "01",
        "1.",
        "\xff",
        f"1e{NUMBER_EXPONENT_MAX + 1}",
        "1e-99999999999999999999",
    ],
)
def test_what_is_not_json_and_numbers_without_end_are_refused(text: str) -> None:
    value = text.encode("latin-1")
    with pytest.raises(ValueError):  # noqa: PT011  # of any kind: the parser's own, and that of UTF-8
        parse(value)
    assert parse_all([b"1", value]) is None


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_a_double_in_any_form_that_programs_write_is_that_double(number: float, digits: int) -> None:
    for text in (repr(number), f"{number:.17g}", f"{number:.{digits}e}" if digits >= 16 else repr(number)):
        assert struct.pack("d", double_of(Decimal(text))) == struct.pack("d", number)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(NUMBER)
def test_a_number_is_a_double_only_if_no_digit_changes(text: str) -> None:
    number = exactly(text)
    try:
        made = double_of(number)
    except ValueError:
        assert Decimal(repr(float(number))) != number
        return
    digits = len(Decimal(number).as_tuple().digits)
    forms = [Decimal(repr(made)), Decimal(f"{made:.{digits - 1}e}"), Decimal(made)]
    assert number in forms or (digits <= 17 and abs(forms[2] - number) <= abs(number) / 2**53)


@pytest.mark.parametrize("text", [*WIDE, "1e400", "9007199254740993", "1e-400"])
def test_a_number_that_no_double_is_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64-bit float"):
        double_of(parse(text.encode()))


# Every place that gives numbers to a target


def of_postgres(value: bytes) -> str:
    settings = {"database": "d", "user": "u", "table": "t", "columns": [{"name": "n"}]}
    (line,) = CopyFormat(PostgresSink.model_validate(settings)).convert(sink_frame([value], 1)).made
    assert isinstance(line, bytes)
    return line.decode().rstrip("\n")


def of_sql(url: str, column: Any) -> Callable[[bytes], str]:
    def written(value: bytes) -> str:
        sink = SqlSink.model_validate({"url": url, "table": "t", "columns": [{"name": "n"}]})
        rows = SqlFormat(sink)
        rows.learn({"n": column})
        found = rows.convert(sink_frame([value], 1))
        assert [failure.reason for failure in found.failures] in ([], ["number has more digits than the column holds"])
        return "refused" if found.failures else str(found.made[0].cells[0])

    return written


def of_redis(value: bytes) -> str:
    sink = RedisSink.model_validate({"url": "redis://localhost", "stream": "s", "format": "fields"})
    (put,) = convert(sink, sink_frame([value], 1)).made
    text = put.words[1]
    assert isinstance(text, bytes)
    return text.decode()


def of_bigquery(kind: Any) -> Callable[[bytes], str]:
    field = bigquery_types.TableFieldSchema(name="n", type_=kind, mode=bigquery_types.TableFieldSchema.Mode.NULLABLE)
    row_type = RowType(bigquery_types.TableSchema(fields=[field]), ["n"])

    def written(value: bytes) -> str:
        try:
            data = row_type.encode([parse(value)["n"]])
        except ValueError:
            return "refused"
        message = row_type._message.FromString(data)
        return repr(message.n) if isinstance(message.n, float) else str(message.n)

    return written


def of_avro(kind: Any) -> Callable[[bytes], str]:
    schema = Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}))

    def written(value: bytes) -> str:
        try:
            data = avro_writing.encoder(avro.parsed(schema))(value)
        except ValueError:
            return "refused"
        read = exactly(avro.decoder(avro.parsed(schema), None)(data).decode())["n"]
        return str(read)

    return written


def of_protobuf(kind: int) -> Callable[[bytes], str]:
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="p", syntax="proto3")
    file.message_type.add(name="M").field.add(name="n", number=1, type=kind, label=1)
    parsed = protobuf.parsed(Schema("PROTOBUF", b64encode(file.SerializeToString()).decode()))

    def written(value: bytes) -> str:
        try:
            data = protobuf.encoder(parsed, None)(value)
        except ValueError:
            return "refused"
        return str(exactly(protobuf.decoder(parsed)(data).decode())["n"])

    return written


def of_file(file_format: Callable[[list[Column]], Any], kind: str) -> Callable[[bytes], str]:
    def written(value: bytes) -> str:
        found = file_format([Column.model_validate({"name": "n", "type": kind})]).convert(sink_frame([value], 1).frame)
        if found.failures:
            return "refused"
        if file_format is Parquet:
            return repr(found.content.column("n")[0].as_py())
        return found.content[0].decode().strip() if file_format is Csv else repr(found.content[0]["n"])

    return written


def of_http_poll(value: bytes) -> str:
    source = HttpPollSource.model_validate({"url": "http://localhost", "records": "all"})
    (record,) = read_answer(b'{"all": [%b]}' % value, source, None).records
    return record.decode().removeprefix('{"n":').removesuffix("}")


def of_json_schema(value: bytes) -> str:
    schema = Schema("JSON", json.dumps({"properties": {"n": {"maximum": 10**40}}}))
    return json_values.encoder(schema)(value).decode().removeprefix('{"n": ').removesuffix("}")


TYPE = bigquery_types.TableFieldSchema.Type
FIELD = descriptor_pb2.FieldDescriptorProto
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 25}
TARGETS: Mapping[str, Callable[[bytes], str]] = {
    "postgres": of_postgres,
    "sqlite text": of_sql("sqlite:///a.db", sql_types.TEXT()),
    "sqlite real": of_sql("sqlite:///a.db", sql_types.REAL()),
    "sqlite numeric": of_sql("sqlite:///a.db", sql_types.NUMERIC()),
    "sqlite without a type": of_sql("sqlite:///a.db", sql_types.NullType()),
    "mariadb": of_sql("mariadb://localhost/d", sql_types.DECIMAL(65, 20)),
    "redis": of_redis,
    "bigquery string": of_bigquery(TYPE.STRING),
    "bigquery float": of_bigquery(TYPE.DOUBLE),
    "bigquery whole": of_bigquery(TYPE.INT64),
    "bigquery numeric": of_bigquery(TYPE.NUMERIC),
    "bigquery bignumeric": of_bigquery(TYPE.BIGNUMERIC),
    "bigquery json": of_bigquery(TYPE.JSON),
    "avro decimal": of_avro(DECIMAL),
    "avro double": of_avro("double"),
    "avro long": of_avro("long"),
    "protobuf double": of_protobuf(FIELD.TYPE_DOUBLE),
    "protobuf whole": of_protobuf(FIELD.TYPE_INT64),
    "protobuf enum-like": of_protobuf(FIELD.TYPE_UINT32),
    "csv float": of_file(Csv, "float"),
    "csv whole": of_file(Csv, "int"),
    "avro file": of_file(Avro, "float"),
    "parquet float": of_file(Parquet, "float"),
    "parquet whole": of_file(Parquet, "int"),
    "http poll": of_http_poll,
    "json schema": of_json_schema,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("text", [*WIDE, "1.10", "0.1", "7", "9007199254740993", "-0.5e-3", "1e3"])
def test_what_a_target_gets_is_the_number_or_a_reason(target: str, text: str) -> None:
    written = TARGETS[target](b'{"n": %b}' % text.encode())
    assert written == "refused" or Decimal(written) == Decimal(text)
    if text == "7" or (text == "1.10" and not target.endswith(("whole", "long", "like"))):
        assert written != "refused"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(TARGETS)), NUMBER.filter(lambda text: abs(Decimal(text).adjusted()) < 300))
def test_no_target_gets_another_number(target: str, text: str) -> None:
    written = TARGETS[target](b'{"n": %b}' % text.encode())
    # A fraction with as many digits as a double has means the nearest one.
    near = abs(Decimal(text)) / 2**53 if "." in text and len(Decimal(text).as_tuple().digits) <= 17 else 0
    assert written == "refused" or abs(Decimal(written) - Decimal(text)) <= near


@pytest.mark.parametrize("kind", ["postgres", "sqlite text", "redis", "bigquery json"])
def test_numbers_within_objects_keep_their_digits(kind: str) -> None:
    inner = '{"a":[1234567890123456789.12345678901234567890,1.10]}'
    assert TARGETS[kind](b'{"n": %b}' % inner.encode()) == inner


def test_keys_are_one_only_if_their_numbers_are() -> None:
    texts = {text: key_text(parse(text.encode())) for text in WIDE}
    assert texts == {text: text for text in WIDE}
    # Partitions and windows of earlier versions depend on these.
    assert [key_text(parse(text)) for text in (b"1.50", b"1e3", b"0.1", b"7")] == ["1.5", "1000.0", "0.1", "7"]


def test_a_filter_compares_numbers_as_they_are_written() -> None:
    equals = _condition(FilterArguments.model_validate({"field": "n", "equals": 0.1}))
    found = [equals(parse(b'{"n": %b}' % text)) for text in (b"0.1", b"0.10", b"0.1000000000000000000001", b"true")]
    assert found == [True, True, False, False]
