"""Functions with states, for the tests of their calls."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import millstream_udf as udf


@udf.map
class Remember:
    """Counts the records of a key. The value says what else becomes of the record."""

    total = udf.value(int, default=0)
    seen = udf.map_state(str, str, ttl=timedelta(seconds=1))
    last = udf.list_state(bytes, max_items=2)
    clicks = udf.counter()

    def process(self, record: udf.Record) -> str:
        self.total += 1
        self.seen[record.value.decode()] = "yes"
        self.last.append(record.value)
        self.clicks += 2
        if record.value == b"fail":
            raise OSError("away")
        if record.value == b"forget":
            del self.total
        return f"{self.total} {self.clicks.value}"


@udf.map
class RememberAsync:
    """As `Remember`, for the value only."""

    total = udf.value(int, default=0)

    async def process(self, record: udf.Record) -> str:
        before = self.total
        await asyncio.sleep(0)
        self.total = before + 1
        return str(self.total)


class _Timers:
    count = udf.counter()

    def set(self, record: udf.Record) -> None:
        self.count += 1
        udf.timer("event", after=timedelta(microseconds=5))
        udf.timer("clock", at=7, clock="processing")
        udf.cancel_timer("other")
        if record.value == b"fail":
            raise OSError("away")

    def fired(self, timer: udf.Timer) -> str:
        self.count += 10
        if timer.name == "fail":
            raise OSError("away")
        if timer.name == "again":
            udf.timer("again", after=timedelta(microseconds=1))
        return f"{timer.name} {timer.clock} {timer.at_us} {timer.event_time_us} {timer.keys} {self.count.value}"


@udf.map
class Timers(_Timers):
    """Sets timers."""

    def process(self, record: udf.Record) -> None:
        self.set(record)

    def on_timer(self, timer: udf.Timer) -> str:
        return self.fired(timer)


@udf.map
class TimersAsync(_Timers):
    """As `Timers`."""

    async def process(self, record: udf.Record) -> None:
        self.set(record)

    async def on_timer(self, timer: udf.Timer) -> str:
        await asyncio.sleep(0)
        return self.fired(timer)


@udf.map(threads=2)
class TimersThreaded(Timers):
    """As `Timers`."""


class _Orders:
    """The value says what to read, or to write, with `=`."""

    orders = udf.map_state(str, int, lazy=True)
    total = udf.value(int, default=0)


def _write(orders: udf.LazyMap[str, int], value: str) -> str:
    item, _, number = value.partition("=")
    orders[item] = int(number)
    return "written"


def _do(orders: udf.LazyMap[str, int], value: str) -> str:
    if "=" in value:
        return _write(orders, value)
    return str(sum(orders.values()) if value == "sum" else orders.get(value))


@udf.map
class Lazy(_Orders):
    def process(self, record: udf.Record) -> str:
        self.total += 1
        return _do(self.orders, record.value.decode())


@udf.map(threads=3)
class LazyThreads(_Orders):
    def process(self, record: udf.Record) -> str:
        self.total += 1
        return _do(self.orders, record.value.decode())


@udf.map(batch=True)
class LazyBatch(_Orders):
    def process(self, records: list[udf.Record], states: list[Any]) -> list[str]:
        for state in states:
            state.total += 1
        return [_do(state.orders, record.value.decode()) for record, state in zip(records, states, strict=True)]


@udf.map
class LazyAsync(_Orders):
    async def process(self, record: udf.Record) -> str:
        self.total += 1
        value = record.value.decode()
        if "=" in value:
            return _write(self.orders, value)
        if value == "sum":
            return str(sum([number async for number in self.orders.avalues()]))
        return str(await self.orders.aget(value))
