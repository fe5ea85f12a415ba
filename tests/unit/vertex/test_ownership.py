"""An owner hears that it was replaced, also while it has nothing to commit."""

from __future__ import annotations

import asyncio

import pytest

from millstream import codes
from millstream.errors import FencedError
from millstream.ledger.memory import open_memory_broker
from millstream.ledger.protocol import LedgerLimits
from millstream.record import LaneId
from millstream.watermark.store import OtUpdate
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from millstream_vertex.ownership import Ownership
from tests.support.errors import raises

LANE = LaneId("clean", "in-clean", 0)


def update(epoch: int, key: str = LANE.key) -> OtUpdate:
    return OtUpdate(key, OtEntry(epoch=epoch))


@pytest.mark.guarantee("I9")
async def test_an_idle_owner_that_was_replaced_stops() -> None:
    ownership = Ownership()
    ownership.own(LANE, 2)
    watching = asyncio.ensure_future(ownership.watch())
    ownership.observe(update(3))
    with raises(codes.LANE_TAKEN_OVER, match=r"clean/in-clean\.0 was taken over \(epoch 3\)"):
        await watching


async def test_its_own_entries_older_ones_and_those_of_other_lanes_are_no_news() -> None:
    ownership = Ownership()
    ownership.own(LANE, 2)
    watching = asyncio.ensure_future(ownership.watch())
    for heard in (update(2), update(1), update(9, "in-clean.1")):
        ownership.observe(heard)
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


@pytest.mark.guarantee("I9")
async def test_an_owner_asks_for_its_mark_whether_it_was_replaced() -> None:
    # One that was stopped meanwhile has not heard of it, and what its successor has trimmed looks damaged to it.
    async with open_memory_broker("p") as broker:
        ledger = await broker.ledger("clean", LedgerLimits(frames_per_buffer_max=10))
        ownership = Ownership()
        ownership.own(LANE, (await ledger.take_over(LANE, "first")).mark.epoch)
        await ownership.check(ledger)
        await ledger.take_over(LANE, "second")
        with raises(codes.LANE_TAKEN_OVER, match=r"clean/in-clean\.0 was taken over by 'second' \(epoch 2\)"):
            await ownership.check(ledger)


@pytest.mark.guarantee("I15")
async def test_a_newer_owner_that_the_ledger_does_not_know_means_that_the_ledger_is_older() -> None:
    told = FencedError(codes.OUTPUT_TAKEN_OVER, "out/in-out.0: out is in use by a newer owner (epoch 3, ours is 1)")
    async with open_memory_broker("p") as broker:
        ledger = await broker.ledger("clean", LedgerLimits(frames_per_buffer_max=10))
        ownership = Ownership()
        ownership.own(LANE, (await ledger.take_over(LANE, "first")).mark.epoch)
        with raises(codes.LEDGER_CUT, match=r"epoch 3, ours is 1\)\. But the ledger of vertex clean has no newer"):
            await ownership.check_known(LANE, ledger, told)
        await ledger.take_over(LANE, "second")
        await ownership.check_known(LANE, ledger, told)
