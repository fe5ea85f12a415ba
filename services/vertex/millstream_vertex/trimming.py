"""Removes what lanes have consumed from the ledger that they read, in the background and infrequently.

    lanes ─► consumed(buffer, sequence) ─► Trimmer of that ledger ─► one trim of all buffers, every second; while much
                                                                     is consumed every tenth of a second

All lanes of a process that read one ledger share its trimmer, so the requests to the broker do not grow with the number
of readers times the number of writers. While much is consumed, buffers whose readers are about equally far are trimmed
up to the same place, because a broker removes everything before a place faster than parts of it. A copy that several
edges share is trimmed up to the position of its slowest reader. The trimmer learns the positions of readers in other
processes from what they publish.

Above it: the lanes, and the worker, which runs it. Below it: the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from millstream.errors import RetryLaterError
from millstream.ledger.sharing import SEPARATE, Sharing
from millstream.limits import BUFFER_FRAMES_MAX, LEDGER_SLACK_BYTES, MIB
from millstream.pauses import pause
from millstream.record import BufferId
from millstream.watermark.store import OtUpdate

_log = logging.getLogger(__name__)

_LITTLE_BYTES = 4 * MIB
_LITTLE_MESSAGES = 512
"""Less than this waits for the longer interval: a trim costs the broker three requests, whatever it removes."""
_LITTLE_S = 1.0
_TOGETHER_BYTES_MAX = 16 * MIB
"""Consumed bytes that stay for a while because the reader of another buffer is not so far. They are part of the
ledger's slack."""
_TOGETHER_MESSAGES_MAX = 4096
"""Messages of the ledger that may lie between the readers. What stays counts in the server's limit for a buffer."""
assert 2 * _TOGETHER_BYTES_MAX <= LEDGER_SLACK_BYTES
assert 8 * _TOGETHER_MESSAGES_MAX <= BUFFER_FRAMES_MAX


class Trimmer:
    """The trimmer of one ledger. `trim`: the ledger's method."""

    def __init__(
        self,
        trim: Callable[[Mapping[BufferId, int]], Awaitable[None]],
        interval_s: float = 0.1,
        little_s: float = _LITTLE_S,
        *,
        sharing: Sharing = SEPARATE,
    ) -> None:
        """`interval_s`: time between two trims, however much is consumed. `little_s`: how long a small amount waits for
        more. `sharing`: the edges of the ledger that share copies and are read."""
        self._trim = trim
        self._sharing = sharing
        self._interval_s = interval_s
        self._little_s = little_s
        self._consumed: dict[BufferId, int] = {}
        self._trimmed: dict[BufferId, int] = {}
        self._untrimmed: defaultdict[BufferId, deque[tuple[int, int]]] = defaultdict(deque)
        """What was consumed of each buffer since its last trim: sequences, each with the bytes since the one before."""
        self._since: defaultdict[BufferId, int] = defaultdict(int)
        """Bytes of each buffer that were consumed since the last of these sequences."""
        self._wake = asyncio.Event()
        self._size = 0
        """Consumed bytes for which no trim was requested yet."""
        self._much = asyncio.Event()

    def consumed(self, buffer: BufferId, sequence: int, size: int = _LITTLE_BYTES) -> None:
        """Record that no lane needs anything up to `sequence` any more. `size`: the bytes that this adds, if the lane
        knows them."""
        self._since[buffer] += size
        if sequence > self._consumed.get(buffer, 0):
            self._consumed[buffer] = sequence
            self._untrimmed[buffer].append((sequence, self._since.pop(buffer)))
            self._wake.set()
        self._size += size
        messages = sequence - self._trimmed.get(buffer, 0)
        if self._size >= _LITTLE_BYTES or messages >= _LITTLE_MESSAGES:
            self._much.set()

    def consumed_elsewhere(self, buffer: BufferId, update: OtUpdate) -> None:
        """A lane of another process, which reads a copy that is also read here, has published an entry, and has
        committed everything in it. A listener for the OT store of its vertex."""
        state = update.inputs.get(buffer)
        if state is not None:
            # The other lane needs the newest frame that it has read, as the readers here do.
            self.consumed(buffer, state.sequence - 1, 0)

    async def run(self) -> None:
        """Trim until cancelled."""
        while True:
            await self._wake.wait()
            await pause(self._little_s, unless=self._much)
            much = self._much.is_set()
            self._wake.clear()
            self._much.clear()
            self._size = 0
            if not await self._try(together=much):
                self._wake.set()
                self._much.set()
            await asyncio.sleep(self._interval_s)

    async def finish(self) -> None:
        """Trim for the last time. The next owners of the lanes remove what this leaves."""
        # Repeat earlier requests: the last frame of a lane can be removed only once its mark is elsewhere.
        self._trimmed.clear()
        await self._try(together=False)

    async def _try(self, *, together: bool) -> bool:
        """Trim what was consumed. With `together`, some of it may be left for the next time."""
        wanted: dict[BufferId, int] = {}
        for stored in dict.fromkeys(map(self._sharing.stored, self._consumed)):
            readers = self._sharing.readers(stored)
            through = min(self._consumed.get(reader, 0) for reader in readers)
            if through > self._trimmed.get(readers[0], 0):
                wanted[readers[0]] = through
        if not wanted:
            return True
        if together:
            wanted = self._up_to_the_same(wanted)
        try:
            await self._trim(wanted)
        except RetryLaterError as error:
            # Nothing depends on it immediately: the lanes continue.
            _log.warning("consumed frames cannot be removed now: %s", error)
            return False
        for buffer, through in wanted.items():
            for reader in self._readers(buffer):
                self._trimmed[reader] = max(through, self._trimmed.get(reader, 0))
                untrimmed = self._untrimmed[reader]
                while untrimmed and untrimmed[0][0] <= through:
                    untrimmed.popleft()
        return True

    def _up_to_the_same(self, wanted: Mapping[BufferId, int]) -> dict[BufferId, int]:
        """The trim of all these buffers up to the lowest of their sequences, unless too much would stay."""
        lowest, highest = min(wanted.values()), max(wanted.values())
        if highest - lowest > _TOGETHER_MESSAGES_MAX:
            return dict(wanted)
        left = sum(
            size
            for buffer in wanted
            for reader in self._readers(buffer)
            for sequence, size in self._untrimmed[reader]
            if sequence > lowest
        )
        if left > _TOGETHER_BYTES_MAX:
            return dict(wanted)
        if lowest < highest:
            self._wake.set()
        return dict.fromkeys(wanted, lowest)

    def _readers(self, buffer: BufferId) -> Sequence[BufferId]:
        return self._sharing.readers(self._sharing.stored(buffer))
