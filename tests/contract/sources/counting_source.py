"""A source of a user's own, for tests: numbers, with lanes, positions and an end."""

from millstream_udf import Batch, Context, Record, source

END = 50


@source
class Counting:
    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        self.next = int(position or partition)
        self.partitions = partitions

    async def read(self, context: Context, records_max: int, timeout_s: float) -> Batch:
        records: list[Record] = []
        while self.next < END and len(records) < min(records_max, 7):
            records.append(Record(b'{"number":%d}' % self.next, event_time=self.next * 1000, keys=("odd",)))
            self.next += self.partitions
        return Batch(records, position=b"%d" % self.next, ended=self.next >= END, pending=max(0, END - self.next))


@source
class Failing:
    async def read(self, context: Context, records_max: int, timeout_s: float) -> Batch:
        raise ValueError("no such table")
