"""A sink that keeps positions for whole pipelines: values go into a database of SQLite, which VALUES names."""

from __future__ import annotations

import json
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


@udf.sink(batch=True)
class Deadly(Values):
    """A number of DEADLY ends the process in `flush`, with its first copy. The file beside the database has a byte for
    each time."""

    def write(self, values: list[bytes]) -> None:
        super().write(values)
        rows = [json.loads(value) for value in values]
        deadly = json.loads(os.environ["DEADLY"])
        self.ends |= any(row["number"] in deadly and row["copy"] == 0 for row in rows)

    def open(self, lane: udf.SinkLane) -> bytes | None:
        self.ends = False
        return super().open(lane)

    def flush(self, position: bytes) -> None:
        if self.ends:
            with open(os.environ["VALUES"] + ".deaths", "ab") as deaths:
                deaths.write(b".")
            os._exit(4)
        super().flush(position)


def keep_nothing(value: bytes) -> None:
    """A sink that keeps no position."""
