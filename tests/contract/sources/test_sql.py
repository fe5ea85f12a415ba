"""The `sql` source: each row once in the order of its cursor, from real databases."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tempfile
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.models import Source
from millstream_connectors.shared import query_lane as rows_module
from millstream_connectors.sql.settings import SqlSplit
from millstream_connectors.sql.source import query as query_module
from millstream_reader.source import SourceBatch
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import open_lane, read_to_end, read_until, values
from tests.support.errors import raises


def execute(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With a hundred rows."""
    file = tmp_path / "shop.db"
    execute(file, "CREATE TABLE numbers (n INTEGER PRIMARY KEY, text TEXT)")
    fill(file)
    return file


def fill(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        rows = [(f"text {n}",) for n in range(1, 101)]
        connection.executemany("INSERT INTO numbers (text) VALUES (?)", rows)


def spec(file: Path, **settings: Any) -> dict[str, Any]:
    wanted = {"table": "numbers"} | settings if "query" not in settings else settings
    return {"sql": {"url": f"sqlite:///{file}", **wanted}}


def numbers(records: list[Any]) -> list[int]:
    return [json.loads(value)["n"] for value in values(records)]


@pytest.mark.guarantee("I1")
async def test_reading_again_from_any_position_gives_the_rest_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "SQL_PAGE_ROWS", 40)
    async with open_lane(spec(file)) as lane:
        assert lane.replayable
        records, _, batches = await read_to_end(lane, records_max=23)
    assert values(records)[0] == b'{"n":1,"text":"text 1"}'
    assert numbers(records) == [*range(1, 101)]
    # What comes later is not part of it.
    fill(file)
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(spec(file), batch.position) as lane:
            rest, _, _ = await read_to_end(lane, 31, 300)
            assert numbers(rest) == [*range(done + 1, 101)]
            last = await lane.read(10, 1000, 0.01)
            assert (last.frame, last.ended) == (None, True)


async def test_a_followed_table_gives_new_rows(file: Path) -> None:
    async with open_lane(spec(file, follow=True, pollEvery="10ms")) as lane:
        batches: list[SourceBatch] = []
        first = await read_until(lane, lambda records: len(records) == 100, batches)
        fill(file)
        second = await read_until(lane, lambda records: len(records) == 100)
    assert numbers([*first, *second]) == [*range(1, 201)]
    async with open_lane(spec(file, follow=True, pollEvery="10ms"), batches[-1].position) as lane:
        again = await read_until(lane, lambda records: len(records) == 100)
    assert numbers(again) == [*range(101, 201)]


async def test_lanes_share_the_rows_by_ranges_and_a_cursor_may_have_several_columns(file: Path) -> None:
    query = (
        "SELECT n, text, n % 3 AS third, CASE n WHEN 7 THEN NULL ELSE n END AS gap FROM numbers WHERE text <> ':x %'"
    )
    split = {"column": "gap", "from": 10, "to": 90}
    shared = spec(file, query=query, cursor=["third", "n"], split=split)
    parts = []
    for partition in range(3):
        async with open_lane(shared, partition=partition, partitions=3) as lane:
            records, _, _ = await read_to_end(lane, 7)
        found = numbers(records)
        assert found == sorted(found, key=lambda n: (n % 3, n))
        parts.append(found)
    # A null in the column is in the first range.
    assert [sorted(part) for part in parts] == [[*range(1, 37)], [*range(37, 64)], [*range(64, 101)]]


async def test_without_a_split_the_first_lane_reads_all(file: Path) -> None:
    found = []
    for partition in range(2):
        async with open_lane(spec(file), partition=partition, partitions=2) as lane:
            found.append(numbers((await read_to_end(lane))[0]))
    assert found == [[*range(1, 101)], []]


def test_ranges_meet_without_a_gap() -> None:
    for first, last, partitions in ((0, 9, 3), (-5, 5, 4), (1, 2, 5)):
        split = SqlSplit.model_validate({"column": "n", "from": first, "to": last})
        bounds = [split.bounds(partition, partitions) for partition in range(partitions)]
        assert [high for _, high in bounds[:-1]] == [low for low, _ in bounds[1:]]
        assert (bounds[0][0], bounds[-1][1]) == (None, None)


async def test_types_become_json_and_event_time_and_keys_are_read_off_it(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    execute(
        file,
        "CREATE TABLE kinds (id TEXT PRIMARY KEY, big INT, real REAL, at TEXT, data BLOB, none TEXT, word TEXT)",
        "INSERT INTO kinds VALUES "
        "('a', 9007199254740993, 1e-7, '2026-01-02T03:04:05.000006+01:00', x'00ff', NULL, 'Kö\"ln\n')",
    )
    whole = {**spec(file, table="kinds"), "eventTime": {"field": "at"}, "keys": ["word"]}
    async with open_lane(whole) as lane:
        (record,), _, _ = await read_to_end(lane)
    assert (record.event_time_us, record.keys) == (1_767_319_445_000_006, ('Kö"ln\n',))
    assert json.loads(record.value) == {
        "id": "a", "big": 9007199254740993, "real": 1e-7, "at": "2026-01-02T03:04:05.000006+01:00", "data": "AP8=",
        "none": None, "word": 'Kö"ln\n',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statements", "settings", "code", "what"),
    [
        ((), {"table": "absent"}, codes.TARGET_UNFIT, "there is no table absent"),
        ((), {"cursor": ["m"]}, codes.TARGET_UNFIT, "has no column `m`"),
        ((), {"query": "SELECT x FROM numbers", "cursor": ["n"]}, codes.TARGET_UNFIT, "no such column: x"),
        (("CREATE TABLE bare (n INT)",), {"table": "bare"}, codes.TARGET_UNFIT, "has no primary key"),
        ((), {"query": "SELECT n % 2 AS odd, n FROM numbers", "cursor": ["odd"]}, codes.TARGET_UNFIT, "several rows"),
        (
            ("CREATE TABLE w (word TEXT COLLATE NOCASE)", "INSERT INTO w VALUES ('a'), ('A'), ('b')"),
            {"table": "w", "cursor": ["word"]},
            codes.TARGET_UNFIT,
            "several rows",
        ),
        ((), {"query": "SELECT n * 1.5 AS f FROM numbers", "cursor": ["f"]}, codes.TARGET_UNFIT, "of the type float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_does_not_fit_stops_the_lane(
    file: Path, statements: tuple[str, ...], settings: dict[str, Any], code: Code, what: str
) -> None:
    execute(file, *statements)
    with raises(code, what):
        async with open_lane(spec(file, **settings)) as lane:
            await read_to_end(lane)


async def test_a_row_that_is_too_large_is_set_aside_with_its_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (query_module, rows_module):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 2_000)
    execute(file, f"UPDATE numbers SET text = '{'x' * 3000}' WHERE n = 50")
    async with open_lane(spec(file)) as lane:
        records, (invalid,), _ = await read_to_end(lane)
    assert len(records) == 99
    assert invalid.place == "the row with the cursor (50)"


async def test_a_cursor_of_other_columns_stops_the_lane(file: Path) -> None:
    async with open_lane(spec(file)) as lane:
        _, _, batches = await read_to_end(lane)
    with raises(codes.SOURCE_CHANGED, "was \\(n\\)"):
        async with open_lane(spec(file, cursor=["text"]), batches[0].position):
            pass
    with raises(codes.POSITION_UNREADABLE):
        async with open_lane(spec(file), batches[0].position.replace(b'"int"', b'"xyz"')):
            pass


async def test_a_database_that_is_locked_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("millstream_connectors.sql.client.SQL_LOCK_TIMEOUT_S", 0)
        # The lock is not waited for, so what is said is said of the lock, however slow the machine is.
        with raises(codes.TARGET_AWAY, "database is locked"):
            async with open_lane(spec(file)):
                pass
    async with open_lane(spec(file)) as lane:
        assert len((await read_to_end(lane))[0]) == 100


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"url": "sqlite:///shop.db"}, "a sql source reads either a table or a query"),
        ({"url": "sqlite:///shop.db", "query": "SELECT 1"}, "`query` has no `cursor`"),
        ({"url": "mariadb+pymysql://h/d", "table": "t", "follow": True}, "which `follow` would miss"),
        ({"url": "mariadb+pymysql://me:s3cret@h/d", "table": "t"}, "is not the address of a database"),
        ({"url": "mariadb+pymysql://h/d?password=s3cret", "table": "t"}, "is not the address of a database"),
        ({"url": "mariadb+pymysql://h/d?plugin=p", "table": "t"}, "names a plugin, which is code"),
        ({"url": "sqlite://", "table": "t"}, "is not the address of a database"),
        ({"url": "sqlite:///:memory:", "table": "t"}, "is not the address of a database"),
        ({"url": "sqlite:///shop.db", "table": "t", "password": {"env": "P"}}, "has no effect with SQLite"),
        ({"url": "postgresql+psycopg://h/d", "table": "t", "tls": {}}, "`tls` cannot be given to postgresql"),
        ({"url": "sqlite:///shop.db", "table": "t", "split": {"column": "n", "from": 3, "to": 3}}, "`to` is 3"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(what)) as caught:
        Source.model_validate({"sql": settings})
    assert "s3cret" not in str(caught.value).partition("input_value")[0]


def pipeline(directory: Path, settings: dict[str, Any]) -> Path:
    vertices = [{"name": "in", "source": settings}, {"name": "out", "sink": {"log": {}}}]
    whole = {
        "apiVersion": "millstream.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "p"},
        "spec": {"vertices": vertices, "edges": [{"from": "in", "to": "out"}]},
    }
    path = directory / "pipeline.yaml"
    path.write_text(json.dumps(whole))
    return path


def test_what_is_wrong_shows_before_a_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = file.parent
    for settings, exit_code, what in (
        ({"url": "sqlite:///shop.db", "table": "numbers"}, 0, ""),
        ({"url": "sqlite:///absent.db", "table": "numbers"}, 2, "there is no file"),
        ({"url": "sqlite:///absent/shop.db", "table": "numbers"}, 2, "there is no directory"),
        ({"url": "sqlite:///shop.db", "table": "absent"}, 2, "there is no table absent"),
        ({"url": "mssql://host/d", "table": "t"}, 2, "needs a driver that is not installed"),
        ({"url": "postgresql+asyncpg://host/d", "table": "t"}, 2, "has the asynchronous driver"),
        ({"url": "xyz://host/d", "table": "t"}, 2, "SQLAlchemy does not know: xyz"),
        ({"url": "mariadb+pymysql://127.0.0.1:1/d", "table": "t"}, 2, "cannot be used now"),
    ):
        assert main(["validate", "--online", str(pipeline(directory, {"sql": settings}))]) == exit_code, settings
        printed = capsys.readouterr()
        assert what in printed.out + printed.err


LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53 + 1, -(2**63)])
REALS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
ANY = st.none() | LONGS | REALS | TEXTS | st.binary(max_size=8)


@examples(max_examples=3, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.tuples(*(st.none() | one for one in (LONGS, REALS, TEXTS, st.binary(max_size=8), ANY))), min_size=9))
def test_values_of_every_type_arrive_as_they_are(rows: list[tuple[Any, ...]]) -> None:
    async def read(file: Path) -> list[bytes]:
        async with open_lane(spec(file, table="rows")) as lane:
            return values((await read_to_end(lane))[0])

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "values.db"
        execute(file, "CREATE TABLE rows (n INTEGER PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, a)")
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.executemany("INSERT INTO rows (i, r, t, b, a) VALUES (?, ?, ?, ?, ?)", rows)
            stored = connection.execute("SELECT i, r, t, b, a FROM rows ORDER BY n").fetchall()
        found = [json.loads(value) for value in asyncio.run(read(file))]
    assert [[one[name] for name in "irtba"] for one in found] == [
        [b64encode(one).decode() if isinstance(one, bytes) else one for one in row] for row in stored
    ]
