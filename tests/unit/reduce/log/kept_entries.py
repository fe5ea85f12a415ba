"""A log of numbered entries, and what of it is read back: shared by the tests of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log.files import Files
from millstream_reduce.log.log import Log, LogSizes, LogSummary, open_log
from millstream_reduce.log.recovery import LogEnd
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.values import Location

EDGE = "in-sum"
SMALL = LogSizes(segment_bytes=1024, reserve_bytes=4096)


def identity(epoch: int = 1, **other: str) -> LogIdentity:
    names = {"pipeline": "p", "vertex": "sum", "ledger_id": "ledger-1", **other}
    return LogIdentity(partition=0, epoch=epoch, **names)


def body_of(number: int) -> bytes:
    return b"%d|" % number * (number % 13)


@dataclass
class KeptEntries:
    """The contents of a log whose entry n takes stream sequence n in."""

    needed: set[int] | None = None
    """Segments that are needed; None: all that hold entries."""
    numbers: list[int] = field(default_factory=list)
    locations: dict[int, Location] = field(default_factory=dict)
    end: LogEnd | None = None
    last: int = 0
    """What the newest header says of the entries before it."""
    restored: bytes | None = None

    def reset(self) -> None:
        self.numbers.clear()
        self.locations.clear()
        self.last = 0

    def begin(self, header: wal_pb2.Segment) -> None:
        self.last = max([self.last, *(position.sequence for position in header.inputs)])
        if header.HasField("checkpoint"):
            self.restored = header.checkpoint.open

    def replay(self, entry: wal_pb2.Entry, location: Location, body: memoryview) -> None:
        (position,) = entry.append.inputs
        assert bytes(body) == body_of(position.sequence)
        self.note(position.sequence, location)

    def recovered(self, end: LogEnd) -> None:
        self.end = end

    def note(self, number: int, location: Location) -> None:
        self.numbers.append(number)
        self.locations[number] = location
        self.last = number

    def summary(self) -> LogSummary:
        needed = {location.segment for location in self.locations.values()} if self.needed is None else self.needed
        inputs = [wal_pb2.InputPosition(edge=EDGE, sequence=self.last)]
        return LogSummary(needed=frozenset(needed), inputs=inputs, closed_us=0, last_hand_over=0)

    def checkpoint(self) -> wal_pb2.Checkpoint:
        return wal_pb2.Checkpoint(open=b"%d" % self.last)

    @property
    def prefix(self) -> int:
        """How many entries there are, which must be the first ones, each once and in order."""
        assert self.numbers == list(range(1, len(self.numbers) + 1))
        return len(self.numbers)


@dataclass
class Written:
    """An open log, with what was appended to it."""

    log: Log
    kept: KeptEntries
    acknowledged: int = 0

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            number = self.kept.last + 1
            entry = wal_pb2.Entry(append=wal_pb2.Append(inputs=[wal_pb2.InputPosition(edge=EDGE, sequence=number)]))
            self.kept.note(number, self.log.append(entry, body_of(number)))

    async def sync(self) -> None:
        appended = self.kept.last
        await self.log.sync()
        self.acknowledged = appended


@asynccontextmanager
async def opened(
    directory: Path,
    epoch: int = 1,
    *,
    kept: KeptEntries | None = None,
    files: Files | None = None,
    sizes: LogSizes = SMALL,
) -> AsyncIterator[Written]:
    kept = KeptEntries() if kept is None else kept
    async with open_log(directory, identity(epoch), kept, files=files, sizes=sizes) as log:
        yield Written(log, kept, acknowledged=len(kept.numbers))


async def read_back(directory: Path, epoch: int) -> KeptEntries:
    """What a new owner finds."""
    async with opened(directory, epoch) as written:
        return written.kept


async def make_log(directory: Path, entries: int, *, each_synced: bool = True) -> Written:
    async with opened(directory) as written:
        for _ in range(entries):
            written.append()
            if each_synced:
                await written.sync()
        await written.sync()
    return written
