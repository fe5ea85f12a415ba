"""`-o json` of the commands that look at a pipeline: JSON alone on standard output, with the members of docs/cli.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream_runner.cli.main import main

PAGE = Path(__file__).parents[2] / "docs/cli.md"


def documented() -> dict[str, set[str]]:
    """Members of what each command prints, by its row; those behind a semicolon come in other cases."""
    table = PAGE.read_text(encoding="utf-8").partition("## JSON output")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| [^|]* \| (.*) \|$", table, re.M)
    assert len(rows) > 15
    in_any_case = {name: re.sub(r"\(.*?\)|, each with.*", "", text.split(";")[0]) for name, text in rows}
    return {name: set(re.findall(r"`(\w+)`", text)) for name, text in in_any_case.items()}


MEMBERS = documented()


class Commands:
    """Runs commands in this process: each of its own would import everything again."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: str, exit_code: int = 0) -> str:
        """What it prints on standard output."""
        self._capsys.readouterr()
        code = main([*words, "-o", "json"])
        out, err = self._capsys.readouterr()
        assert code == exit_code, err
        return out

    def one(self, *words: str, row: str = "") -> dict[str, Any]:
        """Of a command that prints one object."""
        out = self.run(*words)
        answer: dict[str, Any] = json.loads(out)
        assert len(out.splitlines()) == 1
        assert set(answer) == MEMBERS[row or words[0]], words
        return answer

    def many(self, *words: str, row: str = "") -> list[dict[str, Any]]:
        """Of a command that prints an object for each thing."""
        entries = [json.loads(line) for line in self.run(*words).splitlines()]
        for entry in entries:
            assert MEMBERS[row or words[0]] <= set(entry), words
        return entries


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capsys)


@pytest.mark.timeout(900)
def test_every_command_that_looks_at_a_pipeline_prints_what_the_page_says(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "hello/pipeline.yaml" in commands.one("init", "hello")["files"]
    monkeypatch.chdir(tmp_path / "hello")
    assert commands.one("validate", "pipeline.yaml")["valid"] is True
    graph = commands.one("graph", "pipeline.yaml")
    assert {"name": "read-price", "from": "read", "to": "price", "kind": "data", "labels": []} in graph["edges"]
    commands.one("broker", "config", "pipeline.yaml", "--to", "users", row="broker config")

    # In a process of its own: as long as the one that ran it lives, it counts as running.
    command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "-o", "json"]
    ran = json.loads(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-1])
    assert set(ran) == MEMBERS["run"]
    assert (ran["exit_code"], ran["failure"], ran["account"]["balanced"]) == (0, None, True)
    assert commands.one("status")["state"] == "done"
    assert len(commands.many("logs")) > 3
    begun = commands.many("audit")[0]
    assert (begun["action"], begun["durability"]) == ("start", "fsync")
    (refused,) = commands.many("deadletters", "list", "--vertex", "price", row="deadletters list")
    assert refused["reason"] == "an order of 0 pieces"
    assert commands.one("repair", "pipeline.yaml")["damages"] == []
    assert {lane["ended"] for lane in commands.one("watermark", "pipeline.yaml")["lanes"]} == {True}
    back = commands.one("deadletters", "replay", "--vertex", "price", row="deadletters replay")
    assert back["put_back"] == 1
    (waiting,) = commands.many("peek", "read-price", "--count", "1")
    assert json.loads(waiting["value"])["item"] == "shelf"


@pytest.mark.parametrize("words", ["run p.yaml", "graph p.yaml", "status", "logs", "peek x", "explain nothing"])
def test_a_fault_leaves_standard_output_to_json(words: str, commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("kind: Nonsense")
    assert commands.run(*words.split(), exit_code=2) == ""
