"""Other faults: sleepers and their successors, a bad way to the broker, a full disk. And pipelines of users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.small_disk import open_small_disk
from tests.support.sizes import sized

KILLS = str(sized(6, 9))
OWN = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: own}
spec:
  vertices:
    - name: in
      source: {generator: {rpu: 300, msgSize: 40}}
    - name: out
      sink: {file: {path: results, rolling: {maxAge: 200ms}}}
    - name: copy
      sink: {file: {path: results-again, rolling: {maxAge: 200ms}}}
    - name: seen
      sink: {log: {}}
  edges: [{from: in, to: out}, {from: in, to: copy}, {from: in, to: seen}]
"""


def chaos(directory: Path, *arguments: str, cwd: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "millstream_runner", "chaos", *arguments, "--dir", str(directory), "-o", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, cwd=cwd)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert told["sound"]
    return told


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I9")
def test_what_was_acknowledged_arrives_once_whatever_sleeps_dies_or_is_cut_off(tmp_path: Path) -> None:
    arguments = ["push", "--kills", KILLS, "--rate", "300", "--seed", "4", "--faults", "kill,pause,network"]
    told = chaos(tmp_path / "one", *arguments)
    assert told["counts"] == {"lost": 0, "repeated": 0, "disagreeing": 0}
    assert sum(told["faults"].values()) == int(KILLS)
    assert {what.split()[0] for what in told["faults"]} == {"kill", "pause", "network"}
    inputs = (tmp_path / "one/inputs.jsonl").read_text().splitlines()
    assert {json.loads(line)["state"] for line in inputs} == {"attempted", "acknowledged"}


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I9")
@pytest.mark.sweep
def test_a_pipeline_of_a_user_is_drained_and_held_to_what_its_sinks_state(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    told = chaos(tmp_path / "one", "own.yaml", "--seconds", "8", "--id", "number", cwd=tmp_path)
    assert told["drained"]
    assert sum(told["faults"].values()) > 0
    results = {(check["subject"], check["what"]): check["result"] for check in told["checks"]}
    assert results["out", "each number once"] == "held"
    assert results["out, copy", "sinks with the same input have the same records"] == "held"
    assert results["seen", "guarantee: at-least-once"] == "not checked"
    assert not (tmp_path / "results").exists(), "the user's own results are left alone"


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_a_run_that_ends_before_all_faults_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN.replace("{rpu: 300,", "{rpu: 300, records: 600,"))
    command = [
        sys.executable,
        "-m",
        "millstream_runner",
        "chaos",
        "own.yaml",
        "--kills",
        "30",
        "--dir",
        str(tmp_path / "one"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert "of 30 faults could be injected before the run ended; give it more to do" in ended.stdout
    assert ended.stdout.splitlines()[-2].startswith("INCOMPLETE: ")


@pytest.mark.timeout(900)
@pytest.mark.sweep
def test_a_run_without_a_fault_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    command = [sys.executable, "-m", "millstream_runner", "chaos", "own.yaml", "--seconds", "0.01"]
    command += ["--dir", str(tmp_path / "one")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert "INCOMPLETE: no fault could be injected; give it more time" in ended.stdout


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I9")
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    with open_small_disk(tmp_path / "disk", 1 << 30) as disk:
        arguments = ["mesh", "--kills", "2", "--records", "6000", "--rate", "300", "--faults", "disk"]
        told = chaos(disk / "one", *arguments)
    assert told["faults"] == {"disk": 2}
    assert told["counts"] == {"lost": 0, "repeated": 0, "disagreeing": 0}


def test_nothing_is_done_without_being_told_how_much_or_on_a_large_disk(tmp_path: Path) -> None:
    for arguments, said in (
        (["mesh"], "say how many faults"),
        (["mesh", "--kills", "1", "--faults", "fire"], "expected one or more of kill, pause, network, disk"),
        (["mesh", "--kills", "1", "--faults", "disk"], "file system"),
    ):
        command = [sys.executable, "-m", "millstream_runner", "chaos", *arguments, "--dir", str(tmp_path / "one")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert said in ended.stderr
        assert not (tmp_path / "one/state").exists()


@pytest.mark.sweep
def test_a_pipeline_that_cannot_run_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("def process(value):\n    raise ValueError('no good')\n")
    function = "{name: map, udf: {python: functions.py:process, retryStrategy: {backoff: {steps: 1}, onFailure: stop}}}"
    vertices = (
        f"[{{name: in, source: {{generator: {{rpu: 10}}}}}}, {function}, {{name: out, sink: {{blackhole: {{}}}}}}]"
    )
    edges = "[{from: in, to: map}, {from: map, to: out}]"
    head = "apiVersion: millstream.io/v1alpha1, kind: Pipeline, metadata: {name: bad}"
    (tmp_path / "bad.yaml").write_text(f"{{{head}, spec: {{vertices: {vertices}, edges: {edges}}}}}")
    command = [
        sys.executable,
        "-m",
        "millstream_runner",
        "chaos",
        "bad.yaml",
        "--kills",
        "1",
        "--dir",
        str(tmp_path / "one"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert ended.returncode == 3
    assert "the run ended before any fault was injected" in ended.stderr
    assert "no good" in ended.stderr
