"""One trimmer for each ledger that the replicas of a worker read.

    lanes of replica 1, 2, ... ─► consumed(buffer, sequence) ─► Trimmer of the ledger ─► one trim of all their buffers

Most vertices of a pipeline have several readers, and a worker runs many of them. If each reader had its own trimmer,
each would send the broker a request every quarter of a second.

Above it: what a replica's lanes share (`shared.py`). Below it: the ledgers; this module only trims them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from millstream.background import open_tasks
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

    def __init__(self, ledgers: Ledgers, tasks: asyncio.TaskGroup) -> None:
        self._ledgers = ledgers
        self._tasks = tasks
        self._trimmers: dict[str, Trimmer] = {}
        self._running: list[asyncio.Task[None]] = []
        self._error: Exception | None = None
        self._failed = asyncio.Event()

    async def trimmer(self, vertex: str, limits: LedgerLimits, sharing: Sharing = SEPARATE) -> Trimmer:
        """The trimmer of a vertex's ledger. `limits`: the ledger's. `sharing`: the edges that share copies in it."""
        if vertex not in self._trimmers:
            ledger = await self._ledgers.ledger(vertex, limits)
            # Another replica may have created the trimmer in the meantime.
            if vertex not in self._trimmers:
                trimmer = self._trimmers[vertex] = Trimmer(ledger.trim, sharing=sharing)
                self._running.append(self._tasks.create_task(self._run(trimmer), name=f"trim {vertex}"))
        return self._trimmers[vertex]

    async def failed(self) -> None:
        """Wait until cancelled. Raises the error that ended a trimmer: it ends every replica, and each reports it."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    def close(self) -> None:
        """End all trimmers. The lanes have already trimmed what they consumed last (`Trimmer.finish`)."""
        for task in self._running:
            task.cancel()

    async def _run(self, trimmer: Trimmer) -> None:
        try:
            await trimmer.run()
        except Exception as error:  # noqa: BLE001  # any error ends the replicas
            self._error = error
            self._failed.set()


@asynccontextmanager
async def open_trimmers(ledgers: Ledgers) -> AsyncIterator[Trimmers]:
    """Trim what the replicas have consumed, until the context ends."""
    async with open_tasks() as tasks:
        trimmers = Trimmers(ledgers, tasks)
        try:
            yield trimmers
        finally:
            trimmers.close()
