"""Every kind of sink behind every kind of join: inputs from several vertices, several edges of one vertex, late edges.

Owners are killed and replaced in the middle: what a sink keeps about its lanes must hold for all of them.
"""

from __future__ import annotations

import asyncio
import csv
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from millstream.errors import FencedError
from tests.contract.sinks.http_target import HttpTarget, open_http_target
from tests.mesh.reducing import (
    Event,
    assert_balanced,
    closed_past,
    reduce,
    running,
    source,
    taken_in,
    until,
    write_events,
)
from tests.support.pipelines import PipelineRun, open_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

SOURCES = ("in", "other")
PROGRAMS = '''\
import json
from pathlib import Path

import millstream_udf as udf


@udf.map
def sorted_out(record):
    """A tenth goes to the dead letters, a tenth is not a number for a typed column."""
    number = json.loads(record.value)["number"]
    if number % 10 == 3:
        raise udf.DeadLetter("hopeless")
    return json.dumps({"number": str(number) if number % 10 == 4 else number})


@udf.sink
def keep(record):
    with Path(__file__).with_name("kept.jsonl").open("a") as lines:
        lines.write(json.dumps({"id": record.id, "number": json.loads(record.value)["number"]}) + "\\n")
'''
ROLLING = "rolling: {maxRecords: 100, maxAge: 50ms}"
TYPED = "columns: [{name: number, type: int}]"


def _sink(name: str, kind: str, more: str = "") -> str:
    return f"- name: {name}\n  partitions: 2\n  sink: {{envelope: false, {kind}{more}}}\n"


def _sinks(url: str) -> dict[str, str]:
    """YAML of a sink vertex of every kind, by name."""
    fallback = (
        ", retryStrategy: {backoff: {interval: 1ms, steps: 1}, onFailure: fallback}"
        f", fallback: {{file: {{path: refused, format: jsonl, {ROLLING}}}}}"
    )
    return {
        "jsonl": _sink("jsonl", f"file: {{path: jsonl, format: jsonl, {ROLLING}}}"),
        "parquet": _sink("parquet", f"file: {{path: parquet, format: parquet, {ROLLING}}}"),
        "csv": _sink("csv", f"file: {{path: csv, format: csv, {TYPED}, {ROLLING}}}", fallback),
        "http": _sink("http", f"http: {{url: '{url}', batch: {{maxRecords: 7}}}}"),
        "kept": _sink("kept", "udsink: {python: 'programs.py:keep'}"),
        "log": _sink("log", "log: {}"),
        "nothing": _sink("nothing", "blackhole: {}"),
    }


def _file_numbers(directory: Path) -> Counter[int]:
    found: Counter[int] = Counter()
    for file in (path for path in directory.iterdir() if path.is_file()):
        if file.suffix == ".parquet":
            values = pyarrow.parquet.read_table(file).column("value").to_pylist()
            found.update(int(json.loads(value or "")["number"]) for value in values)
        elif file.suffix == ".csv":
            found.update(int(row["number"]) for row in csv.DictReader(file.read_text().splitlines()))
        else:
            found.update(int(json.loads(line)["number"]) for line in file.read_text().splitlines())
    return found


def _kept_numbers(path: Path) -> Counter[int]:
    """Of the user's sink: each id once."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Counter(int(number) for number in {row["id"]: row["number"] for row in rows}.values())


async def _until_read(run: PipelineRun, sinks: Iterable[str], records: int, task: asyncio.Future[None]) -> None:
    async def reached() -> bool:
        marks = await run.marks()
        return all(
            sum(mark.account.inputs for lane, mark in marks.items() if lane.vertex == sink) >= records for sink in sinks
        )

    await until(reached, task)


class _Inputs:
    """The files of the two sources, which grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.numbers = 0

    def grow(self, records: int) -> None:
        lines = [f'{{"number": {self.numbers + n}, "k": "{n % 5}"}}\n' for n in range(records)]
        self.numbers += records
        for name in SOURCES:
            with (self._directory / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(lines)


def _source(name: str) -> str:
    return f"- name: {name}\n  source: {{file: {{paths: ['{name}*.jsonl'], format: jsonl, follow: true}}, keys: [k]}}\n"


@pytest.mark.guarantee("I1")
async def test_two_vertices_write_into_one_file_sink(files: PipelineFiles, tmp_path: Path) -> None:
    one = files.generator(300)
    vertices = one + one.replace("name: in", "name: other") + files.file_sink("out")
    path = files.write(vertices, ["in -> out", "other -> out"])
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    assert Counter(files.numbers("out")) == Counter(dict.fromkeys(range(300), 2))


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
async def test_every_sink_takes_each_record_of_all_its_inputs_once(
    files: PipelineFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "programs.py").write_text(PROGRAMS, encoding="utf-8")
    inputs = _Inputs(tmp_path)
    inputs.grow(200)
    async with open_http_target(HttpTarget()) as target:
        sinks = _sinks(target.url)
        into = [
            [f"{begin} -> {sink}" for begin in (*SOURCES, "map")] + [f"{{from: map, to: {sink}, kind: deadLetter}}"]
            for sink in sinks
        ]
        path = files.write(
            "".join(map(_source, SOURCES))
            + "- name: map\n  partitions: 2\n  udf: {python: 'programs.py:sorted_out'}\n"
            + "".join(sinks.values()),
            [*(f"{name} -> map" for name in SOURCES), *(edge for edges in into for edge in edges)],
        )
        async with open_pipeline(path, tmp_path / "broker") as run:
            first = asyncio.ensure_future(run.run())
            await _until_read(run, ["jsonl"], 1, first)
            inputs.grow(300)
            # All of them die at once.
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.ensure_future(run.run())
            await _until_read(run, sinks, 4 * 200 + 1, second)
            inputs.grow(300)
            # Others take their lanes over while they go on.
            successor = run.again()
            third = asyncio.ensure_future(successor.run())
            with pytest.raises(ExceptionGroup) as ended:
                await second
            assert ended.value.split(FencedError)[1] is None
            await _until_read(run, sinks, 4 * inputs.numbers, third)
            successor.stop()
            await third
            await assert_balanced(run)
            counted = (await run.account("nothing")).processed
        sent = [json.loads(line)["number"] for body in target.accepted().values() for line in body.splitlines()]
    # From both sources, and from both again by way of the map.
    expected = Counter(dict.fromkeys(range(inputs.numbers), 4))
    found = {sink: _file_numbers(tmp_path / sink) for sink in ("jsonl", "parquet")}
    refused = _file_numbers(tmp_path / "refused")
    # A fallback may have a record again after its owner was replaced; the sink itself may not.
    assert all(times >= 2 for times in refused.values())
    assert refused.keys() == {number for number in expected if number % 10 == 4}
    found["csv"] = _file_numbers(tmp_path / "csv") + Counter(dict.fromkeys(refused, 2))
    found["http"] = Counter(int(number) for number in sent)
    found["kept"] = _kept_numbers(tmp_path / "kept.jsonl")
    assert not {sink: numbers - expected for sink, numbers in found.items() if numbers - expected}
    assert not {sink: expected - numbers for sink, numbers in found.items() if expected - numbers}
    assert counted == expected.total()
    # What is printed again after a kill is more than that.
    lines = (line for line in capfd.readouterr().out.splitlines() if line.startswith("{") and '"value"' in line)
    values = (json.loads(line)["value"] for line in lines)
    numbers = (value if isinstance(value, dict) else json.loads(value) for value in values)
    assert not expected - Counter(int(row["number"]) for row in numbers)


@pytest.mark.guarantee("I1", "I2")
async def test_results_and_late_records_of_several_reduces_reach_one_sink_once(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    query = "SELECT 'window' AS kind, sort_array(collect_list(value.n)) AS ns FROM window GROUP BY window_start"
    path = files.write(
        source(more=", follow: true")
        + "".join(
            reduce("{fixed: {length: 10s}}", name=name, query=query, group_by="onLate: edge")
            for name in ("sum", "also")
        )
        + f"- name: out\n  sink: {{file: {{path: out, format: jsonl, {ROLLING}}}}}\n",
        ["in -> out"]
        + [f"in -> {name}" for name in ("sum", "also")]
        + [f"{name} -> out" for name in ("sum", "also")]
        + [f"{{from: {name}, to: out, kind: late}}" for name in ("sum", "also")],
    )
    in_time, late = [Event(n, n) for n in range(30)], [Event(100 + n, n) for n in range(5)]

    async def give(run: PipelineRun, task: asyncio.Future[None], events: list[Event], so_far: int) -> None:
        write_events(tmp_path / "in.jsonl", events)
        for name in ("sum", "also"):
            await taken_in(run, name, so_far + len(events), task)

    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        async with running(run) as task:
            await give(run, task, in_time, 0)
            for name in ("sum", "also"):
                await closed_past(run, name, 20, task)
        async with running(run) as task:
            await give(run, task, late, len(in_time))
            total = 2 * (2 + len(late)) + len(in_time) + len(late)
            await until(lambda: _is_written(files, total), task)
        await assert_balanced(run, open_records=2 * 10)
    rows = files.rows("out")
    windows = [row["ns"] for row in rows if "kind" in row]
    assert sorted(windows) == sorted([list(range(10)), list(range(10, 20))] * 2)
    records = Counter(row["n"] for row in rows if "kind" not in row)
    assert records == Counter({event.n: 1 for event in in_time}) + Counter({event.n: 3 for event in late})


async def _is_written(files: PipelineFiles, rows: int) -> bool:
    return len(files.rows("out")) >= rows
