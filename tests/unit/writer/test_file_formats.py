"""What records look like in files, and which of them cannot be stored."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from millstream_connectors.file.sink import formats as file_formats
from millstream_connectors.file.sink import parquet as file_parquet
from millstream_connectors.file.sink.formats import NOT_A_LINE, WRONG_TYPE, Csv, FileFormat, JsonLines, Lines
from millstream_connectors.file.sink.parquet import Parquet
from millstream_connectors.shared.columns import Column
from millstream_connectors.shared.json_rows import NOT_AN_OBJECT, NOT_JSON
from tests.support.sizes import sized
from tests.unit.writer.sink_frames import sink_frame
from tools.style import REPOSITORY

COLUMNS = tuple(
    Column.model_validate({"name": name, "type": type_})
    for name, type_ in (("i", "int"), ("s", "string"), ("f", "float"), ("b", "bool"), ("t", "timestamp"))
)


def stored(file_format: FileFormat[Any], values: Sequence[bytes]) -> bytes:
    """The bytes of a file with these records, added in two parts."""
    converted = file_format.convert(sink_frame(values, 1).frame)
    body = file_format.begin()
    half = len(converted.rows) // 2
    parts = [
        body.add(converted.content, 0, half),
        body.add(converted.content, half, len(converted.rows)),
        body.finish(),
    ]
    return b"".join(parts)


def refused(file_format: FileFormat[Any], values: Sequence[bytes]) -> dict[int, str]:
    converted = file_format.convert(sink_frame(values, 1).frame)
    failures = {failure.index: failure.reason for failure in converted.failures}
    assert not any(failure.retryable for failure in converted.failures)
    assert sorted([*failures, *converted.rows]) == list(range(len(values)))
    return failures


NOT_JSON_AT_ALL = [
    b"",
    b"  ",
    b"plain",
    b"{",
    b'{"a":1}{"b":2}',
    b"NaN",
    b"[Infinity]",
    b"\xff\xfe",
    b"{'a': 1}",
    b"[" * 100_000,
]


def test_json_is_stored_as_it_was_written() -> None:
    values = [
        b'{"n": 1.10, "big": 123456789012345678901234567890}',
        b'"text"',
        b"1",
        b"null",
        b" [1, 2] ",
        '"ü"'.encode(),
    ]
    assert stored(JsonLines(), values) == b"".join(value + b"\n" for value in values)


def test_lines_keep_any_bytes_and_refuse_what_would_not_be_one_line() -> None:
    values = [b"", b"a", b"\xff\x00", b"a\rb", b" "]
    assert stored(Lines(), values) == b"\n\na\n\xff\x00\na\rb\n \n"[1:]
    assert refused(Lines(), [b"a\nb", b"ok", b"a\r", b"\n"]) == {0: NOT_A_LINE, 2: NOT_A_LINE, 3: NOT_A_LINE}


def test_line_breaks_inside_json_do_not_break_lines() -> None:
    values = [b'{\n  "a": 1,\r\n  "b": "x\\ny"\n}', b"2\n"]
    lines = stored(JsonLines(), values).decode().splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1, "b": "x\ny"}, 2]


@pytest.mark.parametrize("value", NOT_JSON_AT_ALL)
def test_what_is_not_json_is_refused(value: bytes) -> None:
    for file_format in (JsonLines(), Csv(COLUMNS), Parquet(COLUMNS)):
        assert refused(file_format, [b'{"i": 1}', value, b"{}"]) == {1: NOT_JSON}


def test_a_file_with_columns_takes_objects_only() -> None:
    for file_format in (Csv(COLUMNS), Parquet(COLUMNS)):
        assert refused(file_format, [b"1", b"[]", b'"s"', b"null", b"{}"]) == dict.fromkeys(range(4), NOT_AN_OBJECT)


WRONG = {
    "i": ["1.5", "1.0", '"1"', "true", "[1]", "9223372036854775808", "1e3"],
    "s": ["1", "true", "{}", "[]", '"\\ud800"'],
    "f": ['"1"', "true", "1e999", "1" + "0" * 400],
    "b": ["0", '"true"', "[]"],
    "t": ['"yesterday"', "1", '"2013-13-01T00:00:00Z"', '""', '"2013-01-01T25:00:00Z"'],
}


@pytest.mark.parametrize(("column", "text"), [(column, text) for column, texts in WRONG.items() for text in texts])
def test_a_member_of_another_type_is_refused(column: str, text: str) -> None:
    value = f'{{"{column}": {text}}}'.encode()
    for file_format in (Csv(COLUMNS), Parquet(COLUMNS)):
        assert refused(file_format, [b"{}", value]) == {1: WRONG_TYPE}


RIGHT: dict[str, dict[str, object]] = {
    "i": {"0": 0, "-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1, "null": None},
    "s": {'""': "", '"a\\u00fc\\n"': "aü\n", '"\\ud83d\\ude00"': "\U0001f600", "null": None},
    "f": {"1": 1.0, "-2.5e3": -2500.0, "0.1": 0.1, "null": None},
    "b": {"true": True, "false": False, "null": None},
    "t": {
        '"2013-01-01T05:00:00Z"': datetime(2013, 1, 1, 5, tzinfo=UTC),
        '"2013-01-01T05:00:00.25+02:00"': datetime(2013, 1, 1, 3, 0, 0, 250_000, tzinfo=UTC),
        '"2013-01-01 05:00:00"': datetime(2013, 1, 1, 5, tzinfo=UTC),
        '"2013-01-01"': datetime(2013, 1, 1, tzinfo=UTC),
        '"1900-01-01T00:00:00.123456789Z"': datetime(1900, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC),
        "null": None,
    },
}


@pytest.mark.parametrize(
    ("column", "text", "cell"), [(c, t, v) for c, cells in RIGHT.items() for t, v in cells.items()]
)
def test_members_arrive_in_parquet(column: str, text: str, cell: object) -> None:
    values = [f'{{"{column}": {text}, "other": [1, {{}}]}}'.encode(), b"{}"]
    table = pq.read_table(io.BytesIO(stored(Parquet(COLUMNS), values)))
    assert table.column_names == ["i", "s", "f", "b", "t"]
    assert table.to_pylist() == [{**dict.fromkeys("isfbt"), column: cell}, dict.fromkeys("isfbt")]


def test_members_arrive_in_csv_and_nothing_is_not_the_empty_text() -> None:
    values = [
        b'{"i": 1, "s": "a,\\"b\\"\\r\\nc", "f": 0.1, "b": true, "t": "2013-01-01T05:00:00+01:00"}',
        b'{"s": "", "b": false}',
        b'{"s": " x"}',
    ]
    data = stored(Csv(COLUMNS), values)
    assert data.splitlines()[0] == b"i,s,f,b,t"
    assert b'\n,"",,false,\n' in data
    rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    assert rows == [
        {"i": "1", "s": 'a,"b"\r\nc', "f": "0.1", "b": "true", "t": "2013-01-01T04:00:00Z"},
        {"i": "", "s": "", "f": "", "b": "false", "t": ""},
        {"i": "", "s": " x", "f": "", "b": "", "t": ""},
    ]


def test_parquet_without_columns_keeps_any_bytes() -> None:
    values = [b"\xff\x00", b"", b'{"a": 1}']
    table = pq.read_table(io.BytesIO(stored(Parquet(()), values)))
    assert table.to_pydict() == {"value": values}


def test_parquet_is_written_in_row_groups() -> None:
    parquet = Parquet(COLUMNS)
    body = parquet.begin()
    converted = parquet.convert(sink_frame([b'{"i": 1}'] * 4096, 1).frame)
    early = b"".join(body.add(converted.content, 0, 4096) for _ in range(20))
    metadata = pq.read_metadata(io.BytesIO(early + body.finish()))
    assert len(early) > 4
    assert metadata.num_rows == 20 * 4096
    assert metadata.num_row_groups == 2
    assert metadata.row_group(0).num_rows == file_parquet.ROW_GROUP_RECORDS


def test_members_given_twice_count_once() -> None:
    for file_format in (Csv(COLUMNS), Parquet(COLUMNS)):
        assert refused(file_format, [b'{"i": 1, "i": 2}']) == {}
    table = pq.read_table(io.BytesIO(stored(Parquet(COLUMNS), [b'{"i": 1, "i": 2}'])))
    assert table["i"].to_pylist() == [2]


times = st.datetimes().map(datetime.isoformat)
members: dict[str, st.SearchStrategy[object]] = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "s": st.text(max_size=5),
    "f": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
    "b": st.booleans(),
    "t": times
    | times.map("{}Z".format)
    | st.sampled_from(
        ["2013-01-01T00:00:00+05:30", "2013-01-01T00:00Z", "2013-01-01T00:00:00.1234567Z", "2013-01-01T00-02"]
    ),
    "x": st.lists(st.integers(), max_size=2),
}
odd: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 1, 2**63, 0.5, "text", "20130101", "12:00", "2013-01-01T24:00:00Z", "1", [], {}]
)
strange = st.sampled_from(
    [b'{"i":1}{"i":2}', b"", b'{"i": 1', b'"x"}', b'{"i":\n1}', b"{}\r", b'{"f": 1e999}', b'{"i": -0}']
)


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """Mostly members of the right type; now and then of another, or no object at all."""
    if draw(st.integers(0, 20)) == 0:
        return draw(strange)
    names = draw(st.lists(st.sampled_from("isfbtx"), unique=True))
    item = {name: draw(odd if draw(st.integers(0, 15)) == 0 else members[name] | st.none()) for name in names}
    return json.dumps(item, ensure_ascii=draw(st.booleans())).encode()


@pytest.mark.slow
@settings(deadline=None, max_examples=sized(100, 300))
@given(st.lists(objects(), min_size=1, max_size=5))
def test_parsing_all_at_once_gives_what_parsing_one_by_one_gives(values: list[bytes]) -> None:
    """The fast way may refuse a frame, and then the slow one decides; it may never give something else."""
    parquet = Parquet(COLUMNS)
    fast = parquet._parse_all(values)
    cells, rows, failures = file_formats.convert_cells(values, COLUMNS)
    event("all at once" if fast is not None else "one by one")
    if fast is None:
        return
    assert not failures
    assert rows == list(range(len(values)))
    assert [list(row.values()) for row in fast.to_pylist()] == cells


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(objects(), min_size=1, max_size=5))
def test_a_frame_of_lines_is_what_its_records_alone_are(values: list[bytes]) -> None:
    """A record that does not fit has its frame converted record by record."""
    for file_format in (Csv(COLUMNS), JsonLines()):
        alone = [file_format.convert(sink_frame([value], 1).frame) for value in values]
        for misfits in ([], [b"nope"]):
            together = file_format.convert(sink_frame([*values, *misfits], 1).frame)
            assert list(together.content) == [line for one in alone for line in one.content]
            assert together.size == sum(one.size for one in alone)
            reasons = [failure.reason for one in alone for failure in one.failures]
            assert [failure.reason for failure in together.failures] == reasons + [NOT_JSON] * len(misfits)


def test_values_that_are_equal_and_not_the_same_stay_apart() -> None:
    """In Python, that is: 0.0 and -0.0, 1 and 1.0 and true."""
    values = [b'{"f": 0.0}', b'{"f": -0.0}', b'{"f": 0}', b'{"f": 1, "i": 1, "b": true}', b'{"f": 1.0, "i": 1}']
    assert stored(Csv(COLUMNS), values).splitlines()[1:] == [
        b",,0.0,,",
        b",,-0.0,,",
        b",,0.0,,",
        b"1,,1.0,true,",
        b"1,,1.0,,",
    ]
    assert refused(Csv(COLUMNS), [b'{"i": 1}', b'{"i": true}', b'{"i": 1.0}']) == {1: WRONG_TYPE, 2: WRONG_TYPE}


@pytest.mark.parametrize(
    "value",
    [
        b'{"x": NaN}',
        b'{"x": [1, -Infinity ]}',
        b'{"x": Inf}',
        b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"t": "0001-01-01T00:00:00+01:00"}',
        b'{"t": "9999-12-31T23:59:59.999999-01:00"}',
    ],
)
def test_what_only_the_fast_way_would_take_is_refused(value: bytes) -> None:
    assert list(refused(Parquet(COLUMNS), [b"{}", value])) == [1]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"i": 1}{"i": 2}', b'{"x":', b'{"i": 3}}'],
        [b'{"i": 1}{"i": 2}', b'{"x": [', b'{"i": 3}]}'],
        [b'{"i": 1}\n{"i": 2}', b'{"x":', b'{"i": 3}}'],
    ],
)
def test_objects_that_are_not_in_records_of_their_own_are_refused(values: list[bytes]) -> None:
    """There are as many objects as records."""
    assert list(refused(Parquet(COLUMNS), values)) == [0, 1, 2]


def test_the_fast_way_is_taken_for_plain_objects() -> None:
    values = [
        b'{"i": %d, "t": "2013-01-01T00:00:00Z", "s": "\xc3\xbc NaN Information", "x": [[{}]]}' % number
        for number in range(100)
    ]
    table = Parquet(COLUMNS)._parse_all(values)
    assert isinstance(table, pa.Table)
    assert table.num_rows == 100


@pytest.mark.process
def test_the_fast_way_does_not_bring_pandas_in() -> None:
    """Half a second, and more memory than all the rest of a sink's process."""
    code = """
import sys
from millstream_connectors.shared.columns import Column
from millstream_connectors.file.sink.parquet import Parquet
from tests.unit.writer.sink_frames import sink_frame
columns = [Column.model_validate({"name": name, "type": kind}) for name, kind in (("t", "timestamp"), ("f", "float"))]
frame = sink_frame([b'{"t": "2013-01-01T00:00:00", "f": 1}', b'{"t": null}'], 1).frame
for parquet in (Parquet(columns), Parquet(())):
    converted = parquet.convert(frame)
    assert len(converted.rows) == 2
    body = parquet.begin()
    body.add(converted.content, 0, 2)
    body.finish()
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=REPOSITORY)
