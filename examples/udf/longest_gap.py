import millstream_udf as udf


@udf.reduce
class LongestGap:
    def __init__(self, window: udf.Window) -> None:
        self.seen_us = window.start_us
        self.gap_us = 0

    def add(self, record: udf.Record) -> None:
        self.gap_us = max(self.gap_us, record.event_time_us - self.seen_us)
        self.seen_us = max(self.seen_us, record.event_time_us)

    def result(self) -> str | None:
        return f"{self.gap_us / 1_000_000:g} s" if self.gap_us > 60_000_000 else None
