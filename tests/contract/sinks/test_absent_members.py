"""A member that is absent is not null: a row that exists keeps its value, in every sink that changes rows, whatever a
delivery mixes. A sink that only inserts refuses a change whose value the source did not send."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import sqlite_rows
from tests.support import mariadb_server, postgres_server
from tests.support.sizes import sized
from tests.unit.writer.sink_frames import sink_frame

Rows = Sequence[tuple[Any, ...]]
COLUMNS = [{"name": "k"}, *({"name": name, "field": f"after.{name}"} for name in ("a", "b", "c"))]
OPTIONS: Mapping[str, object] = {
    "table": "docs",
    "mode": "upsert",
    "keys": ["k"],
    "columns": COLUMNS,
    "deleteWhen": {"field": "op", "equals": "d"},
}
TABLE = "CREATE TABLE docs (k {key} PRIMARY KEY, a {text}, b {text} DEFAULT 'new' NOT NULL, c {text})"


class Target:
    """A database with the table, and a statement that returns its rows."""

    def __init__(self, database: Mapping[str, object], rows: Callable[[], Awaitable[Rows]], *, flat: bool) -> None:
        self.database = database
        self.rows = rows
        self.flat = flat
        """Whether columns are members of the record itself, which have the types of the table: the fast way."""

    def spec(self, **more: object) -> FallbackSink:
        (connector, settings), *_ = self.database.items()
        assert isinstance(settings, Mapping)
        plain = {"columns": [{"name": name} for name in "kabc"], "deleteWhen": None} if self.flat else {}
        return FallbackSink.model_validate({connector: {**settings, **OPTIONS, **plain, **more}})

    def value_of(self, record: Mapping[str, Any]) -> bytes:
        return json.dumps({"k": record["k"], **record["after"]} if self.flat else record).encode()


@pytest.fixture(params=["sqlite", "postgres", "postgres typed", "mariadb"])
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    statement = "SELECT k, a, b, c FROM docs ORDER BY k"
    if request.param == "sqlite":
        file = tmp_path / "docs.db"
        sqlite_rows(file, TABLE.format(key="INTEGER", text="TEXT"))

        async def of_sqlite() -> Rows:
            return sqlite_rows(file, statement)

        return Target({"sql": {"url": f"sqlite:///{file}"}}, of_sqlite, flat=False)
    if request.param == "mariadb":
        if reason := mariadb_server.why_missing():
            pytest.skip(reason)
        mariadb = request.getfixturevalue("mariadb").database()
        mariadb.execute(TABLE.format(key="INT", text="VARCHAR(20)"))

        async def of_mariadb() -> Rows:
            return list(map(tuple, mariadb.rows(statement)))

        return Target({"sql": mariadb.settings}, of_mariadb, flat=False)
    if reason := postgres_server.why_missing():
        pytest.skip(reason)
    postgres = await request.getfixturevalue("postgres").database()
    await postgres.execute(TABLE.format(key="bigint", text="text"))

    async def of_postgres() -> Rows:
        return list(await postgres.rows(statement))

    return Target({"postgres": postgres.settings}, of_postgres, flat=request.param == "postgres typed")


def a_record(rng: random.Random, ops: str) -> dict[str, Any]:
    op = rng.choice(ops)
    after = {name: rng.choice(("", "x", f"{rng.random():.6f}", None if name != "b" else "y")) for name in "abc"}
    kept = rng.sample("abc", rng.randint(0, 3))
    whole = rng.random() < 0.4
    return {
        "op": op,
        "k": rng.randint(1, 4),
        "after": None if op == "d" else {name: value for name, value in after.items() if whole or name in kept},
    }


def applied(table: dict[int, dict[str, Any]], record: dict[str, Any]) -> None:
    """The oracle: one record at a time."""
    if record["op"] == "d":
        table.pop(record["k"], None)
    else:
        table.setdefault(record["k"], {"a": None, "b": "new", "c": None}).update(record["after"])


async def test_rows_keep_what_records_do_not_have(target: Target) -> None:
    rng = random.Random(36)
    table: dict[int, dict[str, Any]] = {}
    async with open_sink(target.spec(), sink_owner(1)) as lane:
        for sequence in range(1, sized(7, 13)):
            records = [a_record(rng, "u" if target.flat else "uuuuud") for _ in range(rng.choice((1, 3, 12)))]
            # The pieces of a delivery may have different forms.
            half = len(records) // 2
            frames = [
                sink_frame([target.value_of(record) for record in part], 2 * sequence + number)
                for number, part in enumerate((records[:half], records[half:]))
                if part
            ]
            result = await lane.write(frames, Position(2 * sequence + 1))
            assert not any(result.failures)
            for record in records:
                applied(table, record)
            assert list(await target.rows()) == [(key, *table[key].values()) for key in sorted(table)], sequence


async def test_absent_null_and_empty_are_three_values(target: Target) -> None:
    rows: list[dict[str, Any]] = [{"a": "1", "c": "1"}, {"a": "2", "c": "2"}, {"a": "3", "c": "3"}]
    changes: list[dict[str, Any]] = [{"b": "seen"}, {"a": None, "c": ""}, {}]
    async with open_sink(target.spec(), sink_owner(1)) as lane:
        for sequence, part in enumerate((rows, changes), 1):
            values = [target.value_of({"k": key, "after": row}) for key, row in enumerate(part, 1)]
            assert not any((await lane.write([sink_frame(values, sequence)], Position(sequence))).failures)
    assert list(await target.rows()) == [(1, "1", "seen", "1"), (2, None, "new", ""), (3, "3", "new", "3")]


async def test_an_insertion_refuses_a_change_without_the_value(target: Target) -> None:
    spec = target.spec(mode="insert", keys=[], deleteWhen=None, columns=COLUMNS)
    values = [
        b'{"k": 1, "after": {"b": "x", "c": "y"}}',
        b'{"k": 2, "after": {"b": "x", "c": "y"}, "unchanged": ["other", "a"]}',
        b'{"k": 3, "after": {"a": "x", "b": "y"}, "unchanged": []}',
    ]
    async with open_sink(spec, sink_owner(1)) as lane:
        result = await lane.write([sink_frame(values, 1)], Position(1))
        ((failure,),) = result.failures
        assert (failure.index, failure.reason) == (1, "column is unchanged, and its value is not in the record")
        assert "REPLICA IDENTITY FULL" in failure.detail
        await lane.flush()
    assert list(await target.rows()) == [(1, None, "x", "y"), (3, "x", "y", None)]
