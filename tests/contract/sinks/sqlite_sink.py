"""A sink that keeps positions, as a user writes it: into a database of SQLite; run by the sink tests.

SINK_DIES_AT names a step at which its process kills itself, once: `flush:after`, and `#3` behind it for the third time.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import millstream_udf as udf

TARGET = os.environ.get("SINK_TARGET", "target.db")
_DIES_AT = os.environ.get("SINK_DIES_AT", "")
_reached: Counter[str] = Counter()


def _step(point: str) -> None:
    _reached[point] += 1
    at, _, time = _DIES_AT.partition("#")
    dead = Path(f"{TARGET}.dead")
    if at == point and _reached[point] == int(time or 1) and not dead.exists():
        dead.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@udf.sink
class Numbers:
    """Numbers above 1,000,000 make it say everything that it can say of a record. Those that end with 000099 end its
    process in `write`, and those that end with 000098 in `flush`."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        _step("open:before")
        self.lane = lane
        self.flush_ends_it = False
        self.database = sqlite3.connect(TARGET, timeout=20)
        with self.database:
            self.database.execute("CREATE TABLE IF NOT EXISTS numbers (n, id, place INTEGER PRIMARY KEY)")
            self.database.execute("CREATE TABLE IF NOT EXISTS positions (lane PRIMARY KEY, epoch, position)")
            self.database.execute("INSERT OR IGNORE INTO positions VALUES (?, 0, NULL)", [lane.name])
            new = [lane.epoch, lane.name, lane.epoch]
            done = self.database.execute("UPDATE positions SET epoch = ? WHERE lane = ? AND epoch < ?", new)
        found = self.database.execute("SELECT position FROM positions WHERE lane = ?", [lane.name]).fetchone()
        position: bytes | None = found[0]
        if done.rowcount == 0:
            raise udf.Fenced(position=position)
        _step("open:after")
        return position

    def check(self, record: udf.Record) -> None:
        _step("check")
        match json.loads(record.value)["n"]:
            case 1000022:
                raise ValueError("not a number of mine")
            case 1000033:
                raise udf.Drop("unwanted")
            case 1000044:
                raise udf.Fallback("not mine")
            case 1000055:
                raise udf.DeadLetter("hopeless")
            case 1000077 if _reached["check"] < 10:
                raise udf.Retry(0.001, "busy")

    def write(self, record: udf.Record) -> None:
        _step("write:before")
        number = json.loads(record.value)["n"]
        if number > 1_000_000 and number % 1_000_000 == 99:
            os._exit(3)
        self.flush_ends_it |= number > 1_000_000 and number % 1_000_000 == 98
        self.database.execute("INSERT INTO numbers (n, id) VALUES (?, ?)", [number, record.id])
        _step("write:after")

    def flush(self, position: bytes) -> None:
        _step("flush:before")
        if self.flush_ends_it:
            os._exit(4)
        ours = [position, self.lane.name, self.lane.epoch]
        done = self.database.execute("UPDATE positions SET position = ? WHERE lane = ? AND epoch = ?", ours)
        if done.rowcount == 0:
            raise udf.Fenced
        _step("commit:before")
        self.database.commit()
        _step("flush:after")

    def close(self) -> None:
        self.database.close()
