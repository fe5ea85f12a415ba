"""Which functions a debugger can be attached to, and what to do about the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import codes
from millstream.ports import free_ports
from millstream.spec.loading import load_text
from millstream_runner.cli import run
from millstream_runner.cli.run import debugged_functions
from tests.support.errors import raises

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: {generator: {rpu: 1, duration: 1s}}
    - name: price
      replicas: 2
      partitions: 2
      udf: FUNCTION
    - name: out
      sink: {blackhole: {}}
  edges:
    - {from: in, to: price}
    - {from: price, to: out}
"""


def ports(function: str, *names: str, port: int = 5678) -> dict[str, int]:
    loaded = load_text(PIPELINE.replace("FUNCTION", function), Path("pipeline.yaml"))
    return debugged_functions(loaded, names, port)


def test_each_replica_has_a_port() -> None:
    port = free_ports(2)
    assert ports('{python: "f.py:g"}', "price", "price", port=port) == {"price": port}
    assert ports('{python: "f.py:g"}') == {}


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ('{python: "f.py:g", groupBy: {keyed: true, window: {fixed: {length: 1m}}}}', r"inside Spark.*run_windows"),
        ("{address: 'localhost:4000'}", r"this run does not start it"),
        ("{builtin: {name: cat}}", r"has no function|built-in"),
        ('{python: "f.py:g", sandbox: strict}', r"remove `sandbox`"),
    ],
)
def test_functions_out_of_reach(function: str, what: str) -> None:
    with raises(codes.OPTIONS_CONFLICT, match=what):
        ports(function, "price")


def test_without_debugpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with raises(codes.EXTRA_NEEDED, match=r"pip install 'millstream\[debug\]'"):
        ports('{python: "f.py:g"}', "price")


def test_a_vertex_that_there_is_not() -> None:
    with raises(codes.NOT_IN_PIPELINE, match=r"did you mean price\? Vertices with a function: price"):
        ports('{python: "f.py:g"}', "prise")
