"""A click goes on unless the same one has done so within ten minutes before it.

The function compares the times itself: what goes on then depends on the clicks alone. `ttl` only says how long their
times are worth their memory. It counts by the watermark, so it forgets nothing that could still be needed.
"""

from datetime import timedelta

import millstream_udf as udf

WITHIN = timedelta(minutes=10)


@udf.map
class Once:
    went_on_us = udf.value(int, ttl=WITHIN)

    def process(self, record: udf.Record) -> bytes | None:
        before_us = self.went_on_us
        if before_us is not None and record.event_time_us - before_us < WITHIN.total_seconds() * 1_000_000:
            return None
        self.went_on_us = record.event_time_us
        return record.value
