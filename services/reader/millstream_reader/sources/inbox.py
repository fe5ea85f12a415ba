"""What a server sends by itself, until a lane reads it: bounded by number and by bytes. Pure.

Above it: lanes. Below it: tasks that receive, which stop while it is full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

from millstream.errors import MillstreamError
from millstream.limits import ACKNOWLEDGED_BYTES_MAX


class Sized(Protocol):
    """What is held."""

    @property
    def size(self) -> int:
        """Bytes that a record of it has, about."""


M = TypeVar("M", bound=Sized)


class Bounds(NamedTuple):
    """What a lane holds at most."""

    messages: int
    size: int = ACKNOWLEDGED_BYTES_MAX


class Inbox(Generic[M]):
    """What has arrived and was not read."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.size = 0
        """Bytes of all that is held."""
        self.lost: MillstreamError | None = None
        """Why nothing more arrives."""
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._waiting: deque[M] = deque()

    # The server's side

    def put(self, message: M) -> None:
        """One more."""
        self._waiting.append(message)
        self.size += message.size
        self._arrived.set()
        self._note()

    def lose(self, error: MillstreamError) -> None:
        """Nothing more arrives. The first reason counts."""
        if self.lost is None:
            self.lost = error
        self._arrived.set()
        self._room.set()

    @property
    def full(self) -> bool:
        return self.held >= self.bounds.messages or self.size >= self.bounds.size

    @property
    def held(self) -> int:
        """Messages that count towards the bounds."""
        return len(self._waiting)

    async def room(self) -> None:
        """Until more may be put, or nothing more arrives."""
        await self._room.wait()

    # The lane's side

    @property
    def waiting(self) -> int:
        """Messages that were not read yet."""
        return len(self._waiting)

    async def arrival(self, timeout_s: float) -> None:
        """Until there is a message, or nothing more arrives, or the time is over."""
        if self._waiting or self.lost is not None:
            return
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()

    def take(self, records_max: int, bytes_max: int) -> list[M]:
        """The next ones, one at least if there are any."""
        taken: list[M] = []
        size = 0
        while self._waiting and len(taken) < records_max:
            message = self._waiting[0]
            if taken and size + message.size > bytes_max:
                break
            taken.append(self._waiting.popleft())
            size += message.size
            self._taken(message)
        self._note()
        return taken

    def _taken(self, message: M) -> None:
        """It is not held any more."""
        self.size -= message.size

    def _note(self) -> None:
        if self.full and self.lost is None:
            self._room.clear()
        else:
            self._room.set()
