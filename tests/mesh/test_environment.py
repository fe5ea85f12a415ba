"""What functions see of the runner's environment: what their spec gives them, and nothing else that could be secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.reducing import Event, reduce, source, write_events
from tests.mesh.running import command
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver

SEES = """\
import json
import os


def process(value):
    return json.dumps(dict(os.environ))


def window(keys, records, window):
    return json.dumps(dict(os.environ))
"""


async def test_a_function_gets_what_its_spec_gives_it_and_not_the_runners_secrets(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_TOKEN", "AWS_SECRET_ACCESS_KEY", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    (tmp_path / "sees.py").write_text(SEES)
    (tmp_path / "key").write_text("of a file\n")
    given = "[{name: GIVEN, value: {env: API_TOKEN}}, {name: KEY, value: {file: key}}, {name: PLAIN, value: p}]"
    files.write(
        files.generator(1)
        + f"- name: map\n  udf: {{python: 'sees.py:process', env: {given}}}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    [seen] = files.rows("out")
    assert {name for name, value in seen.items() if "s3cret" in value} == {"GIVEN"}
    assert (seen["KEY"], seen["PLAIN"], seen["LC_ALL"]) == ("of a file", "p", "C.UTF-8")
    assert "PATH" in seen
    data = tmp_path / ".millstream"
    holding = [path for path in data.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    # The record that the function made of it is the user's own doing.
    assert {path.relative_to(data / "p").parts[0] for path in holding} <= {"broker"}


async def test_a_variable_that_is_not_there_is_said_before_anything_runs(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(1)
        + "- name: map\n  udf: {python: 'functions.py:identity', env: [{name: A, value: {env: NO_SUCH_TOKEN}}]}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 2
    assert "spec.vertices[1].udf.env[0].value: the environment variable NO_SUCH_TOKEN is not set" in ended.err
    assert not (tmp_path / ".millstream").exists()


async def test_a_function_inside_spark_gets_no_secret_either(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver
) -> None:
    # pytest sets this variable for itself, so the process that started the driver had it.
    (tmp_path / "sees.py").write_text(SEES)
    write_events(tmp_path / "in.jsonl", [Event(0, 1.0, "k")])
    path = files.write(
        source() + reduce("{fixed: {length: 10s}}", program="python: 'sees.py:window'") + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
        await run.run()
    [seen] = files.rows("out")
    assert "PATH" in seen
    assert not [name for name in seen if name.startswith("PYTEST")], json.dumps(seen)
