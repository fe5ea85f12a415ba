import json
import sqlite3

import millstream_udf as udf


@udf.sink
class Orders:
    """Writes orders into a database, each exactly once."""

    def open(self, lane: udf.SinkLane) -> bytes | None:
        self.database = sqlite3.connect("orders.db")
        # SQLite's default may lose the last commits in a power failure.
        self.database.execute("PRAGMA synchronous = EXTRA")
        self.database.execute("create table if not exists orders (customer text, item text)")
        self.positions = udf.PositionTable(self.database)
        return self.positions.open(lane)

    def check(self, value: bytes) -> None:
        # Raise here to refuse a record; nothing is written yet.
        if "item" not in json.loads(value):
            raise udf.DeadLetter("an order of nothing")

    def write(self, value: bytes) -> None:
        order = json.loads(value)
        self.database.execute("insert into orders values (?, ?)", (order["customer"], order["item"]))

    def flush(self, position: bytes) -> None:
        # One transaction has the records and the position after them.
        self.positions.store(position)
        self.database.commit()

    def close(self) -> None:
        self.database.close()
