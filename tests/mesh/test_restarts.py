"""What a pipeline that is started again still knows: watermarks, and how full its buffers are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.clock import START_OF_TIME_US
from millstream.nats.connection import open_connection
from tests.mesh.reducing import LIMIT_S, running, taken_in
from tests.support.pipelines import PipelineRun, open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


class Published:
    """Watermarks that a vertex's lane 0 published, in order, with their epochs."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self._changed = asyncio.Event()

    async def follow(self, run: PipelineRun, vertex: str) -> None:
        async with (
            open_connection(run.server.access, name="test") as connection,
            open_jetstream_ot_stores(connection, run.resolved.pipeline.name) as stores,
            (await stores.store(vertex)).watch() as updates,
        ):
            async for update in updates:
                self.entries.append((update.entry.epoch, update.entry.watermark_us))
                self._changed.set()

    async def above_start_in(self, epoch: int) -> None:
        while not any(entry[0] == epoch and entry[1] > START_OF_TIME_US for entry in self.entries):
            self._changed.clear()
            await self._changed.wait()


@pytest.mark.guarantee("I5")
async def test_a_watermark_that_time_has_moved_on_does_not_go_back_at_a_restart(
    files: PipelineFiles, tmp_path: Path
) -> None:
    path = files.write(
        "- name: in\n  source: {http: {port: 0}}\n"
        + files.function("identity")
        + "- name: out\n  sink: {blackhole: {}}\n",
        ["in -> map", "map -> out"],
        more="watermark: {idleSource: {threshold: 100ms, incrementBy: 100ms, initSourceDelay: 100ms}}",
    )
    async with open_pipeline(path, tmp_path / "broker") as run, asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        published = {vertex: Published() for vertex in ("in", "map", "out")}
        following = [tasks.create_task(entries.follow(run, vertex)) for vertex, entries in published.items()]
        for epoch in (1, 2):
            async with running(run):
                for entries in published.values():
                    await entries.above_start_in(epoch)
        for task in following:
            task.cancel()
    for entries in published.values():
        watermarks = [watermark_us for _, watermark_us in entries.entries]
        assert watermarks == sorted(watermarks)
        assert {epoch for epoch, _ in entries.entries} == {1, 2}


@pytest.mark.guarantee("I2")
async def test_a_restarted_writer_does_not_take_a_buffer_that_was_read_for_a_full_one(
    files: PipelineFiles, tmp_path: Path
) -> None:
    # More than it may hold passes through the buffer, and never more of it at once than there is room for.
    part, parts = 300, 4
    path = files.write(
        files.fed_source() + "- name: out\n  sink: {blackhole: {}}\n  limits: {bufferMaxLength: 1000}\n",
        ["{from: in, to: out, onFull: discardLatest}"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        for first in (0, parts):
            async with running(run) as task:
                for number in range(first, first + parts):
                    files.feed(range(number * part, (number + 1) * part))
                    await taken_in(run, "out", (number + 1) * part, task)
        source, sink = await run.account("in"), await run.account("out")
    assert (source.discarded, sink.inputs) == (0, 2 * parts * part)
