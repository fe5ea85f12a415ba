"""Goes through the stored frames of a buffer, a few at a time.

A frame may be as large as a message of the broker, and a buffer may have many, so what is done with a frame is done
before the next ones are requested. Above it: code that shows, counts and checks what waits. Below it: the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

from millstream.ledger.protocol import Ledger, StoredFrame
from millstream.record import BufferId

PAGE_FRAMES = 4
"""Frames that are requested, and held, at once. Packs have up to 4 MiB each."""


async def stored_frames(ledger: Ledger, buffer: BufferId, after: int) -> AsyncIterator[StoredFrame]:
    """The frames of a buffer after sequence `after`, in order, up to the last one that is stored."""
    is_last = False
    while not is_last:
        page = deque(await ledger.peek(buffer, after, PAGE_FRAMES))
        is_last = len(page) < PAGE_FRAMES
        while page:
            after = page[0].sequence
            yield page.popleft()
