"""The ledgers that one replica reads and writes, each opened once, and their trimmers.

Above it: what the lanes of a replica share (`shared`). Below it: the boundaries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from millstream.ledger.protocol import Ledger
from millstream.ledger.sharing import Sharing
from millstream.record import BufferId
from millstream.watermark.store import OtListener
from millstream_vertex.settings import ledger_limits
from millstream_vertex.shared_copies import checked
from millstream_vertex.trimming import Trimmer
from millstream_worker.environment import Outside, VertexConfig


class ReplicaLedgers:
    """The ledgers of one replica."""

    def __init__(
        self, config: VertexConfig, outside: Outside, listen: Callable[[str, OtListener], Awaitable[None]]
    ) -> None:
        """`listen`: passes the updates of a vertex's OT store to a listener."""
        self._config = config
        self._plan = config.resolved.plan
        self._outside = outside
        self._listen = listen
        self._ledgers: dict[str, Ledger] = {}
        self._trimmers: dict[str, Trimmer] = {}
        self._others: dict[str, list[OtListener]] = defaultdict(list)
        """Listeners to the other readers of the copies that this replica reads, by vertex."""

    def opened(self) -> Sequence[Ledger]:
        """Those that were opened so far."""
        return tuple(self._ledgers.values())

    async def of(self, vertex: str) -> Ledger:
        """The ledger of a vertex."""
        if vertex not in self._ledgers:
            self._ledgers[vertex] = await self._outside.broker.ledger(vertex, ledger_limits(self._plan, vertex))
        return self._ledgers[vertex]

    async def sharing(self, vertex: str) -> Sharing:
        """The edges that share copies in a vertex's ledger."""
        where = f"{self._config.resolved.pipeline.name}/{vertex}"
        return checked(self._plan, vertex, (await self.of(vertex)).sharing, where)

    async def trimmer(self, vertex: str) -> Trimmer:
        """The trimmer of a vertex's ledger, shared by all lanes of the worker."""
        if vertex not in self._trimmers:
            sharing = await self.sharing(vertex)
            trimmer = await self._outside.trimmers.trimmer(vertex, ledger_limits(self._plan, vertex), sharing)
            self._trimmers[vertex] = trimmer
            lanes = self._plan.owned_lanes(self._config.vertex, self._config.replica)
            for buffer in {buffer: None for lane in lanes for buffer in self._plan.inputs_of(lane)}:
                if self._plan.edge(buffer.edge).from_ == vertex:
                    await self._listen_to_others(buffer, sharing, trimmer)
        return self._trimmers[vertex]

    async def finish_trimming(self) -> None:
        """Trim everything that the lanes have read, for the last time."""
        # If several readers of the same copies end now, the last one must know that all the others are done.
        await self._outside.watches.catch_up(self._others)
        for trimmer in self._trimmers.values():
            await trimmer.finish()

    async def _listen_to_others(self, buffer: BufferId, sharing: Sharing, trimmer: Trimmer) -> None:
        """Report to the trimmer the positions of the other readers of this buffer's copy."""
        for other in sharing.readers(sharing.stored(buffer)):
            if other != buffer:
                vertex, listener = self._plan.edge(other.edge).to, partial(trimmer.consumed_elsewhere, other)
                await self._listen(vertex, listener)
                self._others[vertex].append(listener)
