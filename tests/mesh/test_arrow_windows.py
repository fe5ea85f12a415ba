"""Arrow functions before SQL reduces: windows get their columns, and hold what they hold with JSON between the two."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from millstream.buffers.jetstream import stream_config
from millstream_reduce.log.entries import whole_entries
from tests.mesh.reducing import (
    CONTENTS,
    FUNCTIONS,
    VALUE,
    Event,
    assert_balanced,
    contents_of,
    fixed_contents,
    reduce,
    running,
    source,
    steady,
    taken_in,
    until,
    write_events,
)
from tests.mesh.running import start
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

TYPED = """\
import pyarrow as pa

import millstream_udf as udf

EVENT = pa.schema({"n": pa.int64(), "t": pa.int64(), "k": pa.string()})


@udf.map(arrow=True, schema=EVENT)
def typed(batch):
    return batch.select(["n", "t", "k", "parent"])
"""
TYPED_MAP = "- name: typed\n  udf: {python: 'typed.py:typed'}\n"
TO_OUT = ["in -> typed", "typed -> sum", "sum -> out"]
KEEPS = "keyed: true, keepInput: true"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def functions(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    (tmp_path / "reduces.py").write_text(FUNCTIONS, encoding="utf-8")


def columns_in(directory: Path) -> list[bool]:
    """Of each entry with records in the logs below `directory`: whether values are columns there."""
    entries = [
        entry.message().append
        for path in sorted(directory.rglob("*.wal"))
        for entry in whole_entries(memoryview(path.read_bytes()), 0)
    ]
    # Those without inputs are of the jobs that warm Spark up.
    return [bool(append.value_fields) for append in entries if append.rows and append.inputs]


@pytest.mark.guarantee("I1", "I2", "I3")
async def test_windows_of_columns_hold_what_they_hold_of_json(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    """In several partitions, so frames of columns are divided by key, and over a run that is broken off."""
    events = steady(6_000, keys=11, per_s=100)
    write_events(tmp_path / "in.jsonl", events[:4_000])
    vertices = source(more=", follow: true") + TYPED_MAP + files.file_sink("out")
    vertices += reduce("{fixed: {length: 20s}}", lanes="partitions: 2")
    closed = {name: numbers for name, numbers in fixed_contents(events, 20).items() if name[2] < 60}

    async def all_written() -> bool:
        return len(files.rows("out")) >= len(closed)

    opening = open_pipeline(files.write(vertices, TO_OUT), tmp_path / "broker", spark=spark.address)
    async with opening as run:
        first = asyncio.ensure_future(run.run())
        await taken_in(run, "sum", 1_000, first)
        # While more may come, the newest records are in open windows, and in the log.
        assert set(columns_in(tmp_path)) == {True}
        first.cancel()
        await asyncio.wait([first])
        write_events(tmp_path / "in-2.jsonl", events[4_000:])
        async with running(run) as second:
            await taken_in(run, "sum", len(events), second)
            await until(all_written, second)
        # Those of the last window.
        await assert_balanced(run, open_records=2_000)
    assert contents_of(files.rows("out")) == closed


@pytest.mark.guarantee("I1", "I2", "I3")
@pytest.mark.sweep
@pytest.mark.parametrize("ledger", ["jetstream", "redis"])
async def test_windows_of_columns_hold_it_over_a_kill(files: PipelineFiles, tmp_path: Path, ledger: str) -> None:
    events = steady(6_000, keys=11, per_s=100)
    write_events(tmp_path / "in.jsonl", events[:4_000])
    vertices = source(more=", follow: true") + TYPED_MAP + files.file_sink("out")
    vertices += reduce("{fixed: {length: 20s}}", lanes="partitions: 2")
    files.write(vertices, TO_OUT, more=f"interStepBuffer: {{{ledger}: {{}}}}")
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until_more("sum", than=1_000)
        # While more may come, the newest records are in open windows, and in the log.
        assert set(columns_in(tmp_path / ".millstream")) == {True}
    write_events(tmp_path / "in-2.jsonl", events[4_000:])
    closed = {name: numbers for name, numbers in fixed_contents(events, 20).items() if name[2] < 60}
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until_more("sum", than=len(events) - 1)
        # A drain does not wait for Spark to start.
        await run.until_more("out", than=len(closed) - 1)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert contents_of(files.rows("out")) == closed


@pytest.mark.guarantee("I1", "I2", "I3")
@pytest.mark.sweep
async def test_a_log_of_columns_is_continued_by_a_program_that_takes_values(
    files: PipelineFiles, tmp_path: Path
) -> None:
    """Beside records that come as values, in entries of their own."""
    events = steady(4_000, keys=5, per_s=100)
    for part, name in enumerate(("in", "more")):
        write_events(tmp_path / f"{name}.jsonl", events[part::2])
    followed = source(more=", follow: true") + source("more", more=", follow: true") + TYPED_MAP
    window, to_sum = "{fixed: {length: 20s}}", [*TO_OUT, "more -> sum"]
    files.write(followed + reduce(window, group_by=KEEPS) + files.file_sink("out"), to_sum)
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until_more("sum", than=len(events) - 1)
    assert set(columns_in(tmp_path / ".millstream")) == {True, False}
    by_function = reduce(window, group_by=KEEPS, program="python: 'reduces.py:contents'")
    files.write(followed + by_function + files.file_sink("out"), to_sum)
    more = [Event(len(events) + event.n, 40 + event.s, event.k) for event in events]
    for part, name in enumerate(("in", "more")):
        write_events(tmp_path / f"{name}-2.jsonl", more[part::2])
    # The windows of the last events are open.
    closed = {name: numbers for name, numbers in fixed_contents([*events, *more], 20).items() if name[2] < 80}
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        await run.until_more("sum", than=2 * len(events) - 1)
        await run.until_more("out", than=len(closed) - 1)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1])["account"]["balanced"]
    assert contents_of(files.rows("out")) == closed


@pytest.mark.guarantee("I1")
async def test_a_ledger_of_an_earlier_version_holds_values(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that version can still continue."""
    monkeypatch.setattr(stream_config, "LAYOUT_NOW", "7")
    events = steady(200, keys=2, per_s=10)
    write_events(tmp_path / "in.jsonl", events)
    vertices = source(more=", follow: true") + TYPED_MAP + reduce("{fixed: {length: 60s}}") + files.file_sink("out")
    opening = open_pipeline(files.write(vertices, TO_OUT), tmp_path / "broker", spark=spark.address)
    async with opening as run, running(run) as task:
        await taken_in(run, "sum", len(events), task)
        assert set(columns_in(tmp_path)) == {False}


@pytest.mark.sweep
async def test_texts_where_numbers_are_declared_are_null_as_in_json(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    events = steady(400, keys=2, per_s=10)
    write_events(tmp_path / "in.jsonl", events)
    program = f'sql: {{query: "{CONTENTS}", value: {VALUE.replace("n BIGINT", "n BIGINT, x INT")}}}'
    query = program.replace("count(*) AS c", "count(*) AS c, count(value.x) AS xs, count(value.t) AS ts")
    (tmp_path / "typed.py").write_text(TYPED.replace(
        'return batch.select(["n", "t", "k", "parent"])',
        'x = pa.array([str(n) if n % 4 else None for n in batch["n"].to_pylist()])\n'
        '    return pa.RecordBatch.from_arrays([batch["n"], x, batch["parent"]], names=["n", "x", "parent"])',
    ))  # fmt: skip
    path = files.write(
        source() + TYPED_MAP + reduce("{fixed: {length: 10s}}", program=query) + files.file_sink("out"), TO_OUT
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
    assert contents_of(files.rows("out")) == fixed_contents(events, 10)
    assert {(row["xs"], row["ts"]) for row in files.rows("out")} == {(0, 0)}
