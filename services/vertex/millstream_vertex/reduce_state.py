"""What a reduce lane knows of what it has under way. Pure.

Above it: the reduce lane. Below it: the messages of log and ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.clock import START_OF_TIME_US
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.queue import Appended
from millstream_vertex.hand_over import Results


@dataclass(frozen=True, slots=True)
class EarlyPolicy:
    """When early results are made: whichever comes first of those that are given."""

    every_s: float | None = None
    """Wall clock."""
    rows: int | None = None
    """Records of the lane since the last ones."""


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


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a hand-over that is not committed holds back."""

    first_end_us: int
    """End of its first window."""
    closed_us: int
    """Windows that ended up to here were closed with it."""

    @classmethod
    def of(cls, hand_over: wal_pb2.HandOver) -> InFlight:
        return cls(min(window.end_us for window in hand_over.windows), hand_over.closed_us)
