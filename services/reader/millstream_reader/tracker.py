"""The work that a lane has read and not committed, and its bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkInFlight:
    """A piece of work in flight."""

    records: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class UnansweredBounds:
    """How much of the work in flight may be unanswered."""

    pieces: int
    """Pieces, of any size."""
    size: int
    """Bytes, if they are more pieces."""


class Tracker:
    """Work in flight, oldest first. Work is finished in the order in which it was begun, when it is committed. Until
    functions have processed a piece, it is unanswered, if the lane bounds that."""

    def __init__(self, *, pieces_max: int, bytes_max: int) -> None:
        self._pieces_max = pieces_max
        self._bytes_max = bytes_max
        self._pieces: deque[WorkInFlight] = deque()
        self._room = asyncio.Condition()
        self._unanswered_bounds: UnansweredBounds | None = None
        self._unanswered_pieces = self._unanswered_bytes = 0
        self._waiting: tuple[WorkInFlight, int | None] | None = None
        """The piece that waits to begin, and its `records_max`."""
        self._held_up_s = 0.0
        self._held_up_since_s: float | None = None
        self.on_crowd: Callable[[], None] | None = None
        """Called when a piece begins to wait for older ones to be finished."""
        self.records = 0
        """Records in flight."""
        self.size = 0
        """Bytes in flight."""

    def __len__(self) -> int:
        return len(self._pieces)

    def bound(self, bytes_max: int, unanswered: UnansweredBounds | None) -> None:
        """Set the bounds of a lane before its first piece: the bytes in flight, and what may be unanswered."""
        self._bytes_max = bytes_max
        self._unanswered_bounds = unanswered

    @property
    def crowded(self) -> bool:
        """Whether a piece waits for older ones to be finished."""
        return self._waiting is not None and not self._fits(*self._waiting)

    @property
    def held_up_s(self) -> float:
        """For how long pieces have waited to begin."""
        since_s = self._held_up_since_s
        return self._held_up_s + (0.0 if since_s is None else asyncio.get_running_loop().time() - since_s)

    async def begin(self, piece: WorkInFlight, *, records_max: int | None = None) -> None:
        """Add a piece. Waits while the bounds, including `records_max` if it is set, are reached. A piece larger than
        the bounds is admitted alone."""
        # Only one task begins pieces, so nothing changes between the check and the addition.
        if not self._may_begin(piece, records_max):
            self._waiting = piece, records_max
            self._held_up_since_s = asyncio.get_running_loop().time()
            if self.crowded and self.on_crowd is not None:
                self.on_crowd()
            try:
                async with self._room:
                    await self._room.wait_for(lambda: self._may_begin(piece, records_max))
            finally:
                self._waiting = None
                self._held_up_s, self._held_up_since_s = self.held_up_s, None
        self._pieces.append(piece)
        self.records += piece.records
        self.size += piece.size
        if self._unanswered_bounds is not None:
            self._unanswered_pieces += 1
            self._unanswered_bytes += piece.size

    async def answered(self, piece: WorkInFlight) -> None:
        """Record that functions have processed a piece. They may do so in any order."""
        if self._unanswered_bounds is None:
            return
        self._unanswered_pieces -= 1
        self._unanswered_bytes -= piece.size
        await self._tell()

    async def finish(self, count: int) -> None:
        """Remove the `count` oldest pieces, which are committed."""
        for _ in range(count):
            piece = self._pieces.popleft()
            self.records -= piece.records
            self.size -= piece.size
        await self._tell()

    async def _tell(self) -> None:
        """Wake up the piece that waits to begin."""
        if self._waiting is not None:
            async with self._room:
                self._room.notify_all()

    def _may_begin(self, piece: WorkInFlight, records_max: int | None) -> bool:
        bounds = self._unanswered_bounds
        return self._fits(piece, records_max) and (
            bounds is None
            or self._unanswered_pieces < bounds.pieces
            or self._unanswered_bytes + piece.size <= bounds.size
        )

    def _fits(self, piece: WorkInFlight, records_max: int | None) -> bool:
        if not self._pieces:
            return True
        return (
            len(self._pieces) < self._pieces_max
            and self.size + piece.size <= self._bytes_max
            and (records_max is None or self.records + piece.records <= records_max)
        )
