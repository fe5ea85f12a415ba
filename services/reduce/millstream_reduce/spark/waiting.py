"""Requests that wait for a job, and which of them the next job takes. Pure.

    requests ─► Waiting.add ─► Waiting.take ─► Batch ─► a job
                                    ▲ what runs now

A job costs 50 ms whatever its size, so requests for the same program that wait together are put into one. Rules:
 1. At most `JOBS_MAX` jobs at a time, at most one of them large, so that a large one does not hold up small ones.
 2. Of one program at most one small job runs: what comes meanwhile waits for the next, and gets larger.
 3. The oldest request that may run decides for which program; others for it join, oldest first, within the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from millstream.limits import MIB
from millstream.wire.reduce.v1 import engine_pb2

JOBS_MAX = 2
"""On two cores a second job at a time brings half as much again, a third nothing."""
JOB_WINDOWS_MAX = 10_000
JOB_BYTES_MAX = 256 * MIB
"""Of the log, as far as it is read. One request may be larger; then it has a job of its own."""
LARGE_BYTES = 32 * MIB
"""A request of more is large: it takes 100 ms and more."""

Item = TypeVar("Item")


class Lane(NamedTuple):
    """Jobs of one lane run one after another."""

    program: bytes
    large: bool


@dataclass(frozen=True, slots=True)
class Waiter(Generic[Item]):
    """One request that waits."""

    item: Item
    program: bytes
    windows: int
    size: int
    """Bytes."""

    @property
    def lane(self) -> Lane:
        return Lane(self.program, self.size > LARGE_BYTES)


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """The requests of one job."""

    lane: Lane
    items: Sequence[Item]


class Waiting(Generic[Item]):
    """The requests, oldest first."""

    def __init__(self) -> None:
        self._waiters: list[Waiter[Item]] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter[Item]) -> None:
        self._waiters.append(waiter)

    def remove(self, item: Item) -> bool:
        """Take one back; False when it does not wait (any more)."""
        kept = [waiter for waiter in self._waiters if waiter.item is not item]
        removed = len(kept) < len(self._waiters)
        self._waiters = kept
        return removed

    def take(self, running: Set[Lane]) -> Batch[Item] | None:
        """The next job, while those of `running` run; None when nothing may start."""
        if len(running) >= JOBS_MAX:
            return None
        large_runs = any(lane.large for lane in running)
        for waiter in self._waiters:
            lane = waiter.lane
            if lane not in running and not (lane.large and large_runs):
                return Batch(lane, self._take_lane(lane))
        return None

    def _take_lane(self, lane: Lane) -> list[Item]:
        taken: list[Item] = []
        kept: list[Waiter[Item]] = []
        windows = size = 0
        full = False
        for waiter in self._waiters:
            windows_with, size_with = windows + waiter.windows, size + waiter.size
            fits = not taken or (windows_with <= JOB_WINDOWS_MAX and size_with <= JOB_BYTES_MAX)
            if waiter.lane != lane or full or not fits:
                # Those behind one that does not fit wait too: first come, first served.
                full = full or waiter.lane == lane
                kept.append(waiter)
                continue
            taken.append(waiter.item)
            windows, size = windows_with, size_with
        self._waiters = kept
        return taken


def bytes_of(request: engine_pb2.RunRequest) -> int:
    """How much of the log the windows lie in; an entry that several share counts once."""
    entries: dict[tuple[int, int], int] = {}
    for window in request.windows:
        pieces = window.pieces
        entries.update(zip(zip(pieces.segments, pieces.offsets, strict=True), pieces.lengths, strict=True))
    return sum(entries.values())
