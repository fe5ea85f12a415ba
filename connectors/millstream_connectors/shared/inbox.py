"""Messages that a server sends, until a lane reads them: bounded by number and by bytes. Pure.

Above it: lanes. Below it: receiving tasks, which pause while it is full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from millstream.errors import MillstreamError
from millstream.limits import ACKNOWLEDGED_BYTES_MAX


class HeldMessage(Protocol):
    """A held message."""

    @property
    def size(self) -> int:
        """Approximate bytes of its record."""


M = TypeVar("M", bound=HeldMessage)


class Inbox(Generic[M]):
    """Messages that have arrived and were not read."""

    bytes_max = ACKNOWLEDGED_BYTES_MAX

    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        self.size = 0
        """Bytes of all held messages."""
        self.lost: MillstreamError | None = None
        """Why no more messages arrive."""
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._waiting: deque[M] = deque()

    # The server's side

    def put(self, message: M) -> None:
        """Add a message."""
        self._waiting.append(message)
        self.size += message.size
        self._arrived.set()
        self._note()

    def lose(self, error: MillstreamError) -> None:
        """Mark the end of arrivals. The first reason is kept."""
        if self.lost is None:
            self.lost = error
        self._arrived.set()
        self._room.set()

    @property
    def full(self) -> bool:
        return self.held >= self.messages_max or self.size >= self.bytes_max

    @property
    def held(self) -> int:
        """Messages that count towards the bounds."""
        return len(self._waiting)

    async def room(self) -> None:
        """Wait until there is space, or no more messages arrive."""
        await self._room.wait()

    # The lane's side

    @property
    def waiting(self) -> int:
        """Number of unread messages."""
        return len(self._waiting)

    async def arrival(self, timeout_s: float) -> None:
        """Wait for a message, the end of arrivals or the timeout."""
        if self._waiting or self.lost is not None:
            return
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()

    def take(self, records_max: int, bytes_max: int) -> list[M]:
        """Remove the next messages, at least one if there are any."""
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
        """Release a held message."""
        self.size -= message.size

    def _note(self) -> None:
        if self.full and self.lost is None:
            self._room.clear()
        else:
            self._room.set()
