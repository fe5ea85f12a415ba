"""Pipelines with reduces from source to sink, over a real Spark driver, against what their windows must hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.udf.function import open_local_function
from millstream.udf.sidecar import SidecarSpec, python_command
from tests.mesh.reducing import (
    BASE_S,
    CONTENTS,
    FUNCTIONS,
    Event,
    account_of_run,
    assert_balanced,
    contents_of,
    counted,
    fixed_contents,
    reduce,
    seconds_of,
    session_contents,
    sliding_contents,
    source,
    steady,
    time_ms,
    write_events,
)
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

TO_OUT = ["in -> sum", "sum -> out"]


@pytest.fixture
def functions(tmp_path: Path) -> None:
    (tmp_path / "reduces.py").write_text(FUNCTIONS, encoding="utf-8")


@pytest.mark.guarantee("I1", "I2", "I3")
async def test_fixed_windows_of_keys(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    events = steady(20_000, keys=7, per_s=100)
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(source() + reduce("{fixed: {length: 10s}}") + files.file_sink("out"), TO_OUT)
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == fixed_contents(events, 10)
    assert (account.inputs, account.processed, account.outputs) == (20_000, 20_000, 7 * 20)


@pytest.mark.usefixtures("functions")
async def test_a_result_says_its_window_and_is_as_old_as_its_end(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    # Exactly on a boundary, just before one, before 1970, and as far in the future as a source takes.
    first, last = -BASE_S - 61.0, 250_000_000_000.0 - BASE_S
    events = [Event(n, s, "k") for n, s in enumerate((first, 0, 59.999, 60, 119.999, 120, last))]
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source()
        + reduce("{fixed: {length: 60s}}", group_by="keyed: false")
        + "- name: dress\n  udf: {python: 'reduces.py:dressed'}\n"
        + files.file_sink("out"),
        ["in -> sum", "sum -> dress", "dress -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    rows = files.rows("out")
    assert contents_of(row["row"] for row in rows) == fixed_contents(events, 60)
    for row in rows:
        assert row["keys"] == ["k"]
        assert set(row["headers"]) == {"window-start", "window-end"}
        start, end = (seconds_of(row["headers"][f"window-{bound}"]) for bound in ("start", "end"))
        assert (start, end) == (seconds_of(row["row"]["window_start"]), seconds_of(row["row"]["window_end"]))
        assert row["event_time_us"] == time_ms(end) * 1000 - 1
    times = [row["event_time_us"] for row in rows]
    assert times == sorted(times)


@pytest.mark.guarantee("I3")
async def test_sliding_windows_share_their_records(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    events = steady(3000, keys=3, per_s=20, place=lambda n: -(n % 40))
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source() + reduce("{sliding: {length: 30s, slide: 10s}}") + files.file_sink("out"),
        TO_OUT,
        more="watermark: {maxDelay: 60s}",
    )
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == sliding_contents(events, 30, 10)
    assert (account.processed, account.late) == (3000, 0)


async def test_records_between_windows_are_in_none(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    events = steady(1000, keys=2, per_s=10)
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source() + reduce("{sliding: {length: 4s, slide: 10s}}") + files.file_sink("out"), ["in -> sum", "sum -> out"]
    )
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == sliding_contents(events, 4, 10)
    assert (account.processed, account.filtered) == (400, 600)


@pytest.mark.usefixtures("functions")
async def test_sessions_by_a_python_function(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    # Gaps of every size around the timeout of 5 s, out of order, and records between sessions that join them.
    events = [Event(n, s, f"k{n % 5}") for n, s in enumerate(n * 0.9 + (n * n) % 13 for n in range(600))]
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source() + reduce("{session: {timeout: 5s}}", program="python: 'reduces.py:contents'") + files.file_sink("out"),
        TO_OUT,
        more="watermark: {maxDelay: 20s}",
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    expected = session_contents(events, 5)
    assert len(expected) > 20
    assert contents_of(files.rows("out")) == expected


async def test_global_windows_that_count(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    events = steady(1000, keys=3, per_s=10, place=lambda n: (n * 7919) % 50)
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source() + reduce("{global: {trigger: {count: 50}}}") + files.file_sink("out"),
        TO_OUT,
    )
    account = await account_of_run(path, tmp_path, spark)
    assert sorted((row["key"], row["ns"]) for row in files.rows("out")) == counted(events, 50)
    assert account.dropped == {}


@pytest.mark.guarantee("I4")
@pytest.mark.usefixtures("functions")
async def test_results_of_a_key_leave_in_their_order(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    """Many windows of a key in one hand-over, computed where the rows are read, by Spark alone, and by a function."""
    events = steady(400, keys=10, per_s=20)
    write_events(tmp_path / "in.jsonl", events)
    bounds = "window_start, window_end, window_early"
    totals, counts = "{global: {trigger: {count: 1}, accumulate: true}}", "{global: {trigger: {count: 1}}}"
    fixed, sliding = "{fixed: {length: 1s, streaming: true}}", "{sliding: {length: 2s, slide: 1s}}"
    sessions = "{session: {timeout: 400ms, streaming: true}}"
    simple, distinct = "count(*)", "count(DISTINCT value.n)"
    kinds = [
        *((totals, simple), (totals, distinct), (totals, "python")),
        *((counts, simple), (fixed, simple), (sliding, simple), (sessions, distinct)),
    ]
    vertices = ""
    for place, (window, program) in enumerate(kinds):
        query = f"SELECT key, {bounds}, {program} AS c FROM window GROUP BY key, {bounds}"
        function = "python: 'reduces.py:contents'" if program == "python" else None
        group_by = "keyed: true, early: {count: 1}" if "streaming" in window else "keyed: true"
        vertices += reduce(window, name=f"sum-{place}", query=query, program=function, group_by=group_by)
        vertices += files.file_sink(f"out-{place}")
    edges = [edge for n in range(len(kinds)) for edge in (f"in -> sum-{n}", f"sum-{n} -> out-{n}")]
    path = files.write(source() + vertices, edges)
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    for place, kind in enumerate(kinds):
        rows = files.rows(f"out-{place}")
        by_key: dict[str, list[tuple[str, int, int]]] = {}
        for row in rows:
            by_key.setdefault(row["key"], []).append((row["window_end"], row["window_early"] or 1000, row["c"]))
        assert len(by_key) == 10
        for results in by_key.values():
            # Those of one window by number, the final one last; and those of one number by window.
            assert sorted(results, key=lambda one: one[0]) == sorted(results), kind
            assert sorted(results, key=lambda one: one[1]) == sorted(results, key=lambda one: (one[1], one[0])), kind
            if kind[0] == totals:
                assert [count for _, _, count in results] == [*range(1, 41), 40], kind


@pytest.mark.guarantee("I1", "I2", "I3")
async def test_partitions_and_replicas_behind_a_map_with_others(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    events = steady(12_000, keys=29, per_s=100)
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source()
        + files.function("identity").replace("  udf", "  partitions: 2\n  udf")
        + reduce("{fixed: {length: 20s}}", lanes="partitions: 3\n  replicas: 2")
        + files.file_sink("out"),
        ["in -> map", "map -> sum", "sum -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
        lanes = [mark for lane, mark in (await run.marks()).items() if lane.vertex == "sum"]
    assert contents_of(files.rows("out")) == fixed_contents(events, 20)
    assert len(lanes) == 3
    assert all(mark.account.processed > 0 for mark in lanes)


@pytest.mark.guarantee("I3")
async def test_two_sources_join_on_one_reduce(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    left = steady(3000, keys=4, per_s=50)
    # The other one is sparse, begins later, ends later, and is read by more lanes.
    right = [Event(100_000 + n, 20 + n * 1.5, f"k{n % 6}") for n in range(60)]
    write_events(tmp_path / "left.jsonl", left)
    for part in range(3):
        write_events(tmp_path / f"right{part}.jsonl", right[part::3])
    path = files.write(
        source("left")
        + source("right").replace("  source", "  partitions: 2\n  source")
        + reduce("{fixed: {length: 10s}}", lanes="partitions: 2")
        + files.file_sink("out"),
        ["left -> sum", "right -> sum", "sum -> out"],
        # Its files are read one after the other.
        more="watermark: {maxDelay: 200s}",
    )
    account = await account_of_run(path, tmp_path, spark)
    assert contents_of(files.rows("out")) == fixed_contents([*left, *right], 10)
    assert (account.inputs, account.late) == (3060, 0)


@pytest.mark.guarantee("I5")
async def test_a_reduce_after_a_reduce_finds_no_result_late(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    events = steady(20_000, keys=5, per_s=50)
    write_events(tmp_path / "in.jsonl", events)
    counts = "SELECT key, count(*) AS n FROM window GROUP BY key"
    path = files.write(
        source()
        + reduce("{fixed: {length: 5s}}", name="counts", query=counts)
        # Three results of a key each; the first window's last result has the last microsecond of the second's end.
        + reduce("{fixed: {length: 15s}}", query=CONTENTS.replace("ns", "counts").replace("sort_array", ""))
        + files.file_sink("out"),
        ["in -> counts", "counts -> sum", "sum -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
        first, second = await run.account("counts"), await run.account("sum")
    rows = files.rows("out")
    found = {(row["key"], seconds_of(row["window_start"]), seconds_of(row["window_end"])): row for row in rows}
    by_five = fixed_contents(events, 5)
    expected: dict[tuple[str, float, float], list[int]] = {}
    for (key, start, _), numbers in by_five.items():
        begin = (BASE_S + start) // 15 * 15 - BASE_S
        expected.setdefault((key, begin, begin + 15), []).append(len(numbers))
    assert {name: row["counts"] for name, row in found.items()} == expected
    assert len(rows) == len(expected)
    assert first.outputs == second.inputs == len(by_five)
    assert second.late == 0
    assert second.dropped == {}


async def test_tags_of_results_choose_their_edges(files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    events = [event for event in steady(2000, keys=4, per_s=20) if event.k != "k3" or event.n % 16 == 3]
    write_events(tmp_path / "in.jsonl", events)
    query = CONTENTS.replace(" FROM", ", IF(count(*) < 10, array('few', key), array('many', key)) AS tags FROM")
    path = files.write(
        source()
        + reduce("{fixed: {length: 20s}}", query=query)
        + "".join(map(files.file_sink, ("few", "many", "first"))),
        [
            "in -> sum",
            "{from: sum, to: few, conditions: {tags: {values: [few]}}}",
            "{from: sum, to: many, conditions: {tags: {values: [many]}}}",
            "{from: sum, to: first, conditions: {tags: {operator: and, values: [k0, many]}}}",
        ],
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    expected = fixed_contents(events, 20)
    assert contents_of(files.rows("few")) == {name: ns for name, ns in expected.items() if len(ns) < 10}
    assert contents_of(files.rows("many")) == {name: ns for name, ns in expected.items() if len(ns) >= 10}
    assert contents_of(files.rows("first")) == {name: ns for name, ns in expected.items() if name[0] == "k0"}


@pytest.mark.usefixtures("functions")
async def test_windows_computed_by_a_program_that_the_vertex_starts(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    command = json.dumps([sys.executable, "-m", "millstream_udf", "reduces.py:contents"])
    await by_program(f"command: {command}", files, tmp_path, spark)


@pytest.mark.usefixtures("functions")
async def test_windows_computed_by_a_program_that_runs_already(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    spec = SidecarSpec(python_command("reduces.py:contents"), "udf", "p", "sum", 0, cwd=tmp_path)
    async with open_local_function(spec, log=lambda stream, line: None) as sidecar:
        await by_program(f"address: '{sidecar.address}'", files, tmp_path, spark)


async def by_program(program: str, files: PipelineFiles, tmp_path: Path, spark: SparkDriver) -> None:
    events = steady(5000, keys=11, per_s=50)
    write_events(tmp_path / "in.jsonl", events)
    path = files.write(
        source() + reduce("{fixed: {length: 10s}}", program=program, lanes="partitions: 2") + files.file_sink("out"),
        TO_OUT,
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    assert contents_of(files.rows("out")) == fixed_contents(events, 10)
