"""What the processes of a pipeline import: a package that they do not use would take memory and time in each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.running import command

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

UNUSED = {
    *("aiohttp", "jinja2", "numpy", "opentelemetry", "pandas", "prometheus_client", "pyarrow", "pydantic", "pyspark"),
    *("ruamel", "sqlglot", "yaml"),
}
"""Packages that only other pipelines use, or only the commands of users. They are installed here."""
NOT_OF_A_RUN = (
    "millstream_runner.local.savepoints",
    "millstream_runner.local.moving_states",
    "millstream_runner.pictures",
)
"""Modules of the runner for some options, or for changes of a pipeline."""
_MARK = "import time:"


def imported(line: str) -> str:
    """The package of which a line of `python -X importtime` names a module; empty for other lines.

    A package alone may be an import that was refused, such as that of nats-py, which tries aiohttp.
    """
    package, dot, _ = line.rpartition("|")[2].strip().partition(".")
    return package if line.startswith(_MARK) and dot else ""


async def test_a_worker_and_a_function_import_nothing_that_they_do_not_use(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    (tmp_path / "same.py").write_text("def process(value):\n    return value\n")
    files.write(
        files.generator(10) + "- name: map\n  udf: {python: 'same.py:process'}\n- {name: out, sink: {blackhole: {}}}\n",
        ["in -> map", "map -> out"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml", "--workers", "1", "--data-dir", "data")
    assert ended.exit_code == 0, ended.err
    worker, worker_modules, function = set[str](), set[str](), set[str]()
    for log in (tmp_path / "data/logs").glob("*.jsonl"):
        for line in log.read_text().splitlines():
            worker.add(imported(line))
            worker_modules.add(line.rpartition("|")[2].strip())
            if line.startswith("{"):
                function.add(imported(json.loads(line)["message"]))
    # Each has said what it imports.
    assert {"millstream_worker", "millstream_vertex", "grpc", "nats"} <= worker
    assert {"millstream_udf", "grpc"} <= function
    assert worker & UNUSED == set()
    # Codecs of functions are for functions, and what remembers something for vertices that do.
    assert worker_modules.isdisjoint({"millstream_vertex.keyed", "millstream_udf.json_types", "millstream_udf.context"})
    runner = {line.rpartition("|")[2].strip() for line in ended.err.splitlines() if line.startswith(_MARK)}
    assert "millstream_runner.local.run" in runner
    assert not [name for name in runner if name.startswith((*NOT_OF_A_RUN, "millstream_vertex.keyed"))]
    assert function & (UNUSED | {"nats", "millstream", "millstream_worker"}) == set()
