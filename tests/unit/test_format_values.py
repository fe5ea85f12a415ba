"""What goes into a format is what the format's own library reads, for values of every type."""

from __future__ import annotations

import csv
import io
import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.exact_json import parse
from millstream_connectors.file.sink.avro import Avro
from millstream_connectors.file.sink.formats import Csv, FileFormat
from millstream_connectors.file.sink.parquet import Parquet
from millstream_connectors.lake.rows import TableRows, rows_of
from millstream_connectors.shared.columns import Column
from millstream_connectors.shared.formats import avro, avro_writing, protobuf
from millstream_connectors.shared.formats.registry import Schema
from tests.support.generated_rows import COLUMNS, DOUBLE, INSTANT, LONG, ROWS, TEXT, as_json, optional
from tests.unit.writer.sink_frames import sink_frame

# Shrinking rows of dozens of values takes minutes.
few = settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
INT = st.integers(-(2**31), 2**31 - 1)
SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)
MILLIS = INSTANT.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
DECIMAL = st.decimals(-(10**37), 10**37, places=18, allow_nan=False)


AVRO: Mapping[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", INT),
    "long": ("long", LONG),
    "float": ("float", SINGLE),
    "double": ("double", DOUBLE),
    "bytes": ("bytes", st.binary(max_size=8)),
    "string": ("string", TEXT),
    "fixed": ({"type": "fixed", "name": "f2", "size": 2}, st.binary(min_size=2, max_size=2)),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])),
    "array": ({"type": "array", "items": "long"}, st.lists(LONG, max_size=3)),
    "map": ({"type": "map", "values": "double"}, st.dictionaries(TEXT, DOUBLE, max_size=3)),
    "union": (["null", "string"], optional(TEXT)),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 56, "scale": 18}, DECIMAL),
    "date": ({"type": "int", "logicalType": "date"}, st.dates()),
    "time": ({"type": "long", "logicalType": "time-micros"}, st.times()),
    "millis": ({"type": "long", "logicalType": "timestamp-millis"}, MILLIS),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, INSTANT),
    "uuid": ({"type": "string", "logicalType": "uuid"}, st.uuids()),
}


@pytest.mark.slow
@few
@given(st.fixed_dictionaries({name: values for name, (_, values) in AVRO.items()}), st.booleans())
def test_avro(row: dict[str, Any], numbers: bool) -> None:
    fields = [{"name": name, "type": kind} for name, (kind, _) in AVRO.items()]
    schema = avro.parsed(Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields})))
    text = as_json(row, numbers=numbers).encode()
    data = avro_writing.encoder(schema)(text)
    found = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
    assert found == row
    # The decoder gives back a text that means the same.
    assert avro_writing.encoder(schema)(avro.decoder(schema, None)(data)) == data
    assert parse(avro.decoder(schema, None)(data))["decimal"] == f"{row['decimal']:f}"


_F = descriptor_pb2.FieldDescriptorProto
PROTOBUF: Mapping[str, tuple[int, st.SearchStrategy[Any]]] = {
    "double": (_F.TYPE_DOUBLE, DOUBLE),
    "float": (_F.TYPE_FLOAT, SINGLE),
    "int32": (_F.TYPE_INT32, INT),
    "int64": (_F.TYPE_INT64, LONG),
    "uint32": (_F.TYPE_UINT32, st.integers(0, 2**32 - 1)),
    "uint64": (_F.TYPE_UINT64, st.integers(0, 2**64 - 1)),
    "sint64": (_F.TYPE_SINT64, LONG),
    "fixed64": (_F.TYPE_FIXED64, st.integers(0, 2**64 - 1)),
    "sfixed32": (_F.TYPE_SFIXED32, INT),
    "bool": (_F.TYPE_BOOL, st.booleans()),
    "string": (_F.TYPE_STRING, TEXT),
    "bytes": (_F.TYPE_BYTES, st.binary(max_size=8)),
}


def message_file() -> FileDescriptor:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    for number, (name, (kind, _)) in enumerate(PROTOBUF.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
        message.field.add(name=f"{name}_list", number=100 + number, type=kind, label=3)
    message.field.add(name="inner", number=99, type=_F.TYPE_MESSAGE, label=1, type_name=".p.M")
    return protobuf.parsed(Schema("PROTOBUF", b64encode(file.SerializeToString()).decode()))


FILE = message_file()
ROW = st.fixed_dictionaries(
    {name: values for name, (_, values) in PROTOBUF.items()}
    | {f"{name}_list": st.lists(values, max_size=2) for name, (_, values) in PROTOBUF.items()}
)


@pytest.mark.slow
@few
@given(ROW, ROW)
def test_protobuf(row: dict[str, Any], inner: dict[str, Any]) -> None:
    encode, decode = protobuf.encoder(FILE, None), protobuf.decoder(FILE)
    data = encode(as_json({**row, "inner": inner}, numbers=True).encode())
    message: Any = GetMessageClass(FILE.message_types_by_name["M"]).FromString(data[1:])
    for expected, found in ((row, message), (inner, message.inner)):
        assert {name: value if not isinstance(value, list) else list(getattr(found, name)) for name, value in
                ((name, value if isinstance(value, list) else getattr(found, name))
                 for name, value in expected.items())} == expected  # fmt: skip
    assert encode(decode(data)) == data


def stored(file_format: FileFormat[Any], rows: list[dict[str, Any]]) -> bytes:
    converted = file_format.convert(sink_frame([as_json(row, numbers=True).encode() for row in rows], 1).frame)
    assert not converted.failures
    body = file_format.begin()
    return body.add(converted.content, 0, len(rows)) + body.finish()


@pytest.mark.slow
@few
@given(ROWS)
def test_parquet_delta_and_iceberg(rows: list[dict[str, Any]]) -> None:
    assert pq.read_table(pa.BufferReader(stored(Parquet(COLUMNS), rows))).to_pylist() == rows
    # What the clients of tables get.
    assert rows_of([stored(TableRows(COLUMNS, ()), rows)]).read_all().to_pylist() == rows


@pytest.mark.slow
@few
@given(ROWS)
def test_avro_files(rows: list[dict[str, Any]]) -> None:
    assert list(fastavro.reader(io.BytesIO(stored(Avro(COLUMNS), rows)))) == rows


@pytest.mark.slow
@few
@given(ROWS)
def test_csv(rows: list[dict[str, Any]]) -> None:
    text = stored(Csv(COLUMNS), rows).decode()
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    convert = {"s": str, "i": int, "f": float, "b": {"true": True, "false": False}.get, "t": datetime.fromisoformat}
    assert len(found) == len(rows)
    for cells, row in zip(found, rows, strict=True):
        for name, value in row.items():
            # Python's reader does not tell an empty text from an empty field; quotes do.
            assert cells[name] == "" if value in (None, "") else convert[name](cells[name]) == value  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["float", "int"])
def test_a_column_never_holds_another_number(kind: str) -> None:
    wide = [b'{"n": %b}' % text for text in (b"12345678901234567.89", b"1e400", b"9223372036854775808")]
    for file_format in (Parquet, Avro, Csv):
        column = Column.model_validate({"name": "n", "type": kind})
        found = file_format([column]).convert(sink_frame(wide, 1).frame)
        # 2^63 is a double.
        assert [failure.index for failure in found.failures] == ([0, 1] if kind == "float" else [0, 1, 2])


def test_times_outside_the_calendar_are_refused() -> None:
    column = Column.model_validate({"name": "t", "type": "timestamp"})
    late = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
    values = [b'{"t": "%b"}' % text.encode() for text in (late.isoformat(), "10000-01-01T00:00:00Z", "infinity")]
    found = Parquet([column]).convert(sink_frame(values, 1).frame)
    assert [failure.index for failure in found.failures] == [1, 2]
