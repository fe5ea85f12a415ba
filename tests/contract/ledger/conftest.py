"""Every test of the contract runs on every ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream import limits as all_limits
from millstream.ledger.protocol import Ledger, LedgerLimits
from millstream.record import LaneId
from tests.support.ledgers import Harness, LaneOwner, open_jetstream_harness, open_memory_harness, open_redis_harness


@pytest.fixture(params=["memory", "jetstream", "references", "redis"])
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    if request.param == "references":
        # JetStream, where every frame of a batch is stored apart.
        monkeypatch.setattr(all_limits, "FRAME_APART_BYTES_MIN", 1)
    if request.param == "memory":
        async with open_memory_harness() as memory:
            yield memory
    elif request.param == "redis":
        async with open_redis_harness(tmp_path) as redis:
            yield redis
    else:
        async with open_jetstream_harness(tmp_path) as jetstream:
            yield jetstream


@pytest.fixture
def limits() -> LedgerLimits:
    return LedgerLimits(frames_per_buffer_max=2000)


@pytest.fixture
async def ledger(harness: Harness, limits: LedgerLimits) -> Ledger:
    return await harness.broker.ledger("v", limits)


@pytest.fixture
async def owner(ledger: Ledger) -> LaneOwner:
    lane = LaneId("v", "in-v", 0)
    return LaneOwner(ledger, lane, await ledger.take_over(lane, "first"))
