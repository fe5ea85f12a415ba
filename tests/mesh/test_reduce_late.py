"""Records that come late to their windows, and results that come early: step by step, over a file that grows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.reducing import (
    CONTENTS,
    Contents,
    Event,
    assert_balanced,
    closed_past,
    contents_of,
    fixed_contents,
    reduce,
    running,
    seconds_of,
    session_contents,
    sliding_contents,
    source,
    taken_in,
    until,
    write_events,
)
from tests.support.pipelines import PipelineRun, open_pipeline
from tests.support.sizes import first

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

FOLLOWED = source(more=", follow: true")
EARLY = CONTENTS.replace(" FROM", ", window_early FROM") + ", window_early"


class Feed:
    """Writes events into the file that the source follows, and knows what it has written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events: list[Event] = []

    async def give(self, run: PipelineRun, task: asyncio.Future[None], *times: float) -> list[Event]:
        """One event at each time, of two keys by turns; returns when the reduce has taken them in."""
        events = [Event(len(self.events) + n, s, f"k{n % 2}") for n, s in enumerate(times)]
        write_events(self._path, events)
        self.events += events
        await taken_in(run, "sum", len(self.events), task)
        return events


async def written(files: PipelineFiles, task: asyncio.Future[None], **rows: int) -> None:
    """Wait until the sinks of these names have written so many rows."""

    async def reached() -> bool:
        return all(len(files.rows(sink)) >= count for sink, count in rows.items())

    await until(reached, task)


@pytest.mark.guarantee("I1", "I2", "I3", "I5")
@pytest.mark.parametrize("on_late", first(1, ["edge", "drop"]))
async def test_a_late_record_goes_where_the_spec_says_once_also_over_a_restart(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, on_late: str
) -> None:
    vertices = FOLLOWED + reduce("{fixed: {length: 10s}}", group_by=f"keyed: true, onLate: {on_late}")
    vertices, edges = vertices + files.file_sink("out"), ["in -> sum", "sum -> out"]
    if on_late == "edge":
        vertices, edges = vertices + files.file_sink("late"), [*edges, "{from: sum, to: late, kind: late}"]
    path = files.write(vertices, edges)
    feed, in_time, late = Feed(tmp_path / "in.jsonl"), list[Event](), list[Event]()
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        for begin in (0, 100):
            async with running(run) as task:
                in_time += await feed.give(run, task, *(begin + n / 4 for n in range(100)))
                await closed_past(run, "sum", begin + 20, task)
                late += await feed.give(run, task, begin, begin + 9.999, begin + 10, begin + 19.999, -1000)
                in_time += await feed.give(run, task, begin + 20, begin + 24)
            # What the run before has closed is closed.
            async with running(run) as task:
                late += await feed.give(run, task, begin + 3, begin + 13)
        async with running(run) as task:
            in_time += await feed.give(run, task, 10_000)
            expected = fixed_contents(in_time[:-1], 10)
            await written(files, task, out=len(expected), late=len(late) if on_late == "edge" else 0)
        account = await run.account("sum")
        await assert_balanced(run, open_records=1)
    assert contents_of(files.rows("out")) == expected
    # Four of those that were in time were older than the watermark.
    assert (account.late, account.processed) == (len(late) + 4, len(in_time) - 1)
    assert account.dropped == ({} if on_late == "edge" else {"late": len(late)})
    assert account.diverted == (len(late) if on_late == "edge" else 0)
    if on_late == "edge":
        assert sorted(row["n"] for row in files.rows("late")) == sorted(event.n for event in late)


@pytest.mark.guarantee("I2", "I3")
@pytest.mark.parametrize(
    ("window", "contents"),
    first(
        1,
        [
            ("{fixed: {length: 10s}}", lambda events: fixed_contents(events, 10)),
            ("{sliding: {length: 20s, slide: 10s}}", lambda events: sliding_contents(events, 20, 10)),
            ("{session: {timeout: 10s}}", lambda events: session_contents(events, 10)),
        ],
    ),
)
async def test_allowed_lateness_keeps_windows_open(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, window: str, contents: Callable[[list[Event]], Contents]
) -> None:
    path = files.write(
        FOLLOWED
        + reduce(window, group_by="keyed: true, allowedLateness: 30s")
        # What comes after it is not late for any lane downstream.
        + reduce("{fixed: {length: 1h}}", name="all", query="SELECT count(*) AS n FROM window")
        + "- name: end\n  sink: {blackhole: {}}\n"
        + files.file_sink("out"),
        ["in -> sum", "sum -> all", "all -> end", "sum -> out"],
    )
    feed = Feed(tmp_path / "in.jsonl")
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        async with running(run) as task:
            for begin in range(20, 120, 20):
                await feed.give(run, task, *(begin + n for n in range(20)))
                await closed_past(run, "sum", begin + 19 - 30, task)
                # Old, and yet in time.
                await feed.give(run, task, *(begin + 10 - n for n in range(20)))
            admitted = list(feed.events)
            # Before all sessions, so that it belongs to none that is open.
            await feed.give(run, task, 0.5, 0)
            await feed.give(run, task, 1000)
            expected = contents(admitted)
            await written(files, task, out=len(expected))
            await taken_in(run, "all", len(expected), task)
        account, after = await run.account("sum"), await run.account("all")
        await assert_balanced(run, open_records=1 + len(expected))
    assert contents_of(files.rows("out")) == expected
    assert (account.late, account.dropped) == (100 + 2, {"late": 2})
    assert (after.inputs, after.late) == (len(expected), 0)


@pytest.mark.guarantee("I3")
async def test_early_results_are_numbered_and_the_final_one_is_over_everything(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    path = files.write(
        FOLLOWED
        + reduce("{fixed: {length: 100s, streaming: true}}", query=EARLY, group_by="keyed: true, early: {count: 20}")
        + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    feed = Feed(tmp_path / "in.jsonl")
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        async with running(run) as task:
            for round_ in range(3):
                await feed.give(run, task, *(n + round_ / 10 for n in range(20)))
                await written(files, task, out=2 * (round_ + 1))
            # In none of the windows that hold nothing new.
            await feed.give(run, task, *(150 for _ in range(20)))
            await written(files, task, out=2 * 3 + 2 + 2)
        async with running(run) as task:
            await feed.give(run, task, *(160 for _ in range(20)))
            await written(files, task, out=2 * 3 + 2 + 2 + 2)
            await feed.give(run, task, 10_000)
            await written(files, task, out=2 * 3 + 2 + 2 + 2 + 2)
        await assert_balanced(run, open_records=1)
    rows = files.rows("out")
    assert contents_of(row for row in rows if row["window_early"] == 0) == fixed_contents(feed.events[:-1], 100)
    for key in ("k0", "k1"):
        mine = [row for row in rows if row["key"] == key]
        first, second = (
            [(row["window_early"], row["ns"]) for row in mine if seconds_of(row["window_start"]) == start]
            for start in (0, 100)
        )
        assert [number for number, _ in first] == [1, 2, 3, 0]
        assert [number for number, _ in second] == [1, 2, 0]
        for results in (first, second):
            sizes = [len(ns) for _, ns in results]
            assert sizes[:-1] == [10 * (n + 1) for n in range(len(results) - 1)]
            assert all(set(a[1]) <= set(b[1]) for a, b in pairwise(results))


@pytest.mark.guarantee("I3")
async def test_early_results_by_count_are_those_of_the_window_that_has_got_so_many(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    path = files.write(
        FOLLOWED
        + reduce(
            "{fixed: {length: 100s, streaming: true}}",
            query=EARLY,
            group_by="allowedLateness: 1000s, early: {count: 20}",
        )
        + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    feed = Feed(tmp_path / "in.jsonl")
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        async with running(run) as task:
            # More than enough for one window, but they are of two.
            await feed.give(run, task, *range(14), *range(100, 114))
            await feed.give(run, task, *range(20, 26))
            await written(files, task, out=2)
        # What the other one had received before the restart counts.
        async with running(run) as task:
            await feed.give(run, task, *range(120, 126))
            await written(files, task, out=4)
            await feed.give(run, task, 10_000)
            await written(files, task, out=8)
        await assert_balanced(run, open_records=1)
    results = [(seconds_of(row["window_start"]), row["window_early"], row["c"]) for row in files.rows("out")]
    assert sorted(results) == [(start, early, 10) for start in (0, 100) for early in (0, 0, 1, 1)]


async def test_early_results_are_counted_also_where_everything_comes_at_once(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    events = [Event(n, n / 10, "k") for n in range(1500)]
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source()
        + reduce("{fixed: {length: 200s, streaming: true}}", query=EARLY, group_by="early: {count: 50}")
        # The end of the window comes with its records.
        + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    rows = sorted(files.rows("out"), key=lambda row: row["window_early"] or 1 << 60)
    assert [row["window_early"] for row in rows] == [*range(1, len(rows)), 0]
    assert len(rows) >= 2
    counts = [row["c"] for row in rows]
    assert counts[-1] == 1500
    assert all(after - before >= 50 for before, after in pairwise([0, *counts[:-1]]))


async def test_early_results_come_at_a_period_by_the_clock(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    path = files.write(
        FOLLOWED
        + reduce(
            "{session: {timeout: 100s, streaming: true}}", query=EARLY, group_by="keyed: true, early: {every: 50ms}"
        )
        + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    feed = Feed(tmp_path / "in.jsonl")

    async def shown() -> bool:
        """All that was given, in results so far."""
        return {n for row in files.rows("out") for n in row["ns"]} == {event.n for event in feed.events}

    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        async with running(run) as task:
            for begin in (0, 20, 40):
                await feed.give(run, task, *(begin + n for n in range(10)))
                await until(shown, task)
            await feed.give(run, task, 10_000)
            await until(shown, task)
            expected = session_contents(feed.events[:-1], 100)
            assert len(expected) == 2
            await until(lambda: finals(files, len(expected)), task)
        await assert_balanced(run, open_records=1)
    rows = [row for row in files.rows("out") if row["ns"] != [30]]
    assert contents_of(row for row in rows if row["window_early"] == 0) == expected
    for key in ("k0", "k1"):
        early = [row for row in rows if row["key"] == key and row["window_early"]]
        assert [row["window_early"] for row in early] == list(range(1, len(early) + 1))
        assert len(early) >= 3
        assert all(set(a["ns"]) < set(b["ns"]) for a, b in pairwise(early))


async def finals(files: PipelineFiles, count: int) -> bool:
    return len([row for row in files.rows("out") if row["window_early"] == 0]) >= count
