"""`-o json` of the commands that look at a pipeline: JSON alone on standard output, with the members of docs/cli.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.mesh.running import command

PAGE = Path(__file__).parents[2] / "docs/cli.md"


def documented() -> dict[str, set[str]]:
    """Members of what each command prints, by its row; those behind a semicolon come in other cases."""
    table = PAGE.read_text(encoding="utf-8").partition("## Facts as JSON")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| [^|]* \| (.*) \|$", table, re.M)
    assert len(rows) > 15
    in_any_case = {name: re.sub(r"\(.*?\)|, each with.*", "", text.split(";")[0]) for name, text in rows}
    return {name: set(re.findall(r"`(\w+)`", text)) for name, text in in_any_case.items()}


MEMBERS = documented()


async def one(directory: Path, *words: str, row: str = "", exit_code: int = 0) -> dict[str, Any]:
    """What a command prints that prints one object."""
    ended = await command(directory, *words, "-o", "json")
    assert ended.exit_code == exit_code, ended.err
    answer: dict[str, Any] = json.loads(ended.out)
    assert len(ended.out.splitlines()) == 1
    assert set(answer) == MEMBERS[row or words[0]], words
    return answer


async def many(directory: Path, *words: str, row: str = "") -> list[dict[str, Any]]:
    """What a command prints that prints an object for each thing."""
    ended = await command(directory, *words, "-o", "json")
    assert ended.exit_code == 0, ended.err
    entries = [json.loads(line) for line in ended.out.splitlines()]
    for entry in entries:
        assert MEMBERS[row or words[0]] <= set(entry), words
    return entries


async def test_every_command_that_looks_at_a_pipeline_prints_what_the_page_says(tmp_path: Path) -> None:
    made = await one(tmp_path, "init", "hello")
    here = tmp_path / "hello"
    assert "hello/pipeline.yaml" in made["files"]
    assert (await one(here, "validate", "pipeline.yaml"))["valid"] is True
    graph = await one(here, "graph", "pipeline.yaml")
    assert {"name": "read-price", "from": "read", "to": "price", "kind": "data", "labels": []} in graph["edges"]
    assert (await one(here, "doctor", "pipeline.yaml"))["ready"] is True
    await one(here, "broker", "config", "pipeline.yaml", "--to", "users", row="broker config")

    ran = await one(here, "run", "pipeline.yaml")
    assert (ran["exit_code"], ran["failure"], ran["account"]["balanced"]) == (0, None, True)
    assert (await one(here, "status"))["state"] == "ended"
    assert len(await many(here, "logs")) > 3
    assert (await many(here, "audit"))[0]["action"] == "start"
    assert await many(here, "peek", "read-price") == []
    (refused,) = await many(here, "deadletters", "list", "--vertex", "price", row="deadletters list")
    assert refused["reason"] == "an order of 0 pieces"
    assert (await one(here, "repair", "pipeline.yaml"))["damages"] == []
    assert {lane["ended"] for lane in (await one(here, "watermark", "pipeline.yaml"))["lanes"]} == {True}
    back = await one(here, "deadletters", "replay", "--vertex", "price", row="deadletters replay")
    assert back["put_back"] == 1
    (waiting,) = await many(here, "peek", "read-price", "--count", "1")
    assert json.loads(waiting["value"])["item"] == "shelf"


async def test_faults_leave_standard_output_to_json(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("kind: Nonsense")
    for words in (["run", "p.yaml"], ["graph", "p.yaml"], ["status"], ["logs"], ["peek", "x"], ["explain", "nothing"]):
        ended = await command(tmp_path, *words, "-o", "json")
        assert (ended.exit_code, ended.out) == (2, ""), words
        assert "MS-2" in ended.err
