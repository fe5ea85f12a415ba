"""The `sql` sink on real databases: what of a record goes where, and that each counts once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import FencedError, RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.sink_targets import sql_spec, sqlite_rows
from tests.contract.sinks.validating import validate_sink
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

NUMBERS = "CREATE TABLE numbers (n INTEGER UNIQUE, text TEXT, place INTEGER PRIMARY KEY)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "shop.db"
    sqlite_rows(file, NUMBERS)
    return file


def url(file: Path) -> str:
    return f"sqlite:///{file}"


def numbers(sequence: int, count: int = 10) -> SinkFrame:
    """`count` numbers from `sequence` * 10 on."""
    return sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + count)], sequence)


def rows_frame(rows: list[object], sequence: int = 1) -> SinkFrame:
    return sink_frame([json.dumps(row).encode() for row in rows], sequence)


@asynccontextmanager
async def opened(spec: FallbackSink, owner: SinkOwner | None = None) -> AsyncIterator[SinkLane]:
    async with asyncio.timeout(60), open_sink(spec, owner or sink_owner(1)) as lane:
        yield lane


def found(file: Path) -> list[int]:
    return [row[0] for row in sqlite_rows(file, "SELECT n FROM numbers ORDER BY place")]


async def test_members_and_parts_go_into_columns(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    columns = [
        *({"name": name} for name in ("id", "price", "paid", "tags", "at")),
        {"name": "city", "field": "to.city"},
        {"name": "time", "part": "eventTime"},
        {"name": "key", "part": "key"},
        {"name": "raw", "part": "value", "type": "blob"},
    ]
    spec = sql_spec(url(file), "insert", table="orders", columns=columns, createTable=True)
    order = {
        "id": 9_007_199_254_740_993,
        "price": 12.5,
        "paid": True,
        "tags": ["a", {"b": None}],
        "to": {"city": "Köln"},
    }
    value = json.dumps(order).encode()
    async with opened(spec) as lane:
        frame = sink_frame([value, b'{"id": 2}'], 1, keys=[[b"k"], []])
        assert not (await lane.write([frame], Position(1))).failures
    whole, empty = sqlite_rows(file, "SELECT * FROM orders")
    assert whole[:6] == ("9007199254740993", "12.5", "1", '["a",{"b":null}]', None, "Köln")
    assert whole[7:] == ("k", value)
    assert whole[6].endswith("+00:00")
    assert (empty[0], empty[5], empty[7]) == ("2", None, None)


async def test_the_last_record_of_a_key_counts_and_some_delete(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    sqlite_rows(file, "CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, v INT)")
    columns = [{"name": "k"}, {"name": "v"}]
    spec = sql_spec(url(file), "upsert", table="t", keys=["k"], columns=columns, deleteWhen={"field": "gone"})
    rows = [("a", 1, False), ("b", 1, False), ("A", 2, False), ("b", 0, True), ("c", 0, True), ("c", 3, False)]
    async with opened(spec) as lane:
        frame = rows_frame([{"k": k, "v": v, "gone": gone} for k, v, gone in rows])
        assert not (await lane.write([frame], Position(1))).failures
    assert sqlite_rows(file, "SELECT k, v FROM t ORDER BY k") == [("a", 2), ("c", 3)]
    spec = sql_spec(url(file), "delete", table="t", keys=["k"], columns=columns[:1])
    async with opened(spec, replace(sink_owner(1), pipeline="q")) as lane:
        result = await lane.write([rows_frame([{"k": "C"}, {"k": None}])], Position(1))
        assert [failure.reason for failure in result.failures[0]] == ["key column is null"]
        await lane.flush()
    assert sqlite_rows(file, "SELECT k FROM t") == [("a",)]


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(file: Path) -> None:
    spec = sql_spec(url(file), "insert")
    async with opened(spec) as older:
        await older.write([numbers(1)], Position(1))
        async with opened(spec, sink_owner(2, start=Position(1))) as newer:
            assert newer.durable == Position(1)
            with pytest.raises(FencedError):
                await older.write([numbers(2)], Position(2))
            await newer.write([numbers(2)], Position(2))
    assert found(file) == [*range(10, 30)]
    with raises(codes.OUTPUT_TAKEN_OVER):
        async with opened(spec):
            pass


@pytest.mark.guarantee("I1")
async def test_a_refused_record_is_found_and_nothing_behind_it_is_written_before_it_is_dealt_with(file: Path) -> None:
    sqlite_rows(file, "INSERT INTO numbers (n) VALUES (14), (17)")
    spec = sql_spec(url(file), "insert")
    async with opened(spec) as lane:
        result = await lane.write([numbers(1)], Position(1))
        assert [failure.index for failure in result.failures[0]] == [4, 7]
        assert found(file) == [14, 17, 10, 11, 12, 13]
        assert lane.durable == Position(0, 4)
        await lane.flush()
        assert lane.durable == Position(1)
    assert found(file) == [14, 17, 10, 11, 12, 13, 15, 16, 18, 19]
    # After a crash they are refused again, as they were.
    sqlite_rows(file, "DELETE FROM numbers WHERE n IN (14, 17)")
    async with opened(spec, sink_owner(2)) as lane:
        result = await lane.write([numbers(1)], Position(1))
        assert [failure.index for failure in result.failures[0]] == [4, 7]
    assert len(found(file)) == 8


async def test_of_a_whole_delivery_nothing_is_written_before_it_is_dealt_with(file: Path) -> None:
    sqlite_rows(file, "INSERT INTO numbers (n) VALUES (14)")
    async with opened(sql_spec(url(file), "insert"), replace(sink_owner(1), whole=True)) as lane:
        assert (await lane.write([numbers(1)], Position(1))).failures
        assert found(file) == [14]
        await lane.flush()
    assert len(found(file)) == 10


async def test_a_lock_and_a_full_disk_are_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream_connectors.sql.client.SQL_LOCK_TIMEOUT_S", 0)
    async with opened(sql_spec(url(file), "insert")) as lane:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with raises(codes.TARGET_AWAY, "database is locked"):
                await lane.write([numbers(1)], Position(1))
        await lane.write([numbers(1)], Position(1))
        sqlite_rows(file, "CREATE TRIGGER full BEFORE INSERT ON numbers BEGIN SELECT RAISE(ABORT, 'not today'); END")
        result = await lane.write([numbers(2)], Position(2))
        assert len(result.failures[0]) == 10
    assert found(file) == [*range(10, 20)]


async def test_a_trigger_that_rolls_back_the_whole_transaction_stops_the_lane(file: Path) -> None:
    """Nothing of the delivery is there, and the message says what the trigger has to do instead."""
    refuse = "BEGIN SELECT RAISE(ROLLBACK, 'not 14'); END"
    sqlite_rows(file, f"CREATE TRIGGER odd BEFORE INSERT ON numbers WHEN NEW.n = 14 {refuse}")
    async with opened(sql_spec(url(file), "insert")) as lane:
        with raises(codes.TARGET_UNFIT, "not 14.*rolls back the whole transaction.*RAISE.ABORT"):
            await lane.write([numbers(1)], Position(1))
    assert found(file) == []


async def test_a_disk_that_is_full_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    sqlite_rows(file, NUMBERS)
    spec = sql_spec(url(file), "insert")
    async with opened(spec) as lane:
        # The limit is the connection's own, as that of a disk would be.
        (pages,) = sqlite_rows(file, "PRAGMA page_count")[0]
        way = lane._way  # type: ignore[attr-defined]
        await way.run(lambda c: (c.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close(), c.rollback()))
        big = [sink_frame([json.dumps({"n": n, "text": "x" * 5000}).encode() for n in range(10)], 1)]
        with pytest.raises(RetryLaterError, match="full"):
            await lane.write(big, Position(1))
        assert found(file) == []
        # The lane connects again, and there is space.
        await lane.write(big, Position(1))
    assert found(file) == [*range(10)]


async def test_a_run_of_another_past_is_not_gone_on_with(file: Path) -> None:
    spec = sql_spec(url(file), "insert")
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
    with raises(codes.SINK_AHEAD, "another run"):
        async with opened(spec, sink_owner(2, ledger_id="second")):
            pass
    with raises(codes.SINK_BEHIND, "restored"):
        async with opened(spec, sink_owner(2, start=Position(9))):
            pass


def test_what_is_wrong_shows_before_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sqlite_rows(tmp_path / "shop.db", "CREATE TABLE plain (n INT, text TEXT)")
    base = {"url": "sqlite:///shop.db", "table": "plain", "columns": [{"name": "n"}]}
    for settings, exit_code, what in (
        (base, 0, ""),
        ({**base, "table": "absent"}, 2, "there is no table absent"),
        ({**base, "table": "absent", "createTable": True}, 0, ""),
        ({**base, "url": "sqlite:///absent.db"}, 2, "there is no file"),
        ({**base, "url": "sqlite:///absent.db", "createTable": True}, 0, ""),
        ({**base, "columns": [{"name": "m"}]}, 2, "has no column `m`"),
        ({**base, "mode": "upsert", "keys": ["n"]}, 2, "no unique index on exactly (n)"),
        ({**base, "url": "oracle+oracledb://host/d", "mode": "upsert", "keys": ["n"]}, 2, "oracle has no statement"),
    ):
        assert validate_sink("sql", settings, tmp_path) == exit_code, settings
        printed = capsys.readouterr()
        assert what in printed.out + printed.err
    assert not (tmp_path / "absent.db").exists()
