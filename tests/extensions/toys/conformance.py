"""The suites of `millstream_testing`, for the toys."""

from __future__ import annotations

import json
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


class TestSpoolSink(SinkConformance):
    away_s = 0

    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"spool": {"path": "spool"}}

    def arrived(self, place: Path) -> Sequence[int]:
        directory = place / "spool" / "out.in-out.0"
        values: list[int] = []
        while (path := directory / str(len(values) + 1)).exists():
            values.append(json.loads(path.read_bytes())["n"])
        return values

    def stop_target(self, place: Path) -> bool:
        (place / "spool").rename(place / "elsewhere")
        return True

    def start_target(self, place: Path) -> None:
        (place / "elsewhere").rename(place / "spool")


class TestSpoolSource(SourceConformance):
    away_s = 0
    partitions = 2

    def settings(self, place: Path) -> Mapping[str, Any]:
        (place / "spool").mkdir()
        for number, value in enumerate(self.expected(place), 1):
            (place / "spool" / str(number)).write_bytes(value)
        return {"spool": {"path": "spool", "stopAtEnd": True}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(100)]

    def stop_target(self, place: Path) -> bool:
        (place / "spool").rename(place / "elsewhere")
        return True

    def start_target(self, place: Path) -> None:
        (place / "elsewhere").rename(place / "spool")
