"""A sink that keeps positions for whole pipelines: values go into a database of SQLite, which VALUES names."""

from __future__ import annotations

import os
import sqlite3

import millstream_udf as udf


@udf.sink(batch=True)
class Values:
    """A table of values."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        # Another owner may hang in a transaction, until it is killed.
        self.database = sqlite3.connect(os.environ["VALUES"], timeout=60)
        self.database.execute('CREATE TABLE IF NOT EXISTS "values" (value, place INTEGER PRIMARY KEY)')
        self.positions = udf.PositionTable(self.database)
        return self.positions.open(lane)

    def write(self, values: list[bytes]) -> None:
        rows = [(value.decode(),) for value in values]
        self.database.executemany('INSERT INTO "values" (value) VALUES (?)', rows)

    def flush(self, position: bytes) -> None:
        self.positions.store(position)
        self.database.commit()

    def close(self) -> None:
        self.database.close()


def keep_nothing(value: bytes) -> None:
    """A sink that keeps no position."""
