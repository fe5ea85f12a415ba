"""Windows whose computation fails, and results that are too large for one commit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import UdfError
from millstream.record import LaneId
from tests.mesh.reducing import (
    CONTENTS,
    FUNCTIONS,
    Event,
    account_of_run,
    assert_balanced,
    contents_of,
    fixed_contents,
    reduce,
    seconds_of,
    source,
    steady,
    until,
    write_events,
)
from tests.support.pipelines import PipelineRun, open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

TO_OUT = ["in -> sum", "sum -> out"]
TWICE = "backoff: {interval: 1ms, steps: 2}"
BAD = (10.0, 20.0)
"""The window of event 13."""


@pytest.fixture
def events(tmp_path: Path) -> list[Event]:
    (tmp_path / "reduces.py").write_text(FUNCTIONS, encoding="utf-8")
    events = steady(200, keys=3, per_s=1)
    write_events(tmp_path / "in.jsonl", events)
    return events


def failing(files: PipelineFiles, function: str, strategy: str, *, dead: bool = False) -> Path:
    vertices = source() + reduce(
        "{fixed: {length: 10s}}",
        program=f"python: 'reduces.py:{function}'",
        more=f"retryStrategy: {{{strategy}}}",
    )
    vertices += files.file_sink("out") + (files.file_sink("dead") if dead else "")
    return files.write(vertices, [*TO_OUT, *(["{from: sum, to: dead, kind: deadLetter}"] if dead else [])])


async def test_a_window_that_fails_is_tried_again(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, events: list[Event]
) -> None:
    path = failing(files, "at_the_second_attempt", TWICE)
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    assert (tmp_path / "tried").exists()
    assert contents_of(files.rows("out")) == fixed_contents(events, 10)


CONTEXT = """\
import json

import millstream_udf as udf


@udf.reduce
class Placed:
    async def setup(self, context):
        self.vertex = context.vertex

    async def process(self, keys, records, window, context):
        assert context.attempt > 0, "not at the first attempt"
        place = [context.pipeline, context.vertex, self.vertex, context.lane, context.replica, context.attempt]
        return json.dumps({"place": place, "n": len(list(records)), "closed": context.watermark_us >= window.end_us})
"""


async def test_a_function_inside_spark_knows_where_its_windows_come_from(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, events: list[Event]
) -> None:
    (tmp_path / "placed.py").write_text(CONTEXT, encoding="utf-8")
    more = steady(200, keys=16, per_s=1)
    # In one file and in order: of two files, the second would be late wherever the first is read by itself.
    (tmp_path / "in.jsonl").unlink()
    write_events(tmp_path / "in.jsonl", sorted([*events, *more], key=lambda event: event.s))
    program = "python: 'placed.py:Placed'"
    vertices = source() + files.file_sink("out")
    for name in ("sum", "other"):
        vertices += reduce(
            "{fixed: {length: 10s}}",
            name=name,
            program=program,
            more=f"retryStrategy: {{{TWICE}}}",
            lanes="partitions: 2",
        )
    path = files.write(vertices, ["in -> sum", "sum -> out", "in -> other", "other -> out"])
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
    rows = files.rows("out")
    places = {tuple(row["place"]) for row in rows}
    assert places == {
        ("p", vertex, vertex, f"window.{partition}", 0, 1) for vertex in ("sum", "other") for partition in (0, 1)
    }
    assert sum(row["n"] for row in rows) == 2 * (len(events) + len(more))
    assert any(row["closed"] for row in rows)


@pytest.mark.guarantee("I2", "I3")
async def test_a_window_that_goes_on_failing_stops_the_lane_until_it_is_put_right(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, events: list[Event]
) -> None:
    path = failing(files, "bad_until_mended", f"{TWICE}, onFailure: stop")
    said = (
        r"(?s)p/sum/window\.0: window 2023-11-14T22:00:10\.000000Z to 2023-11-14T22:00:20\.000000Z, key \['k1'\]: "
        r"ValueError: [^\n]*13 is bad\n[^\n]*reduces\.py:\d+, in bad_until_mended: [^\n]*\nNothing was lost.*onFailure"
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        for _ in range(2):
            with pytest.RaisesGroup(pytest.RaisesExc(UdfError, match=said), flatten_subgroups=True):
                await run.run()
            account = await run.account("sum")
            assert account.difference == 0
            assert account.open > 0
        (tmp_path / "fixed").touch()
        await run.run()
        await assert_balanced(run)
    assert contents_of(files.rows("out")) == fixed_contents(events, 10)


@pytest.mark.guarantee("I2")
async def test_a_window_that_goes_on_failing_is_described_to_the_dead_letter_edge(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, events: list[Event]
) -> None:
    path = failing(files, "picky", TWICE, dead=True)
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == good(events)
    (envelope,) = files.envelopes("dead")
    assert (envelope.vertex, envelope.lane) == ("sum", "window.0")
    assert "13 is bad" in envelope.reason
    letter = json.loads(envelope.value)
    assert (seconds_of(letter["start"]), seconds_of(letter["end"])) == BAD
    assert (letter["key"], letter["records"]) == (["k1"], 10)
    assert "13 is bad" in letter["reason"]
    assert "reduces.py" in letter["detail"]
    assert (account.dead_lettered, account.processed) == (10, 190)


@pytest.mark.guarantee("I2")
async def test_a_window_that_goes_on_failing_can_be_dropped_and_counted(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, events: list[Event]
) -> None:
    path = failing(files, "picky", f"{TWICE}, onFailure: drop")
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == good(events)
    assert sum(account.dropped.values()) == 10
    assert all("13 is bad" in reason for reason in account.dropped)


async def test_a_query_that_fails_on_a_window_fails_no_other(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, events: list[Event]
) -> None:
    query = CONTENTS.replace(
        "SELECT key", "SELECT if(array_contains(collect_list(value.n), 13), raise_error('13!'), key) AS key"
    )
    vertices = reduce("{fixed: {length: 10s}}", query=query, more=f"retryStrategy: {{{TWICE}, onFailure: drop}}")
    path = files.write(source() + vertices + files.file_sink("out"), TO_OUT)
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == good(events)
    assert sum(account.dropped.values()) == 10
    assert all("13!" in reason for reason in account.dropped)


def good(events: list[Event]) -> dict[tuple[str, float, float], list[int]]:
    """What must come of the windows that do not fail."""
    return {name: list(ns) for name, ns in fixed_contents(events, 10).items() if name[1:] != BAD}


async def committed_in_part(run: PipelineRun) -> bool:
    """A part of a hand-over's results is committed, and the rest is not."""
    mark = (await run.marks()).get(LaneId("sum", "window", 0))
    return mark is not None and mark.reduce.result_records > 0


@pytest.mark.guarantee("I1", "I3")
async def test_results_beyond_one_commit_are_there_once_also_when_killed_in_the_middle(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    keys = 1300
    write_events(tmp_path / "in.jsonl", steady(2 * keys, keys=keys, per_s=1000))
    # In another order, with other ids, whenever it is computed.
    query = (
        "SELECT key, uuid() AS id, repeat('x', 10000) AS pad, count(*) AS c FROM window GROUP BY key ORDER BY rand()"
    )
    gate = tmp_path / "open"
    (tmp_path / "gate.py").write_text(
        "import json\nimport os\nimport time\n\n\ndef short(value):\n"
        f"    while not os.path.exists({str(gate)!r}):\n        time.sleep(0.01)\n"
        "    row = json.loads(value)\n    return json.dumps({**row, 'pad': len(row['pad'])})\n"
    )
    path = files.write(
        source()
        + reduce("{fixed: {length: 1h}}", query=query)
        # It takes nothing, so the results fill its buffer.
        + "- name: short\n  udf: {python: 'gate.py:short'}\n  limits: {bufferMaxBytes: 6Mi}\n"
        + files.file_sink("out"),
        ["in -> sum", "sum -> short", "short -> out"],
        # Compressed, all of them would fit into it.
        more="interStepBuffer: {compression: {type: none}}",
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        for _ in range(2):
            task = asyncio.ensure_future(run.run())
            await until(lambda: committed_in_part(run), task)
            task.cancel()
            await asyncio.wait([task])
        assert await committed_in_part(run)
        gate.touch()
        await run.run()
        await assert_balanced(run)
        account = await run.account("sum")
    rows = files.rows("out")
    assert sorted(row["key"] for row in rows) == sorted(f"k{n}" for n in range(keys))
    assert len({row["id"] for row in rows}) == keys
    assert {(row["pad"], row["c"]) for row in rows} == {(10_000, 2)}
    assert (account.processed, account.outputs) == (2 * keys, keys)
    # What was kept of the results is gone with the last of them.
    assert not list(run.windows.rglob("*.result"))
