"""Reads one buffer for one lane: frames in order from the mark, each with the watermark that is valid before it.

Above it: the lane. Below it: the ledger of the upstream vertex and its OT store's timelines. It knows when the input
has ended: every upstream lane has reported its end, and the last frame they wrote has been read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from millstream.frame import Frame
from millstream.ledger.frames import decoded, decoded_parts
from millstream.ledger.packs import shares_of
from millstream.ledger.protocol import GivenUp, Ledger, StoredFrame, Witness
from millstream.limits import FRAME_BYTES_MAX, FRAME_RECORDS_MAX
from millstream.record import BufferId, Position

AHEAD_FRAMES = 4
"""Frames taken from the ledger before the lane asks for them; the ledger itself prefetches more."""
AHEAD_SMALL_FRAMES = 256
"""The same for a lane that joins small frames, of those that have together less than one frame may have."""


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
    """One stored frame, one of a pack, or what is left of it after the mark."""

    sequence: int
    frame: Frame
    first_index: int
    """Index, in the stored frame, of this frame's first record; above 0 in a pack, and right after a restart."""
    size: int
    """Bytes of the stored frame; of those of a pack, together the bytes of the pack."""
    watermark_us: int
    """The watermark that is valid before this frame."""
    witness: Witness | None
    """The stored frame's name."""
    last: bool = True
    """Whether nothing of the stored frame follows: not so for the first frames of a pack."""

    @property
    def end(self) -> Position:
        """The lane's position after this frame."""
        if self.last:
            return Position(self.sequence, 0)
        return Position.within(self.sequence, self.first_index + self.frame.records)

    @property
    def witnesses(self) -> Sequence[Witness]:
        """What a mark after this frame, or within it, says about it."""
        return (self.witness,) if self.witness is not None else ()


class BufferReader:
    """An open buffer. One task calls `next`."""

    def __init__(
        self,
        buffer: BufferId,
        start: Position,
        watermark: InputWatermark,
        witnesses: Sequence[Witness] | None,
        given_up: Sequence[GivenUp] = (),
        in_parts: bool = False,
        takes_arrow: bool = False,
        wake: asyncio.Event | None = None,
        joins: bool = False,
    ) -> None:
        """`in_parts`: the frames of a pack are handed out one by one, and not as the one frame that they are stored
        as. `takes_arrow`: frames with Arrow columns are handed out as they are, and not with values. `wake`: set
        whenever there may be something new, for a task that waits for several readers. `joins`: whether the lane joins
        small frames."""
        self.buffer = buffer
        self._in_parts = in_parts
        self._takes_arrow = takes_arrow
        self._joins = joins
        self._watermark = watermark
        self._witnesses = witnesses
        self._given_up = given_up
        self._skip = start.record_index
        self._frames: deque[ReadFrame] = deque()
        """Their watermarks are set when they are handed out."""
        self._records = self._size = 0
        """How many records and bytes they have."""
        self._wake = wake or asyncio.Event()
        watermark.bind(self._wake)
        self._room = asyncio.Event()
        self._stopped = False
        self.sequence = start.sequence
        """Stream sequence of the last frame handed out, or where reading began."""
        self.ended = False
        """Whether it was found that no frame will follow."""

    async def next(self) -> ReadFrame | None:
        """The next frame; None when the input has ended or `stop` was called."""
        while not self._stopped:
            if self._frames:
                return self.take()
            if self.has_ended():
                return None
            self._wake.clear()
            await self._wake.wait()
        return None

    @property
    def ready(self) -> Frame | None:
        """The frame that `take` would return; None if there is none for now."""
        return self._frames[0].frame if self._frames else None

    def take(self) -> ReadFrame:
        """The next frame, which is `ready`."""
        self._room.set()
        read = self._frames.popleft()
        self._records -= read.frame.records
        self._size -= read.frame.size
        watermark_us = self._watermark.watermark_at(self.sequence)
        if read.last:
            self.sequence = read.sequence
        return replace(read, watermark_us=watermark_us)

    def has_ended(self) -> bool:
        """Whether no frame follows those that were handed out, as far as is known by now."""
        end = self._watermark.end_sequence()
        self.ended = not self._frames and end is not None and self.sequence >= end
        return self.ended

    def pass_over(self, sequence: int) -> None:
        """Note that every frame up to this sequence has been handed out, unless it was no longer stored."""
        self.sequence = max(self.sequence, sequence)
        self._wake.set()

    def stop(self) -> None:
        """Hand out no more frames."""
        self._stopped = True
        self._wake.set()

    def _parts(self, writer: str, stored: StoredFrame) -> Iterator[ReadFrame]:
        """What to hand out of a stored frame. Raises `DamageError` if it cannot be used."""
        if self._in_parts:
            frames = decoded_parts(writer, self.buffer, stored)
        else:
            frames = [decoded(writer, self.buffer, stored)]
        skip, self._skip = self._skip, 0
        first, sizes = 0, shares_of(frames, len(stored.data))
        # What is counted is what is stored, in whichever form it is handed out.
        if not self._takes_arrow:
            frames = [frame.with_values() for frame in frames]
        for number, frame in enumerate(frames, 1):
            last, size = number == len(frames), sizes[number - 1]
            done = max(0, skip - first)
            # A former owner has counted the bytes of those frames of a pack that it has done.
            if last or done < frame.records:
                left = frame.slice(done, frame.records) if done else frame
                yield ReadFrame(stored.sequence, left, first + done, size, 0, stored.witness, last)
            first += frame.records

    @property
    def _is_full(self) -> bool:
        """Whether enough frames are there."""
        are_small = self._joins and self._records < FRAME_RECORDS_MAX and self._size < FRAME_BYTES_MAX
        return len(self._frames) >= (AHEAD_SMALL_FRAMES if are_small else AHEAD_FRAMES)

    async def pump(self, ledger: Ledger) -> None:
        """Move frames from the ledger into this reader, a few ahead. Runs until cancelled.

        Raises `DamageError` when a frame does not follow the previous one, or cannot be used.
        """
        async with ledger.read(self.buffer, self.sequence, self._witnesses, self._given_up) as frames:
            async for stored in frames:
                while self._is_full:
                    self._room.clear()
                    await self._room.wait()
                for read in self._parts(ledger.vertex, stored):
                    self._frames.append(read)
                    self._records += read.frame.records
                    self._size += read.frame.size
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
    in_parts: bool = False,
    takes_arrow: bool = False,
    wake: asyncio.Event | None = None,
    joins: bool = False,
) -> AsyncIterator[BufferReader]:
    """Read `buffer` of the upstream vertex's `ledger` after `start`. `witnesses` and `given_up`: see
    `Ledger.read`; `in_parts`, `takes_arrow`, `wake` and `joins`: see `BufferReader`."""
    reader = BufferReader(buffer, start, watermark, witnesses, given_up, in_parts, takes_arrow, wake, joins)
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(reader.pump(ledger), name=f"read {buffer}")
        try:
            yield reader
        finally:
            pump.cancel()
