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
from millstream_reduce.origins import Origin
from millstream_reduce.queue import Appended, Queue
from millstream_vertex.hand_over import Results


@dataclass(frozen=True, slots=True)
class EarlyPolicy:
    """When early results are made: whichever comes first of those that are given."""

    every_s: float | None = None
    """Wall clock."""
    rows: int | None = None
    """Records of the lane since the last ones."""

    def is_counted(self, rows: int) -> bool:
        """So many records are enough."""
        return self.rows is not None and rows >= self.rows

    def is_elapsed(self, waited_s: float) -> bool:
        return self.every_s is not None and waited_s >= self.every_s


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
