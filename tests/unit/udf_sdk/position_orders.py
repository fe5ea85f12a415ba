"""Sinks that keep positions, for tests: a right one, and some that go wrong in one way each."""

from __future__ import annotations

import os
import sqlite3

import millstream_udf as udf

FILE = "POSITION_ORDERS"
"""Environment variable with the path of their database."""


@udf.sink
class Orders:
    """The right one."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        self.database = sqlite3.connect(os.environ[FILE])
        self.database.execute("CREATE TABLE IF NOT EXISTS orders (text)")
        self.positions = udf.PositionTable(self.database)
        return self.positions.open(lane)

    def write(self, value: bytes) -> None:
        self.database.execute("INSERT INTO orders VALUES (?)", (value,))

    def flush(self, position: bytes) -> None:
        self.positions.store(position)
        self.database.commit()

    def close(self) -> None:
        self.database.close()


class CommitsInWrite(Orders):
    """Records are there before the position is."""

    def write(self, value: bytes) -> None:
        super().write(value)
        self.database.commit()


class ForgetsToCommit(Orders):
    """The records of a flush are lost."""

    def flush(self, position: bytes) -> None:
        self.positions.store(position)


class ForgetsThePosition(Orders):
    """It does not know how far it is."""

    def flush(self, position: bytes) -> None:
        self.database.commit()


class CommitsInClose(Orders):
    """What was not flushed gets into the target."""

    def close(self) -> None:
        self.database.commit()
        self.database.close()


class NeverFences(Orders):
    """It stores the position of any owner."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        self.lane = lane
        self.database = sqlite3.connect(os.environ[FILE])
        self.database.execute("CREATE TABLE IF NOT EXISTS orders (text)")
        self.database.execute("CREATE TABLE IF NOT EXISTS positions (lane PRIMARY KEY, position)")
        found = self.database.execute("SELECT position FROM positions WHERE lane = ?", (lane.name,)).fetchone()
        position: bytes | None = found[0] if found else None
        return position

    def flush(self, position: bytes) -> None:
        self.database.execute("REPLACE INTO positions VALUES (?, ?)", (self.lane.name, position))
        self.database.commit()


class OnePositionForAll(Orders):
    """Every lane has the position of every other."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        return super().open(udf.SinkLane("the only one", lane.epoch, lane.context))


@udf.sink(batch=True)
class Batches(Orders):
    """Async, and with many records at a time."""

    async def open(self, lane: udf.SinkLane) -> bytes | None:  # type: ignore[override]  # as the SDK allows
        return super().open(lane)

    async def write(self, values: list[bytes]) -> None:  # type: ignore[override]  # as above
        self.database.executemany("INSERT INTO orders VALUES (?)", [(value,) for value in values])

    async def flush(self, position: bytes) -> None:  # type: ignore[override]  # as above
        super().flush(position)
