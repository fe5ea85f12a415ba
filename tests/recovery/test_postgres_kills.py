"""A pipeline into PostgreSQL, and all that it needs, killed at random; and its sink at every durable step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from string import Template

import pytest

from millstream_connectors.postgres.client import FAILURES
from tests.mesh.running import start
from tests.recovery import killed_cdc
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.recovery.kills import OUTSIDE, kill, kill_in_turn, killed_in_turn
from tests.support.children import together
from tests.support.postgres_server import Database, PostgresServer, open_postgres, why_missing
from tests.support.sizes import sized

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {generator: {rpu: 750, keyCount: 20}}
  - name: same
    udf: {builtin: {name: cat}}
    partitions: 2
  - name: out
    partitions: 2
    sink:
      postgres: SETTINGS
      guarantee: exactlyOnce
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
COPYING = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - {name: in, source: {postgres: $source, guarantee: exactlyOnce}}
  - {name: out, sink: {postgres: $sink, guarantee: exactlyOnce}}
  edges:
  - {from: in, to: out}
"""
POINTS = [
    f"postgres_sink.{step}:{side}#{time}"
    for step, time in (("create", 1), ("take_over", 1), ("copy", 5), ("commit", 5))
    for side in ("before", "after")
]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with open_postgres() as server:
        yield server


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_each_record_is_there_once_though_everything_is_killed(server: PostgresServer, tmp_path: Path) -> None:
    database = await server.database()
    await database.execute("CREATE TABLE numbers (lane int, number int, place bigserial)")
    columns = [{"name": "lane"}, {"name": "number"}]
    settings = {**database.settings, "table": "numbers", "columns": columns}

    text = PIPELINE.replace("SETTINGS", json.dumps(settings))
    made = await killed_in_turn(
        tmp_path, text, ("out-0", OUTSIDE, "broker"), partial(asyncio.to_thread, server.restart)
    )
    assert sorted(await database.column("SELECT number FROM numbers")) == [*range(made)]


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_each_row_of_a_query_is_read_once_though_everything_is_killed(
    server: PostgresServer, tmp_path: Path
) -> None:
    database = await server.database()
    await database.execute("CREATE TABLE rows (n bigserial PRIMARY KEY)", "CREATE TABLE copies (n bigint)")
    source = {**database.settings, "query": "SELECT n FROM rows", "cursor": ["n"], "pollEvery": "10ms"}
    sink = {**database.settings, "table": "copies", "columns": [{"name": "n"}]}
    text = Template(COPYING).substitute(source=json.dumps(source), sink=json.dumps(sink))
    (tmp_path / "pipeline.yaml").write_text(text)
    done = asyncio.Event()
    async with start(tmp_path, "run", "pipeline.yaml") as run, asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(_write_out_of_order(database, done))
        await kill_in_turn(run, ("in-0", OUTSIDE, "broker"), partial(asyncio.to_thread, server.restart))
        done.set()
        await writing
        (rows,) = await database.column("SELECT count(*) FROM rows")
        await run.until(lambda: run.records("out") >= rows)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    assert await database.column("SELECT n FROM copies ORDER BY n") == await database.column(
        "SELECT n FROM rows ORDER BY n"
    )


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
async def test_each_change_is_read_once_though_everything_is_killed(tmp_path: Path) -> None:
    """From the middle of the snapshot on."""
    with open_postgres(wal_level="logical") as server:
        database = await server.database()
        await database.execute(
            "CREATE TABLE rows (n bigserial PRIMARY KEY)",
            "CREATE TABLE copies (op text, n bigint)",
            "INSERT INTO rows SELECT FROM generate_series(1, 30000)",
        )
        cdc = {"publication": "ours", "slot": "ours", "tables": ["rows"], "createPublication": True}
        columns = [{"name": "op"}, {"name": "n", "field": "after.n"}]
        sink = {**database.settings, "table": "copies", "columns": columns}
        source = {**database.settings, "cdc": cdc}
        text = Template(COPYING).substitute(source=json.dumps(source), sink=json.dumps(sink))
        (tmp_path / "pipeline.yaml").write_text(text)
        done = asyncio.Event()
        async with start(tmp_path, "run", "pipeline.yaml") as run, asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(_write_out_of_order(database, done))
            await kill_in_turn(
                run, ("in-0", OUTSIDE, "broker")[: sized(2, 3)], partial(asyncio.to_thread, server.restart)
            )
            # An interrupted snapshot goes on with a later view of the table: only a change shows that it is over.
            await _until_copied(database, "c")
            await kill(run, "in-0", None)
            done.set()
            await writing
            (rows,) = await database.column("SELECT count(*) FROM rows")
            await run.until(lambda: run.records("out") >= rows)
            run.interrupt()
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert "account: BALANCED" in ended.out
        assert await database.column("SELECT n FROM copies ORDER BY n") == await database.column(
            "SELECT n FROM rows ORDER BY n"
        )
        assert await database.column("SELECT DISTINCT op FROM copies ORDER BY op") == ["c", "r"]


async def _until_copied(database: Database, op: str) -> None:
    async with asyncio.timeout(60):
        while op not in await database.column("SELECT DISTINCT op FROM copies"):  # noqa: ASYNC110  # no event to wait for
            await asyncio.sleep(0.05)


async def _write_out_of_order(database: Database, done: asyncio.Event) -> None:
    """The transaction that takes the smaller numbers is committed last."""
    while not done.is_set():
        with suppress(*FAILURES):
            async with database.connected() as first, database.connected() as second:
                while not done.is_set():
                    async with first.transaction():
                        await first.execute("INSERT INTO rows SELECT FROM generate_series(1, 10)")
                        await second.execute("INSERT INTO rows SELECT FROM generate_series(1, 10)")


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_sink_is_killed_at_every_durable_step(postgres: PostgresServer) -> None:
    """Several at once, each with a database of its own."""
    databases = [await postgres.database() for _ in POINTS]
    limit = asyncio.Semaphore(4)
    await together(*(_killed_at(*each, limit) for each in zip(databases, POINTS, strict=True)))


async def _killed_at(database: Database, point: str, limit: asyncio.Semaphore) -> None:
    async with limit:
        await _kill_at(database, point)


async def _kill_at(database: Database, point: str) -> None:
    await database.execute("CREATE TABLE numbers (n int PRIMARY KEY, text text, place bigserial)")
    columns = [{"name": "n"}, {"name": "text"}]
    await kill_at({"postgres": {**database.settings, "table": "numbers", "columns": columns}}, point)
    assert await database.column("SELECT n FROM numbers ORDER BY place") == EXPECTED, point


@pytest.mark.guarantee("I1")
async def test_a_lane_of_changes_is_killed_at_every_durable_step(tmp_path: Path) -> None:
    points = [f"postgres_cdc.{step}:{side}" for step in ("publish", "slot", "confirm") for side in ("before", "after")]
    points = points[:: sized(2, 1)]
    # The server asks for a confirmation after half of the time-out.
    with open_postgres(wal_level="logical", wal_sender_timeout="1s") as server:
        for number, point in enumerate(points):
            database = await server.database()
            await database.execute(
                "CREATE TABLE rows (n bigserial PRIMARY KEY)", "INSERT INTO rows SELECT FROM generate_series(1, 30)"
            )
            slot = f"slot_{number}"
            cdc = {"publication": "ours", "slot": slot, "tables": ["rows"], "createPublication": True}
            spec = {"postgres": {**database.settings, "cdc": cdc}}
            ledger = tmp_path / slot
            await killed_cdc.kill_at(spec, ledger, point)
            await database.execute("INSERT INTO rows SELECT FROM generate_series(1, 10)")
            await killed_cdc.read_on(spec, ledger, 40)
            _, changes = killed_cdc.committed(ledger)
            assert [change["after"]["n"] for change in changes] == [*range(1, 41)], point
