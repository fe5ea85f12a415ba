"""Millstream: a function that remembers."""

from state_jobs.counting import advance_bytes, begin

import millstream_udf as udf


@udf.map
class Count:
    """Counts the records of a key."""

    last = udf.value(bytes, default=b"")

    def process(self, record: udf.Record[bytes]) -> bytes:
        begin()
        self.last = advance_bytes(self.last, record.value)
        return self.last
