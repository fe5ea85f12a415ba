"""Three payments of a card within a minute open a case. Ten minutes later a timer closes it, and says how many payments
there were in the meantime.

The function compares the times of payments itself, and each case has a timer of its own name: what comes out then
depends on the payments alone, and not on when the watermark moves.
"""

from datetime import timedelta
from typing import Any

import millstream_udf as udf

WITHIN = timedelta(minutes=1)
OPEN_FOR = timedelta(minutes=10)
SECOND_US = 1_000_000


@udf.map
class Cases:
    recent = udf.list_state(int, max_items=3, ttl=WITHIN)
    opened_us = udf.value(int, ttl=OPEN_FOR)
    cases = udf.map_state(int, int)

    def process(self, record: udf.Record[Any]) -> dict[str, Any] | None:
        now_us = record.event_time_us
        if self.opened_us is not None and now_us < self.opened_us + OPEN_FOR.total_seconds() * SECOND_US:
            self.cases[self.opened_us] += 1
            return None
        self.recent.append(now_us)
        if len(self.recent) < 3 or now_us - self.recent[0] > WITHIN.total_seconds() * SECOND_US:
            return None
        self.recent.clear()
        self.opened_us = now_us
        self.cases[now_us] = 3
        udf.timer(f"close {now_us}", after=OPEN_FOR)
        return {"card": record.keys[0], "case": "opened", "at": now_us // SECOND_US}

    def on_timer(self, timer: udf.Timer) -> dict[str, Any]:
        opened_us = int(timer.name.split()[1])
        payments = self.cases.pop(opened_us)
        return {"card": timer.keys[0], "case": "closed", "at": timer.at_us // SECOND_US, "payments": payments}
