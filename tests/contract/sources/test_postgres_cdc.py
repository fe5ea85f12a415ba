"""Changes of tables on a real server: rows first, then each change once, whatever ends in between."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.errors import UserError
from millstream.extract import microseconds_of
from millstream.record import Record
from millstream_connectors.postgres.settings import PostgresSource
from millstream_connectors.postgres.source import catalog, snapshot_reader
from millstream_connectors.postgres.source import cdc as cdc_module
from millstream_connectors.postgres.source import slot as slot_module
from millstream_reader.source import SourceBatch, SourceLane, pending_bytes
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import held_up, open_lane, read_to_end, read_until, records_of
from tests.support.errors import raises
from tests.support.postgres_server import LOCKED, PASSWORD, ROLE, Database, PostgresServer, open_postgres, why_missing

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

FILL = "INSERT INTO numbers (text) SELECT 'text ' || n FROM generate_series(1, 100) n"
CONFIRMED = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
HELD = CONFIRMED.replace(
    "confirmed_flush_lsn::text", "pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with open_postgres(wal_level="logical", max_replication_slots="40", max_wal_senders="40") as server:
        yield server


@pytest.fixture
async def database(server: PostgresServer) -> Database:
    """With a hundred rows, and a publication of them."""
    database = await server.database()
    await database.execute(
        "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text)",
        "CREATE TABLE others (n bigserial PRIMARY KEY, text text)",
        FILL,
        "CREATE PUBLICATION ours FOR TABLE numbers",
    )
    return database


def spec(database: Database, **settings: Any) -> dict[str, Any]:
    cdc = {"publication": "ours", "slot": f"slot_{database.name}", **settings.pop("cdc", {})}
    return {"postgres": {**database.settings, "cdc": cdc, **settings}}


def found(records: list[Record]) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in records]


def short(records: list[Record]) -> list[tuple[str, Any]]:
    """Operation and number of the row."""
    return [(item["op"], (item["after"] or item["before"] or {}).get("n")) for item in found(records)]


async def test_rows_then_changes(database: Database) -> None:
    async with open_lane(spec(database)) as lane:
        assert lane.replayable
        batches: list[SourceBatch] = []
        records = await read_until(lane, lambda records: len(records) == 100, batches)
        assert short(records) == [("r", n) for n in range(1, 101)]
        first = found(records)[0]
        assert (first["schema"], first["table"], first["before"]) == ("public", "numbers", None)
        assert first["after"] == {"n": 1, "text": "text 1"}
        assert records[0].keys == ("1",)
        async with database.connected() as connection, connection.transaction():
            await connection.execute("INSERT INTO numbers (text) VALUES ('a\"\\\n'), (NULL)")
            await connection.execute("UPDATE numbers SET text = 'b' WHERE n = 1")
            await connection.execute("UPDATE numbers SET n = -2 WHERE n = 2")
            await connection.execute("INSERT INTO others (text) VALUES ('not ours')")
            await connection.execute("DELETE FROM numbers WHERE n = 3")
        await database.execute("TRUNCATE numbers")
        records = (await read_until(lane, lambda records: len(records) == 106, batches))[100:]
    items = found(records)
    assert [(item["op"], item["before"], item["after"]) for item in items] == [
        ("c", None, {"n": 101, "text": 'a"\\\n'}),
        ("c", None, {"n": 102, "text": None}),
        ("u", None, {"n": 1, "text": "b"}),
        ("u", {"n": 2}, {"n": -2, "text": "text 2"}),
        ("d", {"n": 3}, None),
        ("t", None, None),
    ]
    assert [record.keys for record in records] == [("101",), ("102",), ("1",), ("-2",), ("3",), ()]
    assert [item["index"] for item in items] == [0, 1, 2, 3, 4, 0]
    assert len({item["lsn"] for item in items}) == len({item["xid"] for item in items}) == 2
    # The event time is that of the commit, behind that of the snapshot.
    moment = datetime.fromisoformat(items[0]["commitTime"])
    assert microseconds_of(moment) == records[0].event_time_us
    times = [record.event_time_us for record in records_of(batches)]
    assert times == sorted(times)
    # From each position the rest follows, with no gap and nothing twice.
    whole = [record.value for record in records_of(batches)]
    for batch in batches[:-1]:
        if '"at":null' not in batch.position.decode():
            # What follows has a truncation, see below.
            continue
        done = whole.index(records_of([batch])[-1].value) + 1 if batch.frame is not None else None
        if done is None:
            continue
        async with open_lane(spec(database), batch.position) as lane:
            rest = await read_until(lane, lambda rest, done=done: len(rest) >= len(whole) - done)  # type: ignore[misc]
        assert [record.value for record in rest] == whole[done:]


@pytest.mark.guarantee("I1")
async def test_a_snapshot_that_is_interrupted_has_no_gap_and_nothing_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each page the lane is lost, and what it has read and what it has not are changed."""
    monkeypatch.setattr(snapshot_reader, "_FIRST_ROWS", 7)
    monkeypatch.setattr(catalog, "POSTGRES_PAGE_BYTES", 1)
    await database.execute('ALTER TABLE numbers ADD key text COLLATE "C" UNIQUE')
    state: dict[int, str] = {}
    position = b""
    round_ = 0
    done = False
    while not done:
        async with open_lane(spec(database), position) as lane:
            batch = await lane.read(5, 1 << 20, 0.05)
            position = batch.position
            _apply(state, records_of([batch]))
            done = '"at":null' in position.decode()
        if not done:
            # One row behind what was read and one before it, one that moves from there to here, one that moves back.
            round_ += 1
            at = max(state, default=0)
            await database.execute(
                f"UPDATE numbers SET text = 'r{round_}' WHERE n IN ({at}, {at + 3})",
                f"DELETE FROM numbers WHERE n = {at + 4}",
                f"UPDATE numbers SET n = -{round_} WHERE n = {at + 5}",
                f"UPDATE numbers SET n = {1000 + round_} WHERE n = {at - 1}",
                f"INSERT INTO numbers (n, text) VALUES (-{1000 + round_}, 'before')",
            )
    assert round_ > 5
    async with open_lane(spec(database), position) as lane:
        await database.execute("INSERT INTO numbers (n, text) VALUES (9999, 'last')")
        rest = await read_until(lane, lambda records: bool(records) and found(records)[-1]["after"] is not None
                                and found(records)[-1]["after"]["n"] == 9999)  # fmt: skip
        _apply(state, rest)
        # The parts of the snapshot are forgotten once they have been passed.
        await database.execute("INSERT INTO numbers (n, text) VALUES (10000, 'behind')")
        batches: list[SourceBatch] = []
        _apply(state, await read_until(lane, lambda records: len(records) == 1, batches))
        assert json.loads(batches[-1].position)["snapshot"] is None
    assert state == dict(await database.rows("SELECT n, text FROM numbers"))


def _apply(state: dict[int, str], records: list[Record]) -> None:
    """Strictly: a row appears where it was not, and changes or goes where it was."""
    for item in found(records):
        after, before = item["after"], item["before"]
        if item["op"] in "cr":
            assert after["n"] not in state, item
        if item["op"] == "u":
            assert (before or after)["n"] in state, item
        if before is not None:
            del state[before["n"]]
        if after is not None:
            state[after["n"]] = after["text"]


@pytest.mark.guarantee("I1")
async def test_a_transaction_is_taken_in_parts_and_gone_on_with(database: Database) -> None:
    await database.execute("TRUNCATE numbers RESTART IDENTITY")
    async with open_lane(spec(database)) as lane:
        position = (await lane.read(10, 1 << 20, 0.05)).position
    await database.execute(FILL)
    numbers: list[int] = []
    while len(numbers) < 100:
        async with open_lane(spec(database), position) as lane:
            batches: list[SourceBatch] = []
            records = await read_until_one(lane, 13, batches)
            assert len(records) <= 13
            numbers += [n for _, n in short(records)]
            position = batches[-1].position
            await lane.committed(position)
    assert numbers == [*range(1, 101)]


async def read_until_one(lane: SourceLane, records_max: int, batches: list[SourceBatch]) -> list[Record]:
    async with asyncio.timeout(30):
        while not records_of(batches):
            batches.append(await lane.read(records_max, 1 << 20, 0.05))
    return records_of(batches)


async def test_types_large_values_and_new_columns(server: PostgresServer) -> None:
    database = await server.database()
    await database.execute(
        "CREATE DOMAIN cents AS int",
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        'CREATE TABLE "Kinds" (id uuid PRIMARY KEY, n numeric, big bigint, f float8, b bool, at timestamptz, plain '
        "timestamp, day date, data bytea, list int[], texts text[], doc jsonb, price cents, prices cents[], "
        'mood mood, word char(5), large text, "Ü" text)',
        "CREATE PUBLICATION ours FOR ALL TABLES",
        "INSERT INTO \"Kinds\" VALUES ('00000000-0000-7000-8000-000000000001', 12.50, 9007199254740993, 'NaN', true, "
        "'2026-01-02T03:04:05.000006+01', '2026-01-02T03:04:05', '2026-01-02', '\\x00ff', '{1,null}', "
        "'{\"a,b\",\"\\\"\\\\\",NULL,null}', '{\"a\": [1]}', 7, '{8,9}', 'bad', 'ab', "
        "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n), "
        "'Köln\t\\n\\')",
    )
    settings = spec(database, stopAtEnd=True)
    async with open_lane(settings) as lane:
        position = (await lane.read(10, 1 << 20, 0.05)).position
        assert position
    changing = (
        "UPDATE \"Kinds\" SET day = '2026-01-03'",
        'ALTER TABLE "Kinds" REPLICA IDENTITY FULL',
        "UPDATE \"Kinds\" SET day = '2026-01-04'",
        'ALTER TABLE "Kinds" DROP n; ALTER TABLE "Kinds" ADD more int DEFAULT 5',
        "UPDATE \"Kinds\" SET day = '2026-01-05'",
        'DELETE FROM "Kinds"',
    )
    await database.execute(*changing)
    async with open_lane(spec(database), position) as lane:
        records = await read_until(lane, lambda records: len(records) == 4)
    first, second, third, last = found(records)
    assert first["unchanged"] == ["large"]
    assert "large" not in first["after"]
    assert first["after"]["price"] == 7
    assert (len(second["after"]["large"]), second["before"]["day"], second["after"]["day"]) == (
        12800, "2026-01-03", "2026-01-04"
    )  # fmt: skip
    assert ("n" in third["after"], third["after"]["more"]) == (False, 5)
    assert (last["op"], last["before"]["mood"]) == ("d", "bad")
    assert {record.keys for record in records} == {("00000000-0000-7000-8000-000000000001",)}
    after = second["after"]
    assert '"n":12.50,"big":9007199254740993,"f":"NaN","b":true' in records[1].value.decode()
    assert [after[name] for name in ("at", "plain", "data", "list", "texts", "doc", "prices", "word", "Ü")] == [
        "2026-01-02T02:04:05.000006+00:00", "2026-01-02T03:04:05", "\\x00ff", [1, None], ["a,b", '"\\', None, None],
        {"a": [1]}, [8, 9], "ab   ", "Köln\t\\n\\",
    ]  # fmt: skip


async def test_a_row_looks_the_same_in_the_snapshot_and_in_a_change(server: PostgresServer) -> None:
    database = await server.database()
    await database.execute(
        "CREATE TABLE kinds (id int PRIMARY KEY, ip inet, word char(5), t text, n numeric[], b bool, at timestamptz[])",
        "CREATE PUBLICATION ours FOR TABLE kinds",
        "INSERT INTO kinds VALUES (1, '10.0.0.1', 'ab', E'\\\\\\\\n\\t\\n\\b\\\\', '{1.50,NaN}', false, "
        "'{2026-01-02}')",
    )
    async with open_lane(spec(database)) as lane:
        await database.execute("INSERT INTO kinds SELECT 2, ip, word, t, n, b, at FROM kinds")
        records = await read_until(lane, lambda records: len(records) == 2)
    first, second = found(records)
    assert first["after"] | {"id": 2} == second["after"]
    assert [first["after"][name] for name in ("ip", "t", "n", "at")] == [
        "10.0.0.1", "\\\\n\t\n\b\\", [1.5, "NaN"], ["2026-01-02T00:00:00+00:00"]
    ]  # fmt: skip


@pytest.mark.guarantee("I8")
async def test_a_slot_follows_commits_and_passes_what_other_tables_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdc_module, "_TICK_S", 0.02)
    for module in (cdc_module, slot_module):
        monkeypatch.setattr(module, "POSTGRES_FEEDBACK_EVERY_S", 0.1)
    slot = f"slot_{database.name}"
    async with open_lane(spec(database)) as lane:
        async with running(lane):
            await until_held(database, slot, 1 << 16)
            await database.execute("INSERT INTO others (text) SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
            await until_held(database, slot, 1 << 16)
        await database.execute(FILL)
        records = await read_until(lane, lambda records: len(records) == 100)
        assert short(records)[0][0] == "c"
        # Read, and not committed: the server keeps it.
        before = await database.column(CONFIRMED, slot)
        for _ in range(10):
            await lane.read(10, 1000, 0.05)
        assert before == await database.column(CONFIRMED, slot)


@asynccontextmanager
async def running(lane: SourceLane) -> AsyncIterator[None]:
    """The lane is read, and what it gives committed."""

    async def read() -> None:
        while True:
            await lane.committed((await lane.read(4096, 1 << 20, 0.05)).position)

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        yield
        reading.cancel()


def _more_than(count: int) -> Callable[[list[Record]], bool]:
    return lambda records: len(records) > count


async def until_held(database: Database, slot: str, limit: int) -> None:
    async with asyncio.timeout(30):
        while (await database.column(HELD, slot))[0] > limit:
            await database.execute("SELECT pg_sleep(0.02)")


@pytest.mark.parametrize("more", [{}, {"eventTime": {"field": "commitTime"}}])
async def test_the_lane_knows_how_many_bytes_of_the_log_wait(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(slot_module, "POSTGRES_SLOT_LOOK_EVERY_S", 0.0)
    database = await server.database()
    await database.execute(
        "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text)", "CREATE PUBLICATION ours FOR TABLE numbers"
    )
    async with asyncio.timeout(60), open_lane({**spec(database), **more}) as lane:
        await lane.read(1000, 1 << 20, 0.1)
        # A lane that is not read, as one that waits for room in a buffer, knows it, too.
        text = "x" * 100
        await database.execute(f"INSERT INTO numbers (text) SELECT '{text}' FROM generate_series(1, 10000)")
        while (pending_bytes(lane) or 0) < 1_000_000:  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.01)
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 10_000, batches)
        while pending_bytes(lane) != 0:
            await lane.read(1000, 1 << 20, 0.05)


@pytest.mark.guarantee("I1", "I9")
async def test_a_server_that_is_killed_is_waited_for(tmp_path: Path) -> None:
    with open_postgres(wal_level="logical") as server:
        database = await server.database()
        await database.execute(
            "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text)",
            FILL,
            "CREATE PUBLICATION ours FOR TABLE numbers",
        )
        async with open_lane(spec(database)) as lane:
            batches: list[SourceBatch] = []
            await read_until(lane, lambda records: len(records) == 100, batches)
            for count in range(2, 5):
                await database.execute(FILL)
                await read_until(lane, _more_than(100 * count - 50), batches)
                await lane.committed(batches[-1].position)
                await asyncio.to_thread(server.kill)
                await held_up(lane, True, batches)
                await asyncio.to_thread(server.start)
                await held_up(lane, False, batches)
            records = await read_until(lane, lambda records: len(records) >= 400, batches)
        # A server that is killed leaves numbers of its sequence out.
        assert [n for _, n in short(records)] == await database.column("SELECT n FROM numbers ORDER BY n")


@pytest.mark.guarantee("I10")
async def test_a_slot_that_is_lost_gone_or_ahead_stops_the_lane(database: Database) -> None:
    slot = f"slot_{database.name}"
    async with open_lane(spec(database)) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
    position = batches[-1].position
    await database.execute(FILL, f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with raises(codes.SOURCE_RECORDS_REMOVED, match="another reader has advanced the slot"):
        async with open_lane(spec(database), position):
            pass
    await database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    with raises(codes.SOURCE_RECORDS_REMOVED, match="no longer exists"):
        async with open_lane(spec(database), position):
            pass
    body = json.loads(position)
    with raises(codes.SOURCE_CHANGED, match="is a different server"):
        async with open_lane(spec(database), json.dumps(body | {"system": "7"}).encode()):
            pass
    with raises(codes.SOURCE_CHANGED, match="the slot is now other"):
        async with open_lane(spec(database, cdc={"slot": "other"}), position):
            pass
    with raises(codes.POSITION_UNREADABLE):
        async with open_lane(spec(database), json.dumps(body | {"lsn": "x"}).encode()):
            pass


@pytest.mark.sweep
@pytest.mark.guarantee("I10")
async def test_a_slot_beyond_its_limit_is_lost() -> None:
    with open_postgres(
        wal_level="logical", max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB"
    ) as server:
        database = await server.database()
        await database.execute(
            "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text)", "CREATE PUBLICATION ours FOR TABLE numbers"
        )
        async with open_lane(spec(database)) as lane:
            position = (await lane.read(10, 1000, 0.05)).position
        for _ in range(4):
            await database.execute(
                "INSERT INTO numbers (text) SELECT repeat('x', 1000) FROM generate_series(1, 20000)",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
        with raises(codes.SOURCE_RECORDS_REMOVED, match="is lost: the server has removed"):
            async with open_lane(spec(database), position):
                pass


@pytest.mark.sweep
async def test_what_fills_the_servers_disk_is_logged(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot_module, "POSTGRES_SLOT_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(slot_module, "POSTGRES_SLOT_REPORTED_BYTES", 1 << 20)
    database = await server.database()
    await database.execute(
        "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text)", "CREATE PUBLICATION ours FOR TABLE numbers"
    )
    behind = "MiB of the server's WAL: this source is behind"
    async with asyncio.timeout(60), open_lane(spec(database)) as lane:
        await lane.read(1000, 1 << 20, 0.05)
        # Nothing is committed, so the slot holds it all.
        await database.execute("INSERT INTO numbers (text) SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
        while behind not in caplog.text:
            await lane.read(1000, 1 << 20, 0.05)
    assert "max_slot_wal_keep_size is not set at 127.0.0.1" in caplog.text


@pytest.mark.guarantee("I10")
async def test_a_table_that_is_truncated_between_two_parts_stops_the_lane(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_reader, "_FIRST_ROWS", 50)
    async with open_lane(spec(database)) as lane:
        position = (await lane.read(10, 1 << 20, 0.05)).position
    await database.execute("TRUNCATE numbers", FILL)
    with raises(codes.SOURCE_PAST_REPLACED, match=r"public\.numbers was truncated"):
        async with open_lane(spec(database), position) as lane:
            await read_until(lane, lambda records: len(records) > 1000)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_an_encrypted_connection_and_a_password() -> None:
    """Both for the query and for the changes, whose protocol follows asyncpg's login."""
    with open_postgres(wal_level="logical") as server:
        database = await server.database()
        await database.execute(
            "CREATE TABLE numbers (n bigserial PRIMARY KEY, text text)",
            FILL,
            "CREATE PUBLICATION ours FOR TABLE numbers",
        )
        certificate = await server.encrypt()
        await database.execute(ROLE, f"ALTER ROLE {LOCKED} REPLICATION", f"GRANT SELECT ON numbers TO {LOCKED}")
        safe = {"user": LOCKED, "password": PASSWORD, "sslmode": "verify-full", "sslRootCert": str(certificate)}
        async with open_lane(spec(database, **safe)) as lane:
            await read_until(lane, lambda records: len(records) == 100)
            await database.execute(FILL)
            assert len(await read_until(lane, lambda records: len(records) == 100)) == 100
            encrypted = await database.column(
                "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_replication r ON r.pid = s.pid"
            )
            assert encrypted == [True]
        query = {**database.settings, **safe, "query": "SELECT * FROM numbers", "cursor": ["n"], "stopAtEnd": True}
        async with open_lane({"postgres": query}) as lane:
            assert len((await read_to_end(lane))[0]) == 200
        with raises(codes.TARGET_REFUSES, match="password authentication failed"):
            async with open_lane(spec(database, **safe | {"password": "wrong"})):
                pass


async def test_of_two_lanes_the_one_that_hangs_gives_the_slot_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdc_module, "_IN_USE_S", 0.1)
    async with open_lane(spec(database)) as older:
        batches: list[SourceBatch] = []
        await read_until(older, lambda records: len(records) == 100, batches)
        await older.read(10, 1000, 0.05)
        async with open_lane(spec(database), batches[-1].position) as newer:
            await database.execute(FILL)
            assert len(await read_until(newer, lambda records: len(records) == 100)) == 100


async def test_it_ends_where_the_first_run_found_the_end(database: Database) -> None:
    ending = spec(database, stopAtEnd=True)
    async with open_lane(ending) as lane:
        await database.execute(FILL)
        records, _, batches = await read_to_end(lane, 31)
    # The other hundred is within the end where it was committed before the end was looked at, and is not here.
    assert short(records)[:100] == [("r", n) for n in range(1, 101)]
    assert len(records) in (100, 200)
    async with open_lane(ending, batches[-1].position) as lane:
        assert (await lane.read(10, 1000, 0.05)).ended
    async with open_lane(ending, partition=1, partitions=2) as lane:
        assert (await lane.read(10, 1000, 0.05)).ended


def creating(database: Database, *tables: str, **cdc: Any) -> dict[str, Any]:
    return spec(database, cdc={"publication": "new", "tables": list(tables), "createPublication": True, **cdc})


async def left_behind(database: Database) -> list[Any]:
    return await database.column(
        "SELECT pubname::text FROM pg_publication WHERE pubname = 'new' "
        "UNION ALL SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    )


PARTITIONED = (
    "CREATE TABLE events (n int, city text, PRIMARY KEY (n)) PARTITION BY RANGE (n)",
    "CREATE TABLE events_low PARTITION OF events FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE events_high PARTITION OF events FOR VALUES FROM (10) TO (20)",
    "INSERT INTO events VALUES (1, 'Bonn'), (11, 'Köln')",
)


async def test_a_partitioned_table_is_read_as_one_table(database: Database) -> None:
    await database.execute(*PARTITIONED)
    batches: list[SourceBatch] = []
    async with open_lane(creating(database, "events")) as lane:
        await read_until(lane, lambda records: len(records) == 2, batches)
        await database.execute(
            "UPDATE events SET city = 'Ulm' WHERE n = 11",
            "CREATE TABLE events_next PARTITION OF events FOR VALUES FROM (20) TO (30)",
            "INSERT INTO events VALUES (21, 'Jena')",
            "DELETE FROM events WHERE n = 1",
        )
        records = await read_until(lane, lambda records: len(records) == 5, batches)
    assert short(records) == [("r", 1), ("r", 11), ("u", 11), ("c", 21), ("d", 1)]
    assert {item["table"] for item in found(records)} == {"events"}


async def test_a_publication_that_publishes_partitions_or_a_table_that_is_one_is_named(database: Database) -> None:
    await database.execute(*PARTITIONED, "CREATE PUBLICATION parts FOR TABLE events")
    parts = spec(database, cdc={"publication": "parts", "tables": ["events"], "createPublication": True})
    with raises(codes.TARGET_UNFIT, match=r"public\.events is partitioned.*SET \(publish_via_partition_root = true\)"):
        async with open_lane(parts):
            pass
    # The remedy of the message is one.
    await database.execute("ALTER PUBLICATION parts SET (publish_via_partition_root = true)")
    one = spec(database, cdc={"publication": "parts", "tables": ["events_low"]})
    with raises(
        codes.TARGET_UNFIT, match=r"is a partition, whose changes .* under public\.events.*`public\.events` in"
    ):
        async with open_lane(one):
            pass
    async with open_lane(parts) as lane:
        assert len(await read_until(lane, lambda records: len(records) == 2)) == 2


@pytest.mark.parametrize("snapshot", ["initial", "never"])
@pytest.mark.parametrize(
    ("statements", "change", "remedy"),
    [
        (["CREATE TABLE t (n int)"], "UPDATE t SET n = 2", "REPLICA IDENTITY FULL"),
        (["CREATE TABLE t (n int PRIMARY KEY DEFERRABLE)"], "UPDATE t SET n = 2", "REPLICA IDENTITY FULL"),
        (["CREATE TABLE t (n int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"], "DELETE FROM t", "FULL"),
        (
            ["CREATE TABLE t (n int) PARTITION BY LIST (n)", "CREATE TABLE t1 PARTITION OF t DEFAULT"],
            "UPDATE t SET n = 2",
            "ADD PRIMARY KEY",
        ),
        (
            [
                "CREATE TABLE t (n int PRIMARY KEY) PARTITION BY LIST (n)",
                "CREATE TABLE t1 PARTITION OF t DEFAULT",
                "ALTER TABLE t1 REPLICA IDENTITY NOTHING",
            ],
            "DELETE FROM t",
            "REPLICA IDENTITY FULL",
        ),
        (["CREATE UNLOGGED TABLE t (n int PRIMARY KEY)"], "DELETE FROM t", "cannot be published"),
        (["CREATE VIEW t AS SELECT 1 AS n"], "SELECT * FROM t", "cannot be published"),
        ([], "SELECT 1", "there is no table"),
    ],
)
async def test_a_publication_that_would_stop_another_program_is_not_created(
    database: Database, statements: list[str], change: str, remedy: str, snapshot: str
) -> None:
    await database.execute(*statements)
    with raises(codes.TARGET_UNFIT, match=remedy):
        async with open_lane(creating(database, "numbers", "t", snapshot=snapshot)):
            pass
    await database.execute(change)
    assert await left_behind(database) == []
    online = PostgresSource.model_validate(creating(database, "numbers", "t", snapshot=snapshot)["postgres"])
    assert online.cdc is not None
    faults = await catalog.look(online, online.cdc, Path())
    assert [fault.loc for fault in faults] == [("cdc", "tables", 1)]


async def test_a_start_that_fails_leaves_no_publication_and_no_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(*_: Any) -> Any:
        raise UserError(codes.TARGET_UNFIT, "the server has changed its mind")

    for module, name in ((catalog, "create_slot"), (catalog, "published"), (catalog, "page_of")):
        with monkeypatch.context() as patched, raises(codes.TARGET_UNFIT, match="changed its mind"):
            patched.setattr(module, name, wrong)
            async with open_lane(creating(database, "numbers")) as lane:
                await lane.read(10, 1 << 20, 1)
        assert await left_behind(database) == []
    # What it has not created itself, it leaves.
    await database.execute("CREATE PUBLICATION new FOR TABLE numbers")
    with monkeypatch.context() as patched, raises(codes.TARGET_UNFIT, match="changed its mind"):
        patched.setattr(catalog, "page_of", wrong)
        async with open_lane(creating(database, "numbers")) as lane:
            await lane.read(10, 1 << 20, 1)
    assert await left_behind(database) == ["new"]


@pytest.mark.parametrize("before", ["INSERT INTO numbers DEFAULT VALUES", "SELECT 1"])
@pytest.mark.parametrize(
    "change", ["ALTER TABLE numbers RENAME TO figures", "ALTER TABLE numbers SET SCHEMA elsewhere"]
)
async def test_a_table_that_is_renamed_ends_with_an_error_and_nothing_is_skipped(
    database: Database, monkeypatch: pytest.MonkeyPatch, before: str, change: str
) -> None:
    monkeypatch.setattr(slot_module, "POSTGRES_SLOT_LOOK_EVERY_S", 0.0)
    await database.execute("CREATE SCHEMA elsewhere")
    named = spec(database, cdc={"tables": ["numbers"]})
    batches: list[SourceBatch] = []
    async with open_lane(named) as lane:
        await read_until(lane, lambda records: len(records) == 100, batches)
        await database.execute("INSERT INTO numbers (text) VALUES ('before')")
        await read_until(lane, lambda records: len(records) == 101, batches)
        now = "figures" if "RENAME" in change else "elsewhere.numbers"
        await database.execute(change, before.replace("numbers", now))
        with raises(codes.SOURCE_CHANGED, match=r"public\.numbers is (now called|no longer published)"):
            await read_until(lane, lambda records: len(records) == 102, batches)
    position = batches[-1].position
    with raises(codes.TARGET_UNFIT, match=r"does not include the table public\.numbers"):
        async with open_lane(named, position):
            pass
    # Under its new name the table continues after the last change, with those of its old name.
    await database.execute(f"INSERT INTO {now} (text) VALUES ('behind')")
    async with open_lane(spec(database, cdc={"tables": [now]}), position) as lane:
        records = await read_until(lane, lambda records: any(b"behind" in item.value for item in records))
    assert [item["op"] for item in found(records)] == ["c"] * (2 if "INSERT" in before else 1)


async def test_changes_before_a_renaming_are_read_under_the_new_name(database: Database) -> None:
    async with open_lane(spec(database, cdc={"tables": ["numbers"]})) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
        position = batches[-1].position
    await database.execute(
        "INSERT INTO numbers (text) VALUES ('old')",
        "ALTER TABLE numbers RENAME TO figures",
        "INSERT INTO figures (text) VALUES ('new')",
    )
    async with open_lane(spec(database, cdc={"tables": ["figures"]}), position) as lane:
        records = await read_until(lane, lambda records: len(records) >= 2)
    assert [(item["table"], item["after"]["text"]) for item in found(records)] == [
        ("numbers", "old"),
        ("figures", "new"),
    ]


async def test_what_does_not_fit_is_said(database: Database, postgres: PostgresServer, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    plain = await postgres.database()
    await database.execute("CREATE TABLE bare (n int)", "CREATE PUBLICATION bare FOR TABLE bare")
    cases: list[tuple[dict[str, Any], str]] = [
        (spec(plain), "wal_level is `replica`"),
        (spec(database, cdc={"publication": "none"}), "there is no publication `none`.*CREATE PUBLICATION"),
        (spec(database, cdc={"tables": ["others"]}), r"does not include the table public\.others"),
        (spec(database, cdc={"publication": "bare"}), r"public\.bare has no primary key"),
    ]
    for settings, match in cases:
        with raises(codes.TARGET_UNFIT, match=match):
            async with open_lane(settings):
                pass
    made = spec(database, cdc={"publication": "new", "tables": ["others"], "createPublication": True})
    async with open_lane(made) as lane:
        await database.execute("INSERT INTO numbers DEFAULT VALUES", "INSERT INTO others DEFAULT VALUES")
        (record,) = await read_until(lane, lambda records: len(records) == 1)
        assert found([record])[0]["table"] == "others"
    (tmp_path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{postgres: {json.dumps(cases[2][0]['postgres'])}, guarantee: exactlyOnce}}\n"
        "  - name: out\n    sink: {blackhole: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    assert await asyncio.to_thread(main, ["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[0].source.postgres.cdc.tables[0]")
