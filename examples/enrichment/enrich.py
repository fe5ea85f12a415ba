"""Payments with the city of the customer. A second edge keeps the table of customers up to date."""

from typing import Any, TypedDict

import millstream_udf as udf

Row = dict[str, Any]


class Customer(TypedDict):
    name: str
    city: str


@udf.map
class Enrich:
    customer = udf.value(Customer)
    waiting = udf.list_state(Row)  # payments that came before their customer was known

    def process(self, record: udf.Record[Row]) -> list[Row]:
        if record.edge == "customers":
            self.customer = Customer(name=record.value["name"], city=record.value["city"])
        else:
            self.waiting.append(record.value)
        if self.customer is None:
            return []
        rows = [{**payment, **self.customer} for payment in self.waiting]
        self.waiting.clear()
        return rows
