"""A watermark that was driven away is set back: what it costs is said, and no window has two results."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream import durable
from millstream.buffers.jetstream.technology import TECHNOLOGY
from millstream.durable import CRASH_AT
from millstream_runner.local.setting_back import Watermarks
from millstream_runner.local.stored import StoredPipeline
from tests.mesh.reducing import (
    Contents,
    Event,
    assert_balanced,
    closed_past,
    contents_of,
    fixed_contents,
    reduce,
    running,
    session_contents,
    sliding_contents,
    source,
    taken_in,
    time_ms,
    until,
    write_events,
)
from tests.mesh.running import called, command, start
from tests.support.pipelines import PipelineRun, open_pipeline
from tests.support.sizes import first, sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

TARGET_S = 45.0
FAR_S = 1_000_000_000.0


async def set_back(run: PipelineRun, time_us: int) -> int:
    """Set every lane back that is beyond; how many were."""
    async with TECHNOLOGY.open(run.server.access, run.resolved.pipeline.name, name="test") as buffer:
        watermarks = Watermarks(StoredPipeline(run.plan, buffer), run.windows)
        targets = watermarks.targets(time_us)
        beyond = [one for one in await watermarks.lanes() if one.is_beyond(targets[one.lane.vertex])]
        for one in beyond:
            await watermarks.set_back(one.lane, targets[one.lane.vertex])
    return len(beyond)


class Killed(Exception):
    """In the middle of a durable step."""


async def killed_at(run: PipelineRun, time_us: int, number: int) -> bool:
    """Set back until the point of that number; whether it was reached."""
    count = 0

    def listener(point: str, vertex: str) -> None:
        nonlocal count
        count += 1
        if count >= number:
            raise Killed(point)

    durable.listen(listener)
    try:
        with suppress(Exception):
            await set_back(run, time_us)
    finally:
        durable.listen(None)
    return count >= number


@pytest.mark.guarantee("I1", "I2", "I3")
@pytest.mark.parametrize(
    ("window", "end_s", "contents"),
    first(
        1,
        [
            ("{fixed: {length: 10s}}", 50, lambda events: fixed_contents(events, 10)),
            ("{sliding: {length: 20s, slide: 10s}}", 60, lambda events: sliding_contents(events, 20, 10)),
            ("{session: {timeout: 10s}}", 55, lambda events: session_contents(events, 10)),
        ],
    ),
    ids=["fixed", "sliding", "session"],
)
async def test_a_reduce_goes_on_with_each_window_once_wherever_the_repair_is_killed(
    files: PipelineFiles,
    tmp_path: Path,
    spark: SparkDriver,
    window: str,
    end_s: float,
    contents: Callable[[list[Event]], Contents],
) -> None:
    path = files.write(
        source(more=", follow: true")
        + reduce(window, group_by="keyed: true, allowedLateness: 2s")
        + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    given = 0
    target_us = time_ms(TARGET_S) * 1000

    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:

        async def give(*times: float) -> list[Event]:
            nonlocal given
            events = [Event(given + n, s, "k") for n, s in enumerate(times)]
            given += len(events)
            write_events(tmp_path / "in.jsonl", events)
            await taken_in(run, "sum", given, task)
            return events

        async with running(run) as task:
            before = await give(*range(45))
            await give(FAR_S)
            await closed_past(run, "sum", 1000, task)
            late = await give(100, 101)
        number = 1
        while await killed_at(run, target_us, number):
            number += 5
        assert number > 10, "there are steps to be killed at"
        assert await set_back(run, target_us) == 0, "all is done"
        async with running(run) as task:
            assert await run.published("in") <= target_us
            # The window that holds the time it was set back to has had its result.
            late += await give(41, 44)
            after = await give(*range(62, 100))
            await give(500)
            await closed_past(run, "sum", 400, task)
            expected = {**contents(before), **contents(after)}

            async def written() -> bool:
                return len(files.rows("out")) >= len(expected)

            await until(written, task)
        account = await run.account("sum")
        await assert_balanced(run, open_records=2)
    assert contents_of(files.rows("out")) == expected
    assert all(end > end_s for _, _, end in contents(after))
    assert account.dropped == {"late": len(late)}


async def test_the_command_says_what_it_costs_and_may_be_killed(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(
        files.generator(1_000_000, rpu=200, start="9000-01-01T00:00:00Z")
        + "- name: map\n  udf: {builtin: {name: cat}}\n"
        + files.file_sink("out"),
        ["in => map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        run.interrupt()
        assert (await run.ended()).exit_code == 0
    asked = ("watermark", "pipeline.yaml")
    told = await called(tmp_path, *asked)
    assert (told.exit_code, told.out.count("watermark 9000-01-01T")) == (0, 3), told.out + told.err
    costs = await called(tmp_path, *asked, "--set-back", "now")
    assert costs.exit_code == 0
    assert "3 lanes would be set back" in costs.out
    assert "nothing was changed" in costs.out
    assert (await called(tmp_path, *asked)).out == told.out
    doing = (*asked, "--set-back", "2024-01-31T08:00:00Z", "--accept-loss")
    points = ("ledger.commit:before@map", "watermark.forget:before@out")
    for point in points[-sized(1, len(points)) :]:
        with monkeypatch.context() as patched:
            patched.setenv(CRASH_AT, point)
            assert (await command(tmp_path, *doing)).exit_code < 0, f"{point} was not reached"
    done = await called(tmp_path, *doing)
    assert "set back; the next run continues from there" in done.out, done.out + done.err
    assert "set-back" in (await command(tmp_path, "audit", "--data-dir", ".millstream/p")).out
    told = await called(tmp_path, *asked)
    assert told.out.count("watermark 2024-01-31T08:00:00.000000Z") == 3
    assert "nothing was changed" in (await called(tmp_path, *doing)).out
    for wrong in (("--accept-loss",), ("--set-back", "soon")):
        assert (await command(tmp_path, *asked, *wrong)).exit_code == 2
