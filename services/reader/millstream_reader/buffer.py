"""Reads one buffer for one lane: frames in order from the mark, each with the watermark that is valid before it.

Above it: the lane. Below it: the ledger of the upstream vertex and its OT store's timelines. It knows when the input
has ended: every upstream lane has reported its end, and the last frame they wrote has been read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from millstream.frame import Frame
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import GivenUp, Ledger, StoredFrame, Witness
from millstream.record import BufferId, Position

AHEAD_FRAMES = 4
"""Frames taken from the ledger before the lane asks for them; the ledger itself prefetches more."""


class InputWatermark(Protocol):
    """What the reader needs from the upstream lanes' timelines (`millstream.watermark.fetch`)."""

    def watermark_at(self, sequence: int) -> int:
        """The input's watermark for a reader that has read up to `sequence`."""

    def end_sequence(self) -> int | None:
        """The last sequence in this buffer, once every upstream lane has ended."""

    def bind(self, wake_reader: asyncio.Event) -> None:
        """Set this event whenever the result of one of the two methods above may have changed."""


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """One frame, or what is left of it after the mark."""

    sequence: int
    frame: Frame
    first_index: int
    """Index, in the stored frame, of this frame's first record; above 0 only right after a restart."""
    size: int
    """Bytes of the stored frame."""
    watermark_us: int
    """The watermark that is valid before this frame."""
    witness: Witness | None
    """The stored frame's name."""

    @property
    def witnesses(self) -> Sequence[Witness]:
        """What a mark after this frame, or within it, says about it."""
        return (self.witness,) if self.witness is not None else ()


def late_records(frame: Frame, watermark_us: int) -> int:
    """Records older than the watermark."""
    if frame.event_time_min_us >= watermark_us:
        return 0
    return sum(time_us < watermark_us for time_us in frame.event_times_us())


class BufferReader:
    """An open buffer. One task calls `next`."""

    def __init__(
        self,
        buffer: BufferId,
        start: Position,
        watermark: InputWatermark,
        witnesses: Sequence[Witness] | None,
        given_up: Sequence[GivenUp] = (),
    ) -> None:
        self.buffer = buffer
        self._watermark = watermark
        self._witnesses = witnesses
        self._given_up = given_up
        self._skip = start.record_index
        self._frames: deque[tuple[StoredFrame, Frame]] = deque()
        self._wake = asyncio.Event()
        watermark.bind(self._wake)
        self._room = asyncio.Event()
        self._stopped = False
        self.sequence = start.sequence
        """Stream sequence of the last frame handed out, or where reading began."""
        self.ended = False
        """Whether `next` returned None because no frame will follow."""

    async def next(self) -> ReadFrame | None:
        """The next frame; None when the input has ended or `stop` was called."""
        while True:
            if self._stopped:
                return None
            if self._frames:
                return self._hand_out(*self._frames.popleft())
            end = self._watermark.end_sequence()
            if end is not None and self.sequence >= end:
                self.ended = True
                return None
            self._wake.clear()
            await self._wake.wait()

    def pass_over(self, sequence: int) -> None:
        """Whether every frame up to this sequence has been handed out, unless it was no longer stored."""
        self.sequence = max(self.sequence, sequence)
        self._wake.set()

    def stop(self) -> None:
        """Hand out no more frames."""
        self._stopped = True
        self._wake.set()

    def _hand_out(self, stored: StoredFrame, frame: Frame) -> ReadFrame:
        self._room.set()
        watermark_us = self._watermark.watermark_at(self.sequence)
        first = 0
        if self._skip:
            first, self._skip = self._skip, 0
            frame = frame.slice(first, frame.records)
        self.sequence = stored.sequence
        return ReadFrame(stored.sequence, frame, first, len(stored.data), watermark_us, stored.witness)

    async def pump(self, ledger: Ledger) -> None:
        """Move frames from the ledger into this reader, a few ahead. Runs until cancelled.

        Raises `DamageError` when a frame does not follow the previous one, or cannot be used.
        """
        async with ledger.read(self.buffer, self.sequence, self._witnesses, self._given_up) as frames:
            async for stored in frames:
                while len(self._frames) >= AHEAD_FRAMES:
                    self._room.clear()
                    await self._room.wait()
                self._frames.append((stored, decoded(ledger.vertex, self.buffer, stored)))
                self._wake.set()


@asynccontextmanager
async def open_buffer_reader(
    ledger: Ledger,
    buffer: BufferId,
    start: Position,
    watermark: InputWatermark,
    *,
    witnesses: Sequence[Witness] | None = None,
    given_up: Sequence[GivenUp] = (),
) -> AsyncIterator[BufferReader]:
    """Read `buffer` of the upstream vertex's `ledger` after `start`. `witnesses` and `given_up`: see
    `Ledger.read`."""
    reader = BufferReader(buffer, start, watermark, witnesses, given_up)
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(reader.pump(ledger), name=f"read {buffer}")
        try:
            yield reader
        finally:
            pump.cancel()
