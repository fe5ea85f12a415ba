"""What the processes of a run import: what none of them needs, none of them loads."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.mesh.running import command

LISTENS = """\
import os
import sys

seen = set()


def heard(event, arguments):
    if event == "import" and (name := arguments[0].partition(".")[0]) not in seen:
        seen.add(name)
        place = os.open(os.path.join({place!r}, str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(place, (name + chr(10)).encode())
        os.close(place)


sys.addaudithook(heard)
"""
PIPELINE = """
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {file: {paths: [rows.csv], format: csv}}}
    - {name: map, udf: {python: "steps.py:same"}}
    - {name: out, sink: {log: {}}}
  edges: [{from: in, to: map}, {from: map, to: out}]
"""
NEVER = frozenset(
    (
        *("pydantic", "pydantic_core", "annotated_types", "msgspec", "redis", "opentelemetry"),
        *("pyarrow", "numpy", "pandas", "pyspark", "sqlglot", "duckdb", "fastavro"),
    )
)
"""Only where something is wrong, or where a pipeline asks for what they do."""


async def test_no_process_of_a_run_imports_what_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(LISTENS.format(place=str(seen)))
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "steps.py").write_text("def same(value):\n    return value\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    ended = await command(tmp_path, "run", "pipeline.yaml", "--workers", "1")
    assert ended.exit_code == 0, ended.err
    by_part: dict[str, set[str]] = defaultdict(set)
    for file in seen.iterdir():
        names = set(file.read_text().split())
        part = next((one for one in ("millstream_runner", "millstream_worker") if one in names), "function")
        by_part[part] |= names
    runner, worker, function = (by_part[one] for one in ("millstream_runner", "millstream_worker", "function"))
    assert "nats" in worker
    assert "grpc" in function
    assert {part: sorted(NEVER & names) for part, names in by_part.items()} == {part: [] for part in by_part}
    assert not sorted({"ruamel", "prometheus_client", "millstream_runner"} & worker)
    assert not sorted({"psutil", "nats", "zipfile", "http"} & function)
    assert not sorted({"grpc", "prometheus_client"} & runner)
