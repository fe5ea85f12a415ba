"""Access to the stored data of a pipeline that is not running: its broker is started temporarily.

Above it: commands that inspect or change a pipeline between two runs. Below it: the data directory and the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.buffers.placed import placed
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import InterStepBuffer
from millstream.errors import UserError
from millstream.ledger.protocol import DurabilityLevel, Ledger, StoredMark
from millstream.naming import Naming
from millstream.plan.diff import diff
from millstream.plan.plan import Plan
from millstream.plan.shape import as_stored, shape_of
from millstream.record import LaneId
from millstream.spec.loading import load
from millstream.watermark.store import OtUpdate, forget, newest
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.broker import BROKER, EmbeddedBroker
from millstream_runner.local.directory import DataDirectory, held, read_json, root_of
from millstream_runner.local.processes import end_stale, is_alive
from millstream_runner.local.view import PipelineView, open_view


def load_stored(file: Path, data_dir: Path | None) -> tuple[Plan, DataDirectory]:
    """The pipeline of a file, as it is stored, and the directory of its data.

    Raises `UserError` if that directory has no data, or data of a different pipeline.
    """
    loaded = load(file)
    directory = DataDirectory(root_of(loaded.pipeline.name, data_dir))
    before = read_json(directory.shape)
    if before is None:
        raise UserError(
            codes.NO_SUCH_RUN, f"{directory.root} is not the data directory of a pipeline (it has no shape.json)"
        )
    loaded, _ = as_stored(loaded, before)
    found = diff(before, shape_of(loaded.plan))
    if found.any:
        differs = "; ".join(one.what for one in found.differences)
        what = f"the data directory {directory.root} holds data of a different pipeline: {differs}"
        raise UserError(codes.DATA_OF_ANOTHER_PIPELINE, what)
    return loaded.plan, directory


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
            processes.create_task(broker.serve(), name=BROKER)
            await broker.ready.wait()
            yield broker
            broker.stop()


@asynccontextmanager
async def open_stored_buffer(
    directory: DataDirectory,
    plan: Plan,
    name: str,
    *,
    require: DurabilityLevel = DurabilityLevel.MEMORY,
    tolerate_lost: bool = False,
) -> AsyncIterator[InterStepBuffer]:
    """As `open_stored`, with the buffers of the pipeline in that broker. `name` is that of the connection."""
    async with (
        open_stored(directory, plan) as broker,
        technology_of(plan.pipeline).open(
            broker.access, plan.pipeline.name, name=name, require=require, tolerate_lost=tolerate_lost
        ) as buffer,
    ):
        yield buffer


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


class StoredPipeline:
    """The stored data of one pipeline that is not running: its ledgers, marks and OT entries, and what the technology
    lets a repair do with them."""

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

    async def all_published(self, vertex: str) -> Mapping[str, OtUpdate]:
        """What the lanes of a vertex published last, by their keys. Waits while the broker does not answer."""
        return await newest(await self._stores.store(vertex))

    async def forget(self, lane: LaneId) -> None:
        """Remove what the lane has published."""
        await forget(await self._stores.store(lane.vertex), lane)
