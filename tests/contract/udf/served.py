"""Functions of the other kinds, for the tests of their streams."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from pathlib import Path

import millstream_udf as udf

LOG = Path(os.environ.get("SERVED_LOG", os.devnull))
_SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


@udf.sink
def write(record: udf.Record) -> None:
    """Appends the record's id and value to a file."""
    if record.value == b"bad":
        raise udf.Fallback("not wanted")
    with LOG.open("ab") as log:
        log.write(f"{record.id} ".encode() + record.value + b"\n")


@udf.sink(batch=True)
def table(records: list[udf.Record]) -> list[Exception | None]:
    """As `write`, a call at a time."""
    wanted = [record for record in records if record.value != b"bad"]
    with LOG.open("ab") as log:
        log.write(b"".join(f"{record.id} ".encode() + record.value + b"\n" for record in wanted))
    return [udf.Fallback("not wanted") if record.value == b"bad" else None for record in records]


@udf.source_transform
def stamp(record: udf.Record) -> udf.Message:
    """The value is the event time."""
    return udf.Message(record.value, keys=["k"], event_time=int(record.value))


@udf.map
def named(record: udf.Record) -> str:
    """Gives the record's id."""
    return str(record.id)


@udf.map
def seen(value: bytes) -> str:
    """Gives the value that an earlier call has left in this call's context."""
    before = _SEEN.get()
    _SEEN.set(value.decode())
    return before


@udf.map
async def wait(value: bytes) -> bytes:
    """Waits so many milliseconds."""
    await asyncio.sleep(int(value) / 1000)
    return value


@udf.map(threads=4)
def leave(value: bytes) -> bytes:
    """Ends the process, once."""
    try:
        os.close(os.open(value, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return b"second"
    os._exit(3)


@udf.map
def leave_politely(value: bytes) -> bytes:
    """Asks to end the process, once."""
    try:
        os.close(os.open(value, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return b"second"
    raise SystemExit(7)


@udf.source
class Numbers:
    """Counts to 100 in every partition; logs each call."""

    def _log(self, *words: object) -> None:
        with LOG.open("a") as log:
            print(*words, file=log)

    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        self.next = int(position or b"0")
        self._log("open", self.next, partition, partitions)

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        numbers = range(self.next, min(self.next + records_max, 100))
        self.next = numbers.stop
        if numbers.start == 50 and not LOG.with_suffix(".failed").exists():
            LOG.with_suffix(".failed").touch()
            raise OSError("the other side is away")
        records = [udf.Record(b"%d" % n, event_time=n) for n in numbers]
        return udf.Batch(records, position=b"%d" % self.next, ended=self.next == 100)

    async def committed(self, position: bytes) -> None:
        self._log("committed", position.decode())

    async def close(self) -> None:
        self._log("close")
