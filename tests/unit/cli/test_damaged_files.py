"""Commands that read files: whatever is in their place is the user's, the machine's or damage, never a defect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import DamageError, InfrastructureError, MillstreamError, UserError
from millstream_runner.cli.main import main

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 100}}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: out}
"""
RUNTIME = {
    "pipeline": "p",
    "runner": {"pid": 1, "started": 1},
    "broker_port": 1,
    "processes": [],
}
OURS = {UserError.exit_code, InfrastructureError.exit_code, DamageError.exit_code}
SEGMENT = "0000000000000001.wal"


def _text(text: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(text)

    return put


PUT: dict[str, Callable[[Path], None]] = {
    "nothing": _text(b""),
    "an empty object": _text(b"{}"),
    "an empty list": _text(b"[]"),
    "half of it": _text(b'{"format": 1, "runn'),
    "bytes": _text(bytes(range(256))),
    "a directory": lambda path: path.mkdir(),
    "nothing at all": lambda path: None,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUT)
@pytest.mark.parametrize("name", ["runtime.json", "status.json", "pipeline.json", "shape.json"])
def test_a_damaged_file_of_a_data_directory_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(PIPELINE)
    for command in (
        ["status"],
        ["logs"],
        ["peek", "in-out"],
        ["deadletters", "list"],
        ["deadletters", "replay"],
        ["repair", str(pipeline)],
    ):
        data = tmp_path / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        (data / "runtime.json").write_text(json.dumps(RUNTIME))
        (data / "status.json").write_text("{}")
        (data / "pipeline.json").write_text("{}")
        (data / "logs").mkdir()
        PUT["nothing at all"](data / name)
        if (data / name).exists():
            (data / name).unlink()
        PUT[kind](data / name)
        code = main([*command, "--data-dir", str(data)])
        said = capsys.readouterr().err
        assert code != MillstreamError.exit_code, (command, said)
        assert "defect" not in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUT)
@pytest.mark.parametrize("name", [SEGMENT, "empty.wal", f"{SEGMENT}/{SEGMENT}"])
def test_a_log_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    PUT[kind](path)
    for more in ([], ["--verify"], ["-o", "json"]):
        assert main(["wal", str(tmp_path), *more]) in OURS
        assert "defect" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_that_a_command_is_given_may_be_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, put in PUT.items():
        path = tmp_path / kind
        put(path)
        for command in ("validate", "graph", "compile", "run", "repair"):
            assert main([command, str(path)]) in OURS, (command, kind)
            assert "defect" not in capsys.readouterr().err
