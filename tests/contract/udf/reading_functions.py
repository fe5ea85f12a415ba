"""Functions that read a table, for the tests of the protocol."""

from __future__ import annotations

import millstream_udf as udf


@udf.map
class Reading:
    rates = udf.table(bytes)

    def process(self, value: bytes) -> str:
        return f"{self.rates.get(value.decode(), b'-').decode()} of {len(self.rates)}"


@udf.map
class Concurrently:
    rates = udf.table(bytes)

    async def process(self, value: bytes) -> str:
        return f"{self.rates.get(value.decode(), b'-').decode()} of {len(self.rates)}"
