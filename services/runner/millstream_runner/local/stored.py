"""Access to the stored data of a pipeline that is not running: its broker is started temporarily.

Above it: commands that inspect or change a pipeline between two runs. Below it: the data directory and the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.buffers.registry import technology_of
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan.plan import Plan
from millstream_runner.local.broker import EmbeddedBroker
from millstream_runner.local.directory import DataDirectory, held
from millstream_runner.local.processes import end_stale, is_alive
from millstream_runner.local.view import PipelineView, open_view


@asynccontextmanager
async def open_stored(directory: DataDirectory, plan: Plan) -> AsyncIterator[EmbeddedBroker]:
    """Lock the directory, end what a killed run left behind, and keep its broker running during the block.

    Raises `InfrastructureError` if a run has the directory.
    """
    with held(directory.root):
        runtime = directory.read_runtime()
        if runtime is not None:
            end_stale(process.identity for process in runtime.processes)
        async with asyncio.TaskGroup() as processes:
            broker = EmbeddedBroker(
                directory.broker,
                plan,
                durability=DurabilityLevel.FSYNC,
                port=None,
                on_line=lambda line: None,
                on_started=lambda: None,
            )
            processes.create_task(broker.serve(), name="broker")
            await broker.ready.wait()
            yield broker
            broker.stop()


@asynccontextmanager
async def open_run(directory: DataDirectory, plan: Plan) -> AsyncIterator[PipelineView]:
    """The stored data of a run: from its broker while it runs, or from a temporary broker over its store."""
    runtime = directory.read_runtime()
    if runtime is not None and is_alive(runtime.runner):
        async with open_view(plan, directory.access(runtime, technology_of(plan.pipeline))) as view:
            yield view
        return
    async with open_stored(directory, plan) as broker, open_view(plan, broker.access) as view:
        yield view
