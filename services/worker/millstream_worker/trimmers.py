"""One trimmer for each ledger that the replicas of a worker read.

    lanes of replica 1, 2, ... ─► consumed(buffer, sequence) ─► Trimmer of the ledger ─► one trim of all their buffers

Most vertices of a pipeline have several readers, and a worker runs many of them. If each reader had its own trimmer,
each would send the broker a request every quarter of a second.

Above it: what a replica's lanes share (`shared.py`). Below it: the ledgers; this module only trims them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.background import Background, open_background
from millstream.ledger.protocol import Broker, LedgerLimits
from millstream.ledger.sharing import SEPARATE, Sharing
from millstream_vertex.trimming import Trimmer


class Trimmers:
    """The trimmers of one worker. Made by `open_trimmers`."""

    def __init__(self, broker: Broker, background: Background) -> None:
        self._broker = broker
        self._background = background
        self.failed = background.failed
        """Wait until cancelled. Raises the error that ended a trimmer: it ends every replica, and each reports it."""
        self._trimmers: dict[str, Trimmer] = {}

    async def trimmer(self, vertex: str, limits: LedgerLimits, sharing: Sharing = SEPARATE) -> Trimmer:
        """The trimmer of a vertex's ledger. `limits`: the ledger's. `sharing`: the edges that share copies in it."""
        if vertex not in self._trimmers:
            ledger = await self._broker.ledger(vertex, limits)
            # Another replica may have created the trimmer in the meantime.
            if vertex not in self._trimmers:
                trimmer = self._trimmers[vertex] = Trimmer(ledger.trim, sharing=sharing)
                self._background.start(trimmer.run, f"trim {vertex}")
        return self._trimmers[vertex]


@asynccontextmanager
async def open_trimmers(broker: Broker) -> AsyncIterator[Trimmers]:
    """Trim what the replicas have consumed, until the context ends."""
    async with open_background() as background:
        yield Trimmers(broker, background)
