from dataclasses import dataclass
from datetime import timedelta

import millstream_udf as udf


@dataclass
class Order:
    item: str
    amount: int


@udf.map
class Customers:
    total = udf.value(int, default=0)
    basket = udf.value(dict[str, int], default={})
    seen = udf.map_state(str, int, ttl=timedelta(days=7))
    last = udf.list_state(Order, max_items=100)
    clicks = udf.counter()

    def process(self, record: udf.Record[Order]) -> dict[str, int] | None:
        order = record.value
        if order.item in self.seen:
            return None  # once a week
        self.seen[order.item] = record.event_time_us
        self.total += order.amount
        self.basket[order.item] = order.amount  # what is changed in place counts, too
        self.last.append(order)
        return {"total": self.total, "orders": len(self.last), "clicks": self.clicks.add()}
