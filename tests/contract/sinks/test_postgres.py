"""The PostgreSQL sink on a real server: what of a record goes where, and that each counts once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import FencedError, MillstreamError, RetryLaterError, UserError
from millstream.frame import Frame
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.spec.models import FallbackSink
from millstream.wire.certificates import make_certificate
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.postgres.client import Login
from millstream_connectors.postgres.settings import PostgresServer as PostgresSettings
from millstream_connectors.postgres.sink import lane as lane_module
from millstream_runner.chaos.lossy_path import LossyPath, open_lossy_path
from millstream_runner.cli.main import main
from millstream_writer.connector import SinkOwner
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.sink_targets import postgres_spec
from tests.contract.sinks.table_lanes import again
from tests.contract.sinks.validating import validate_sink
from tests.contract.sinks.wires import POSTGRES
from tests.contract.sources.lanes import open_lane, read_to_end
from tests.support.children import together
from tests.support.errors import raises
from tests.support.postgres_server import LOCKED, PASSWORD, ROLE, Database, PostgresServer, open_postgres, why_missing
from tests.unit.writer.sink_frames import sink_frame

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "postgres.md"
NUMBERS = "CREATE TABLE numbers (n int PRIMARY KEY, text text, place bigserial)"


@pytest.fixture
async def database(postgres: PostgresServer) -> Database:
    database = await postgres.database()
    await database.execute(NUMBERS)
    return database


@pytest.fixture
async def path(postgres: PostgresServer) -> AsyncIterator[LossyPath]:
    async with open_lossy_path(postgres.port, POSTGRES) as path:
        yield path


def numbers(sequence: int, count: int = 10, *, name: str = "") -> SinkFrame:
    """`count` numbers from `sequence` * 10 on."""
    return sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + count)], sequence, name=name)


def rows_frame(rows: list[object], sequence: int = 1) -> SinkFrame:
    return sink_frame([json.dumps(row).encode() for row in rows], sequence)


@asynccontextmanager
async def opened(spec: FallbackSink, owner: SinkOwner | None = None) -> AsyncIterator[SinkLane]:
    async with asyncio.timeout(60), open_sink(spec, owner or sink_owner(1)) as lane:
        yield lane


async def found(database: Database) -> list[int]:
    return await database.column("SELECT n FROM numbers ORDER BY place")


# What goes where


async def test_members_go_into_columns_of_any_type(postgres: PostgresServer) -> None:
    database = await postgres.database()
    await database.execute(
        "CREATE TABLE orders (id bigint, price numeric(8, 2), paid boolean, at timestamptz, tags jsonb, city text, "
        "weight double precision, days int[], note text DEFAULT 'none')"
    )
    columns = [{"name": name} for name in ("id", "price", "paid", "at", "tags", "weight", "days")]
    spec = postgres_spec(database, "insert", table="orders", columns=[*columns, {"name": "city", "field": "to.city"}])
    order = {
        "id": 9_007_199_254_740_993, "price": 12.5, "paid": True, "at": "2026-01-02T03:04:05Z",
        "tags": ["a\t\\N", {"b": None}],
        "weight": 1e-7, "days": "{1,2}", "to": {"city": "Kö\\ln\n\tx"},
    }  # fmt: skip
    async with opened(spec) as lane:
        assert not (await lane.write([rows_frame([order, {"id": 2}])], Position(1))).failures
    whole, empty = await database.rows(
        "SELECT id, price::text, paid, at::text, tags::text, weight, days, city, note FROM orders"
    )
    assert whole == (9_007_199_254_740_993, "12.50", True, "2026-01-02 03:04:05+00", '["a\\t\\\\N", {"b": null}]', 1e-7,
                     [1, 2], "Kö\\ln\n\tx", "none")  # fmt: skip
    assert empty == (2, *[None] * 7, "none")


async def test_columns_of_the_types_of_json_get_what_lines_would_give_them(postgres: PostgresServer) -> None:
    """A domain is not one of PostgreSQL's own types, so its table is filled by lines."""
    database = await postgres.database()
    types = {"a": "int2", "b": "int4", "c": "int8", "d": "float8", "e": "text", "f": "varchar(5)", "g": "bool"}
    domains = [f"CREATE DOMAIN d_{name} AS {kind}" for name, kind in types.items()]
    tables = [
        f"CREATE TABLE plain ({', '.join(f'{name} {kind}' for name, kind in types.items())})",
        f"CREATE TABLE domains ({', '.join(f'{name} d_{name}' for name in types)})",
    ]
    await database.execute(*domains, *tables)
    rows: list[object] = [
        {"a": -32768, "b": 2147483647, "c": -(2**63), "d": 0.1, "e": "a\t\\N\n", "f": "Köln!", "g": True},
        {"a": None, "d": 5e-324, "e": "", "f": None, "g": False, "more": {"a": [1]}},
        {"d": 9_007_199_254_740_993, "c": 2**63 - 1},
        {"a": 1, "f": "too long"},
        {"a": 32768},
        {"e": "\0"},
        {"b": 1.5},
        {"e": 7},
    ]
    kept = []
    for table in ("plain", "domains"):
        columns = [{"name": name} for name in types]
        async with opened(postgres_spec(database, "insert", table=table, columns=columns)) as lane:
            result = await lane.write([rows_frame(rows[:3], 1), rows_frame(rows[3:], 2)], Position(2))
            await lane.flush()
        kept.append([(failure.index, failure.reason) for failure in result.failures[1]])
        await database.execute("DROP TABLE millstream_positions, millstream_positions_refused")
    assert kept[0] == kept[1]
    assert [index for index, _ in kept[0]] == [0, 1, 2, 3]
    found = "SELECT a, b, c, d, e, f, g FROM {} ORDER BY a NULLS LAST, c NULLS LAST, e"
    plain = await database.rows(found.format("plain"))
    assert len(plain) == 4
    assert plain == await database.rows(found.format("domains"))


async def test_the_type_of_a_column_changes_while_the_sink_runs(database: Database) -> None:
    spec = postgres_spec(database, "insert")
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
        await database.execute("ALTER TABLE numbers ALTER n TYPE text")
        assert not (await lane.write([numbers(2)], Position(2))).failures
    assert await database.column("SELECT n FROM numbers ORDER BY place") == [str(n) for n in range(10, 30)]


async def test_without_columns_the_whole_record_is_written_into_a_table_that_is_created(
    postgres: PostgresServer,
) -> None:
    database = await postgres.database()
    spec = postgres_spec(database, "insert", table="records", columns=[], createTable=True)
    async with opened(spec) as lane:
        result = await lane.write([sink_frame([b"any \\ text", b"\xff"], 1, ids=["a", "b"])], Position(1))
        assert [(failure.index, failure.reason) for failure in result.failures[0]] == [(1, "value is not text")]
    assert await database.rows("SELECT id, event_time::text, keys::text, headers::text, value FROM records") == [
        ("a", "1970-01-01 00:00:01+00", "[]", "{}", "any \\ text")
    ]


async def test_of_the_records_of_one_key_the_last_one_counts(postgres: PostgresServer) -> None:
    database = await postgres.database()
    columns = [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}, {"name": "v"}]
    spec = postgres_spec(
        database, "upsert", table="t", columns=columns, keys=["a", "b"], createTable=True,
        deleteWhen={"field": "gone", "equals": True},
    )  # fmt: skip
    first = [
        {"a": 1, "b": 1, "v": "x"},
        {"a": 1, "b": 2, "v": "y"},
        {"a": 1, "b": 1, "v": "z"},
        {"a": 2, "b": 2, "v": "w"},
    ]
    then = [
        {"a": 1, "b": 2, "gone": True},
        {"a": 2, "b": 2, "gone": True},
        {"a": 2, "b": 2, "v": "back"},
        {"b": 1, "v": "?"},
    ]
    async with opened(spec) as lane:
        await lane.write([rows_frame(list(first))], Position(1))
        assert await database.rows("SELECT * FROM t ORDER BY a, b") == [(1, 1, "z"), (1, 2, "y"), (2, 2, "w")]
        result = await lane.write([rows_frame(list(then), 2)], Position(2))
        await lane.flush()
    assert [(failure.index, failure.reason) for failure in result.failures[0]] == [(3, "key column is null")]
    assert await database.rows("SELECT * FROM t ORDER BY a, b") == [(1, 1, "z"), (2, 2, "back")]
    delete = postgres_spec(database, "delete", table="t", columns=columns[:2], keys=["a", "b"])
    async with opened(delete, sink_owner(2, partition=1)) as lane:
        await lane.write([rows_frame([{"a": 1, "b": 1}])], Position(1))
    assert await database.column("SELECT v FROM t") == ["back"]


# Owners


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_of_two_owners_the_older_has_no_effect(database: Database, mode: str) -> None:
    spec = postgres_spec(database, mode)
    async with opened(spec, sink_owner(1)) as older:
        await older.write([numbers(1)], Position(1))
        async with opened(spec, sink_owner(2)) as newer:
            assert newer.durable == Position(1)
            with pytest.raises(FencedError):
                await older.write([numbers(2)], Position(2))
            await newer.write([numbers(2)], Position(2))
            with pytest.raises(FencedError):
                await older.write([numbers(3)], Position(3))
        with pytest.raises(FencedError):
            async with opened(spec, sink_owner(1)):
                pass
    assert await found(database) == [*range(10, 30)]


@pytest.mark.guarantee("I1")
async def test_an_owner_that_hangs_in_a_transaction_is_ended_by_the_next(
    database: Database, path: LossyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "POSTGRES_LOCK_TIMEOUT_S", 0.1)
    slow = postgres_spec(database, "insert", port=int(path.url.rpartition(":")[2]))
    stalled = asyncio.Event()

    async def stall() -> None:
        path.stall()
        stalled.set()

    async with opened(slow, sink_owner(1)) as older:
        path.before_next_commit(stall)
        hanging = asyncio.ensure_future(older.write([numbers(1)], Position(1)))
        await stalled.wait()
        async with opened(postgres_spec(database, "insert"), sink_owner(2)) as newer:
            path.flow()
            with pytest.raises((FencedError, RetryLaterError)):
                await hanging
            with pytest.raises(FencedError):
                await again(lambda: older.write([numbers(1)], Position(1)))
            await newer.write([numbers(1)], Position(1))
    assert await found(database) == [*range(10, 20)]


async def test_a_table_of_another_run_stops_the_lane_with_what_to_do(database: Database) -> None:
    spec = postgres_spec(database, "insert")
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
    with raises(codes.SINK_AHEAD, "another run of the pipeline wrote to numbers") as stopped:
        async with opened(spec, sink_owner(1, ledger_id="second")):
            pass
    (remedy,) = re.findall("`(UPDATE .+?)`", str(stopped.value))
    await database.execute("TRUNCATE numbers", remedy)
    async with opened(spec, sink_owner(1, ledger_id="second")) as lane:
        await lane.write([numbers(1)], Position(1))
    assert await found(database) == [*range(10, 20)]


async def test_a_table_that_is_ahead_of_what_the_buffer_holds_stops_the_lane(database: Database) -> None:
    spec = postgres_spec(database, "insert")
    async with opened(spec) as lane:
        await lane.write([numbers(1, name="one"), numbers(2, name="two")], Position(2))
    asked = []

    async def held(sequence: int, name: str) -> str | None:
        asked.append((sequence, name))
        return "another frame"

    with raises(codes.SINK_AHEAD, "records of frame two at sequence 2"):
        async with opened(spec, sink_owner(2, start=Position(1), held_instead=held)):
            pass
    assert asked == [(2, "two")]


async def test_a_table_that_has_lost_what_it_had_confirmed_stops_the_lane(database: Database) -> None:
    spec = postgres_spec(database, "insert")
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
    with raises(codes.SINK_BEHIND, "had confirmed sequence 3"):
        async with opened(spec, sink_owner(2, start=Position(3))):
            pass


# Records that the database refuses


def delivery(lane: SinkLane, on_failure: OnFailure, fallback: SinkLane | None = None) -> Delivery:
    policy = RetryPolicy(Backoff(0.001), on_failure)
    return Delivery(lane, fallback, policy, DeliveryLimits(10**9, 10**12), where="p/out/in-out.0", rng=random.Random(1))


BAD = {24, 31}


def with_bad(sequence: int) -> SinkFrame:
    """Ten numbers, of which those in `BAD` violate a constraint."""
    first = sequence * 10
    return sink_frame([value_of(-n if n in BAD else n) for n in range(first, first + 10)], sequence)


@pytest.fixture
async def checked(database: Database) -> Database:
    await database.execute("ALTER TABLE numbers ADD CHECK (n > 0)")
    return database


async def test_a_refused_record_is_found_and_the_others_are_written(checked: Database) -> None:
    async with opened(postgres_spec(checked, "insert")) as lane:
        deliver = delivery(lane, OnFailure.DROP)
        account = await deliver.write([with_bad(sequence) for sequence in (1, 2, 3, 4)], Position(4))
        await deliver.tick()
        settled = deliver.take_settled()
        assert settled is not None
        assert settled.position == Position(4)
    assert (account.processed, account.dropped) == (38, {"refused by the database: check violation": 2})
    assert await found(checked) == [n for n in range(10, 50) if n not in BAD]


@pytest.mark.guarantee("I4")
async def test_where_the_lane_stops_over_a_record_nothing_behind_it_is_written(checked: Database) -> None:
    spec = postgres_spec(checked, "insert")
    async with opened(spec) as lane:
        deliver = delivery(lane, OnFailure.STOP)
        with raises(codes.SINK_REFUSED, "check violation"):
            await deliver.write([with_bad(sequence) for sequence in (1, 2, 3)], Position(3))
    assert await found(checked) == [*range(10, 24)]
    await checked.execute("ALTER TABLE numbers DROP CONSTRAINT numbers_n_check")
    async with opened(spec, sink_owner(2)) as lane:
        await delivery(lane, OnFailure.STOP).write([with_bad(sequence) for sequence in (1, 2, 3)], Position(3))
    assert await found(checked) == [-n if n in BAD else n for n in range(10, 40)]


@pytest.mark.guarantee("I1")
async def test_a_record_that_was_set_aside_is_refused_again_after_a_crash(checked: Database) -> None:
    """The fallback may not have stored it: its mark has not passed it."""
    spec = postgres_spec(checked, "insert")
    frames = [with_bad(sequence) for sequence in (1, 2, 3)]
    async with opened(spec) as lane:
        await delivery(lane, OnFailure.DROP).write(frames, Position(3))
        await lane.flush()
        assert lane.durable == Position(3)
    await checked.execute("ALTER TABLE numbers DROP CONSTRAINT numbers_n_check")
    async with opened(spec, sink_owner(2)) as lane:
        account = await delivery(lane, OnFailure.DROP).write(frames, Position(3))
    assert account.dropped == {"refused by the database: check violation": 2}
    assert await found(checked) == [n for n in range(10, 40) if n not in BAD]
    async with opened(spec, sink_owner(3, start=Position(3))):
        assert await checked.rows("SELECT * FROM millstream_positions_refused") == []


async def test_what_is_refused_at_the_end_of_a_transaction_is_found_too(database: Database) -> None:
    await database.execute(
        "CREATE TABLE parents (n int PRIMARY KEY)",
        "INSERT INTO parents SELECT generate_series(10, 18)",
        "ALTER TABLE numbers ADD FOREIGN KEY (n) REFERENCES parents DEFERRABLE INITIALLY DEFERRED",
    )
    async with opened(postgres_spec(database, "upsert")) as lane:
        result = await lane.write([numbers(1)], Position(1))
        await lane.flush()
    assert [(failure.index, failure.retryable) for failure in result.failures[0]] == [(9, False)]
    assert await found(database) == [*range(10, 19)]


async def test_a_fallback_takes_what_the_sink_refuses(checked: Database) -> None:
    await checked.execute("CREATE TABLE aside (n int, text text)")
    spec, aside = postgres_spec(checked, "insert"), postgres_spec(checked, "insert", table="aside")
    async with opened(spec) as lane, opened(aside, sink_owner(1).as_fallback()) as fallback:
        deliver = delivery(lane, OnFailure.FALLBACK, fallback)
        await deliver.write([with_bad(2), with_bad(3)], Position(3))
        await deliver.tick()
        assert deliver.take_settled() is not None
    assert await checked.column("SELECT n FROM aside") == [-24, -31]


# Writes that are converted while they are copied

LONG = 2_000
"""Numbers in a frame of which the client sends its first part before the next frame is converted."""


def long_frame(sequence: int, last: bytes = b"") -> SinkFrame:
    """`LONG` numbers from `sequence` * `LONG` on, whose texts are long; or `last` as the value of the last one."""
    values = [b'{"n": %d, "text": "%b"}' % (n, b"x" * 400) for n in range(sequence * LONG, (sequence + 1) * LONG)]
    return sink_frame([*values[:-1], last or values[-1]], sequence)


class Watched(Frame):
    """A frame that is not converted before the server has copied rows of another one."""

    database: Database

    def values(self) -> list[bytes]:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, self._rows_are_copied()).result()
        return super().values()

    async def _rows_are_copied(self) -> None:
        async with asyncio.timeout(20), self.database.connected() as connection:
            while not await connection.fetchval("SELECT sum(tuples_processed) FROM pg_stat_progress_copy"):
                pass


async def test_a_frame_is_converted_while_the_server_copies_the_one_before_it(database: Database) -> None:
    columns = {field.name: getattr(long_frame(2).frame, field.name) for field in fields(Frame)}
    watched = Watched(**columns)
    Watched.database = database
    async with opened(postgres_spec(database, "insert")) as lane:
        await lane.write([long_frame(1), replace(long_frame(2), frame=watched)], Position(2))
    assert await found(database) == [*range(LONG, 3 * LONG)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (b'{"n": -1}', "refused by the database: check violation"),
        (b'{"n": "one"}', "refused by the database: invalid text representation"),
        (b"not JSON", "value is not JSON"),
    ],
)
async def test_a_record_that_fails_late_in_a_write_undoes_what_was_copied_before_it(
    checked: Database, last: bytes, reason: str
) -> None:
    bad = 3 * LONG - 1
    async with opened(postgres_spec(checked, "insert")) as lane:
        result = await lane.write([long_frame(1), long_frame(2, last), long_frame(3)], Position(3))
        failures = [(failure.index, failure.reason) for failure in result.failures[1]]
        assert (failures, result.failures[0], result.failures[2]) == ([(LONG - 1, reason)], [], [])
        # The lane may stop over this record.
        assert await found(checked) == [*range(LONG, bad)]
        await lane.flush()
        assert lane.durable == Position(3)
    assert await found(checked) == [*range(LONG, bad), *range(bad + 1, 4 * LONG)]


async def test_frames_of_rows_and_frames_of_lines_are_written_in_their_order(database: Database) -> None:
    lines = rows_frame([{"n": "20", "text": 7}, {"n": "21"}], 2)
    async with opened(postgres_spec(database, "insert")) as lane:
        assert not (await lane.write([numbers(1), lines, numbers(3)], Position(3))).failures
    assert await found(database) == [*range(10, 20), 20, 21, *range(30, 40)]


@pytest.mark.guarantee("I1")
async def test_a_write_that_is_cancelled_within_its_copy_has_no_effect(database: Database) -> None:
    spec = postgres_spec(database, "insert")
    frames = [long_frame(1), long_frame(2)]
    async with opened(spec) as lane, database.connected() as other:
        locking = other.transaction()
        await locking.start()
        await other.execute("LOCK TABLE numbers IN EXCLUSIVE MODE")
        writing = asyncio.ensure_future(lane.write(frames, Position(2)))
        while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not writing.done()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await locking.rollback()
    assert lane.durable == Position(0)
    async with opened(spec, sink_owner(2)) as lane:
        await lane.write(frames, Position(2))
    assert await found(database) == [*range(LONG, 3 * LONG)]


# Faults


@pytest.mark.guarantee("I1")
async def test_a_server_that_is_killed_is_waited_for() -> None:
    with open_postgres() as server:
        database = await server.database()
        await database.execute(NUMBERS)
        spec = postgres_spec(database, "insert")
        async with opened(spec) as lane:
            await lane.write([numbers(1)], Position(1))
            server.kill()
            with raises(codes.TARGET_AWAY, "cannot be used now"):
                await lane.write([numbers(2)], Position(2))
            # One that opens meanwhile waits too.
            async with opened(spec, sink_owner(2)) as newer:
                with pytest.raises(RetryLaterError):
                    await newer.write([numbers(2)], Position(2))
                server.start()
                await again(lambda: newer.write([numbers(2)], Position(2)))
                assert newer.durable == Position(2)
        assert await found(database) == [*range(10, 30)]


# What the user has to change


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"table": "nowhere"}, codes.TARGET_UNFIT, "there is no table nowhere in the database"),
        ({"columns": [{"name": "n"}, {"name": "nn"}]}, codes.TARGET_UNFIT, "has no column `nn`"),
        ({"mode": "upsert", "keys": ["text"]}, codes.TARGET_UNFIT, "no unique index on exactly"),
        ({"database": "nowhere"}, codes.TARGET_REFUSES, 'database "nowhere" does not exist'),
        ({"user": LOCKED, "password": "wrong"}, codes.TARGET_REFUSES, "password authentication failed"),
        ({"sslmode": "require"}, codes.TARGET_REFUSES, "SSL"),
    ],
)
async def test_what_does_not_fit_is_said(database: Database, change: dict[str, object], code: Code, said: str) -> None:
    await database.execute(
        ROLE,
    )
    mode = str(change.get("mode", "insert"))
    spec = postgres_spec(database, mode, **change)
    with raises(code, said) as stopped:
        async with opened(spec):
            pass
    assert isinstance(stopped.value, UserError)
    assert "wrong" not in str(stopped.value)


async def test_a_password_comes_from_where_it_stands(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await database.execute(
        ROLE,
        "GRANT ALL ON SCHEMA public TO public",
    )
    monkeypatch.setenv("NUMBERS_PASSWORD", PASSWORD)
    spec = postgres_spec(database, "insert", user=LOCKED, password={"env": "NUMBERS_PASSWORD"})
    assert PASSWORD not in repr(spec)
    with raises(codes.TARGET_UNFIT, f"GRANT INSERT ON numbers TO {LOCKED}"):
        async with opened(spec):
            pass
    await database.execute(
        f"GRANT INSERT ON numbers TO {LOCKED}", f"GRANT USAGE ON SEQUENCE numbers_place_seq TO {LOCKED}"
    )
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
    assert await found(database) == [*range(10, 20)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_rows_go_out_over_an_encrypted_connection(tmp_path: Path) -> None:
    with open_postgres() as server:
        database = await server.database()
        await database.execute(NUMBERS, ROLE, "GRANT ALL ON SCHEMA public TO public")
        await database.execute(f"GRANT ALL ON numbers, numbers_place_seq TO {LOCKED}")
        certificate = await server.encrypt()
        (tmp_path / "password").write_text(PASSWORD)
        safe = {
            "user": LOCKED,
            "password": {"file": str(tmp_path / "password")},
            "sslmode": "verify-full",
            "sslRootCert": str(certificate),
        }
        async with opened(postgres_spec(database, "insert", **safe)) as lane:
            await lane.write([numbers(1)], Position(1))
            encrypted = "SELECT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename = $1"
            assert set(await database.column(encrypted, LOCKED)) == {True}
        assert await found(database) == [*range(10, 20)]
        other = make_certificate(tmp_path / "other").certificate
        with raises(codes.TARGET_REFUSES, "certificate verify failed"):
            async with opened(postgres_spec(database, "insert", **safe | {"sslRootCert": str(other)})):
                pass


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_a_role_may_show_a_certificate(tmp_path: Path) -> None:
    with open_postgres() as server:
        database = await server.database()
        await database.execute(NUMBERS, ROLE, "GRANT ALL ON SCHEMA public TO public")
        await database.execute(f"GRANT ALL ON numbers, numbers_place_seq TO {LOCKED}")
        authority = await server.encrypt()
        certificate, key = await server.ask_for_certificate(tmp_path)
        shown = {"sslCert": {"file": str(certificate)}, "sslKey": {"file": str(key)}}
        # The authority's certificate by its contents, too.
        safe = {"user": LOCKED, "sslmode": "verify-full", "sslRootCert": {"file": str(authority)}, **shown}
        async with opened(postgres_spec(database, "insert", **safe)) as lane:
            await lane.write([numbers(1)], Position(1))
        assert await found(database) == [*range(10, 20)]
        async with opened(
            postgres_spec(database, "insert", **{"user": LOCKED, "sslmode": "require", **shown}), sink_owner(2)
        ):
            pass
        without = {name: value for name, value in safe.items() if name not in shown}
        with raises(codes.TARGET_REFUSES, "client certificate"):
            async with opened(postgres_spec(database, "insert", **without)):
                pass
        # The server says so after the handshake, and the end of the connection may arrive in place of the reason.
        other = make_certificate(tmp_path / "other")
        foreign = {"sslCert": {"file": str(other.certificate)}, "sslKey": {"file": str(other.key)}}
        strange = PostgresSettings.model_validate({**database.settings, **safe, **foreign})
        with pytest.raises(MillstreamError, match="does not accept `sslCert`"):
            await Login(strange, tmp_path, "test", "test").connect()
        with raises(codes.CERTIFICATES, "`sslCert` and `sslKey` cannot be used"):
            async with opened(postgres_spec(database, "insert", **safe | {"sslKey": {"file": str(certificate)}})):
                pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sslCert": {"env": "C"}, "sslmode": "require"}, "`sslCert` and `sslKey` belong together"),
        ({"sslCert": {"env": "C"}, "sslKey": {"env": "K"}}, "`sslCert` needs encryption, which `sslmode: prefer`"),
    ],
)
async def test_a_certificate_needs_its_key_and_encryption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], said: str
) -> None:
    written = {"database": "d", "user": "u", "table": "t", **settings}
    # The command has a loop of its own.
    assert await asyncio.to_thread(validate_sink, "postgres", written, tmp_path) == 2
    assert said in capsys.readouterr().err


async def test_lanes_that_open_at_once_create_the_tables_once(postgres: PostgresServer) -> None:
    database = await postgres.database()
    spec = postgres_spec(database, "insert", table="t", columns=[{"name": "n", "type": "int"}], createTable=True)

    async def one(partition: int) -> None:
        async with opened(spec, sink_owner(1, partition=partition)) as lane:
            await lane.write([numbers(1 + partition)], Position(1 + partition))

    await together(*map(one, range(6)))
    assert sorted(await database.column("SELECT n FROM t")) == [*range(10, 70)]


async def test_the_page_shows_what_runs(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    tables, pipelines = (
        re.search(r"```sql\n(.*?)```", page, re.DOTALL),
        re.findall(r"```yaml\n(.*?)```", page, re.DOTALL),
    )
    assert tables is not None
    database = await postgres.database()
    vertices = [vertex for text in pipelines for vertex in YAML(typ="safe", pure=True).load(text)]
    vertex, copy = (one for one in vertices if "sink" in one)
    (reading,) = (one for one in vertices if "query" in one.get("source", {}).get("postgres", {}))
    settings = {**vertex["sink"]["postgres"], **database.settings, "createTable": True}
    await database.execute("DROP ROLE IF EXISTS writer", "CREATE ROLE writer", *tables[1].split(";")[:-1])
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    order = {"id": 7, "address": {"city": "Ulm"}, "price": "12.50"}
    async with opened(FallbackSink.model_validate({"postgres": settings})) as lane:
        assert not (await lane.write([rows_frame([{"id": 7, "price": 1}, order])], Position(1))).failures
    assert await database.rows("SELECT id, city, price::text, placed::text FROM orders") == [
        (7, "Ulm", "12.50", "1970-01-01 00:00:02+00")
    ]
    monkeypatch.setenv("COPY_PASSWORD", PASSWORD)
    other = await postgres.database()
    copying = {**copy["sink"]["postgres"], **other.settings, "createTable": True}
    changes = [
        {"op": "c", "after": {"city": "Ulm", "note": "long"}},
        {"op": "u", "after": {"city": "Bonn"}, "unchanged": ["note"]},
        {"op": "d", "after": None},
    ]
    async with opened(FallbackSink.model_validate({"postgres": copying})) as lane:
        keys = [[b"1"], [b"1"], [b"2"]]
        frame = sink_frame([json.dumps(change).encode() for change in changes], 1, keys=keys)
        assert not (await lane.write([frame], Position(1))).failures
    assert await other.rows("SELECT id, city, note FROM orders") == [("1", "Bonn", "long")]
    source = reading["source"]
    source["postgres"] = {**source["postgres"], **database.settings, "stopAtEnd": True}
    async with open_lane(source) as rows:
        (record,), _, _ = await read_to_end(rows)
    assert (record.value, record.event_time_us, record.keys) == (
        b'{"id":7,"city":"Ulm","price":12.50,"placed":"1970-01-01T00:00:02+00:00"}', 2_000_000, ("Ulm",)
    )  # fmt: skip


async def test_validate_online_says_what_is_missing(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**database.settings, "table": "numbers", "columns": [{"name": "n"}, {"name": "nn"}]}
    pipeline = (
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        "  - name: in\n    source: {generator: {records: 1}}\n  - name: out\n"
        f"    sink: {{postgres: {json.dumps(settings)}}}\n  edges:\n  - {{from: in, to: out}}\n"
    )
    (tmp_path / "p.yaml").write_text(pipeline)
    # The command has a loop of its own.
    assert await asyncio.to_thread(main, ["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[1].sink.postgres.columns[1].name")
