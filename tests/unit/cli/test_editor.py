"""What an editor needs: the schema, where a pipeline file says it is, with a meaning for each field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.spec.schema import DRAFT, schema
from millstream_runner.cli.arguments import parser
from millstream_runner.cli.editor import MODELINE, SCHEMA_FILE, refresh_schema, write_schema
from millstream_runner.cli.main import main


def templates() -> list[str]:
    commands = parser().commands
    assert commands is not None
    (action,) = [one for one in commands.choices["init"]._actions if one.dest == "template"]
    return list(action.choices or ())


@pytest.mark.slow
@pytest.mark.parametrize("template", templates())
def test_every_template_names_its_schema_and_has_it(template: str, tmp_path: Path) -> None:
    target = tmp_path / "new"
    assert main(["init", str(target), "--template", template]) == 0
    files = [*target.rglob("*.yaml"), *target.rglob("*.yml")]
    pipelines = [file for file in files if "kind: Pipeline" in file.read_text()]
    assert pipelines
    for file in pipelines:
        text = file.read_text()
        assert text.startswith(MODELINE)
        places = re.findall(r"^# (?:yaml-language-server: \$schema=|\$schema: )(\S+)$", text, re.M)
        assert len(places) == 2
        for place in places:
            assert "://" not in place
            assert json.loads((file.parent / place).read_text())["title"] == "Pipeline"
    assert oct((target / SCHEMA_FILE).stat().st_mode)[-3:] == "600"


def test_the_command_prints_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema()
    assert printed["$schema"] == DRAFT


def test_every_field_and_kind_has_a_text_to_hover_over() -> None:
    """A description of its own, or that of what it refers to, on one line."""
    whole = schema()
    silent = []
    for place, node in fields(whole, "Pipeline"):
        text = node.get("description") or whole["$defs"].get(node.get("$ref", "").rpartition("/")[2], {}).get(
            "description"
        )
        if not text or "\n" in text or len(text) < 3:
            silent.append(place)
    assert silent == []


def fields(node: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each property of each object, with its schema."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from fields(item, f"{place}[{index}]")
    if not isinstance(node, dict):
        return
    for name, contents in node.get("properties", {}).items():
        if isinstance(contents, dict) and "type" in node:
            yield f"{place}.{name}", contents
    for key, value in node.items():
        yield from fields(value, f"{place}.{key}")


def test_references_lead_somewhere() -> None:
    whole = schema()
    references = set(re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(whole)))
    assert references <= set(whole["$defs"])


def test_a_run_writes_a_schema_that_is_missing_or_old(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"{MODELINE}kind: Pipeline\n")
    place = tmp_path / SCHEMA_FILE
    refresh_schema(file)
    made = place.read_text()
    before = place.stat()
    refresh_schema(file)
    assert place.stat().st_ino == before.st_ino
    place.write_text(re.sub(r'"\$comment": "millstream [^"]+"', '"$comment": "millstream 0.0.1"', made))
    refresh_schema(file)
    assert place.read_text() == made


def test_a_file_that_names_no_schema_gets_none(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("kind: Pipeline\n")
    refresh_schema(file)
    refresh_schema(tmp_path / "missing.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]


def test_a_directory_that_cannot_be_written_to_is_left(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"{MODELINE}kind: Pipeline\n")
    (tmp_path / ".millstream").write_text("a file where the directory should be")
    refresh_schema(file)
    with pytest.raises(OSError, match="exists"):
        write_schema(tmp_path)
