"""Reads a buffer from Redis: in order, without a gap, across restarts of the server.

    wait for the index ──► sizes ──► as many frames as there is space for ──► checked and returned

A task prefetches frames, within the limits. It waits at the server for further frames. After each lost connection, and
while no frames arrive, it checks that the frames it has read are unchanged.

Above it: `ledger.py`. Below it: the connection. Nothing is acknowledged: the mark of the reader is the acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from millstream import codes, limits
from millstream.background import beside
from millstream.buffers.redis.connection import (
    BLOCK_S,
    RETRY_FIRST_S,
    AnswerLostError,
    RedisConnection,
    until_answered,
)
from millstream.buffers.redis.keys import frames_key, index_key
from millstream.errors import REPAIR, DamageError
from millstream.ledger.protocol import LedgerStatistics, StoredFrame
from millstream.ledger.witness import ReadCheck, witness_named
from millstream.record import BufferId

_log = logging.getLogger(__name__)

_READ_BYTES = limits.READ_AHEAD_BYTES_MAX // 2
"""Maximum size of the frames in one request; a single frame may be larger."""
_READ_FRAMES = limits.FRAMES_IN_FLIGHT_MAX // 4
_WATCHED_FRAMES = limits.BYTES_IN_FLIGHT_MAX // limits.MESSAGE_BYTES_MAX
"""Number of frames in one request if their sizes are not known."""

# One request can always return the largest frame.
assert _READ_BYTES >= limits.MESSAGE_BYTES_MAX


class RedisReader:
    """Frames of one buffer after a sequence. An async iterator that never ends; for one task."""

    def __init__(
        self,
        connection: RedisConnection,
        ledger: str,
        ledger_id: str,
        name: str,
        buffer: BufferId,
        after: int,
        statistics: LedgerStatistics,
        check: ReadCheck,
    ) -> None:
        """`ledger`: the key of the ledger. `name`: the name of the buffer, for messages. `check`: compares the frames
        with what was read before."""
        self._connection = connection
        self._ledger = ledger
        self._ledger_id = ledger_id
        self._name = name
        self._frames = frames_key(ledger, buffer)
        self._index = index_key(ledger, buffer)
        self._statistics = statistics
        self._check = check
        self._last = after
        """Sequence of the last frame returned."""
        self._arrived: deque[StoredFrame] = deque()
        self._arrived_bytes = 0
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._broken = False
        """A connection was lost, so the frames that have arrived may no longer exist."""

    def __aiter__(self) -> AsyncIterator[StoredFrame]:
        return self

    async def __anext__(self) -> StoredFrame:
        while self._broken or not self._arrived:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        frame = self._arrived.popleft()
        self._arrived_bytes -= len(frame.data)
        self._check.next(frame.witness, frame.sequence)
        self._last = frame.sequence
        self._statistics.read(frame)
        self._changed.set()
        return frame

    async def check(self) -> None:
        """Raise `DamageError` if the ledger no longer holds what was read. Repeats its requests until they are
        answered."""
        found = await until_answered(self._connection, "HMGET", self._ledger, "id", "sequence")
        held = found[0].decode() if found[0] is not None else None
        if held is None:
            raise DamageError(
                codes.LEDGER_GONE,
                f"{self._name}: its ledger no longer exists; it was read up to sequence {self._last}. {REPAIR}",
            )
        if held != self._ledger_id or int(found[1]) < self._last:
            raise DamageError(
                codes.LEDGER_CUT,
                f"{self._name} was read up to sequence {self._last}, but its ledger, {held}, holds sequences up to "
                f"{int(found[1])}: it is not the ledger that was read, or it lost its latest data. {REPAIR}",
            )
        last = self._check.last
        if last is not None:
            entries = await until_answered(self._connection, "XRANGE", self._frames, last.sequence, last.sequence)
            if self._check.last is not last:
                # More frames were returned meanwhile, and this one may have been trimmed since. The next check repeats
                # this.
                return
            self._check.stored(_frame(entries[0]).witness if entries else None)

    async def read_ahead(self) -> None:
        """Prefetch frames, forever. An error is raised when the next frame is taken."""
        try:
            while True:
                try:
                    await self._read_on()
                except AnswerLostError as error:
                    await self._begin_again(str(error))
        except Exception as error:  # noqa: BLE001  # raised when the next frame is taken
            self._error = error
            self._changed.set()

    async def _read_on(self) -> None:
        """Read the frames after the last one that has arrived."""
        while True:
            # Cleared first: a frame that is taken from here on sets it again.
            self._changed.clear()
            frames, size = len(self._arrived), self._arrived_bytes
            if frames <= limits.FRAMES_IN_FLIGHT_MAX // 2 and size <= limits.READ_AHEAD_BYTES_MAX // 2:
                break
            await self._changed.wait()
        after = self._arrived[-1].sequence if self._arrived else self._last
        block_ms = round(BLOCK_S * 1000)
        found = await self._connection.wait(
            "XREAD", "COUNT", _READ_FRAMES, "BLOCK", block_ms, "STREAMS", self._index, f"{after}-0"
        )
        if not found:
            await self.check()
            return
        sizes = [(_sequence(entry), int(entry[1][3])) for entry in found[0][1]]
        for first, last in _portions(sizes):
            for entry in await self._connection.ask("XRANGE", self._frames, first, last):
                frame = _frame(entry)
                self._arrived.append(frame)
                self._arrived_bytes += len(frame.data)
            self._changed.set()

    async def _begin_again(self, why: str) -> None:
        """Continue after the last frame returned, once the server answers."""
        self._broken = True
        self._statistics.read_restarts += 1
        _log.info("reading %s continues after %d (%s)", self._name, self._last, why)
        await asyncio.sleep(RETRY_FIRST_S)
        self._arrived.clear()
        self._arrived_bytes = 0
        await self.check()
        self._broken = False


@asynccontextmanager
async def opened(reader: RedisReader) -> AsyncIterator[AsyncIterator[StoredFrame]]:
    """Runs the reader's prefetch for the duration of the block."""
    await reader.check()
    async with beside(reader.read_ahead(), "read ahead"):
        yield reader


async def passing(connection: RedisConnection, frames: str, after: int) -> AsyncGenerator[StoredFrame, None]:
    """Frames after a sequence as they are stored, unchecked, forever. `frames`: the key of their stream.

    A reader requests the sizes first. Here the server returns the stored frames in one step, before they can be
    trimmed.
    """
    while True:
        try:
            found = await connection.wait(
                "XREAD", "COUNT", _WATCHED_FRAMES, "BLOCK", round(BLOCK_S * 1000), "STREAMS", frames, f"{after}-0"
            )
        except AnswerLostError as error:
            _log.info("watching %s continues after %d (%s)", frames, after, error)
            await asyncio.sleep(RETRY_FIRST_S)
            continue
        for frame in frames_of(found[0][1]) if found else ():
            after = frame.sequence
            yield frame


def frames_of(entries: Any) -> list[StoredFrame]:
    """Frames, from entries of their stream."""
    return [_frame(entry) for entry in entries]


def _frame(entry: Any) -> StoredFrame:
    sequence = _sequence(entry)
    return StoredFrame(sequence, entry[1][3], witness_named(sequence, entry[1][1].decode(errors="replace")))


def _sequence(entry: Any) -> int:
    return int(entry[0].partition(b"-")[0])


def _portions(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last sequence of each request, so that no answer exceeds the limit."""
    portions: list[tuple[int, int]] = []
    size = 0
    for sequence, more in sizes:
        if portions and size + more <= _READ_BYTES:
            portions[-1] = portions[-1][0], sequence
            size += more
        else:
            portions.append((sequence, sequence))
            size = more
    return portions
