"""Values of every type of PostgreSQL, from a table through the source of changes and a sink into a target: what the
target's own client reads is what went in, or the record is refused. As rows of the snapshot and as changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from millstream.exact_json import parse, text_of
from millstream.record import Position, Record
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sources.lanes import open_lane, read_until
from tests.support.kafka_server import KafkaServer
from tests.support.postgres_server import Database, PostgresServer, open_postgres, why_missing
from tests.unit.writer.sink_frames import sink_frame

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

DOCUMENT = '{"a": [1.10, 12345678901234567.89, null, true, "\\\\ \\" ü \\u2028"], "": {}}'
TYPES: Mapping[str, Sequence[str]] = {
    "smallint": ["-32768", "32767", "0"],
    "int": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "9007199254740993"],
    "numeric": ["1.10", "-0.00", "1234567890123456789.12345678901234567890", "NaN", "Infinity", "1e-30", "1e40"],
    "numeric(60,20)": ["1234567890123456789012345678901234567890.12345678901234567890", "0.00000000000000000001"],
    "numeric(12,2)": ["9999999999.99", "-0.01"],
    "numeric(38,18)": ["1.234567890123456789", "-12345678901234567890.000000000000000001"],
    "real": ["0.1", "3.4028235e38", "1.17549435e-38", "16777217", "NaN", "-Infinity", "-0"],
    "double precision": ["0.1", "1.7976931348623157e308", "5e-324", "NaN", "Infinity", "-0", "0.30000000000000004"],
    "money": ["12.34", "-92233720368547758.08"],
    "boolean": ["true", "false"],
    "text": ["", " a ", "\\N", "\t\n\r\b\\", "Köln 🌍 \u2028", "null", '"quoted"', "12345678901234567.89"],
    "varchar(40)": ["", "é" * 40],
    "char(5)": ["ab", "     "],
    "name": ["orders"],
    "bytea": ["", "\\x00ff0a5c27"],
    "date": ["0001-01-01", "9999-12-31", "0044-03-15 BC", "infinity", "294276-12-31"],
    "time": ["00:00:00", "23:59:59.999999", "24:00:00"],
    "timetz": ["12:34:56.789+05:30"],
    "timestamp": ["2026-01-02 03:04:05.000006", "0044-03-15 00:00:00 BC", "infinity", "12026-01-02 03:04:05"],
    "timestamptz": ["2026-01-02 03:04:05.000006+05:30", "0044-03-15 00:00:00+00 BC", "-infinity"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789", "-00:00:00.000001"],
    "uuid": ["00000000-0000-7000-8000-00000000000f"],
    "json": [DOCUMENT, "1.10", "[]", "true", '"1.10"', '"a \\n \\u00fc"'],
    "jsonb": [DOCUMENT, "1234567890123456789.12345678901234567890", "[[1], []]", "false", '"null"', '"{}"'],
    "inet": ["192.168.0.1/24", "::1", "10.0.0.1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(4)": ["1010"],
    "varbit": ["", "0101010101"],
    "point": ["(1.5,-2)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(2,2),(1,1)"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1)]"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "circle": ["<(0,0),1.5>"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "int8range": ["[1,9223372036854775807)"],
    "numrange": ["[1.10,12345678901234567.89]"],
    "tsrange": ['["2026-01-01 00:00:00","2026-01-02 00:00:00")'],
    "tstzrange": ["[2026-01-01 00:00:00+00,)"],
    "daterange": ["[2026-01-01,2026-02-01)"],
    "int4multirange": ["{[1,2),[5,9)}"],
    "tsvector": ["'a':1 'b':2A"],
    "tsquery": ["'a' & !'b'"],
    "oid": ["42"],
    "pg_lsn": ["0/16B3748"],
    "mood": ["very good", 'b"a,d'],
    "cents": ["7"],
    "place": ['("a b",1.10,)'],
    "bit(4)[]": ["{1010,0101}"],
    "int[]": ["{1,NULL,-3}", "{}", "{{1,2},{3,4}}"],
    "bigint[]": ["{9223372036854775807}"],
    "numeric[]": ["{1.10,1234567890123456789.12345678901234567890,NaN}"],
    "double precision[]": ["{0.1,NaN,-Infinity}"],
    "boolean[]": ["{t,f,NULL}"],
    "text[]": ['{"","a,b","\\"\\\\","NULL",NULL,"{x}"," y "}', '{{a,b},{"c d",""}}'],
    "char(5)[]": ["{ab,c}"],
    "name[]": ["{a,b}"],
    "bytea[]": ['{"\\\\x00ff",NULL}'],
    "date[]": ["{2026-01-02,infinity}"],
    "time[]": ["{01:02:03.000004}"],
    "timestamp[]": ['{"2026-01-02 03:04:05.000006"}'],
    "timestamptz[]": ['{"2026-01-02 03:04:05.000006+00"}'],
    "interval[]": ['{"1 day 02:03:04","-1 mons"}'],
    "uuid[]": ["{00000000-0000-7000-8000-00000000000f}"],
    "jsonb[]": ['{"{\\"a\\": [1.10, \\"b\\"]}","[1, 2]","\\"text\\"",NULL}'],
    "inet[]": ["{10.0.0.1,::1}"],
    "box[]": ["{(2,2),(1,1);(3,3),(0,0)}"],
    "int4range[]": ['{"[1,5)",empty}'],
    "mood[]": ['{"very good","b\\"a,d"}'],
    "cents[]": ["{7,8}"],
    "place[]": ['{"(\\"a b\\",1.10,)"}'],
}
OWN = (
    "CREATE TYPE mood AS ENUM ('very good', 'b\"a,d')",
    "CREATE DOMAIN cents AS int CHECK (VALUE > 0)",
    "CREATE TYPE place AS (name text, size numeric, note text)",
)
NAMES = {f"c{number}": kind for number, kind in enumerate(TYPES)}
TABLE = f"CREATE TABLE kinds (id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in NAMES.items())})"
ROWS = 1 + max(map(len, TYPES.values()))
"""The last one is null in all columns."""


def inserted(first: int) -> Iterator[str]:
    for row in range(ROWS):
        values = [values[row % len(values)] if row < ROWS - 1 else None for values in TYPES.values()]
        literals = ["NULL" if text is None else "'" + text.replace("'", "''") + "'" for text in values]
        yield f"INSERT INTO kinds VALUES ({first + row}, {', '.join(literals)})"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with open_postgres(wal_level="logical") as server:
        yield server


@pytest.fixture
async def source(server: PostgresServer) -> Database:
    database = await server.database()
    await database.execute(*OWN, TABLE, "CREATE PUBLICATION ours FOR TABLE kinds", *inserted(0))
    return database


async def records_of(source: Database) -> list[Record]:
    """All rows of the snapshot, and as many as changes."""
    cdc = {"publication": "ours", "slot": f"slot_{source.name}"}
    batches: list[Any] = []
    async with open_lane({"postgres": {**source.settings, "cdc": cdc}}) as lane:
        await read_until(lane, lambda records: len(records) == ROWS, batches)
        await source.execute(*inserted(ROWS))
        return await read_until(lane, lambda records: len(records) == 2 * ROWS, batches)


async def written(spec: dict[str, Any], values: Sequence[bytes]) -> list[Any]:
    """Write the values; returns the failures."""
    async with open_sink(FallbackSink.model_validate(spec), sink_owner(1)) as lane:
        result = await lane.write([sink_frame(values, 1)], Position(1))
        await lane.flush()
        while lane.durable != Position(1):
            await lane.flush()
    return list(result.failures[0]) if result.failures else []


COLUMNS = [{"name": name, "field": f"after.{name}"} for name in ("id", *NAMES)]


async def test_into_postgres(source: Database, server: PostgresServer) -> None:
    records = await records_of(source)
    target = await server.database()
    await target.execute(*OWN, TABLE)
    sink = {"postgres": {**target.settings, "table": "kinds", "mode": "upsert", "keys": ["id"], "columns": COLUMNS}}
    assert await written(sink, [record.value for record in records]) == []
    # Texts of `json` keep their spaces in the source only.
    texts = [f"{name}{'::jsonb' if kind == 'json' else ''}::text" for name, kind in NAMES.items()]
    statement = f"SELECT {', '.join(texts)} FROM kinds ORDER BY id"
    expected, found = await source.rows(statement), await target.rows(statement)
    assert len(found) == 2 * ROWS
    for one, other in zip(expected, found, strict=True):
        assert dict(zip(NAMES.values(), other, strict=True)) == dict(zip(NAMES.values(), one, strict=True))


IN_CHANGES = {"oid": "::bigint", "place": "::text", "place[]": "::text[]"}
"""Types whose JSON is another one in changes than in a query, as the page says."""


async def in_json(source: Database) -> list[dict[str, Any]]:
    """The rows as the server itself writes them in JSON, with all digits."""
    async with source.connected() as connection:
        await connection.execute("SET IntervalStyle TO iso_8601; SET TimeZone TO UTC")
        columns = [f"{name}{IN_CHANGES.get(kind, '')} AS {name}" for name, kind in NAMES.items()]
        row = f"SELECT id, {', '.join(columns)} FROM kinds ORDER BY id"
        rows = await connection.fetch(f"SELECT row_to_json(k)::text FROM ({row}) k")
    return [parse(row[0].encode()) for row in rows]


def are_changes_of(rows: Sequence[dict[str, Any]], values: Sequence[bytes]) -> None:
    for value, row in zip(values, rows, strict=True):
        after = parse(value)["after"]
        assert {NAMES.get(name, name): one for name, one in after.items()} == {
            NAMES.get(name, name): one for name, one in row.items()
        }
        # Whole numbers have no negative zero.
        assert text_of(after).replace(":-0.0,", ":0,") == text_of(row)


async def test_changes_have_the_values_that_the_server_writes_in_json(source: Database) -> None:
    records = await records_of(source)
    are_changes_of(await in_json(source), [record.value for record in records])


@pytest.mark.sweep
async def test_into_kafka(source: Database, kafka: KafkaServer) -> None:
    records = await records_of(source)
    kafka.create("kinds")
    sink = {"kafka": {"brokers": [kafka.brokers], "topic": "kinds"}}
    assert await written(sink, [record.value for record in records]) == []
    are_changes_of(await in_json(source), kafka.values("kinds"))


async def test_into_sqlite(source: Database, tmp_path: Path) -> None:
    records = await records_of(source)
    file = tmp_path / "kinds.db"
    sink = {"url": f"sqlite:///{file}", "table": "kinds", "mode": "upsert", "keys": ["id"], "columns": COLUMNS}
    assert await written({"sql": {**sink, "createTable": True}}, [record.value for record in records]) == []
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute(f"SELECT {', '.join(NAMES)} FROM kinds ORDER BY CAST(id AS INTEGER)").fetchall()
    for cells, row in zip(found, await in_json(source), strict=True):
        for (name, kind), cell in zip(NAMES.items(), cells, strict=True):
            assert of_text(cell, row[name]) == row[name], kind


def of_text(cell: str | None, expected: Any) -> Any:
    """The value that the text of a SQLite column means."""
    if cell is None or isinstance(expected, str):
        return cell
    if isinstance(expected, bool):
        return {"1": True, "0": False}[cell]
    return parse(cell.encode())


IN_DELTA: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "smallint": ("int", int),
    "int": ("int", int),
    "bigint": ("int", int),
    "real": ("float", float),
    "double precision": ("float", float),
    "numeric(12,2)": ("float", float),
    "boolean": ("bool", bool),
    "timestamptz": ("timestamp", lambda text: datetime.fromisoformat(text).astimezone(UTC)),
}
"""Types of columns of Delta tables for types that are not text in JSON. Those of lists and objects have none."""


async def test_into_delta(source: Database, tmp_path: Path) -> None:
    records = await records_of(source)
    rows = await in_json(source)
    afters = [parse(record.value)["after"] for record in records]
    fit = {"string": str}
    columns = []
    for name, kind in NAMES.items():
        kinds = {type(row[name]) for row in rows} - {type(None)}
        if kind in IN_DELTA or kinds <= {str}:
            columns.append({"name": name, "type": IN_DELTA.get(kind, ("string", fit["string"]))[0]})
    assert len(columns) > 40
    sink = {"delta": {"path": str(tmp_path / "kinds"), "columns": [{"name": "id", "type": "int"}, *columns]}}
    failures = await written(sink, [text_of(after).encode() for after in afters])
    refused = {failure.index for failure in failures}
    # Doubles without a number and times without a year of Python are refused by name, and nothing else is.
    odd = ("NaN", "Infinity", "-Infinity", "infinity", "-infinity")
    numbers = [name for name, kind in NAMES.items() if kind in IN_DELTA]
    expected = {
        index
        for index, row in enumerate(rows)
        if any(row[name] in odd or (isinstance(row[name], str) and row[name].endswith(" BC")) for name in numbers)
    }
    assert refused == expected
    assert {failure.reason for failure in failures} == {"column has another type"}
    found = {row["id"]: row for row in DeltaTable(str(tmp_path / "kinds")).to_pyarrow_table().to_pylist()}
    assert sorted(found) == [index for index in range(len(rows)) if index not in refused]
    for index, cells in found.items():
        for column in columns:
            name, value = column["name"], rows[index][column["name"]]
            convert = IN_DELTA.get(NAMES[name], ("string", str))[1]
            assert cells[name] == (None if value is None else convert(value)), NAMES[name]


async def test_a_number_that_a_delta_table_cannot_hold_is_refused(tmp_path: Path) -> None:
    values = [b'{"n": %b}' % text for text in (b"1.10", b"1234567890123456789.12345678901234567890", b"7")]
    sink = {"delta": {"path": str(tmp_path / "numbers"), "columns": [{"name": "n", "type": "float"}]}}
    ((failure),) = await written(sink, values)
    assert (failure.index, failure.reason) == (1, "column has another type")
    rows = DeltaTable(str(tmp_path / "numbers")).to_pyarrow_table().to_pylist()
    assert sorted(Decimal(repr(row["n"])) for row in rows) == [Decimal("1.1"), Decimal(7)]
    assert json.loads(values[0]) == {"n": 1.1}
