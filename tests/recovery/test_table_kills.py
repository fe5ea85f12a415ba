"""Sinks of tables, killed at each of their durable steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.sinks.sink_targets import (
    MARIA_NUMBERS,
    delta_numbers,
    delta_spec,
    iceberg_numbers,
    iceberg_spec,
    maria_numbers,
    maria_spec,
    sql_spec,
    sqlite_rows,
)
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.support.mariadb_server import MariaServer

COMMITS = {"commitEvery": "1h", "maxRecords": 20}
SOME = ("delta_sink.take_over:after#1", "commit:after#1")
"""Where a table is in between; a kill at any other step is tried by `make test-all`."""


def points(sink: str, once: tuple[str, ...], twice: tuple[str, ...]) -> list[str]:
    """Both sides of each step; of those that come again, also the second time."""
    times = [(step, (1,)) for step in once] + [(step, (1, 2)) for step in twice]
    return [
        f"{sink}.{step}:{side}#{time}" for step, numbers in times for side in ("before", "after") for time in numbers
    ]


def some(points: list[str]) -> list[object]:
    return [pytest.param(point, marks=() if point.endswith(SOME) else pytest.mark.sweep) for point in points]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", some(points("delta_sink", ("create", "take_over"), ("commit",))))
async def test_killed_at_a_step_each_record_is_there_once(tmp_path: Path, point: str) -> None:
    spec = delta_spec(str(tmp_path / "table"), **COMMITS)
    await kill_at(spec.as_written(given_only=True), point)
    assert delta_numbers(tmp_path / "table") == EXPECTED


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize(
    "point",
    some(points("iceberg_sink", ("create", "take_over", "open_catalog", "create_namespace", "write"), ("commit",))),
)
async def test_killed_at_a_step_of_iceberg_each_record_is_there_once(tmp_path: Path, point: str) -> None:
    spec = iceberg_spec(tmp_path, **COMMITS)
    await kill_at(spec.as_written(given_only=True), point)
    assert iceberg_numbers(tmp_path) == EXPECTED


SQL_POINTS = points("sql_sink", ("create", "take_over"), ("put", "commit"))


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", some(SQL_POINTS))
async def test_killed_at_a_step_of_sqlite_each_record_is_there_once(tmp_path: Path, point: str) -> None:
    file = tmp_path / "shop.db"
    sqlite_rows(file, "CREATE TABLE numbers (n INTEGER UNIQUE, text TEXT, place INTEGER PRIMARY KEY)")
    await kill_at(sql_spec(f"sqlite:///{file}", "insert").as_written(given_only=True), point)
    found = sqlite_rows(file, "SELECT n FROM numbers ORDER BY place")
    assert [n for (n,) in found] == EXPECTED


@pytest.mark.guarantee("I1")
@pytest.mark.sweep
@pytest.mark.parametrize("point", SQL_POINTS)
async def test_killed_at_a_step_of_mariadb_each_record_is_there_once(mariadb: MariaServer, point: str) -> None:
    database = mariadb.database()
    database.execute(MARIA_NUMBERS)
    mode = "upsert" if point.endswith("2") else "insert"
    await kill_at(maria_spec(database, mode).as_written(given_only=True), point)
    assert maria_numbers(database) == EXPECTED
