"""The `sql` sink and source on a real MariaDB."""

from __future__ import annotations

import json

import pytest

from millstream import codes
from millstream.errors import FencedError, RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_writer.sinks.opening import open_sink
from millstream_writer.sinks.sql.lane import SqlSinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sources.lanes import open_lane, read_to_end
from tests.support.errors import raises
from tests.support.mariadb_server import LOCKED, MariaDatabase, MariaServer, why_missing
from tests.unit.writer.sink_frames import sink_frame

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

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
        {"n": 1, "text": "last"},
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


async def test_a_table_without_transactions_is_refused(database: MariaDatabase) -> None:
    database.execute("ALTER TABLE numbers ENGINE = MyISAM")
    with raises(codes.TARGET_UNFIT, "MyISAM, which has no transactions"):
        async with open_sink(spec(database, "insert"), sink_owner(1)):
            pass


@pytest.mark.guarantee("I1")
async def test_an_owner_that_hangs_in_a_transaction_is_ended_by_the_next(
    database: MariaDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.sql.connecting.SQL_LOCK_TIMEOUT_S", 1)
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
