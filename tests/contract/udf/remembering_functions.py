"""Functions with states, for the tests of their calls."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import millstream_udf as udf


@udf.map
class Remember:
    """Counts the records of a key. The value says what else becomes of the record."""

    total = udf.value(int, default=0)
    seen = udf.map_state(str, str, ttl=timedelta(seconds=1))
    last = udf.list_state(bytes, max_items=2)
    clicks = udf.counter()

    def process(self, record: udf.Record) -> str:
        self.total += 1
        self.seen[record.value.decode()] = "yes"
        self.last.append(record.value)
        self.clicks += 2
        if record.value == b"fail":
            raise OSError("away")
        if record.value == b"forget":
            del self.total
        return f"{self.total} {self.clicks.value}"


@udf.map
class RememberAsync:
    """As `Remember`, for the value only."""

    total = udf.value(int, default=0)

    async def process(self, record: udf.Record) -> str:
        before = self.total
        await asyncio.sleep(0)
        self.total = before + 1
        return str(self.total)
