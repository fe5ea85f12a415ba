"""Files cut into records, whatever the sizes of blocks and batches."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import codes
from millstream.errors import DamageError
from millstream.extract import Extraction
from millstream.limits import RECORD_BYTES_MAX
from millstream.record import Record
from millstream_connectors.file.source.csv_parsing import CsvFormat
from millstream_connectors.file.source.text_file import FileMark, TextFile, TextFormat, open_text_file
from millstream_reader.source import InvalidRecord
from tests.support.errors import raises

FIELDS = st.text(st.sampled_from('ab ,"\n\r\\é\t%'), max_size=6)
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=9)
JSON_LINES = st.sampled_from(["{}", "[1, 2]", "nope", "", " ", '"\\u00e4"', "\xff", "1]", "[1"])
LINE_ENDS = st.sampled_from(["\n", "\r\n"])
SIZES = st.integers(1, 40)
ONE_GO = 1 << 20


def text_format(name: str = "lines", encoding: str = "utf-8", **csv_options: object) -> TextFormat:
    return TextFormat(name, encoding, CsvFormat(**csv_options), Extraction())  # type: ignore[arg-type]


@contextmanager
def file_of(
    data: bytes, text: TextFormat, mark: FileMark | None = None, *, block_bytes: int = ONE_GO, suffix: str = ""
) -> Iterator[TextFile]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "f" + suffix)
        path.write_bytes(data)
        file = open_text_file(str(path), "f", text, mark or FileMark(), block_bytes=block_bytes)
        try:
            assert file.fault() is None
            file.begin()
            yield file
        finally:
            file.close()


def take_all(
    file: TextFile, records_max: int = 4096, bytes_max: int = ONE_GO
) -> tuple[list[Record], list[InvalidRecord], list[tuple[int, int, FileMark]]]:
    """Records, invalid input, and after every step how many of them there were, with the mark."""
    records: list[Record] = []
    invalid: list[InvalidRecord] = []
    marks: list[tuple[int, int, FileMark]] = [(0, 0, file.mark)]
    while True:
        taken = file.take(records_max, bytes_max, now_us=0, closing=True)
        if taken is not None:
            records += taken.frame.to_records() if taken.frame is not None else []
            assert taken.frame is None or taken.frame.records <= records_max
            invalid += taken.invalid
            marks.append((len(records), len(invalid), file.mark))
        elif file.at_end:
            marks.append((len(records), len(invalid), file.mark))
            return records, invalid, marks
        else:
            file.fill()


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=9)), SIZES, SIZES, st.booleans()
)
def test_lines_are_what_is_between_newlines(lines: list[str], block_bytes: int, records_max: int, ends: bool) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ends else b"")
    wanted = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    with file_of(data, text_format(), block_bytes=block_bytes) as file:
        records, invalid, marks = take_all(file, records_max)
    assert [record.value for record in records] == [line.removesuffix(b"\r") for line in wanted]
    assert not invalid
    assert (marks[-1][2].offset, marks[-1][2].line) == (len(data), len(wanted))


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.lists(FIELDS, min_size=2, max_size=2), max_size=12),
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["\n", "\r\n"]),
)
def test_csv_rows_are_those_of_the_csv_module(
    rows: list[list[str]], block_bytes: int, records_max: int, bytes_max: int, line_end: str
) -> None:
    written = io.StringIO(newline="")
    # A carriage return is quoted by itself only where it ends lines.
    dialect = "excel" if line_end == "\r\n" else "unix"
    writer = csv.writer(written, dialect)
    writer.writerows([["na%me", 'x"y'], *rows])
    data = written.getvalue().encode()
    with file_of(data, text_format("csv"), block_bytes=block_bytes) as file:
        records, invalid, marks = take_all(file, records_max, bytes_max * 10)
    assert not invalid
    found = [json.loads(record.value) for record in records]
    assert [list(item) for item in found] == [["na%me", 'x"y']] * len(rows)
    assert [list(item.values()) for item in found] == rows
    assert marks[-1][2].offset == len(data)
    for count, _, mark in marks:
        with file_of(data, text_format("csv"), mark, block_bytes=block_bytes) as file:
            again, _, _ = take_all(file)
        assert again == records[count:]


@settings(deadline=None)
@given(st.text(st.sampled_from('ab,"\n\r\x00\\'), max_size=60), SIZES, SIZES)
def test_any_text_as_csv_gives_the_same_for_every_cut(text: str, block_bytes: int, records_max: int) -> None:
    data = b"one,two\n" + text.encode()
    with file_of(data, text_format("csv")) as file:
        whole = take_all(file)
    with file_of(data, text_format("csv"), block_bytes=block_bytes) as file:
        parts = take_all(file, records_max)
    assert parts[0] == whole[0]
    assert parts[1] == whole[1]
    assert parts[2][-1] == whole[2][-1]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["{}", "[1, 2]", "nope", "", " ", '"\\u00e4"', "\xff", "1]", "[1"]), max_size=20), SIZES
)
def test_json_lines_are_checked_one_by_one(lines: list[str], block_bytes: int) -> None:
    data = "".join(line + "\n" for line in lines).encode("latin-1")
    good = [line.encode() for line in lines if line in ("{}", "[1, 2]", '"\\u00e4"')]
    bad = [f"f:{index}: " for index, line in enumerate(lines, start=1) if line in ("nope", "\xff", "1]", "[1")]
    with file_of(data, text_format("jsonl"), block_bytes=block_bytes) as file:
        records, invalid, _ = take_all(file, records_max=3)
    assert [record.value for record in records] == good
    assert [item.reason[: len(place)] for item, place in zip(invalid, bad, strict=True)] == bad


def test_what_is_wrong_with_a_row_is_told_by_its_line() -> None:
    text = text_format("csv", types=(("n", "int"), ("f", "float"), ("b", "bool"), ("t", "timestamp")))
    data = (
        "n,f,b,t,s\n"
        "1,2.50,TRUE,2024-01-01T00:00:00Z,é\n"
        ",,,,\n"
        "1_0,,,,\n"
        '"1",nan,,,\n'
        ",,maybe,,\n"
        ",,,noon,\n"
        "too,few\n"
        '1,,,,"open" end\n'
        "-7,1e3,f,,last\n"
        '8,,,,"never closed\n'
        "9,,,,is a row of its own\n"
    )
    with file_of(data.encode(), text) as file:
        records, invalid, _ = take_all(file)
    assert [record.value.decode() for record in records] == [
        '{"n":1,"f":2.5,"b":true,"t":"2024-01-01T00:00:00Z","s":"é"}',
        '{"n":null,"f":null,"b":null,"t":null,"s":""}',
        '{"n":-7,"f":1000.0,"b":false,"t":null,"s":"last"}',
        '{"n":9,"f":null,"b":null,"t":null,"s":"is a row of its own"}',
    ]
    assert [item.reason for item in invalid] == [
        "f:4: column `n`: '1_0' is not a whole number",
        "f:5: column `f`: 'nan' is not a number",
        "f:6: column `b`: 'maybe' is not true or false",
        "f:7: column `t`: 'noon' is not a time such as 2024-01-31T08:00:00Z",
        "f:8: the row has 2 fields, but there are 5 columns",
        "f:9: not a CSV row: ',' expected after '\"'",
        "f:11: not a CSV row: unexpected end of data",
    ]
    assert invalid[4].value == b"too,few"


def test_other_encodings_become_utf_8() -> None:
    with file_of("é,ü\nß,x\n".encode("latin-1"), text_format("csv", "latin-1")) as file:
        assert [record.value.decode() for record in take_all(file)[0]] == ['{"é":"ß","ü":"x"}']
    with file_of("é\r\nß".encode("cp1252"), text_format(encoding="cp1252")) as file:
        assert [record.value.decode() for record in take_all(file)[0]] == ["é", "ß"]
    with file_of(b"ok\nb\xffd\nok\n", text_format()) as file:
        records, (bad,), _ = take_all(file)
    assert (len(records), bad.value, bad.reason) == (2, b"b\xffd", "f:2: byte 0xff in column 2 is not utf-8 text")
    with file_of(b"a\nok\nb\xffd\n", text_format("csv")) as file:
        _, (bad,), _ = take_all(file)
    assert bad.reason.startswith("f:3: column `a`: ")


@pytest.mark.slow
def test_a_line_that_is_too_long_is_left_out_and_told() -> None:
    data = b"short\n" + b"x" * (RECORD_BYTES_MAX + 5) + b"\nshort\n" + b"y" * (3 * RECORD_BYTES_MAX)
    for name, wanted in (("lines", [b"short", b"short"]), ("csv", [b'{"short":"short"}'])):
        with file_of(data, text_format(name)) as file:
            records, invalid, marks = take_all(file)
        assert [record.value for record in records] == wanted
        assert [item.reason[:24] for item in invalid] == ["f:2: the line has 734003", "f:4: the line has 220200"]
        assert max(len(item.value) for item in invalid) <= 1 << 16
        assert marks[-1][2].offset == len(data)
        for _, told, mark in marks:
            with file_of(data, text_format(name), mark) as file:
                assert take_all(file)[1] == invalid[told:]


@pytest.mark.slow
def test_a_quote_that_is_never_closed_does_not_fill_the_memory() -> None:
    count = RECORD_BYTES_MAX // 1000 + 10
    data = b'a\n"open\n' + (b"x" * 999 + b"\n") * count
    with file_of(data, text_format("csv")) as file:
        records, invalid, _ = take_all(file)
    assert len(records) == count
    assert [item.reason for item in invalid] == ["f:2: not a CSV row: unexpected end of data"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a,a\n1,2\n", "f:1: the header names the column `a` twice"),
        (b"\n1,2\n", "f:1: the first line is empty"),
        (b'"a\n', "f:1: the header is not a CSV row"),
        (b"a,b\n", "f:1: there is no column `at`, which `eventTime.field` names; the columns are `a`, `b`"),
        (b"\xff\n", "f:1: byte 0xff in column 1 is not utf-8 text"),
    ],
)
def test_a_header_that_cannot_be_used_stops_the_lane(data: bytes, reason: str) -> None:
    text = TextFormat("csv", "utf-8", CsvFormat(), Extraction(time_field="at"))
    with file_of(data, text) as file, raises(codes.SOURCE_COLUMNS, match=reason):
        take_all(file)


def test_without_a_header_the_columns_have_the_names_of_the_spec() -> None:
    text = text_format("csv", delimiter=";", has_header=False, types=(("a", "int"), ("b", "string")))
    with file_of(b"1;x\n2;y", text) as file:
        assert [record.value for record in take_all(file)[0]] == [b'{"a":1,"b":"x"}', b'{"a":2,"b":"y"}']


def test_a_packed_file_that_is_damaged_is_named() -> None:
    packed = gzip.compress(b"line\n" * 10_000)
    broken = packed[:-20] + bytes([packed[-20] ^ 0xFF]) + packed[-19:]
    for data in (packed[:-12], broken, b"not packed"):
        with (
            pytest.raises(DamageError, match="f: it cannot be decompressed"),
            file_of(data, text_format(), suffix=".gz") as file,
        ):
            take_all(file)


def test_a_mark_tells_another_file() -> None:
    data = b"".join(b"line %d\n" % index for index in range(100))
    with file_of(data, text_format()) as file:
        _, _, marks = take_all(file, records_max=10)
    mark = marks[6][2]
    for other, fault in (
        (data[:100], "it has 100 bytes, but"),
        (b"L" + data[1:], "first bytes have changed"),
        (data.replace(b"line 58", b"Line 58"), r"the text before byte \d+ has changed"),
    ):
        with pytest.raises(AssertionError, match=fault), file_of(other, text_format(), mark):
            pass
    with file_of(data + b"more\n", text_format(), mark) as file:
        assert len(take_all(file)[0]) == 41
