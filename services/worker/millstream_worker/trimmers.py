"""One trimmer for each ledger that the replicas of a worker read.

    lanes of replica 1, 2, ... ─► consumed(buffer, sequence) ─► Trimmer of the ledger ─► one trim of all their buffers

Most vertices of a pipeline have several readers, and a worker runs many of them. If each reader had its own trimmer,
each would send the broker a request every quarter of a second.

Above it: what a replica's lanes share (`shared.py`). Below it: the ledgers; this module only trims them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from millstream.background import Background, open_background
from millstream.ledger.protocol import LedgerLimits
from millstream.ledger.sharing import SEPARATE, Sharing
from millstream.record import BufferId
from millstream_vertex.trimming import Trimmer


class _Ledger(Protocol):
    async def trim(self, through: Mapping[BufferId, int]) -> None: ...


class Ledgers(Protocol):
    """Opens ledgers for trimming."""

    async def ledger(self, vertex: str, limits: LedgerLimits) -> _Ledger: ...


class Trimmers:
    """The trimmers of one worker. Made by `open_trimmers`."""

    def __init__(self, ledgers: Ledgers, background: Background) -> None:
        self._ledgers = ledgers
        self._background = background
        self.failed = background.failed
        """Wait until cancelled. Raises the error that ended a trimmer: it ends every replica, and each reports it."""
        self._trimmers: dict[str, Trimmer] = {}

    async def trimmer(self, vertex: str, limits: LedgerLimits, sharing: Sharing = SEPARATE) -> Trimmer:
        """The trimmer of a vertex's ledger. `limits`: the ledger's. `sharing`: the edges that share copies in it."""
        if vertex not in self._trimmers:
            ledger = await self._ledgers.ledger(vertex, limits)
            # Another replica may have created the trimmer in the meantime.
            if vertex not in self._trimmers:
                trimmer = self._trimmers[vertex] = Trimmer(ledger.trim, sharing=sharing)
                self._background.start(trimmer.run, f"trim {vertex}")
        return self._trimmers[vertex]


@asynccontextmanager
async def open_trimmers(ledgers: Ledgers) -> AsyncIterator[Trimmers]:
    """Trim what the replicas have consumed, until the context ends."""
    async with open_background() as background:
        yield Trimmers(ledgers, background)
