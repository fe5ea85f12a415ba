"""What each user has paid so far. The attributes are those of the user whose payment is processed."""

from typing import TypedDict

import millstream_udf as udf


class Payment(TypedDict):
    user: str
    cents: int


@udf.map
class Account:
    total = udf.value(int, default=0)
    largest = udf.value(int, default=0)
    payments = udf.counter()

    def process(self, record: udf.Record[Payment]) -> dict[str, object]:
        cents = record.value["cents"]
        if cents <= 0:
            raise udf.Drop("nothing was paid")
        self.total += cents
        self.largest = max(self.largest, cents)
        number = self.payments.add(1)
        return {"user": record.value["user"], "payment": number, "total": self.total, "largest": self.largest}
