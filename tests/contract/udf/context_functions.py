"""Functions that say what they were given, and count."""

from __future__ import annotations

import os
from dataclasses import dataclass

import millstream_udf as udf


@dataclass
class Settings:
    threshold: float = 0.0


settings = udf.config(Settings)


@udf.map
class Told:
    """A map that gives what it was set up with, and counts its records."""

    def setup(self, context: udf.Context) -> None:
        known = "MILLSTREAM_PIPELINE" in os.environ
        self.at_setup = f"{settings.threshold} {udf.secret('key')} {context.version}" if known else ""
        udf.metrics.counter("set_up").add()

    def process(self, record: udf.Record, context: udf.Context) -> str:
        udf.metrics.counter("records", {"value": record.value.decode()}).add()
        if record.value == b"leave":
            os._exit(1)
        told = f"{settings.threshold} {udf.secret('key')} {record.attempt} {context.partition} {context.version}"
        return f"{told} | {self.at_setup}"


@udf.map(batch=True)
def batches(records: list[udf.Record]) -> list[str]:
    """What records have of their call, in a batch."""
    return [f"{record.attempt} {record.watermark}" for record in records]


@udf.sink
def sink(record: udf.Record) -> None:
    """Refuses what it was configured with, so that a test sees it."""
    raise udf.DeadLetter(f"{settings.threshold} {udf.secret('key')} {record.attempt}")


@udf.sink
class Kept:
    """A sink that keeps positions, whose position is what it was configured with."""

    def open(self, lane: udf.SinkLane) -> bytes:
        return f"{settings.threshold} {udf.secret('key')}".encode()

    def write(self, record: udf.Record) -> None:
        pass

    def flush(self, position: bytes) -> None:
        pass


@udf.source
class Source:
    """A source of one record: what it was configured with."""

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        value = f"{settings.threshold} {udf.secret('key')} {context.partition}"
        return udf.Batch([udf.Record(value)], position=b"1", ended=True)
