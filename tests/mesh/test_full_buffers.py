"""Pipelines whose buffers are full: nothing waits for itself, and a request to stop is not kept waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.record import LaneId
from tests.mesh.reducing import LIMIT_S
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


@pytest.mark.guarantee("I1", "I9")
async def test_a_cycle_whose_buffers_are_full_does_not_wait_for_itself(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(1000)
        + files.function("identity", vertex="enter")
        + files.function("slow_countdown")
        + files.file_sink("out"),
        [
            "in -> enter",
            "enter -> map",
            "{from: map, to: enter, conditions: {tags: {values: [again]}}}",
            "{from: map, to: out, conditions: {tags: {values: [done]}}}",
        ],
        more="limits: {bufferMaxLength: 100, readBatchSize: 20}",
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    assert sorted(files.numbers("out")) == list(range(1000))


@pytest.mark.guarantee("I1")
async def test_what_is_in_flight_is_committed_at_a_stop_though_its_buffer_is_full(
    files: PipelineFiles, tmp_path: Path
) -> None:
    path = files.write(
        files.generator(None, rpu=20_000)
        + files.function("identity")
        + files.function("slow", vertex="slow")
        + files.file_sink("out"),
        ["in => map", "map => slow", "slow -> out"],
        more="limits: {bufferMaxLength: 100, readBatchSize: 20}",
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        running = asyncio.ensure_future(run.run())
        while (await run.account("map")).inputs < 80:
            assert not running.done()
        run.stop()
        async with asyncio.timeout(LIMIT_S):
            await running
        marks = {lane.vertex: mark for lane, mark in (await run.marks()).items()}
    assert not marks["in"].ended


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_a_buffer_keeps_to_its_length_and_time_moves_in_it(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(None) + files.function("slow") + files.file_sink("out"),
        ["in => map", "map -> out"],
        more="limits: {bufferMaxLength: 3000}",
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        running = asyncio.ensure_future(run.run())
        while (await run.account("map")).inputs < 600:
            assert not running.done()
        # The first frame of four is consumed completely, so the map has promised a time.
        map_lane = LaneId("map", "in-map", 0)
        while (await run.marks())[map_lane].sequence == 0:
            assert not running.done()
        run.stop()
        async with asyncio.timeout(LIMIT_S):
            await running
        marks = {lane.vertex: mark for lane, mark in (await run.marks()).items()}
    waiting = marks["in"].written[0].records - marks["map"].account.inputs
    # More than what may be used, which is 80 %, by one frame of the one writer at most.
    assert 0 < waiting <= 3000
