"""Removes what lanes have consumed from the ledger they read, in the background, seldom.

    lanes ─► consumed(buffer, sequence) ─► Trimmer of that ledger ─► one trim of all buffers, every quarter of a second

All lanes of a process that read one ledger share its trimmer: what it asks the broker does not grow with their number
times that of the lanes that write. Above it: the lanes; the assembly runs it. Below it: the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from millstream.errors import RetryLaterError
from millstream.record import BufferId

_log = logging.getLogger(__name__)


class Trimmer:
    """Of one ledger. `trim`: its own."""

    def __init__(self, trim: Callable[[Mapping[BufferId, int]], Awaitable[None]], interval_s: float = 0.25) -> None:
        self._trim = trim
        self._interval_s = interval_s
        self._consumed: dict[BufferId, int] = {}
        self._trimmed: dict[BufferId, int] = {}
        self._wake = asyncio.Event()

    def consumed(self, buffer: BufferId, sequence: int) -> None:
        """No lane needs anything up to `sequence` any more."""
        if sequence > self._consumed.get(buffer, 0):
            self._consumed[buffer] = sequence
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self._try():
                self._wake.set()
            await asyncio.sleep(self._interval_s)

    async def finish(self) -> None:
        """The last trim, after `run` has ended. What it leaves, the next owners of the lanes remove."""
        # Once more, though it was asked for before: the last frame of a lane goes when its mark lies elsewhere.
        self._trimmed.clear()
        await self._try()

    async def _try(self) -> bool:
        wanted = {
            buffer: sequence for buffer, sequence in self._consumed.items() if sequence > self._trimmed.get(buffer, 0)
        }
        if not wanted:
            return True
        try:
            await self._trim(wanted)
        except RetryLaterError as error:
            # Nothing depends on it at once: the lanes go on.
            _log.warning("what is consumed cannot be removed now: %s", error)
            return False
        self._trimmed.update(wanted)
        return True
