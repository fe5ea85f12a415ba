"""The suites of `millstream_testing`, for the toys."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from millstream_testing import SinkConformance, SourceConformance


class TestSqlite(SinkConformance):
    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"sqlite": {"path": "out.db"}}

    def arrived(self, place: Path) -> Sequence[int]:
        with closing(sqlite3.connect(place / "out.db")) as database:
            rows = database.execute("SELECT json_extract(value, '$.n') FROM records ORDER BY rowid")
            return [n for (n,) in rows]


class TestCountdown(SourceConformance):
    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"countdown": {"start": 100, "perSecond": 100_000}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(1, 101)]
