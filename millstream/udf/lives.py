"""The processes of one function, one after another, and which calls they may get.

    streams of all lanes ──► in flight ──► process
                 one call ──► alone (waits until none is in flight; meanwhile, no other is sent)

A process that ends takes all calls with it that are in flight, on all streams. Which of them was the cause shows when
each is tried alone.

Above it: the streams, which count their calls here, and the supervisor of the process, which reports its ends. Below
it: nothing. A function that another process has started has one object of this kind, without ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from millstream.udf.endings import Ending, LostCall

_ENDINGS_KEPT = 64


class InFlight(Protocol):
    """A call that was sent and is not answered."""

    @property
    def what(self) -> str:
        """Its lane and records, for messages."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    what: str


class Lives:
    """The processes of one function. Used on one event loop."""

    def __init__(self) -> None:
        self.number = 0
        """The number of the process that runs; 0 before the first one, and for a function that runs elsewhere."""
        self._endings: dict[int, Ending] = {}
        self._in_flight: dict[InFlight, None] = {}
        """Calls that were sent and are not answered, in the order in which they were sent."""
        self._queue: list[object] = []
        """Those who have the function alone (the first one), or wait for that."""
        self._doubtful = -1
        """The last process of which a call that had it alone got no answer. The process may have ended then, without
        notice so far."""
        self._changed = asyncio.Event()
        self._on_open: list[Callable[[], None]] = []
        self._divides = False
        """Whether the function has a call of several records alone."""
        self._divided = -1
        """The last process of which such a call got no answer."""
        self.is_open = True
        """Whether calls may be sent: none has the function alone, or waits for that."""

    # The supervisor

    def begin(self) -> None:
        """A process is started."""
        self.number += 1

    def end(self, ending: Ending) -> None:
        """The process has ended."""
        self._endings[self.number] = ending
        self._endings.pop(self.number - _ENDINGS_KEPT, None)

    @property
    def divides(self) -> bool:
        """Whether the process has a call of several records alone, or had it until that lost its stream. If the call
        ends the process, it leads closer to the record that is the cause, so the next process need not wait."""
        return self._divides or self._divided == self.number

    # The streams

    def cause(self, lost: LostCall) -> Ending | None:
        """The end of the process that had the call, if the call may be the cause. Known when the next process runs."""
        ending = self._endings.get(lost.life)
        return ending if ending is not None and ending.counts(broke=lost.broke) else None

    def is_cause_alone(self, number: int) -> bool:
        """Whether a call that has the process with this number alone is the cause if that ends: no other call had it
        alone before and got no answer."""
        return number > self._doubtful

    def sent(self, call: InFlight) -> None:
        self._in_flight[call] = None

    def settled(self, call: InFlight) -> None:
        """The call was answered, or has gone down with its stream."""
        self._in_flight.pop(call, None)
        if not self._in_flight and self._queue:
            self._changed.set()

    @property
    def oldest(self) -> InFlight | None:
        """The call that was sent first of those in flight."""
        return next(iter(self._in_flight), None)

    def listen(self, on_open: Callable[[], None]) -> Callable[[], None]:
        """Have `on_open` called when calls may be sent again. Returns what ends that."""
        self._on_open.append(on_open)
        return lambda: self._on_open.remove(on_open)

    @asynccontextmanager
    async def turn(self, what: str) -> AsyncIterator[None]:
        """In the block, a call is in flight. It begins when no call has the function alone."""
        if not self.is_open:
            await self._until_open()
        async with self.in_flight(what):
            yield

    async def _until_open(self) -> None:
        opened = asyncio.Event()
        unlisten = self.listen(opened.set)
        try:
            while not self.is_open:
                opened.clear()
                await opened.wait()
        finally:
            unlisten()

    @asynccontextmanager
    async def in_flight(self, what: str) -> AsyncIterator[None]:
        """In the block, a call of that name is in flight."""
        call = _Turn(what)
        self.sent(call)
        try:
            yield
        finally:
            self.settled(call)

    @asynccontextmanager
    async def alone(self, records: int, what: str = "") -> AsyncIterator[None]:
        """In the block, the function has no call but that of the block, which has so many records. `what`: the block
        is the call of that name. Otherwise, it counts its calls itself."""
        place = object()
        self._queue.append(place)
        self.is_open = False
        try:
            while self._queue[0] is not place or self._in_flight:
                self._changed.clear()
                await self._changed.wait()
            self._divides = records > 1
            number = self.number
            try:
                async with self.in_flight(what) if what else nullcontext():
                    yield
            except BaseException:
                self._doubtful = max(self._doubtful, number)
                if records > 1:
                    self._divided = number
                raise
        finally:
            self._divides = False
            self._queue.remove(place)
            self._changed.set()
            if not self._queue:
                self.is_open = True
                for on_open in list(self._on_open):
                    on_open()
