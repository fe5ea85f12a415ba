"""When the entries of a state are due: when they expire, or when its timers are. Pure.

    put of an entry that has a time ─► add ─► first_us, take ─► is it still due then? ─► (whoever took it)

An entry is due at its `expires_us`. The image adds it when it is put, also when a change is taken back; nothing removes
it when it is moved or gone, so whoever takes one looks at the entry. Above it: the state of a lane. Below it: nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple, Protocol

_STALE_MIN = 1024
"""Fewer that are no longer due stay until their time."""


class Due(NamedTuple):
    """An entry and its time; ordered by time."""

    time_us: int
    key: bytes
    item: bytes


class Agenda(Protocol):
    """When the entries of one state are due."""

    @property
    def first_us(self) -> int | None:
        """The time of the one that `take` returns; None if there is none."""

    def add(self, time_us: int, key: bytes, item: bytes) -> None:
        """An entry is due at this time. It may be added twice."""

    def take(self) -> Due:
        """Remove and return the first one. The entry may be due at another time by now, or gone."""

    def __len__(self) -> int:
        """How many it has in memory."""


class HeapAgenda:
    """An agenda in memory."""

    def __init__(self, is_due: Callable[[Due], bool]) -> None:
        """`is_due`: whether an entry is still due at that time. Asked when so many were added that half of them may not
        be: an entry that is put again and again before its time is in memory a few times at most."""
        self._is_due = is_due
        self._heap: list[Due] = []
        self._looked_through_at = _STALE_MIN

    @property
    def first_us(self) -> int | None:
        return self._heap[0].time_us if self._heap else None

    def add(self, time_us: int, key: bytes, item: bytes) -> None:
        heapq.heappush(self._heap, Due(time_us, key, item))
        if len(self._heap) > self._looked_through_at:
            self.keep(self._is_due)

    def take(self) -> Due:
        return heapq.heappop(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def keep(self, wanted: Callable[[Due], bool]) -> None:
        """Remove all others."""
        self._heap = list({due for due in self._heap if wanted(due)})
        heapq.heapify(self._heap)
        self._looked_through_at = 2 * len(self._heap) + _STALE_MIN
