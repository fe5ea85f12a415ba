"""The lines after a run: where the results are, what to change, and how to apply the change."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.spec.loading import load
from millstream_runner.cli.run import next_step

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  vertices:
    - {{name: in, source: {{generator: {{records: 5}}}}}}
    - {{name: f, udf: {{{udf}}}}}
    - {{name: out, sink: {{file: {{path: out}}}}}}
  edges: [{{from: in, to: f}}, {{from: f, to: out}}]
"""


@pytest.mark.parametrize(
    ("udf", "said"),
    [
        ("python: 'f.py:f'", "change f.py and `millstream run {path} --fresh` (or use --watch)"),
        # A window keeps the function that it began with, so --watch does not take it in.
        (
            "python: 'f.py:f', groupBy: {window: {fixed: {length: 1m}}}",
            "change f.py and `millstream run {path} --fresh`",
        ),
        ("command: [./words]", "build words again and `millstream run {path} --fresh` (or use --watch)"),
        ("command: [cat]", ""),
        ("builtin: {name: cat}", ""),
    ],
)
def test_what_to_change(udf: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("p.yaml")
    path.write_text(PIPELINE.format(udf=udf))
    Path("f.py").write_text("def f(keys, records, window): ...\n" if "groupBy" in udf else "def f(value): ...\n")
    Path("words").write_text("#!/bin/sh\n")
    Path("words").chmod(0o755)
    wanted = f"next: {said.format(path='p.yaml')}" if said else ""
    assert " ".join(" ".join(next_step(load(path), ended=True)).split()) == wanted


def test_where_the_results_are_and_that_a_new_run_moves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(PIPELINE.format(udf="python: 'f.py:f'"))
    Path("f.py").write_text("def f(value): ...\n")
    Path("out").mkdir()
    (tmp_path / "out" / "1.jsonl").write_text("")
    loaded = load(Path("p.yaml"))
    assert next_step(loaded, ended=True, width=80) == [
        "next: look into out; change f.py and",
        "      `millstream run p.yaml --fresh --move-outputs` (or use --watch)",
    ]
    assert "--fresh" not in "".join(next_step(loaded, ended=False))
