"""The `postgres` source on a real server: each row once in the order of its cursor, however they are committed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream_connectors.postgres.source import query as query_module
from millstream_reader.source import SourceBatch
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import held_up, open_lane, read_to_end, read_until, values
from tests.support.errors import raises
from tests.support.postgres_server import LOCKED, ROLE, Database, PostgresServer, open_postgres, why_missing

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

TABLE = "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text, at timestamptz DEFAULT now())"
FILL = "INSERT INTO numbers (text) SELECT 'text ' || n FROM generate_series(1, 100) n"


@pytest.fixture
async def database(postgres: PostgresServer) -> Database:
    """With a hundred rows."""
    database = await postgres.database()
    await database.execute(TABLE, FILL)
    return database


def spec(server: Database, **settings: Any) -> dict[str, Any]:
    wanted = {"query": "SELECT n, text FROM numbers", "cursor": ["n"], "pollEvery": "10ms", **settings}
    return {"postgres": {**server.settings, **wanted}}


def numbers(records: list[Any]) -> list[int]:
    return [json.loads(value)["n"] for value in values(records)]


@pytest.mark.guarantee("I1")
async def test_reading_again_from_any_position_gives_the_rest_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "POSTGRES_PAGE_ROWS", 40)
    ending = spec(database, stopAtEnd=True)
    async with open_lane(ending) as lane:
        assert lane.replayable
        records, _, batches = await read_to_end(lane, records_max=23)
    assert values(records)[0] == b'{"n":1,"text":"text 1"}'
    assert numbers(records) == [*range(1, 101)]
    # What comes later is not part of it.
    await database.execute(FILL)
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(ending, batch.position) as lane:
            rest, _, _ = await read_to_end(lane, 31, 300)
            assert numbers(rest) == [*range(done + 1, 101)]
            last = await lane.read(10, 1000, 0.01)
            assert (last.frame, last.ended) == (None, True)


async def test_types_become_json_and_event_time_and_keys_are_read_off_it(postgres: PostgresServer) -> None:
    database = await postgres.database()
    await database.execute(
        "CREATE TABLE kinds (id uuid, n numeric, big bigint, at timestamptz, day date, data bytea, list int[], doc "
        "jsonb, nothing text, word text)",
        "INSERT INTO kinds VALUES ('00000000-0000-7000-8000-000000000001', 12.50, 9007199254740993, "
        "'2026-01-02T03:04:05.000006+01', '2026-01-02', '\\x00ff', '{1,null}', '{\"a\": [1]}', NULL, 'Köln')",
    )
    settings = {**database.settings, "query": "SELECT * FROM kinds;", "cursor": ["id"], "stopAtEnd": True}
    whole = {"postgres": settings, "eventTime": {"field": "at"}, "keys": ["word"]}
    async with open_lane(whole) as lane:
        (record,), _, _ = await read_to_end(lane)
    assert (record.event_time_us, record.keys) == (1_767_319_445_000_006, ("Köln",))
    text = record.value.decode()
    assert '"n":12.50,"big":9007199254740993' in text
    found = json.loads(text)
    assert found["at"] == "2026-01-02T02:04:05.000006+00:00"
    assert [found[name] for name in ("day", "data", "list", "doc", "nothing")] == [
        "2026-01-02", "\\x00ff", [1, None], {"a": [1]}, None
    ]  # fmt: skip


async def test_lanes_share_the_rows_and_a_cursor_may_have_several_columns(database: Database) -> None:
    query = "SELECT n, text, n % 3 AS third, CASE n WHEN 7 THEN NULL ELSE n END AS gap FROM numbers"
    shared = spec(database, query=query, cursor=["third", "gap"], stopAtEnd=True)
    parts: list[int] = []
    for partition in range(3):
        async with open_lane(shared, partition=partition, partitions=3) as lane:
            records, _, _ = await read_to_end(lane, 7)
        found = numbers(records)
        assert 15 < len(found) < 60
        assert found == sorted(found, key=lambda n: (n % 3, n))
        parts += found
    # A row in which a column is null has no place in the order.
    assert sorted(parts) == [n for n in range(1, 101) if n != 7]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize(
    ("wait", "takes_late"), [("writers", False), ("transactions", False), ("transactions", True)], ids=str
)
async def test_a_row_that_is_committed_late_is_not_passed(database: Database, wait: str, takes_late: bool) -> None:
    async with open_lane(spec(database, waitFor=wait)) as lane, database.connected() as slow:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
        # Its number is smaller than that of the row that is committed first, taken by an INSERT or beforehand.
        transaction = slow.transaction()
        await transaction.start()
        first = await slow.fetchval("SELECT nextval('numbers_n_seq')" if takes_late else "SELECT 1")
        if not takes_late:
            first = await slow.fetchval("INSERT INTO numbers (text) VALUES ('slow') RETURNING n")
        await database.execute("INSERT INTO numbers (text) VALUES ('fast')")
        for _ in range(3):
            batches.append(await lane.read(10, 1 << 20, 0.02))
            assert batches[-1].frame is None
        if takes_late:
            await slow.execute("INSERT INTO numbers VALUES ($1, 'slow')", first)
        await transaction.commit()
        records = await read_until(lane, lambda records: len(records) >= 102, batches)
    assert numbers(records) == [*range(1, 103)]
    assert [json.loads(value)["text"] for value in values(records)][-2:] == ["slow", "fast"]


@pytest.mark.guarantee("I1")
async def test_a_cursor_of_transaction_ids_waits_for_none_and_passes_none(postgres: PostgresServer) -> None:
    database = await postgres.database()
    await database.execute("CREATE TABLE numbers (n int, tx xid8 DEFAULT pg_current_xact_id(), PRIMARY KEY (tx, n))")
    async with (
        open_lane(spec(database, query="SELECT * FROM numbers", cursor=["tx", "n"])) as lane,
        database.connected() as slow,
        database.connected() as reader,
    ):
        await database.execute("INSERT INTO numbers VALUES (1)")
        batches: list[SourceBatch] = []
        # One that only reads keeps no row back.
        reading = reader.transaction()
        await reading.start()
        await reader.execute("SELECT 1")
        await read_until(lane, lambda records: numbers(records) == [1], batches)
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute("INSERT INTO numbers VALUES (2)")
        await database.execute("INSERT INTO numbers VALUES (3)")
        for _ in range(3):
            batches.append(await lane.read(10, 1 << 20, 0.02))
            assert batches[-1].frame is None
        await transaction.commit()
        await read_until(lane, lambda records: numbers(records) == [1, 2, 3], batches)
        await reading.rollback()


async def test_rows_that_cannot_be_told_apart_stop_the_lane(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second of them is behind the first page.
    monkeypatch.setattr(query_module, "POSTGRES_PAGE_ROWS", 50)
    query = "SELECT n, CASE n WHEN 51 THEN 50 ELSE n END AS place FROM numbers"
    async with open_lane(spec(database, query=query, cursor=["place"], stopAtEnd=True)) as lane:
        with raises(codes.TARGET_UNFIT, match=r"several rows have the cursor \(place\) = \(50\)"):
            await read_to_end(lane)


@pytest.mark.parametrize("letter", ["x", "é"])
async def test_a_row_that_is_too_large_is_set_aside_with_its_place(
    letter: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream_connectors.shared import query_lane as rows_module

    for module in (query_module, rows_module):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 2_000)
    await database.execute(f"UPDATE numbers SET text = repeat('{letter}', 3000) WHERE n = 50")
    async with open_lane(spec(database, stopAtEnd=True)) as lane:
        records, (invalid,), _ = await read_to_end(lane)
    assert len(records) == 99
    assert (len(invalid.value.decode()), invalid.place) == (1024, "the row with the cursor (50)")


@pytest.mark.guarantee("I1")
async def test_a_server_that_is_killed_is_waited_for(postgres: PostgresServer, database: Database) -> None:
    async with asyncio.timeout(100), open_lane(spec(database)) as lane:
        batches: list[SourceBatch] = [await lane.read(40, 1 << 20, 1.0)]
        await read_until(lane, lambda records: len(records) >= 100, batches)
        postgres.kill()
        await held_up(lane, True, batches)
        # It lives as long as the thread that starts it, so that is this one.
        postgres.start()
        await held_up(lane, False)
        await database.execute("INSERT INTO numbers (n, text) VALUES (1000, 'again')")
        records = await read_until(lane, lambda records: len(records) >= 101, batches)
    assert numbers(records) == [*range(1, 101), 1000]


# What only the user can put right


async def test_what_does_not_fit_is_said_at_once(database: Database) -> None:
    await database.execute(ROLE)
    cases: list[tuple[dict[str, Any], Code, str]] = [
        ({"query": "SELECT n FROM nowhere"}, codes.TARGET_UNFIT, 'relation "nowhere" does not exist'),
        ({"query": "SELECT m FROM numbers"}, codes.TARGET_UNFIT, 'column "m" does not exist'),
        ({"cursor": ["m"]}, codes.TARGET_UNFIT, "no column `m` .expected: one of n, text"),
        ({"query": "SELECT n, n FROM numbers"}, codes.TARGET_UNFIT, "several columns `n`"),
        ({"query": "DELETE FROM numbers RETURNING n"}, codes.TARGET_UNFIT, "syntax error"),
        ({"database": "nowhere"}, codes.TARGET_REFUSES, 'database "nowhere" does not exist'),
        ({"user": LOCKED, "password": "wrong"}, codes.TARGET_REFUSES, "password authentication failed"),
        ({"sslmode": "require"}, codes.TARGET_REFUSES, "no encrypted connection"),
        ({"port": 1}, codes.TARGET_AWAY, "cannot be used now"),
    ]
    for settings, code, match in cases:
        with raises(code, match=match):
            async with open_lane(spec(database, **settings)):
                pass
    json_order = spec(database, query="SELECT '{}'::json AS n", stopAtEnd=True)
    with raises(codes.TARGET_UNFIT, match="json"):
        async with open_lane(json_order):
            pass


async def test_a_cursor_that_has_changed_stops_the_lane(database: Database) -> None:
    async with open_lane(spec(database)) as lane:
        position = (await lane.read(10, 1 << 20, 1.0)).position
    with raises(codes.SOURCE_CHANGED, match=r"the cursor is now \(text\), and was \(n\)"):
        async with open_lane(spec(database, cursor=["text"]), position):
            pass
    await database.execute("ALTER TABLE numbers ALTER n TYPE numeric")
    async with open_lane(spec(database), position) as lane:
        await read_until(lane, lambda records: len(records) == 90)
    await database.execute("ALTER TABLE numbers ALTER n TYPE text")
    with raises(codes.SOURCE_CHANGED, match="`n` is now of type text, and was of type bigint"):
        async with open_lane(spec(database), position):
            pass
    with raises(codes.POSITION_UNREADABLE):
        async with open_lane(spec(database), position.replace(b'["10"]', b"7")):
            pass


async def test_validate_online_says_what_is_missing(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = spec(database, cursor=["n", "m"])["postgres"]
    (tmp_path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{postgres: {json.dumps(settings)}, guarantee: exactlyOnce}}\n"
        "  - name: out\n    sink: {blackhole: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    # The command has a loop of its own.
    assert await asyncio.to_thread(main, ["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[0].source.postgres.cursor[1]")


def test_a_server_for_tests_that_ends_at_once_says_why() -> None:
    with (
        pytest.raises(AssertionError, match=r"PostgreSQL ended at once: .*no_such_setting"),
        open_postgres(no_such_setting="1"),
    ):
        pass
