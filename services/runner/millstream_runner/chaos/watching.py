"""Receives what the lanes of a run publish, across all restarts of its broker and its runner.

Above it: the session. Below it: the OT stores. It changes nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from millstream.background import beside
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.errors import InfrastructureError, RetryLaterError, first_cause
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.watermark.store import OtStore
from millstream_runner.chaos.resume import Board
from millstream_runner.chaos.running import RunnerProcess

_POLL_S = 0.05


async def watch(plan: Plan, runner: RunnerProcess, board: Board) -> None:
    """Pass everything that lanes publish to the board, until cancelled."""
    while True:
        access = _access(plan, runner)
        if access is None:
            await asyncio.sleep(_POLL_S)
            continue
        with suppress(InfrastructureError, RetryLaterError):
            await _watch_broker(plan, runner, board, access)


async def _watch_broker(plan: Plan, runner: RunnerProcess, board: Board, access: Access) -> None:
    """Watch as long as the broker of the run has this port and this key."""
    opening = technology_of(plan.pipeline).open(
        access, plan.pipeline.name, name="chaos", require=DurabilityLevel.MEMORY
    )
    async with opening as buffer:
        opened = {vertex: await buffer.stores.store(vertex) for vertex in plan.order}
        try:
            async with AsyncExitStack() as hearing:
                for vertex, store in opened.items():
                    await hearing.enter_async_context(beside(_hear(plan, board, vertex, store), f"hear {vertex}"))
                while _access(plan, runner) in (None, access):  # noqa: ASYNC110  # a file tells
                    await asyncio.sleep(_POLL_S)
        except BaseExceptionGroup as group:
            # One failure stands for all: they have one cause, the broker.
            raise first_cause(group) or group from None


async def _hear(plan: Plan, board: Board, vertex: str, store: OtStore) -> None:
    lanes = {lane.key: lane for lane in plan.lanes_of(vertex)}
    async with store.watch() as updates:
        async for update in updates:
            lane: LaneId | None = lanes.get(update.key)
            if lane is not None:
                board.observe(lane, update)


def _access(plan: Plan, runner: RunnerProcess) -> Access | None:
    runtime = runner.runtime()
    if runtime is None or not runtime.broker_url:
        return None
    return runner.data.access(runtime, technology_of(plan.pipeline))
