"""Under chaos the file sinks of a pipeline write where the experiment looks, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from millstream.spec.loading import load_text
from millstream_connectors.file.settings import FileSink
from millstream_runner.chaos.runner import redirected

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {file: {paths: [in.txt]}}
  - name: all
    sink:
      http: {url: "http://127.0.0.1:1"}
      fallback: {file: {path: own/refused}}
      retryStrategy: {onFailure: fallback}
  - name: out
    sink: {file: {path: own/out, format: lines}}
  edges: [{from: in, to: out}, {from: in, to: all}]
"""


def test_file_sinks_and_fallbacks_write_below_the_directory_of_the_experiment(tmp_path: Path) -> None:
    loaded = redirected(load_text(PIPELINE, tmp_path / "p.yaml"), tmp_path / "sinks")
    ends = {(vertex.name, *placed.path): placed.end for vertex in loaded.graph.vertices for placed in vertex.ends}
    paths = {place: end.settings.path for place, end in ends.items() if isinstance(end.settings, FileSink)}
    assert paths == {
        ("out",): str(tmp_path / "sinks/out"),
        ("all", "fallback"): str(tmp_path / "sinks/all.fallback"),
    }
    assert [(place, end.kind) for place, end in sorted(ends.items())] == [
        (("all",), "http"),
        (("all", "fallback"), "file"),
        (("in",), "file"),
        (("out",), "file"),
    ]
    assert ends["out",].settings.as_written()["format"] == "lines"
