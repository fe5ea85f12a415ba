"""The suite that other people's sinks run, on sinks of tables: killed at calls, two owners, a target that is away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millstream.testing import SinkConformance
from tests.contract.sinks.file_target import COLUMNS
from tests.contract.sinks.sink_targets import MARIA_NUMBERS, delta_numbers, iceberg_numbers, maria_numbers, sqlite_rows
from tests.support.mariadb_server import LOCKED, MariaDatabase, MariaServer

_PLAIN = [{"name": "n"}]


class TestSqlite(SinkConformance):
    def settings(self, place: Path) -> Mapping[str, Any]:
        sqlite_rows(place / "shop.db", "CREATE TABLE numbers (n INTEGER UNIQUE, place INTEGER PRIMARY KEY)")
        return {"sql": {"url": "sqlite:///shop.db", "table": "numbers", "columns": _PLAIN}}

    def arrived(self, place: Path) -> Sequence[int]:
        return [n for (n,) in sqlite_rows(place / "shop.db", "SELECT n FROM numbers ORDER BY place")]


class TestMariaDb(SinkConformance):
    server: ClassVar[MariaServer]
    database: ClassVar[MariaDatabase]

    @pytest.fixture(autouse=True)
    def _server(self, mariadb: MariaServer) -> None:
        type(self).server = mariadb

    def settings(self, place: Path) -> Mapping[str, Any]:
        database = self.server.database()
        database.execute(MARIA_NUMBERS)
        type(self).database = database
        return {"sql": {**database.settings, "table": "numbers", "columns": _PLAIN}}

    def arrived(self, place: Path) -> Sequence[int]:
        return maria_numbers(self.database)

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        wrong = {"user": LOCKED, "password": "wr0ng-s3cret", "table": "numbers", "columns": _PLAIN}
        return {"sql": {**self.database.settings, **wrong}}, "wr0ng-s3cret"


class _Collecting(SinkConformance):
    """Of tables that have no order."""

    def _commits(self) -> dict[str, Any]:
        return {"columns": COLUMNS, "commitEvery": "1h", "maxRecords": 30}


class TestDelta(_Collecting):
    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"delta": {"path": "table", **self._commits()}}

    def arrived(self, place: Path) -> Sequence[int]:
        return delta_numbers(place / "table")


class TestIceberg(_Collecting):
    def settings(self, place: Path) -> Mapping[str, Any]:
        catalog = {"sqlite": "catalog.db", "warehouse": "warehouse"}
        return {"iceberg": {"catalog": catalog, "table": "shop.numbers", **self._commits()}}

    def arrived(self, place: Path) -> Sequence[int]:
        return iceberg_numbers(place)
