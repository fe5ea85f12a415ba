"""What connectors promise and what may be demanded of them; how they are listed, and asked about what they talk to."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from string import Template

import pytest

from millstream.spec.connectors import SINKS, SOURCES, Connector
from millstream.spec.needs import not_installed
from millstream.spec.values import SpecModel
from millstream_runner.cli.main import main

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source:
      generator: {records: 5}
      guarantee: exactlyOnce
  - name: out
    sink:
      $sink
      guarantee: $demand
  edges:
  - {from: in, to: out}
"""


def written(directory: Path, sink: str, demand: str = "exactlyOnce") -> str:
    path = directory / "p.yaml"
    path.write_text(Template(PIPELINE).substitute(sink=sink, demand=demand))
    return str(path)


@pytest.mark.parametrize("kind", [*SOURCES.all(), *SINKS.all()], ids=lambda found: found[0])
def test_every_kind_says_what_it_promises(kind: tuple[str, Connector[SpecModel]]) -> None:
    assert kind[1].promise.sentence


@pytest.mark.parametrize(
    ("sink", "demand"),
    [
        ("file: {path: x}", "exactlyOnce"),
        ('http: {url: "http://localhost:1"}', "exactlyOnce"),
        # Its function says at the start whether it keeps positions.
        ("udsink: {command: [cat]}", "exactlyOnce"),
        ("log: {}", "atLeastOnce"),
        ("file: {path: x}", "atLeastOnce"),
    ],
)
def test_what_is_promised_may_be_demanded(sink: str, demand: str, tmp_path: Path) -> None:
    assert main(["validate", written(tmp_path, sink, demand)]) == 0


@pytest.mark.parametrize(
    ("sink", "demand", "promised"),
    [
        ("log: {}", "exactlyOnce", "at least once: lines written shortly before a crash are written again"),
        ("blackhole: {}", "atLeastOnce", "nothing is written"),
    ],
)
def test_what_cannot_be_held_is_refused_at_its_place(
    sink: str, demand: str, promised: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "-o", "json", written(tmp_path, sink, demand)]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["line"], problem["column"]) == ("MS-2225", 13, 18)
    assert problem["path"] == "spec.vertices[1].sink.guarantee"
    assert promised in problem["what"]
    assert "such as `file`" in problem["expected"]


def test_a_fallback_that_holds_less_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = "file: {path: x}\n      fallback: {log: {}}\n      retryStrategy: {onFailure: fallback}"
    assert main(["validate", "-o", "json", written(tmp_path, sink)]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2225", "spec.vertices[1].sink.fallback")


def test_sources_say_what_they_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", written(tmp_path, "file: {path: x}")]) == 0
    assert "source in: exactly once: from a position it generates the same records again" in capsys.readouterr().out


def test_a_part_of_a_package_that_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for `a.b` imports `a`."""
    connector = SINKS.load("log")
    monkeypatch.setattr(type(connector), "packages", {"no_such_package.part": "x", "json.decoder": "y"})
    assert [one.remedy for one in not_installed(connector.needs())] == ["`pip install 'x'`"]


def test_the_list_has_each_with_its_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connectors", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["connectors"]
    assert {(one["role"], one["name"]) for one in listed} >= {("source", "file"), ("sink", "file"), ("sink", "log")}
    by_name = {(one["role"], one["name"]): one for one in listed}
    assert by_name["sink", "log"]["guarantee"]["id"] == "at-least-once"
    assert by_name["source", "http"]["ends"] == "never"
    assert main(["connectors"]) == 0
    assert "sink log\n  To the vertex's log. At least once: lines" in capsys.readouterr().out


def test_one_is_listed_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connectors", "http", "-o", "json"]) == 0
    source, sink = json.loads(capsys.readouterr().out)["connectors"]
    assert (source["role"], sink["role"]) == ("source", "sink")
    options = {option["name"]: option for option in sink["options"]}
    assert options["url"]["default"] == "required"
    assert (options["batch.maxRecords"]["default"], options["batch.maxRecords"]["type"]) == (
        "1",
        "whole number, at least 1",
    )
    assert main(["connectors", "http"]) == 0
    assert "  batch.maxRecords  (whole number, at least 1, default: 1)\n" in capsys.readouterr().out


def test_a_name_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connectors", "htp"]) == 2
    assert "error[MS-2122]: there is no source or sink `htp`: one of bigquery, " in capsys.readouterr().err


def test_validate_online_says_what_does_not_listen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as receiver:
        port = receiver.getsockname()[1]
        path = written(tmp_path, f'http: {{url: "http://127.0.0.1:{port}/secret"}}')
        assert main(["validate", "--online", path]) == 0
    capsys.readouterr()
    assert main(["validate", "--online", "-o", "json", path]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-4302", "spec.vertices[1].sink.http.url")
    assert f"127.0.0.1:{port}" in problem["what"]
    assert "secret" not in problem["what"]
    assert main(["validate", "--online", "--file-only", path]) == 2
