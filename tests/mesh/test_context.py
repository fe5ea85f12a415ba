"""Config, secrets and metrics of functions, as users run them: in every kind, and no secret where it can be read."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.ports import free_ports
from tests.mesh.running import called, command, start

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
SECRET = "hunter2-of-the-test"
FUNCTIONS = """\
import json
import os
from dataclasses import dataclass

import millstream_udf as udf


@dataclass
class Settings:
    name: str
    records: int = 5


settings = udf.config(Settings)


def told(where):
    udf.metrics.counter("told", {"where": where}).add()
    return [settings.name, len(udf.secret("key")), where]


@udf.source
class Source:
    async def open(self, position, partition, partitions):
        self.given = int(position or 0)

    async def read(self, context, records_max, timeout):
        if self.given == settings.records:
            return udf.Batch(position=str(self.given).encode(), ended=True)
        self.given += 1
        return udf.Batch([udf.Record(json.dumps(told("source")))], position=str(self.given).encode())


@udf.source_transform
def transform(record):
    return udf.Message(json.dumps([json.loads(record.value), told("transformer")]))


@udf.map
async def map_(record):
    return json.dumps([json.loads(record.value), told("map")])


@udf.sink
def sink(record):
    with open(os.path.join(os.path.dirname(__file__), "written"), "a") as file:
        file.write(json.dumps([json.loads(record.value), told("sink")]) + "\\\\n")


@udf.reduce
def reduced(keys, records, window):
    return json.dumps({"name": settings.name, "count": sum(1 for _ in records), "version": bool(udf.config())})


@udf.reduce
def beside(keys, records, window):
    udf.metrics.histogram("records").record(sum(1 for _ in records))
    return json.dumps({"name": settings.name, "key": len(udf.secret("key"))})
"""


def program(function: str, name: str, more: str = "") -> str:
    settings = f"config: {{name: {name}{more}}}, secrets: {{key: {{env: MY_KEY}}}}"
    return f"{{python: 'context_functions.py:{function}', {settings}}}"


def every_kind(files: PipelineFiles, more: str = "") -> None:
    (files.directory / "context_functions.py").write_text(FUNCTIONS.replace("\\\\n", "\\n"), encoding="utf-8")
    files.write(
        f"- name: in\n  source:\n    udsource: {program('Source', 'one', more)}\n"
        f"    transformer: {program('transform', 'two')}\n"
        f"- name: map\n  udf: {program('map_', 'three')}\n"
        f"- name: out\n  sink:\n    udsink: {program('sink', 'four')}\n",
        ["in -> map", "map -> out"],
    )


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def assert_nowhere(directory: Path, *printed: str) -> None:
    """The secret is in nothing that was printed, and in no file."""
    for text in printed:
        assert SECRET not in text
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert any("jetstream" in str(path) for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path


async def test_every_kind_of_function_has_its_config_and_secrets_which_are_nowhere_else(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    every_kind(files)
    validated = await called(tmp_path, "validate", "pipeline.yaml", "--import", "-o", "json")
    assert validated.exit_code == 0, validated.err + validated.out
    compiled = await called(tmp_path, "compile", "pipeline.yaml")
    ran = await command(tmp_path, "run", "pipeline.yaml", "--report", "report.html")
    assert ran.exit_code == 0, ran.err
    written = [json.loads(line) for line in (tmp_path / "written").read_text().splitlines()]
    n = len(SECRET)
    row = [[[["one", n, "source"], ["two", n, "transformer"]], ["three", n, "map"]], ["four", n, "sink"]]
    assert written == [row] * 5
    logs = await called(tmp_path, "logs", "pipeline.yaml", "-o", "json")
    assert_nowhere(tmp_path, *(one.out + one.err for one in (validated, compiled, ran, logs)))


@pytest.mark.sweep
async def test_a_metric_of_a_function_is_at_the_endpoint_of_its_worker(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    every_kind(files, ", records: 1000000")
    port = free_ports()
    options = ("--workers", "1", "--metrics-port-base", str(port))
    async with start(tmp_path, "run", "pipeline.yaml", *options) as run:
        await run.until(lambda: run.records("out") > 0)
        found: dict[str, dict[str, str]] = {}
        while len(found) < 4:
            found = await told_at(port)
        common = {"pipeline": "p", "replica": "0"}
        assert found == {
            "source": {**common, "vertex": "in", "vertex_type": "source", "role": "source"},
            "transformer": {**common, "vertex": "in", "vertex_type": "source", "role": "transformer"},
            "map": {**common, "vertex": "map", "vertex_type": "map", "role": "udf"},
            "sink": {**common, "vertex": "out", "vertex_type": "sink", "role": "sink"},
        }
        run.interrupt()
        assert (await run.ended()).exit_code == 0


async def told_at(port: int) -> dict[str, dict[str, str]]:
    """By `where`, the other labels of `udf_told_total`."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "udf_told_total":
            assert sample.value > 0
            labels = dict(sample.labels)
            found[labels.pop("where")] = labels
    return found


@pytest.mark.sweep
async def test_a_config_that_does_not_fit_is_told_with_its_line_and_refused_at_the_start(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    every_kind(files, ", recrods: 7")
    line = line_of(tmp_path / "pipeline.yaml", "recrods")
    validated = await called(tmp_path, "validate", "pipeline.yaml", "--import")
    assert validated.exit_code == 2
    assert re.search(
        rf"pipeline\.yaml:{line}:\d+: .*\.config\.recrods: `config` does not fit Settings: field `recrods` is not a "
        r"member of it; did you mean `records`\?.*MS-3110",
        validated.err,
    ), validated.err
    ran = await command(tmp_path, "run", "pipeline.yaml")
    assert ran.exit_code == 3
    assert "`config` does not fit Settings: field `recrods` is not a member of it" in ran.err
    assert SECRET not in validated.err + validated.out + ran.err + ran.out


async def test_a_missing_secret_is_told_before_anything_starts(files: PipelineFiles, tmp_path: Path) -> None:
    every_kind(files)
    ran = await command(tmp_path, "run", "pipeline.yaml")
    assert ran.exit_code == 2
    assert "source.transformer.secrets.key: the environment variable MY_KEY is not set" in ran.err
    assert not (tmp_path / "written").exists()


@pytest.mark.sweep
async def test_reduce_functions_have_theirs_inside_spark_and_beside_it(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    (tmp_path / "context_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    window = "groupBy: {window: {fixed: {length: 1h}}}"
    served = f"command: [{sys.executable}, -P, -m, millstream_udf, 'context_functions.py:beside']"
    files.write(
        files.generator(100)
        + f"- name: inside\n  udf: {{python: 'context_functions.py:reduced', {window}, config: {{name: spark}}}}\n"
        + f"- name: beside\n  udf: {{{served}, {window}, config: {{name: own}}, secrets: {{key: {{env: MY_KEY}}}}}}\n"
        + files.file_sink("first")
        + files.file_sink("second"),
        ["in -> inside", "in -> beside", "inside -> first", "beside -> second"],
    )
    ran = await command(tmp_path, "run", "pipeline.yaml")
    assert ran.exit_code == 0, ran.err
    inside = files.rows("first")
    assert {row["name"] for row in inside} == {"spark"}
    assert sum(row["count"] for row in inside) == 100
    assert {(row["name"], row["key"]) for row in files.rows("second")} == {("own", len(SECRET))}
    assert_nowhere(tmp_path, ran.out + ran.err)
