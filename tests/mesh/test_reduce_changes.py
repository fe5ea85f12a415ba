"""Reduces of a drained pipeline that change: in partitions, windows and name. Each window has one result."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import UserError
from tests.mesh.changing import open_changer, open_changing
from tests.mesh.reducing import (
    Event,
    assert_balanced,
    closed_past,
    contents_of,
    fixed_contents,
    reduce,
    running,
    source,
    taken_in,
    until,
    write_events,
)

if TYPE_CHECKING:
    import asyncio

    from tests.mesh.changing import Changing
    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver
    from tests.support.pipelines import PipelineRun

KEYS = ("a", "b", "c", "d", "e", "f")
TICK = "tick"
"""Key of events that move the watermark, and that no reduce is sent."""
LENGTH_S = 10
LATE = "{from: %s, to: late, kind: late}"


def times(begin: int, end: int) -> list[float]:
    """Of events in all windows between these."""
    return [begin + n / 2 for n in range(2 * (end - begin))]


def vertices(files: PipelineFiles, *reduces: str) -> str:
    """Two sinks behind reduces, and a filter in front of them."""
    tickless = "- name: keep\n  udf: {builtin: {name: filter, kwargs: {field: k, matches: '^.$'}}}\n"
    followed = source(more=", follow: true")
    return followed + tickless + "".join(reduces) + files.file_sink("out") + files.file_sink("late")


def fixed(name: str = "sum", *, length_s: int = LENGTH_S, partitions: int = 1) -> str:
    window = f"{{fixed: {{length: {length_s}s}}}}"
    return reduce(window, name=name, group_by="keyed: true, onLate: edge", lanes=f"partitions: {partitions}")


def edges(name: str = "sum") -> list[str]:
    return ["in -> keep", f"keep -> {name}", f"{name} -> out", LATE % name]


class Feed:
    """Writes events into the file that the source follows, and knows what it has written."""

    def __init__(self, files: PipelineFiles) -> None:
        self._files = files
        self._path = files.directory / "in.jsonl"
        self._count = 0
        self.given: list[Event] = []
        """Without those that only move the watermark."""

    async def give(
        self, run: PipelineRun, reduce: str, task: asyncio.Future[None], times: Sequence[float]
    ) -> list[Event]:
        """One event at each time, by turns of all keys; returns when the reduce has taken them in."""
        events = [Event(self._count + n, s, KEYS[(self._count + n) % len(KEYS)]) for n, s in enumerate(times)]
        before = (await run.account(reduce)).inputs
        self._write(events)
        self.given += events
        await taken_in(run, reduce, before + len(events), task)
        return events

    async def close(self, run: PipelineRun, reduce: str, task: asyncio.Future[None], s: float) -> None:
        """Move the watermark there, and wait for the results of what it closes."""
        self._write([Event(self._count, s, TICK)])
        await closed_past(run, reduce, s // LENGTH_S * LENGTH_S, task)

    async def written(self, task: asyncio.Future[None], **rows: int) -> None:
        async def reached() -> bool:
            return all(len(self._files.rows(sink)) >= count for sink, count in rows.items())

        await until(reached, task)

    def _write(self, events: Sequence[Event]) -> None:
        write_events(self._path, events)
        self._count += len(events)


async def killed(changing: Changing, path: Path, *points: str) -> None:
    """The change to this pipeline, begun once for each of these points and killed there."""
    async with open_changer() as changer:
        for point in points:
            assert (await changer.change(changing, path, point))["ended"] == -signal.SIGKILL, point


@pytest.mark.guarantee("I1", "I2", "I3", "I5")
async def test_a_reduce_with_more_partitions_goes_on_and_closed_windows_stay_closed(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    feed = Feed(files)
    async with open_changing(tmp_path, spark=spark.address) as changing:
        run = await changing.run_of(files.write(vertices(files, fixed()), edges()))
        async with running(run) as task:
            in_time = await feed.give(run, "sum", task, times(0, 30))
            await feed.close(run, "sum", task, 30)
            await feed.written(task, out=len(fixed_contents(in_time, LENGTH_S)))
        await assert_balanced(run)
        path = files.write(vertices(files, fixed(partitions=3)), edges())
        await killed(changing, path, "ledger.take_over:after", "ledger.commit:after", "data.name:before")
        run = await changing.run_of(path)
        # What comes first in the new partitions is late: the windows it would be in have had their results.
        late = [Event(1000 + n, 5, key) for n, key in enumerate(KEYS)]
        write_events(tmp_path / "in.jsonl", late)
        async with running(run) as task:
            await feed.written(task, late=len(late))
            in_time += await feed.give(run, "sum", task, times(30, 50))
            await feed.close(run, "sum", task, 50)
            expected = fixed_contents(in_time, LENGTH_S)
            await feed.written(task, out=len(expected))
        await assert_balanced(run)
    assert contents_of(files.rows("out")) == expected
    assert sorted(row["n"] for row in files.rows("late")) == [event.n for event in late]


@pytest.mark.guarantee("I3")
async def test_a_reduce_that_has_ended_ends_with_more_partitions_too(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    events = [Event(n, s, KEYS[n % len(KEYS)]) for n, s in enumerate(times(0, 30))]
    write_events(tmp_path / "in.jsonl", events)
    async with open_changing(tmp_path, spark=spark.address) as changing:
        for partitions in (1, 3):
            sinks = files.file_sink("out") + files.file_sink("late")
            path = files.write(source() + fixed(partitions=partitions) + sinks, ["in -> sum", *edges()[2:]])
            run = await changing.run_of(path)
            await run.run()
            await assert_balanced(run)
            assert contents_of(files.rows("out")) == fixed_contents(events, LENGTH_S)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2", "I3")
async def test_other_windows_take_another_name_and_each_record_is_in_one_of_both(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    feed = Feed(files)
    async with open_changing(tmp_path, spark=spark.address) as changing:
        path = files.write(vertices(files, fixed()), edges())
        run = await changing.run_of(path)
        async with running(run) as task:
            first = await feed.give(run, "sum", task, times(0, 35))
            await feed.close(run, "sum", task, 35)
            await feed.written(task, out=len(fixed_contents(first[:60], LENGTH_S)))
        await assert_balanced(run, open_records=10)
        before = path.read_text()
        # A name is that of its windows, and open windows keep it.
        with pytest.raises(UserError, match="had fixed 10s windows and now has fixed 20s windows: rename"):
            await changing.run_of(files.write(vertices(files, fixed(length_s=20)), edges()))
        renamed = vertices(files, fixed("twice", length_s=20))
        with pytest.raises(UserError, match="vertex sum was removed, and its open windows contain 10 records"):
            await changing.run_of(files.write(renamed, edges("twice")))
        path.write_text(before)
        run = await changing.run_of(path)
        async with running(run) as task:
            await feed.close(run, "sum", task, 40)
            await feed.written(task, out=len(fixed_contents(first, LENGTH_S)))
        path = files.write(renamed, edges("twice"))
        await killed(changing, path, "data.leave:before", "data.leave:after")
        run = await changing.run_of(path)
        assert not (changing.directory.windows / "sum").exists()
        async with running(run) as task:
            second = await feed.give(run, "twice", task, times(40, 80))
            await feed.close(run, "twice", task, 80)
            expected = {**fixed_contents(first, LENGTH_S), **fixed_contents(second, 20)}
            await feed.written(task, out=len(expected))
        await assert_balanced(run)
    assert contents_of(files.rows("out")) == expected
    assert files.rows("late") == []
