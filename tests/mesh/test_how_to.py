"""The how-tos, followed to the letter: files are written, commands typed, and their output is what the page shows."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.page_files import Command, PageFile, differs, steps_of, typed, write

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
FOLLOWED = sorted(
    page.stem for page in HOW_TO.glob("*.md") if any(isinstance(step, Command) for step in steps_of(page.read_text()))
)


@pytest.mark.parametrize("name", FOLLOWED)
async def test_what_the_page_shows_is_what_its_reader_sees(name: str, tmp_path: Path) -> None:
    for step in steps_of((HOW_TO / f"{name}.md").read_text(encoding="utf-8")):
        if isinstance(step, Command):
            difference = differs(step, await typed(step, tmp_path))
            assert not difference, f"{name}.md, {difference}"
        elif not step.peer:
            write(step, tmp_path)


async def test_the_test_of_a_whole_pipeline_passes(tmp_path: Path) -> None:
    for step in steps_of((HOW_TO / "testing.md").read_text(encoding="utf-8")):
        if isinstance(step, PageFile):
            write(step, tmp_path)
    test = Command(
        f"{sys.executable} -B -m pytest -q -p no:cacheprovider test_pipeline.py", ("...", "1 passed in …"), 0
    )
    difference = differs(test, await typed(test, tmp_path))
    assert not difference, difference


async def test_a_function_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The environment is made without the network: it sees the packages of this one."""
    for step in steps_of((HOW_TO / "dependencies.md").read_text(encoding="utf-8")):
        if isinstance(step, PageFile):
            write(step, tmp_path)
    python = tmp_path / "enrich" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", tmp_path / "enrich" / ".venv")
    lib = Path(sys.prefix) / "lib"
    (tmp_path / "enrich" / ".venv" / "lib").symlink_to(lib)
    for command in ("millstream validate pipeline.yaml", "millstream run --quiet pipeline.yaml"):
        await typed(Command(command, (), 0), tmp_path)
    lines = await asyncio.to_thread(lambda: [file.read_text() for file in (tmp_path / "out").glob("*.jsonl")])
    assert "2026-01-05T10:00:00+01:00" in "".join(lines)
    assert "2026-01-05T11:15:00+01:00" in "".join(lines)
