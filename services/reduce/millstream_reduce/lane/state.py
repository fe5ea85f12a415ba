"""What a reduce lane knows of what it has under way, and what must hold of it. No I/O.

Above it: the reduce lane. Below it: the messages of log and ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.clock import START_OF_TIME_US
from millstream.errors import DamageError
from millstream.ledger.witness import REPAIR, from_messages, merged
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.jobs import Results
from millstream_reduce.origins import Origin
from millstream_reduce.queue import Appended, Queue


class EarlyResults:
    """When early results are made, and of which windows: by the clock, or by count."""

    def __init__(self, queue: Queue, now_s: float, *, every_s: float | None = None, count: int | None = None) -> None:
        """`every_s`: of every window that has new records, so often by the clock. `count`: of each window that has so
        many since its last one."""
        self._queue = queue
        self._every_s = every_s
        self._count = count
        self._last_s = now_s
        # A window may have new records, or enough of them, from before a restart.
        self._has_new = queue.open_windows > 0
        self._rows_to_look = 0
        """So many records more before a window can have enough."""

    def admitted(self, rows: int) -> None:
        """So many records are in windows now."""
        self._has_new |= rows > 0
        self._rows_to_look -= rows

    def counted(self) -> list[wal_pb2.HandOver]:
        """Of the windows that have got enough records."""
        if self._count is None or self._rows_to_look > 0:
            return []
        hand_overs = self._queue.early(self._count)
        self._rows_to_look = self._queue.rows_to_early(self._count)
        return hand_overs

    def elapsed(self, now_s: float) -> list[wal_pb2.HandOver]:
        """Of the windows that have got any, when it is time."""
        if self.pause_s(now_s) != 0:
            return []
        self._last_s, self._has_new = now_s, False
        return self._queue.early()

    def pause_s(self, now_s: float) -> float | None:
        """How long until it is time; None while nothing new has come."""
        if self._every_s is None or not self._has_new:
            return None
        return max(0.0, self._last_s + self._every_s - now_s)


@dataclass(frozen=True, slots=True)
class Logged:
    """What has gone into the log together and is not known to be durable yet."""

    appended: Appended | None
    hand_overs: Sequence[wal_pb2.HandOver]
    closed_us: int
    """Windows that ended up to here are closed for whatever is appended next."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Results that wait for those of an earlier hand-over."""

    hand_over: wal_pb2.HandOver
    results: Results
    committed_rows: int
    """Of them, before the lane's last restart."""
    origin: Origin
    """Of the records in them; the first trace is the one that the results are part of."""


@dataclass(slots=True)
class Totals:
    """What was computed since this process started."""

    hand_overs: int = 0
    windows: int = 0
    records: int = 0
    job_s: float = 0.0

    def add(self, windows: int, records: int, job_s: float) -> None:
        self.hand_overs += 1
        self.windows += windows
        self.records += records
        self.job_s += job_s


def progress_of(mark: mark_pb2.Mark) -> mark_pb2.ReduceProgress:
    """What a lane's mark says of its windows, a copy; before its first commit nothing is closed."""
    progress = mark_pb2.ReduceProgress(closed_us=START_OF_TIME_US)
    if mark.HasField("reduce"):
        progress.CopyFrom(mark.reduce)
    return progress


def note_inputs(progress: mark_pb2.ReduceProgress, inputs: Sequence[wal_pb2.InputPosition]) -> None:
    """These records are durable in the log."""
    before = {done.edge: done for done in progress.inputs}
    for position in inputs:
        done = before.get(position.edge) or progress.inputs.add(edge=position.edge)
        done.sequence = position.sequence
        done.records += position.records
        done.bytes += position.bytes
        read = merged(done.read, from_messages(position.read))
        del done.read[:]
        done.read.extend(read)


def check_whole(where: str, queue: Queue, mark: mark_pb2.Mark) -> None:
    """Raises `DamageError` unless the queue holds the records that the mark counts as open."""
    check_told(where, queue.directory, queue.records_told(), mark)


def check_told(where: str, directory: Path, told: int, mark: mark_pb2.Mark) -> None:
    """The same for a log that holds `told` of the records that the mark counts.

    For lanes that keep their input: a log made anew lacks records when they did not keep it all the time.
    """
    if told != mark.account.open:
        raise DamageError(
            f"{where}: the log in {directory} holds {told:,} records of windows that are not committed, and the "
            f"lane's mark in the ledger counts {mark.account.open:,}: a log that is made anew from the input lacks "
            f"what was read before `keepInput` was set, or what the input has lost. {REPAIR}"
        )
