"""The `sql` sink and source on a real MariaDB."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.engine import Connection

from millstream import codes
from millstream.errors import FencedError, RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.sql.sink.lane import SqlSinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.table_lanes import again
from tests.contract.sinks.validating import validate_sink
from tests.contract.sources.lanes import open_lane, read_to_end
from tests.support.errors import raises
from tests.support.mariadb_server import LOCKED, PASSWORD, MariaDatabase, MariaServer, why_missing
from tests.unit.writer.sink_frames import sink_frame

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

ROLE = f"{LOCKED}@'127.0.0.1'"
NUMBERS = "CREATE TABLE numbers (n INT PRIMARY KEY, text VARCHAR(10), at DATETIME(6)) CHARSET utf8mb4"


@pytest.fixture
def database(mariadb: MariaServer) -> MariaDatabase:
    database = mariadb.database()
    database.execute(NUMBERS)
    return database


def spec(database: MariaDatabase, mode: str, **more: object) -> FallbackSink:
    keys = ["n"] if mode != "insert" else []
    columns = [{"name": "n"}, {"name": "text"}, {"name": "at"}]
    options = {"table": "numbers", "mode": mode, "columns": columns, "keys": keys, **more}
    return FallbackSink.model_validate({"sql": {**database.settings, **options}})


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(database: MariaDatabase) -> None:
    frame = sink_frame([value_of(n) for n in range(10)], 1)
    async with open_sink(spec(database, "insert"), sink_owner(1)) as older:
        await older.write([frame], Position(1))
        async with open_sink(spec(database, "insert"), sink_owner(2, start=Position(1))) as newer:
            assert newer.durable == Position(1)
            with pytest.raises(FencedError):
                await older.write([sink_frame([value_of(10)], 2)], Position(2))
            await newer.write([sink_frame([value_of(10)], 2)], Position(2))
    assert [row[0] for row in database.rows("SELECT n FROM numbers ORDER BY n")] == [*range(11)]


async def test_what_does_not_fit_is_refused_and_the_rest_is_written(database: MariaDatabase) -> None:
    rows = [
        {"n": 1, "text": "Kö\U0001f600", "at": "2026-01-02T03:04:05.000006+01:00"},
        {"n": 2, "text": "too long for it"},
        {"n": 3, "text": "x", "at": "not a time"},
        {"n": 1, "text": "last", "at": None},
        {"n": 99999999999},
    ]
    async with open_sink(spec(database, "upsert"), sink_owner(1)) as lane:
        result = await lane.write([sink_frame([json.dumps(row).encode() for row in rows], 1)], Position(1))
        assert [failure.index for failure in sorted(result.failures[0], key=lambda one: one.index)] == [1, 2, 4]
        await lane.flush()
        assert database.rows("SELECT n, text, at FROM numbers") == [(1, "last", None)]
        (one,) = [json.dumps(rows[0]).encode()]
        await lane.write([sink_frame([one], 2)], Position(2))
    settings = {**database.settings, "table": "numbers"}
    async with open_lane({"sql": settings}) as source:
        (record,), _, _ = await read_to_end(source)
    assert json.loads(record.value) == {"n": 1, "text": "Kö\U0001f600", "at": "2026-01-02T02:04:05.000006"}


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_a_record_that_is_too_long_for_the_server_is_refused_alone(database: MariaDatabase, mode: str) -> None:
    """The server closes the connection of a client that sends it, as if it were away."""
    database.execute("CREATE TABLE texts (n INT PRIMARY KEY, text LONGTEXT) CHARSET utf8mb4")
    ((usual,),) = database.rows("SELECT @@GLOBAL.max_allowed_packet")
    limit = 100 * 1024
    # Several that do not fit into one statement together, one that does not fit because it is escaped, and one between.
    texts = ["x" * 60_000, "y" * 60_000, "'" * 60_000, "z" * 110_000, "ü" * 45_000, "last"]
    rows = [json.dumps({"n": n, "text": text}).encode() for n, text in enumerate(texts)]
    columns = [{"name": "n"}, {"name": "text"}]
    try:
        database.execute(f"SET GLOBAL max_allowed_packet = {limit}")
        sink = spec(database, mode, table="texts", columns=columns)
        async with asyncio.timeout(60), open_sink(sink, sink_owner(1)) as lane:
            (failures,) = (await lane.write([sink_frame(rows, 1)], Position(1))).failures
            await lane.flush()
    finally:
        database.execute(f"SET GLOBAL max_allowed_packet = {usual}")
    assert [(failure.index, failure.reason) for failure in failures] == [
        (2, "refused by the database: error 1153"),
        (3, "refused by the database: error 1153"),
    ]
    assert f"`max_allowed_packet` allows {limit - 2}" in failures[0].detail
    found = database.rows("SELECT n, text FROM texts ORDER BY n")
    assert found == [(n, texts[n]) for n in (0, 1, 4, 5)]


@pytest.mark.sweep
async def test_a_table_without_transactions_is_refused(database: MariaDatabase) -> None:
    database.execute("ALTER TABLE numbers ENGINE = MyISAM")
    with raises(codes.TARGET_UNFIT, "MyISAM, which has no transactions"):
        async with open_sink(spec(database, "insert"), sink_owner(1)):
            pass


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_an_owner_that_hangs_in_a_transaction_is_ended_by_the_next(
    database: MariaDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream_connectors.sql.client.SQL_LOCK_TIMEOUT_S", 1)
    frame = [sink_frame([value_of(1)], 1)]
    async with open_sink(spec(database, "insert"), sink_owner(1)) as older:
        assert isinstance(older, SqlSinkLane)
        # It has moved its row, and does not go on.
        await older._way.run(lambda c: older._target.move(c, "p", "out.in-out.0", older._token, Position(1), ""))
        async with open_sink(spec(database, "insert"), sink_owner(2)) as newer:
            assert newer.durable == Position(0)
            with pytest.raises(RetryLaterError):
                await older.write(frame, Position(1))
            with pytest.raises(FencedError):
                await older.write(frame, Position(1))
            await newer.write(frame, Position(1))
    assert len(database.rows("SELECT n FROM numbers")) == 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "granted", "missing"),
    [
        ({}, "SELECT", "INSERT on numbers"),
        ({}, "INSERT", ""),
        ({"mode": "upsert", "keys": ["n"]}, "SELECT, INSERT", "UPDATE on numbers"),
        ({"mode": "upsert", "keys": ["n"]}, "SELECT, INSERT, UPDATE", ""),
        ({"mode": "delete", "keys": ["n"]}, "SELECT, INSERT, UPDATE", "DELETE on numbers"),
        ({"positionTable": "read"}, "INSERT", "INSERT on read"),
        ({"positionTable": "closed"}, "INSERT", "SELECT, INSERT, UPDATE, DELETE, CREATE on closed"),
    ],
)
async def test_validate_online_names_the_right_that_is_missing(
    database: MariaDatabase,
    options: dict[str, Any],
    granted: str,
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("THE_PASSWORD", PASSWORD)
    rights = {"numbers": granted}
    for places, right in (("millstream_positions", "ALL"), ("read", "SELECT")):
        # As the sink creates them.
        async with open_sink(spec(database, "insert", positionTable=places), sink_owner(1)):
            rights |= {places: right, f"{places}_refused": right}
    database.execute(*(f"GRANT {right} ON {database.name}.{table} TO {ROLE}" for table, right in rights.items()))
    settings: dict[str, Any] = {"url": database.url, "user": LOCKED, "password": {"env": "THE_PASSWORD"}}
    settings |= {"table": "numbers", "columns": [{"name": "n"}, {"name": "text"}], **options}
    exit_code = await asyncio.to_thread(validate_sink, "sql", settings, tmp_path)
    printed = capsys.readouterr()
    assert exit_code == (2 if missing else 0), printed.err
    assert missing in printed.out + printed.err
    assert list(database.rows("SELECT * FROM numbers")) == []


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_row_that_another_program_holds_is_waited_for_and_no_connection_is_ended(
    database: MariaDatabase, mariadb: MariaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, the number of the former owner's connection is that of another program."""
    monkeypatch.setattr("millstream_connectors.sql.client.SQL_LOCK_TIMEOUT_S", 1)
    # So that the new server has not given this number to a connection of the test's own.
    for _ in range(100):
        database.rows("SELECT 1")
    async with AsyncExitStack() as stack:
        older = await stack.enter_async_context(open_sink(spec(database, "insert"), sink_owner(1)))
        assert isinstance(older, SqlSinkLane)
        former = await older._way.run(_number_of)
        mariadb.kill()
        mariadb.start()
        stranger = database.connect()
        while stranger.thread_id() < former:
            stranger.close()
            stranger = database.connect()
        stack.enter_context(closing(stranger))
        assert stranger.thread_id() == former
        holder = stack.enter_context(closing(database.connect()))
        cursor = stack.enter_context(holder.cursor())
        cursor.execute("BEGIN")
        cursor.execute("UPDATE millstream_positions SET epoch = epoch + 1")
        newer = await stack.enter_async_context(open_sink(spec(database, "insert"), sink_owner(2)))
        frame = [sink_frame([value_of(1)], 1)]
        with raises(codes.TARGET_AWAY, "Lock wait timeout"):
            await newer.write(frame, Position(1))
        stranger.ping(reconnect=False)
        holder.rollback()
        await newer.write(frame, Position(1))
    assert len(database.rows("SELECT n FROM numbers")) == 1


def _number_of(connection: Connection) -> int:
    with connection.begin():
        return int(connection.execute(text("SELECT CONNECTION_ID()")).scalar_one())


# Deadlocks


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_lanes_that_upsert_the_same_keys_in_opposite_order_are_exact(database: MariaDatabase) -> None:
    logged = "FOR EACH ROW INSERT INTO log (n, text) VALUES (NEW.n, NEW.text)"
    database.execute(
        "INSERT INTO numbers (n) VALUES (1), (2), (5)",
        "CREATE TABLE log (place BIGINT AUTO_INCREMENT PRIMARY KEY, n INT, text VARCHAR(10))",
        f"CREATE TRIGGER changed AFTER UPDATE ON numbers {logged}",
    )

    async def write(partition: int, keys: Sequence[int]) -> None:
        rows = [json.dumps({"n": n, "text": f"lane {partition}"}).encode() for n in keys]
        async with open_sink(spec(database, "upsert"), sink_owner(1, partition=partition)) as lane:
            await again(lambda: lane.write([sink_frame(rows, 1)], Position(1)))
            assert lane.durable == Position(1)

    before = _deadlocks(database)
    with closing(database.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT n FROM numbers WHERE n = 5 FOR UPDATE")
        async with asyncio.timeout(60), asyncio.TaskGroup() as lanes:
            lanes.create_task(write(0, (1, 5, 2)))
            lanes.create_task(write(1, (2, 5, 1)))
            # Both have locked their first row.
            await _until_waiting(database, 2)
            other.rollback()
    assert _deadlocks(database) > before
    expected = sorted((n, f"lane {partition}") for n in (1, 2, 5) for partition in (0, 1))
    assert sorted(database.rows("SELECT n, text FROM log")) == expected
    ((last,),) = database.rows("SELECT DISTINCT text FROM numbers")
    assert last in ("lane 0", "lane 1")


def _deadlocks(database: MariaDatabase) -> int:
    ((_, count),) = database.rows("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    return int(count)


async def _until_waiting(database: MariaDatabase, count: int) -> None:
    """Returns when so many transactions wait for a lock."""
    waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    async with asyncio.timeout(60):
        while database.rows(waiting) != [(count,)]:  # noqa: ASYNC110  # no event to wait for
            # The server answers from a cache as long as it is asked again within 100 ms.
            await asyncio.sleep(0.15)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_deadlock_while_a_refused_record_is_searched_for_is_waited_for(database: MariaDatabase) -> None:
    """It takes the savepoint away, which says nothing about a record."""
    database.execute("INSERT INTO numbers (n) VALUES (1), (2), (3)")
    database.execute("CREATE TABLE ballast (n INT PRIMARY KEY)")
    rows = [{"n": 0, "text": "too long for it"}, {"n": 1, "text": "new"}, {"n": 2, "text": "new"}]
    frame = [sink_frame([json.dumps(row).encode() for row in rows], 1)]
    async with open_sink(spec(database, "upsert"), sink_owner(1)) as lane:
        with closing(database.connect()) as other, other.cursor() as cursor:
            cursor.execute("BEGIN")
            # The server ends the transaction that has changed less.
            cursor.execute("INSERT INTO ballast SELECT seq FROM seq_1_to_1000")
            cursor.execute("UPDATE numbers SET text = 'other' WHERE n = 2")
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(_taken_later(lambda: lane.write(frame, Position(1))))
                await _until_waiting(database, 1)
                await asyncio.to_thread(cursor.execute, "UPDATE numbers SET text = 'other' WHERE n = 1")
                other.commit()
            assert "Deadlock" in str(writing.result())
        result = await lane.write(frame, Position(1))
        assert [failure.index for failure in result.failures[0]] == [0]
        await lane.flush()
    assert database.rows("SELECT n, text FROM numbers") == [(1, "new"), (2, "new"), (3, None)]


async def _taken_later(write: Callable[[], Awaitable[object]]) -> RetryLaterError:
    with pytest.raises(RetryLaterError) as raised:
        await write()
    return raised.value


@pytest.mark.sweep
async def test_a_server_that_is_killed_is_waited_for(database: MariaDatabase, mariadb: MariaServer) -> None:
    async with open_sink(spec(database, "insert"), sink_owner(1)) as lane:
        mariadb.kill()
        frame = [sink_frame([value_of(1)], 1)]
        with pytest.raises(RetryLaterError):
            await lane.write(frame, Position(1))
        mariadb.start()
        await lane.write(frame, Position(1))
    assert len(database.rows("SELECT n FROM numbers")) == 1


async def test_a_wrong_password_is_refused(database: MariaDatabase) -> None:
    with raises(codes.TARGET_REFUSES, "Access denied"):
        async with open_sink(spec(database, "insert", user=LOCKED, password="wr0ng"), sink_owner(2)):
            pass


# Values

TYPES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "exact": ("DECIMAL(65, 30)", st.decimals(-(10**34), 10**34, places=30)),
    "whole": ("BIGINT", st.integers(-(2**63), 2**63 - 1)),
    "positive": ("BIGINT UNSIGNED", st.integers(0, 2**64 - 1)),
    "near": ("DOUBLE", st.floats(allow_nan=False, allow_infinity=False)),
    "word": ("VARCHAR(60)", st.text(st.characters(codec="utf-8"), max_size=60)),
    "doc": ("JSON", st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers() | st.text())),
    "flag": ("BOOLEAN", st.booleans()),
    "at": ("DATETIME(6)", st.datetimes(datetime(1000, 1, 1))),  # noqa: DTZ001  # the column has no zone
    "day": ("DATE", st.dates(date(1000, 1, 1))),
}
"""Each type, and the values it can have. The table is compared byte by byte."""


def written(value: object) -> str:
    """As a record has it."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    return json.dumps(value.isoformat() if isinstance(value, date) else value)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """With the document itself: MariaDB's JSON is a text."""
    return {**row, "doc": json.loads(row["doc"]) if row["doc"] is not None else None}


def near(row: dict[str, Any]) -> float | None:
    return float(row["near"]) if row["near"] is not None else None


@pytest.mark.sweep
@examples(max_examples=3, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(st.fixed_dictionaries({name: st.none() | of for name, (_, of) in TYPES.items()}), min_size=9, max_size=20)
)
@example(
    [
        {
            "exact": Decimal("12345678901234567890123456789012345.123456789012345678901234567890"),
            "whole": -(2**63),
            "positive": 2**64 - 1,
            "near": 1.7976931348623157e308,
            "word": "12345678901234567.8900",
            "doc": {"a": [1234567890123456789]},
            "flag": False,
            "at": datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
            "day": date(1, 1, 1),
        },
        {**dict.fromkeys(TYPES), "exact": Decimal("-1e-30"), "near": -5e-324, "whole": 2**53 + 1, "word": ""},
    ]
)
def test_values_of_every_type_arrive_as_they_are(mariadb: MariaServer, rows: list[dict[str, Any]]) -> None:
    database = mariadb.database()
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    database.execute(f"CREATE TABLE kinds (n INT PRIMARY KEY, {columns}) CHARSET utf8mb4 COLLATE utf8mb4_bin")
    members = [
        (f"{json.dumps(name)}:{written(one)}" for name, one in {"n": n, **row}.items()) for n, row in enumerate(rows)
    ]
    records = [f"{{{','.join(row)}}}".encode() for row in members]
    found = asyncio.run(_there_and_back(database, records))
    kept = database.rows(f"SELECT {', '.join(TYPES)} FROM kinds ORDER BY n")
    assert [shown(dict(zip(TYPES, row, strict=True))) for row in kept] == rows
    read, expected = ([json.loads(one, parse_float=Decimal) for one in values] for values in (found, records))
    # Digits of a DOUBLE may be written in several ways.
    assert [shown({**row, "near": near(row)}) for row in read] == [{**row, "near": near(row)} for row in expected]


async def _there_and_back(database: MariaDatabase, records: Sequence[bytes]) -> list[bytes]:
    """Write the records into the table; what a source reads there."""
    columns = [{"name": name} for name in ("n", *TYPES)]
    settings = {**database.settings, "table": "kinds", "mode": "insert", "columns": columns}
    async with open_sink(FallbackSink.model_validate({"sql": settings}), sink_owner(1)) as lane:
        assert not any((await lane.write([sink_frame(records, 1)], Position(1))).failures)
        await lane.flush()
    async with open_lane({"sql": {**database.settings, "table": "kinds"}}) as source:
        return [record.value for record in (await read_to_end(source))[0]]
