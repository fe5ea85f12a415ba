"""The stored data of a pipeline: its ledgers, marks and OT entries, and what the technology lets a repair do with them.

Above it: the repair. Below it: the open buffer.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.buffers.placed import placed
from millstream.buffers.technology import InterStepBuffer
from millstream.ledger.protocol import Ledger, StoredMark
from millstream.naming import Naming
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.watermark.store import OtUpdate, forget
from millstream.wire.ledger.v1 import mark_pb2


class StoredPipeline:
    """The stored data of one pipeline that is not running."""

    def __init__(self, plan: Plan, buffer: InterStepBuffer) -> None:
        self.plan = plan
        buffer = placed(buffer, plan)
        self.repairs = buffer.repairs
        self.naming = Naming(values=plan.pipeline.spec.logging.values)
        self.unknown: set[LaneId] = set()
        """Lanes whose marks cannot be read, and were left unchanged."""
        self._broker = buffer.broker
        self._stores = buffer.stores

    def known(self, lanes: Iterable[LaneId]) -> list[LaneId]:
        """The lanes whose marks can be read."""
        return [lane for lane in lanes if lane not in self.unknown]

    async def ledger(self, vertex: str) -> Ledger | None:
        """The ledger of a vertex; None if there is none."""
        return await self._broker.existing_ledger(vertex)

    async def mark(self, ledger: Ledger | None, lane: LaneId) -> StoredMark | None:
        """The mark of a lane; None if it has none."""
        return await ledger.mark(lane) if ledger is not None else None

    async def ledger_and_mark(self, lane: LaneId) -> tuple[Ledger | None, mark_pb2.Mark]:
        """Both; an empty mark if there is none."""
        ledger = await self.ledger(lane.vertex)
        stored = await self.mark(ledger, lane)
        return ledger, stored.mark if stored is not None else mark_pb2.Mark()

    async def published(self, lane: LaneId) -> OtUpdate | None:
        """What the lane published last. Raises `DamageError` if it cannot be read."""
        return await (await self._stores.store(lane.vertex)).stored(lane)

    async def forget(self, lane: LaneId) -> None:
        """Remove what the lane has published."""
        await forget(await self._stores.store(lane.vertex), lane)
