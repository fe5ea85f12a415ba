"""The work that a lane has read and not committed, and its bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tracked:
    """A piece of work in flight."""

    records: int
    size: int
    """Bytes."""


class Tracker:
    """Work in flight, oldest first. Work is finished in the order in which it was begun."""

    def __init__(self, *, pieces_max: int, bytes_max: int) -> None:
        self._pieces_max = pieces_max
        self._bytes_max = bytes_max
        self._pieces: deque[Tracked] = deque()
        self._room = asyncio.Condition()
        self.crowded = False
        """Whether a piece waits for older ones to be finished."""
        self.on_crowd: Callable[[], None] | None = None
        """Called when a piece begins to wait."""
        self.records = 0
        """Records in flight."""
        self.size = 0
        """Bytes in flight."""

    def __len__(self) -> int:
        return len(self._pieces)

    async def begin(self, piece: Tracked, *, records_max: int | None = None) -> None:
        """Add a piece. Waits while the bounds, including `records_max` if it is set, are reached. A piece larger than
        the bounds is admitted alone."""
        async with self._room:
            if not self._fits(piece, records_max):
                self.crowded = True
                if self.on_crowd is not None:
                    self.on_crowd()
                try:
                    await self._room.wait_for(lambda: self._fits(piece, records_max))
                finally:
                    self.crowded = False
            self._pieces.append(piece)
            self.records += piece.records
            self.size += piece.size

    async def finish(self, count: int) -> None:
        """Remove the `count` oldest pieces, which are committed."""
        async with self._room:
            for _ in range(count):
                piece = self._pieces.popleft()
                self.records -= piece.records
                self.size -= piece.size
            self._room.notify_all()

    def _fits(self, piece: Tracked, records_max: int | None) -> bool:
        if not self._pieces:
            return True
        return (
            len(self._pieces) < self._pieces_max
            and self.size + piece.size <= self._bytes_max
            and (records_max is None or self.records + piece.records <= records_max)
        )
