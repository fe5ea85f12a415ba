"""Removes what lanes have consumed from the ledger they read, in the background, seldom.

    lanes ─► consumed(buffer, sequence) ─► Trimmer of that ledger ─► one trim of all buffers, every second; while much
                                                                     is consumed every quarter of a second

All lanes of a process that read one ledger share its trimmer: what it asks the broker does not grow with their number
times that of the lanes that write. A copy that several edges share is trimmed up to where the slowest of its readers
is. Readers in other processes are heard by what they publish (`OtherReader`). Above it: the lanes; the assembly runs
it. Below it: the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from millstream.errors import RetryLaterError
from millstream.ledger.sharing import SEPARATE, Sharing
from millstream.limits import MIB
from millstream.pauses import pause
from millstream.record import BufferId
from millstream.watermark.store import OtUpdate

_log = logging.getLogger(__name__)

_LITTLE_BYTES = 4 * MIB
_LITTLE_MESSAGES = 512
"""Less than that waits for the longer interval: a trim costs the broker three requests, whatever it removes."""
_LITTLE_S = 1.0


class Trimmer:
    """Of one ledger. `trim`: its own."""

    def __init__(
        self,
        trim: Callable[[Mapping[BufferId, int]], Awaitable[None]],
        interval_s: float = 0.25,
        little_s: float = _LITTLE_S,
        *,
        sharing: Sharing = SEPARATE,
    ) -> None:
        """`interval_s`: between two trims, however much is consumed. `little_s`: how long little waits for more.
        `sharing`: the edges of the ledger that share copies and are read."""
        self._trim = trim
        self._sharing = sharing
        self._interval_s = interval_s
        self._little_s = little_s
        self._consumed: dict[BufferId, int] = {}
        self._trimmed: dict[BufferId, int] = {}
        self._wake = asyncio.Event()
        self._size = 0
        """Bytes that no trim was asked for yet."""
        self._much = asyncio.Event()

    def consumed(self, buffer: BufferId, sequence: int, size: int = _LITTLE_BYTES) -> None:
        """No lane needs anything up to `sequence` any more. `size`: how much that is more than before, where the lane
        knows it."""
        if sequence > self._consumed.get(buffer, 0):
            self._consumed[buffer] = sequence
            self._wake.set()
        self._size += size
        messages = sequence - self._trimmed.get(buffer, 0)
        if self._size >= _LITTLE_BYTES or messages >= _LITTLE_MESSAGES:
            self._much.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            await pause(self._little_s, unless=self._much)
            self._wake.clear()
            self._much.clear()
            self._size = 0
            if not await self._try():
                self._wake.set()
                self._much.set()
            await asyncio.sleep(self._interval_s)

    async def finish(self) -> None:
        """The last trim, after `run` has ended. What it leaves, the next owners of the lanes remove."""
        # Once more, though it was asked for before: the last frame of a lane goes when its mark lies elsewhere.
        self._trimmed.clear()
        await self._try()

    async def _try(self) -> bool:
        wanted: dict[BufferId, int] = {}
        for stored in dict.fromkeys(map(self._sharing.stored, self._consumed)):
            readers = self._sharing.readers(stored)
            through = min(self._consumed.get(reader, 0) for reader in readers)
            if through > self._trimmed.get(readers[0], 0):
                wanted[readers[0]] = through
        if not wanted:
            return True
        try:
            await self._trim(wanted)
        except RetryLaterError as error:
            # Nothing depends on it at once: the lanes go on.
            _log.warning("consumed frames cannot be removed now: %s", error)
            return False
        for buffer, through in wanted.items():
            self._trimmed.update(dict.fromkeys(self._sharing.readers(self._sharing.stored(buffer)), through))
        return True


class OtherReader:
    """Reads a buffer that shares its copy with one that is read here. A listener to what the vertex of that reader
    publishes."""

    def __init__(self, buffer: BufferId, trimmer: Trimmer) -> None:
        self._buffer = buffer
        self._trimmer = trimmer

    def observe(self, update: OtUpdate) -> None:
        """Its lane has published an entry, and has committed what that says."""
        state = update.inputs.get(self._buffer)
        if state is not None:
            # It keeps the newest frame that it has read, as the readers here do.
            self._trimmer.consumed(self._buffer, state.sequence - 1, 0)
