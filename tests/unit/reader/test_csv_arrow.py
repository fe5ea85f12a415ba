"""CSV by Arrow: the same records as by Python's csv module, for any lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.extract import Extraction, time_parser
from millstream_connectors.file.source.csv_parsing import CsvFormat, CsvParser
from millstream_connectors.shared.parsing import InvalidLine, ParsedLines
from millstream_udf import columns

Outcome = tuple[list[tuple[bytes, int | None, tuple[bytes, ...] | None]], list[InvalidLine]]

TYPES = ("string", "int", "float", "bool", "timestamp")
ODD = st.text(st.sampled_from('ab1,"\\\r\x00\t\ufeffé\x85-+. eE_xZ:'), max_size=5)
INTS = st.one_of(
    st.integers().map(str), st.sampled_from(["", "007", "-0", "+5", " 5", "0x1F", "1_0", "٣", "1.0", "9" * 19])
)
FLOATS = st.one_of(
    st.floats().map(repr),
    st.floats(-1e12, 1e12).map(lambda number: f"{number:.3f}"),
    st.integers(-(10**6), 10**6).map(str),
    st.sampled_from(
        ["", "1e-5", "0.0001", "-0", "-0.0", "1e9", "999999999.9999999", "1.", ".5", " 1.5", "1e", "0x1p3", "1_0"]
    ),
)
BOOLS = st.sampled_from(["", "true", "FALSE", "t", "1", "yes"])
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.one_of(
    st.datetimes(timezones=OFFSETS).map(lambda moment: moment.isoformat()),
    st.datetimes().map(lambda moment: moment.isoformat(" ", "seconds") + "Z"),
    st.sampled_from(
        [
            "",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01t00:00:00z",
            "2024-01-01T24:00:00Z",
            "2024-02-30T00:00:00Z",
            "2024-01-01T00:00:60Z",
            "0000-01-01T00:00:00Z",
            "0001-01-01T00:00:00+12:00",
            "10000-01-01T00:00:00Z",
            "2024-01-01T00:00:00.1234567Z",
            "2024-01-01T00Z",
        ]
    ),
)
FIELDS = {"string": ODD, "int": INTS, "float": FLOATS, "bool": BOOLS, "timestamp": TIMES}
ROWS = st.tuples(*(st.one_of(FIELDS[name], FIELDS[name], FIELDS[name], ODD) for name in TYPES))


def parsers(
    types: Sequence[str], extraction: Extraction, *, encoding: str = "utf-8", delimiter: str = ","
) -> tuple[CsvParser, CsvParser]:
    """Without Arrow and with it, for columns named by their places."""
    named = tuple((str(index), name) for index, name in enumerate(types))
    plain, by_arrow = (
        CsvParser(
            [name for name, _ in named],
            encoding=encoding,
            csv_format=CsvFormat(delimiter=delimiter, types=named),
            extraction=extraction,
        )
        for _ in range(2)
    )
    by_arrow.use_arrow()
    return plain, by_arrow


def outcome(parsed: ParsedLines) -> Outcome:
    """Value, event time and keys of each record, and what is invalid."""
    count = parsed.records
    values: Sequence[bytes] = parsed.values
    times: Sequence[int | None] | None = parsed.event_times_us
    keys: Sequence[tuple[bytes, ...] | None] | None = parsed.keys
    if parsed.sealed is not None:
        sealed = parsed.sealed
        values = columns.unpack_bytes(sealed.values.column)
        times = list(sealed.event_times_us) if sealed.event_times_us is not None else None
        keys = columns.unpack_lists(sealed.keys_column, count) if sealed.keys_column else None
        assert sealed.size == sum(map(len, values))
    assert parsed.size == sum(map(len, values))
    absent = [None] * count
    return list(zip(values, times or absent, keys or absent, strict=True)), parsed.invalid


def same(lines: Sequence[bytes], plain: CsvParser, by_arrow: CsvParser) -> ParsedLines:
    """What Arrow gives, once it is known to be what the csv module gives."""
    expected, found = (parser.parse(lines, 4096, final=True) for parser in (plain, by_arrow))
    assert (found.lines, outcome(found)) == (expected.lines, outcome(expected))
    return found


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from('ab1,"\\\r\x00\ufeffé\x85 '), max_size=8), min_size=1, max_size=6),
    st.integers(1, 3),
)
@example(["\ufeffa"], 1)
@example(["a", ""], 1)
@example(["a,b\r", "c,d\r"], 2)
@example(["a,b\r", "c\r,d"], 2)
def test_any_lines_give_what_the_csv_module_gives(texts: list[str], width: int) -> None:
    lines = [text.encode() for text in texts]
    for encoding in ("utf-8", "latin-1", "ascii"):
        same(lines, *parsers(["string"] * width, Extraction(key_fields=("0",)), encoding=encoding))


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_columns_with_types_give_what_the_csv_module_gives(rows: list[tuple[str, ...]]) -> None:
    lines = [",".join(row).encode() for row in rows]
    same(lines, *parsers(TYPES, Extraction()))
    same(lines, *parsers(TYPES, Extraction(time_field="4", key_fields=("0", "1"))))


@settings(deadline=None)
@given(st.data())
def test_a_column_that_fits_gives_what_the_csv_module_gives(data: st.DataObject) -> None:
    """Columns of one kind of text each, as most files have them."""
    name = data.draw(st.sampled_from(TYPES[1:]))
    texts = data.draw(st.lists(FIELDS[name], min_size=1, max_size=4))
    lines = [f"{text},x".encode() for text in texts]
    same(lines, *parsers([name, "string"], Extraction()))
    if name == "timestamp":
        same(lines, *parsers(["string", "string"], Extraction(time_field="0")))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " ", "|", "%"])
@pytest.mark.parametrize("line_end", [b"", b"\r"])
def test_lines_without_quotes_are_parsed_by_arrow(delimiter: str, line_end: bytes) -> None:
    extraction = Extraction(time_field="4", key_fields=("0", "1"))
    rows = [
        ["é'", "-12", "2.5", "true", "2024-01-31T08:00:00Z"],
        ["'", "0", "-0.0", "F", "2024-01-31T08:00:00.25+01:00"],
        ["", "", "7", "", "2024-01-31T08:00:00.000001-01:30"],
    ]
    lines = [delimiter.join(row).encode() + line_end for row in rows]
    parsed = same(lines, *parsers(TYPES, extraction, delimiter=delimiter))
    assert parsed.sealed is not None
    assert outcome(parsed)[0][2] == (
        b'{"0":"","1":null,"2":7.0,"3":null,"4":"2024-01-31T08:00:00.000001-01:30"}',
        1_706_693_400_000_001,
        (b"", b""),
    )


def test_other_times_and_other_encodings_are_parsed_by_arrow_too() -> None:
    epochs = Extraction(time_field="1", parse_time=time_parser("epoch_ms"), key_fields=("0",))
    lines = [f"ä{index % 3},{1_700_000_000_000 + index % 5}".encode("latin-1") for index in range(100)]
    parsed = same(lines, *parsers(["string", "int"], epochs, encoding="latin-1"))
    assert parsed.sealed is not None


def test_a_number_that_arrow_writes_in_another_way_leaves_the_other_columns_to_it() -> None:
    lines = [b"007,1e-5,a", b"0x1,1e22,b"]
    assert same(lines, *parsers(["int", "float", "string"], Extraction())).sealed is None
    parsed = same([b"007,1e-5,a", b"+1,1e22,b"], *parsers(["int", "float", "string"], Extraction()))
    assert parsed.sealed is not None
    assert [value for value, _, _ in outcome(parsed)[0]] == [b'{"0":7,"1":1e-05,"2":"a"}', b'{"0":1,"1":1e+22,"2":"b"}']


READS = """
import os, sys
from millstream.extract import Extraction
from millstream_connectors.file.source.csv_parsing import CsvFormat
from millstream_connectors.file.source.text_file import ARROW_AFTER_BYTES, FileMark, TextFormat, open_text_file

def read(path, rows):
    with open(path, "wb") as file:
        file.write(b"n,text\\n" + (b"1," + b"x" * 997 + b"\\n") * rows)
    text = TextFormat("csv", "utf-8", CsvFormat(types=(("n", "int"),)), Extraction(key_fields=("n",)))
    file, records = open_text_file(path, "f", text, FileMark()), 0
    file.begin()
    while not file.at_end:
        file.fill()
        while (taken := file.take(4096, 1 << 20, now_us=0, closing=True)) is not None:
            records += taken.frame.records
    file.close()
    assert records == rows, records
    return "pyarrow" in sys.modules

assert not read(sys.argv[1], 100)
assert read(sys.argv[1], ARROW_AFTER_BYTES // 1000 + 2000)
assert "pandas" not in sys.modules
"""


@pytest.mark.process
def test_arrow_is_imported_for_large_files_only_and_pandas_never(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", READS, tmp_path / "f.csv"], check=True, timeout=60)
