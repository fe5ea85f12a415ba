"""A whole run over Redis or Valkey: its records, the commands that look at it, and the way back refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  interStepBuffer: {redis: {}}
  vertices:
    - {name: in, source: {generator: {rpu: 0, records: 3000}}}
    - {name: same, udf: {python: "same.py:process"}}
    - {name: out, sink: {file: {path: out}}}
  edges: [{from: in, to: same, chain: false}, {from: same, to: out}]
"""


def millstream(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream_runner", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.guarantee("I1", "I2")
def test_a_run_over_redis_ends_with_each_record_once_and_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "same.py").write_text("def process(value):\n    return value\n")
    done = millstream("run", "p.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(rows) == 3000
    again = millstream("run", "p.yaml", cwd=tmp_path)
    assert "nothing was left to process" in again.stdout
    assert millstream("repair", "p.yaml", cwd=tmp_path).stdout.startswith("no damage found")
    assert "has no records" in millstream("peek", "in-same", cwd=tmp_path).stdout
    back = millstream("run", "p.yaml", "--ledger", "jetstream", cwd=tmp_path)
    assert back.returncode == 2
    assert "its records were kept by redis, and are now kept by jetstream" in back.stderr
