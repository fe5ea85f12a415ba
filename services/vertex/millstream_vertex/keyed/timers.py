"""The timers of a lane: when the next one fires, and how they are stored. Pure.

Above it: the state of the lane, which has their entries. Below it: nothing. A clock has a heap of the times that were
set. A timer that was moved or cancelled stays in it as a stale time, until that comes or most times are stale.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple

from millstream.clock import END_OF_TIME_US
from millstream.udf.states import StateClock
from millstream_udf.timer_entries import TIMER_BYTES, unpack_timer

STALE_MAX = 4096
"""Stale times that are kept in any case."""
_SET_AT_END = 0x80
_NUMBER = struct.Struct("<Q")


class Timer(NamedTuple):
    """A timer. The order of its fields is that in which timers fire."""

    at_us: int
    key: bytes
    name: bytes
    clock: StateClock
    event_us: int
    """By processing time: the event time of the record that set it. If it `holds`: its output time."""
    number: int = 0
    """0, unless a timer of its key, its name and its time may have fired before: then another one for each."""
    set_at_end: bool = False
    """Whether it was set when the input had ended. It does not fire before there is more."""
    holds: bool = False
    """Whether the watermark of the lane stays at its output time, or below, until it has fired."""

    @property
    def output_us(self) -> int:
        """The event time of its outputs, unless the lane has promised a later watermark."""
        return self.event_us if self.holds or self.clock is StateClock.PROCESSING_TIME else self.at_us

    @property
    def id(self) -> str:
        """Names it among all timers of the lane; the same if it fires again after a kill."""
        digest = blake2b(len(self.key).to_bytes(4, "big") + self.key + self.name, digest_size=8).hexdigest()
        clock = "p" if self.clock is StateClock.PROCESSING_TIME else ""
        return f"{self.at_us}-{digest}{clock}" + (f"-{self.number}" if self.number else "")


def stored_timer(value: bytes, *, number: int, set_at_end: bool) -> bytes:
    """What is stored of a timer. `value`: of the change that sets it."""
    clock = bytes([value[0] | _SET_AT_END]) if set_at_end else value[:1]
    return clock + value[1:] + (_NUMBER.pack(number) if number else b"")


def timer_of(key: bytes, name: bytes, stored: bytes) -> Timer:
    """The stored timer. Raises `ValueError`."""
    if len(stored) not in (TIMER_BYTES, TIMER_BYTES + _NUMBER.size):
        raise ValueError(f"a stored timer has {TIMER_BYTES} bytes, or {_NUMBER.size} more, and not {len(stored)}")
    clock, at_us, event_us, holds = unpack_timer(bytes([stored[0] & ~_SET_AT_END]) + stored[1:TIMER_BYTES])
    number = _NUMBER.unpack_from(stored, TIMER_BYTES)[0] if len(stored) > TIMER_BYTES else 0
    return Timer(at_us, key, name, StateClock(clock), event_us, number, bool(stored[0] & _SET_AT_END), holds)


def is_set_to(stored: bytes, value: bytes) -> bool:
    """Whether a stored timer is as a change would set it."""
    return stored[1:TIMER_BYTES] == value[1:] and stored[0] & ~_SET_AT_END == value[0]


class Timers:
    """The times of the timers of a lane."""

    def __init__(
        self,
        stored: Callable[[bytes, bytes], bytes | None],
        all_stored: Callable[[], Iterable[tuple[bytes, bytes, bytes]]],
    ) -> None:
        """`stored`: what is stored of the timer of a key and a name. `all_stored`: key, name and that of all timers."""
        self._stored = stored
        self._all_stored = all_stored
        self._heaps: dict[StateClock, list[tuple[int, bytes, bytes]]] = {clock: [] for clock in StateClock}
        self._held: list[tuple[int, bytes, bytes]] = []
        """The output times of those that hold the watermark."""
        self._set = 0

    def __len__(self) -> int:
        """How many are set."""
        return self._set

    def load(self) -> None:
        """Begin with the timers that are stored."""
        self._set, heaps = 0, self._heaps
        for heap in (*heaps.values(), self._held):
            heap.clear()
        for key, name, stored in self._all_stored():
            timer = timer_of(key, name, stored)
            heaps[timer.clock].append(timer[:3])
            if timer.holds:
                self._held.append((timer.event_us, key, name))
            self._set += 1
        for heap in (*heaps.values(), self._held):
            heapq.heapify(heap)

    def changed(self, key: bytes, name: bytes, before: bytes | None, after: bytes | None) -> None:
        """What is stored of a timer was replaced."""
        self._set += (after is not None) - (before is not None)
        if after is None:
            return
        timer = timer_of(key, name, after)
        heapq.heappush(self._heaps[timer.clock], timer[:3])
        if timer.holds:
            heapq.heappush(self._held, (timer.event_us, key, name))
        if max(sum(map(len, self._heaps.values())), len(self._held)) > 2 * self._set + STALE_MAX:
            self._forget_stale()

    def _forget_stale(self) -> None:
        for clock, heap in self._heaps.items():
            heap[:] = {one for one in heap if self._is_set(clock, one)}
            heapq.heapify(heap)
        self._held[:] = {one for one in self._held if self._is_held(one)}
        heapq.heapify(self._held)

    def _is_held(self, one: tuple[int, bytes, bytes]) -> bool:
        event_us, key, name = one
        stored = self._stored(key, name)
        timer = None if stored is None else timer_of(key, name, stored)
        return timer is not None and timer.holds and timer.event_us == event_us

    @property
    def holds_us(self) -> int | None:
        """The event time of the earliest output that a timer may have. None: there is none that holds the watermark."""
        while self._held and not self._is_held(self._held[0]):
            heapq.heappop(self._held)
        next_timer = self.first(StateClock.EVENT_TIME)
        times_us = [self._held[0][0]] if self._held else []
        return min([*times_us, next_timer.at_us] if next_timer is not None else times_us, default=None)

    def _is_set(self, clock: StateClock, one: tuple[int, bytes, bytes]) -> bool:
        at_us, key, name = one
        stored = self._stored(key, name)
        if stored is None:
            return False
        timer = timer_of(key, name, stored)
        return timer.at_us == at_us and timer.clock is clock

    def first(self, clock: StateClock) -> Timer | None:
        """The next timer by a clock."""
        heap = self._heaps[clock]
        while heap:
            at_us, key, name = heap[0]
            stored = self._stored(key, name)
            if stored is not None:
                timer = timer_of(key, name, stored)
                if (timer.at_us, timer.clock) == (at_us, clock):
                    return timer
            heapq.heappop(heap)
        return None

    def first_due(self, clock: StateClock, until_us: int) -> Timer | None:
        """The next timer by a clock, if its time has come. At the end of the input, the time of all has come that were
        set before it; none of the others fires as long as this object is used."""
        while (timer := self.first(clock)) is not None:
            if timer.at_us > until_us:
                return None
            if not (timer.set_at_end and clock is StateClock.EVENT_TIME and until_us >= END_OF_TIME_US):
                return timer
            heapq.heappop(self._heaps[clock])
        return None
