"""The ledgers of a pipeline by vertex, where some vertices are stored in the ledger of another one.

A vertex that followed in a chain is stored with the first vertex of that chain, and stays there when it has lanes of
its own (`millstream.plan.plan.Plan.ledgers`). Lanes, buffers and edges have their own names in a ledger, so several
vertices may write to one.

Above it: whatever opens a pipeline's buffers. Below it: the technologies.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.buffers.technology import InterStepBuffer, LostMessages, OpenBuffer, Repairs, TornCommit
from millstream.ledger.protocol import Broker, Ledger, LedgerLimits
from millstream.plan.plan import Plan
from millstream.record import BufferId, LaneId


def placed(buffer: InterStepBuffer, plan: Plan) -> InterStepBuffer:
    """The same buffers; a ledger or a repair is that of `plan.ledger_of(vertex)`."""
    if not plan.ledgers:
        return buffer
    broker, repairs = _PlacedBroker(buffer.broker, plan), _PlacedRepairs(buffer.repairs, plan)
    return OpenBuffer(broker, buffer.stores, repairs, buffer.trouble)


@dataclass(frozen=True, slots=True)
class _PlacedBroker:
    _broker: Broker
    _plan: Plan

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        return await self._broker.ledger(self._plan.ledger_of(vertex), limits)

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        return await self._broker.existing_ledger(self._plan.ledger_of(vertex))

    async def delete(self, vertex: str | None = None) -> None:
        """`vertex`: the name of a ledger, which may have the data of several vertices."""
        await self._broker.delete(vertex)


@dataclass(frozen=True, slots=True)
class _PlacedRepairs:
    _repairs: Repairs
    _plan: Plan

    async def last_sequence(self, vertex: str) -> int:
        return await self._repairs.last_sequence(self._plan.ledger_of(vertex))

    async def lost(self, vertex: str) -> LostMessages | None:
        return await self._repairs.lost(self._plan.ledger_of(vertex))

    async def torn(self, lane: LaneId) -> TornCommit | None:
        return await self._repairs.torn(lane._replace(vertex=self._plan.ledger_of(lane.vertex)))

    async def cut(self, vertex: str, torn: TornCommit) -> None:
        await self._repairs.cut(self._plan.ledger_of(vertex), torn)

    async def holds_mark(self, vertex: str, sequence: int) -> bool:
        return await self._repairs.holds_mark(self._plan.ledger_of(vertex), sequence)

    async def remove(self, vertex: str, buffer: BufferId, sequence: int) -> None:
        await self._repairs.remove(self._plan.ledger_of(vertex), buffer, sequence)
