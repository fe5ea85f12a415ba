import sqlite3

import millstream_udf as udf


@udf.sink(batch=True)
class Table:
    def setup(self, context: udf.Context) -> None:
        self.database = sqlite3.connect("orders.db")
        # SQLite's default may lose the last commits in a power failure.
        self.database.execute("PRAGMA synchronous = EXTRA")
        self.database.execute("create table if not exists orders (id text primary key, value blob)")

    def process(self, records: list[udf.Record]) -> None:
        # A record's id is the same at every attempt, so writing one twice changes nothing.
        with self.database:
            self.database.executemany(
                "insert or ignore into orders values (?, ?)", [(record.id, record.value) for record in records]
            )

    def close(self) -> None:
        self.database.close()
