from dataclasses import dataclass

import millstream_udf as udf


@dataclass
class Payment:
    id: str
    day: str
    cents: int


@udf.map
class Histories:
    # Stays in the pipeline; the function asks for what it reads.
    days = udf.map_state(str, int, lazy=True)

    def process(self, record: udf.Record[Payment]) -> dict[str, int]:
        payment = record.value
        self.days[payment.day] = self.days.get(payment.day, 0) + payment.cents
        month = payment.day[:7]
        return {"day": self.days[payment.day], "month": sum(self.days.values(prefix=month))}


@udf.map
class AsyncHistories:
    days = udf.map_state(str, int, lazy=True)

    async def process(self, record: udf.Record[Payment]) -> dict[str, int]:
        payment = record.value
        total = await self.days.aget(payment.day, 0) + payment.cents
        self.days[payment.day] = total  # nothing is read
        return {"day": total}
