"""The inputs of a reduce lane: several buffers, read concurrently, with one watermark.

Above it: the reduce lane. Below it: one buffer reader for each edge. Frames of one buffer stay in order; frames of
different buffers have no order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from millstream.background import beside
from millstream.ledger.protocol import Ledger
from millstream.record import BufferId
from millstream_reader.buffer import BufferReader
from millstream_reduce.queue import QueuedFrame
from millstream_vertex.input import LaneInput
from millstream_vertex.trimming import Trimmer

AHEAD_BYTES = 16 * 1024 * 1024
"""Bytes read from all buffers and not taken yet at which no further frame is read."""


class ReduceInput:
    """One buffer of the lane."""

    def __init__(
        self, buffer: BufferId, reader: BufferReader, lane_input: LaneInput, upstream: Ledger, trimmer: Trimmer
    ) -> None:
        self.buffer = buffer
        self.reader = reader
        self.lane_input = lane_input
        self.upstream = upstream
        self.sequence = reader.sequence
        """Sequence of the last frame that was taken."""
        self.read_sequence = reader.sequence
        """Sequence of the last frame that was read."""
        self.waiting_sequence: int | None = None
        """Sequence of the next frame, for which there is no space, or which is after the gate."""
        self._trimmer = trimmer

    @property
    def watermark_us(self) -> int:
        """No older record follows those that were taken, except late ones."""
        return self.lane_input.watermark_at(self.sequence)

    def committed(self, sequence: int, *, trim_through: int) -> None:
        """The lane's mark has reached `sequence`; frames up to `trim_through` will not be read again."""
        self._trimmer.consumed(self.buffer, trim_through)
        self.lane_input.forget(sequence)


class ReduceInputs:
    """All buffers of a lane."""

    def __init__(self, inputs: Sequence[ReduceInput]) -> None:
        self.inputs = tuple(inputs)
        self._taken: deque[QueuedFrame] = deque()
        self._bytes = 0
        self.left_other_form = False
        """Whether frames of another form were left when frames were taken last."""
        self._room = asyncio.Event()
        self._gate: Mapping[str, int] | None = None
        self.stopped = False
        """Whether reading has stopped."""
        self._news = asyncio.Event()
        self._reading = len(self.inputs)

    @property
    def ended(self) -> bool:
        """Whether nothing will ever follow what was taken."""
        return not self._taken and self._reading == 0 and all(item.reader.ended for item in self.inputs)

    def watermark_us(self) -> int:
        """The watermark of all inputs together, after the frames that were taken."""
        return min(item.watermark_us for item in self.inputs)

    def stop(self) -> None:
        """Stop reading. Frames that have been read are dropped; the next start reads them again."""
        self.stopped = True
        for item in self.inputs:
            item.reader.stop()
        self._taken.clear()
        self._room.set()
        self._news.set()

    def hold_at(self, gate: Mapping[str, int] | None) -> None:
        """Take nothing after these sequences, by edge, until they change. None: no bounds. Frames that were read before
        the first call are not held."""
        self._gate = gate
        self._room.set()

    def pass_over(self, positions: Mapping[str, int]) -> None:
        """Everything up to these sequences, by edge, counts as taken, as far as it was still stored."""
        for item in self.inputs:
            item.sequence = max(item.sequence, positions.get(item.buffer.edge, 0))
            item.reader.pass_over(item.sequence)

    @property
    def at_gate(self) -> bool:
        """Whether everything up to the gate has been taken."""
        return not self._taken and all(
            item.reader.ended or self._is_behind_gate(item, item.waiting_sequence or item.sequence + 1)
            for item in self.inputs
        )

    def _is_behind_gate(self, item: ReduceInput, sequence: int) -> bool:
        return self._gate is not None and sequence > self._gate.get(item.buffer.edge, 0)

    def wake(self) -> None:
        """Make `wait` return."""
        self._news.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until there are frames to take, a watermark has moved, an input has ended, or the time is over."""
        if not self._taken:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return
        self._news.clear()

    async def gather(self, seconds: float, bytes_max: int, due: Callable[[int], bool]) -> None:
        """Let more frames arrive, for this time, or until this many bytes wait to be taken, or until something
        is `due` at the watermark after those frames; that is checked again after every `wake`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while self._bytes < bytes_max and not self.stopped and (rest_s := until_s - loop.time()) > 0:
            if due(min(item.lane_input.watermark_at(item.read_sequence) for item in self.inputs)):
                return
            self._news.clear()
            try:
                async with asyncio.timeout(rest_s):
                    await self._news.wait()
            except TimeoutError:
                return

    def take(self, bytes_max: int) -> list[QueuedFrame]:
        """Take what has been read: at most this many bytes but at least one frame, all of one form; empty if there is
        none. Frames of each edge are in order."""
        frames: list[QueuedFrame] = []
        left: deque[QueuedFrame] = deque()
        passed_over: set[str] = set()
        size = 0
        while self._taken and (not frames or size + self._taken[0].frame.size <= bytes_max):
            taken = self._taken.popleft()
            if taken.edge in passed_over or (frames and taken.frame.form != frames[0].frame.form):
                passed_over.add(taken.edge)
                left.append(taken)
                continue
            frames.append(taken)
            size += taken.frame.size
        self._taken.extendleft(reversed(left))
        self.left_other_form = bool(left)
        for taken in frames:
            self._input_of(taken.edge).sequence = taken.sequence
        self._bytes -= size
        self._room.set()
        return frames

    def _input_of(self, edge: str) -> ReduceInput:
        return next(item for item in self.inputs if item.buffer.edge == edge)

    async def _read(self, item: ReduceInput) -> None:
        while (read := await item.reader.next()) is not None:
            item.waiting_sequence = read.sequence
            self._news.set()
            while not self.stopped and (self._bytes >= AHEAD_BYTES or self._is_behind_gate(item, read.sequence)):
                self._room.clear()
                await self._room.wait()
            item.waiting_sequence = None
            if self.stopped:
                break
            self._bytes += read.frame.size
            item.read_sequence = read.sequence
            self._taken.append(QueuedFrame(item.buffer.edge, read.sequence, read.size, read.frame, read.witness))
            self._news.set()
        self._reading -= 1
        self._news.set()

    async def _follow(self, item: ReduceInput) -> None:
        while True:
            await item.lane_input.changed.wait()
            item.lane_input.changed.clear()
            self._news.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read in the background."""
        async with AsyncExitStack() as stack:
            for item in self.inputs:
                await stack.enter_async_context(beside(self._read(item), f"take {item.buffer}"))
                await stack.enter_async_context(beside(self._follow(item), f"follow {item.buffer}"))
            yield
