"""Whole runs with a record that ends the process of its function: one dead letter, and the others as usual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import command

RECORDS = 20
POISON = 7
FUNCTIONS = """
import json
import os
import sqlite3
import millstream_udf as udf


def obey(value):
    if json.loads(value)["number"] == 7:
        os._exit(3)
    return value


@udf.map
def plain(value): return obey(value)

@udf.map
async def waiting(value): return obey(value)

@udf.map(threads=4)
def threaded(value): return obey(value)

@udf.map(batch=True)
def many(values): return [obey(value) for value in values]

@udf.source_transform
def stamping(record): return udf.Message(obey(record.value), event_time=1)

@udf.sink
def writing(record):
    obey(record.value)
    with open("written", "ab") as written:
        written.write(record.value + b"\\n")

@udf.sink(batch=True)
def writing_many(records):
    values = [obey(record.value) for record in records]
    with open("written", "ab") as written:
        written.writelines(value + b"\\n" for value in values)

class Positions:
    def open(self, lane):
        self.lane = lane
        self.database = sqlite3.connect("target.db", timeout=20)
        self.database.execute("CREATE TABLE IF NOT EXISTS positions (lane PRIMARY KEY, epoch, position)")
        found = self.database.execute("SELECT epoch, position FROM positions WHERE lane = ?", [lane.name]).fetchone()
        if found and found[0] >= lane.epoch:
            raise udf.Fenced(position=found[1])
        new = [lane.name, lane.epoch, found[1] if found else None]
        self.database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", new)
        self.database.commit()
        self.rows = []
        return found[1] if found else None

    def write(self, record):
        self.rows.append(record.value)

    def flush(self, position):
        self.database.execute("UPDATE positions SET position = ? WHERE lane = ?", [position, self.lane.name])
        with open("written", "ab") as written:
            written.writelines(value + b"\\n" for value in self.rows)
        self.database.commit()
        self.rows = []

@udf.sink
class Checking(Positions):
    def check(self, record):
        obey(record.value)

@udf.sink
class Writing(Positions):
    def write(self, record):
        obey(record.value)
        super().write(record)

@udf.sink
class Flushing(Positions):
    def flush(self, position):
        for value in self.rows:
            obey(value)
        super().flush(position)
"""


@pytest.fixture
def directory(tmp_path: Path) -> PipelineFiles:
    files = PipelineFiles(tmp_path)
    (tmp_path / "poison.py").write_text(FUNCTIONS)
    return files


async def finished(files: PipelineFiles, vertices: str, edges: list[str]) -> str:
    path = files.write(vertices, edges)
    ended = await command(path.parent, "run", path.name)
    assert ended.exit_code == 0, ended.err
    assert "BALANCED" in ended.out
    return ended.err


def check_dead(files: PipelineFiles, error: str) -> None:
    (envelope,) = files.envelopes("dead")
    assert json.loads(envelope.value)["number"] == POISON
    assert envelope.reason == "its process exited with code 3, 3 times in a row, when it had this record alone"
    assert envelope.reason in error


OTHERS = [number for number in range(RECORDS) if number != POISON]


@pytest.mark.parametrize(
    "name",
    ["plain", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("waiting", "threaded", "many"))],
)
async def test_a_map(directory: PipelineFiles, name: str) -> None:
    vertices = (
        directory.generator(RECORDS)
        + f"- name: map\n  udf: {{python: 'poison.py:{name}'}}\n"
        + directory.file_sink("out")
        + directory.file_sink("dead")
    )
    edges = ["in -> map", "map -> out", "{from: map, to: dead, kind: deadLetter}"]
    error = await finished(directory, vertices, edges)
    check_dead(directory, error)
    # Records stay in order.
    assert directory.numbers("out") == OTHERS


@pytest.mark.sweep
async def test_a_transformer(directory: PipelineFiles) -> None:
    source = directory.generator(RECORDS).replace("source: {", "source: {transformer: {python: 'poison.py:stamping'}, ")
    error = await finished(
        directory,
        source + directory.file_sink("out") + directory.file_sink("dead"),
        ["in -> out", "{from: in, to: dead, kind: deadLetter}"],
    )
    check_dead(directory, error)
    assert directory.numbers("out") == OTHERS


@pytest.mark.sweep
@pytest.mark.parametrize("chain", ["false", "true"])
@pytest.mark.parametrize("name", ["writing", "writing_many", "Checking", "Writing", "Flushing"])
async def test_a_sink(directory: PipelineFiles, name: str, chain: str) -> None:
    sink = (
        f"- name: out\n  sink:\n    udsink: {{python: 'poison.py:{name}'}}\n"
        "    fallback: {file: {path: dead, format: jsonl}}\n    retryStrategy: {onFailure: fallback}\n"
    )
    await finished(directory, directory.generator(RECORDS) + sink, [f"{{from: in, to: out, chain: {chain}}}"])
    assert directory.numbers("dead") == [POISON]
    written = written_numbers(directory)
    if name in ("Checking", "Writing", "Flushing"):
        assert written == OTHERS
    else:
        assert sorted({*written}) == OTHERS


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("Flushing", "true"),
        *(
            pytest.param(*one, marks=pytest.mark.sweep)
            for one in (("Writing", "false"), ("Writing", "true"), ("Flushing", "false"))
        ),
    ],
)
async def test_a_sink_that_keeps_positions_stops_by_default_and_has_all_before_the_record(
    directory: PipelineFiles, name: str, chain: str
) -> None:
    sink = f"- name: out\n  sink:\n    udsink: {{python: 'poison.py:{name}'}}\n"
    path = directory.write(directory.generator(RECORDS) + sink, [f"{{from: in, to: out, chain: {chain}}}"])
    ended = await command(path.parent, "run", path.name)
    assert ended.exit_code == 3
    assert "after 3 attempts: function failed: its process exited with code 3, 3 times in a row" in ended.err
    assert "BALANCED" in ended.out
    assert "NOT BALANCED" not in ended.out
    assert written_numbers(directory) == list(range(POISON))
    # The others wait, wherever they are: without the sink, they would be lost.
    changed = path.read_text().replace("name: out", "name: other").replace("to: out", "to: other")
    (path.parent / "changed.yaml").write_text(changed)
    refused = await command(path.parent, "run", "changed.yaml")
    assert refused.exit_code == 2
    # The mark of a lane with a buffer does not pass what its sink has written before it stops.
    waiting = RECORDS - POISON if chain == "true" else RECORDS
    assert f"{waiting} records wait on edge in-out" in refused.err
    # With a function that takes the record, the run goes on, and nothing is repeated.
    functions = directory.directory / "poison.py"
    functions.write_text(functions.read_text().replace("== 7", "== -1"))
    ended = await command(path.parent, "run", path.name)
    assert ended.exit_code == 0, ended.err
    assert "BALANCED" in ended.out
    assert written_numbers(directory) == list(range(RECORDS))


@pytest.mark.sweep
@pytest.mark.parametrize("chain", ["false", "true"])
async def test_a_sink_that_keeps_positions_drops_the_record(directory: PipelineFiles, chain: str) -> None:
    sink = "- name: out\n  sink:\n    udsink: {python: 'poison.py:Flushing'}\n    retryStrategy: {onFailure: drop}\n"
    await finished(directory, directory.generator(RECORDS) + sink, [f"{{from: in, to: out, chain: {chain}}}"])
    assert written_numbers(directory) == OTHERS


def written_numbers(files: PipelineFiles) -> list[int]:
    return [json.loads(line)["number"] for line in (files.directory / "written").read_text().splitlines()]


@pytest.mark.sweep
async def test_without_a_dead_letter_edge_the_lane_stops_and_names_the_record(directory: PipelineFiles) -> None:
    vertices = (
        directory.generator(RECORDS) + "- name: map\n  udf: {python: 'poison.py:plain'}\n" + directory.file_sink("out")
    )
    path = directory.write(vertices, ["in -> map", "map -> out"])
    ended = await command(path.parent, "run", path.name)
    assert ended.exit_code == 3
    assert "after 3 attempts: its process exited with code 3" in ended.err
    assert "number 8 from the source" in ended.err
