"""Rows for PostgreSQL: those of the binary format are those that the text lines would give."""

from __future__ import annotations

import json
import random

import pytest

from millstream_connectors.postgres.settings import PostgresSink
from millstream_connectors.postgres.sink.rows import CopyFormat
from millstream_connectors.postgres.sink.typed import typed_rows
from millstream_connectors.shared.tables.settings import TableColumn
from tests.unit.writer.sink_frames import sink_frame

TYPES = {"small": "int2", "whole": "int4", "big": "int8", "number": "float8", "name": "text", "flag": "bool"}
COLUMNS = [TableColumn(name=name) for name in TYPES]
TEXTS = ["", "a\tb\\n\n\r", "\\N", "Kö\U0001f600", 'q"uote', "t"]


def settings(mode: str, keys: list[str]) -> PostgresSink:
    return PostgresSink.model_validate(
        {
            "database": "d",
            "user": "u",
            "table": "t",
            "mode": mode,
            "keys": keys,
            "columns": [{"name": n} for n in TYPES],
        }
    )


def random_object(rng: random.Random) -> dict[str, object]:
    members: dict[str, object] = {
        "small": rng.randint(-(2**15), 2**15 - 1),
        "whole": rng.choice((-(2**31), 2**31 - 1, 0)),
        "big": rng.choice((-(2**63), 2**63 - 1, 2**53 + 1)),
        "number": rng.choice((rng.random(), -0.0, 5e-324, 1.7976931348623157e308, 0.1)),
        "name": rng.choice(TEXTS),
        "flag": rng.random() < 0.5,
        "other": {"small": [None, 1e5]},
    }
    return {name: rng.choice((value, value, value, None)) for name, value in members.items() if rng.random() < 0.9}


@pytest.mark.parametrize(("mode", "keys"), [("insert", []), ("upsert", ["whole"]), ("delete", ["whole"])])
def test_rows_are_what_lines_would_be(mode: str, keys: list[str]) -> None:
    rng = random.Random(7)
    lines, rows = CopyFormat(settings(mode, keys)), CopyFormat(settings(mode, keys))
    rows.typed = typed_rows(COLUMNS, TYPES, keys, whole=mode == "upsert")
    assert rows.typed is not None
    binary = 0
    for _ in range(200):
        frame = sink_frame([json.dumps(random_object(rng)).encode() for _ in range(3)], 1)
        expected, got = lines.convert(frame), rows.convert(frame)
        assert (got.rows, got.failures) == (expected.rows, expected.failures)
        # A number of a line keeps its digits; a float writes the letter of its exponent small.
        assert [rows.line_of(row).lower() for row in got.made] == [lines.line_of(row).lower() for row in expected.made]
        binary += any(not isinstance(one, bytes) for one in got.made)
    # Where a key is null, the record is refused, and lines say which.
    assert binary == 200 if mode == "insert" else 0 < binary < 200


@pytest.mark.parametrize(
    "value",
    [
        b'{"small": 32768}',
        b'{"whole": 1.0}',
        b'{"big": 9223372036854775808}',
        b'{"whole": true}',
        b'{"flag": 1}',
        b'{"name": 1}',
        b'{"name": ["a"]}',
        b'{"number": "1"}',
        b'{"number": NaN}',
        b'{"number": 1e400}',
        b'{"name": "\\ud800"}',
        b'{"name": "\xff"}',
        b'{"other": "\xff"}',
        b'{"small": 1}{"small": 2}',
        b"[1]",
        b"",
        b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda value: value[:20].decode(errors="replace"),
)
def test_what_is_not_of_the_types_is_for_lines(value: bytes) -> None:
    typed = typed_rows(COLUMNS, TYPES)
    assert typed is not None
    assert typed([b"{}", value]) is None


@pytest.mark.parametrize(
    "columns",
    [
        [{"name": "price"}],
        [{"name": "name", "part": "key"}],
        [{"name": "name", "field": "to.city"}],
        [{"name": "name", "field": "x"}, {"name": "flag", "field": "x"}],
        [{"name": "absent"}],
    ],
)
def test_columns_that_lines_have_to_fill(columns: list[dict[str, str]]) -> None:
    assert typed_rows([TableColumn.model_validate(each) for each in columns], {**TYPES, "price": "numeric"}) is None
