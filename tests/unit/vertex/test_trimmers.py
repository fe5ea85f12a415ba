"""Replicas of a worker that read one ledger have it trimmed together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from millstream import codes
from millstream.errors import DamageError
from millstream.ledger.protocol import Broker, LedgerLimits
from millstream.record import BufferId
from millstream_worker.trimmers import open_trimmers
from tests.support.children import together
from tests.support.errors import raises

LIMITS = LedgerLimits(100)
A, B = BufferId("in-a", 0), BufferId("in-b", 0)


class Trims:
    """A ledger as far as its trimmer sees it."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.asked: list[Mapping[BufferId, int]] = []
        self.asked_once = asyncio.Event()
        self._broken = broken

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        self.asked.append(through)
        self.asked_once.set()
        if self._broken is not None:
            raise self._broken


class Trimmed:
    """A broker as far as trimmers see it."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.opened: dict[str, Trims] = {}
        self._broken = broken

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Trims:
        # Others have their turn meanwhile, as with a server.
        await asyncio.sleep(0)
        return self.opened.setdefault(vertex, Trims(self._broken))


async def test_two_readers_of_one_ledger_cost_one_trim() -> None:
    broker = Trimmed()
    async with asyncio.timeout(10), open_trimmers(cast("Broker", broker)) as trimmers:
        first, second = await together(trimmers.trimmer("in", LIMITS), trimmers.trimmer("in", LIMITS))
        assert first is second
        assert await trimmers.trimmer("other", LIMITS) is not first
        first.consumed(A, 5)
        second.consumed(B, 7)
        await broker.opened["in"].asked_once.wait()
        assert broker.opened["in"].asked == [{A: 5, B: 5}]
        # One replica ends, and the other goes on.
        await first.finish()
        broker.opened["in"].asked_once.clear()
        second.consumed(B, 9)
        await broker.opened["in"].asked_once.wait()
        assert broker.opened["in"].asked[-1] == {B: 9}
    assert broker.opened["other"].asked == []


async def test_what_ends_a_trimmer_ends_each_replica() -> None:
    async with (
        asyncio.timeout(10),
        open_trimmers(cast("Broker", Trimmed(DamageError(codes.LEDGER_GONE, "a frame is gone")))) as trimmers,
    ):
        (await trimmers.trimmer("in", LIMITS)).consumed(A, 5)
        for _ in range(2):
            with raises(codes.LEDGER_GONE):
                await trimmers.failed()
