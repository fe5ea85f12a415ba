import millstream_udf as udf


@udf.source
class Counter:
    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        # Positions are ours to write and read; empty means the very start.
        self.next = int(position) if position else partition
        self.step = partitions

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        numbers = range(self.next, 1000, self.step)[:records_max]
        self.next += self.step * len(numbers)
        records = [udf.Record(b"%d" % number, event_time=number * 1_000_000) for number in numbers]
        return udf.Batch(records, position=b"%d" % self.next, ended=self.next >= 1000)

    async def committed(self, position: bytes) -> None:
        """Everything before this position is safe: the place to acknowledge to the outside."""
