"""The how-tos, followed to the letter: files are written, commands typed, and their output is what the page shows."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.how_to import HOW_TO, OF_OTHERS, PAGES, files_of, write
from tools.follow import Rules, Shell, blocks_of

LIMIT_S = 300.0
EXACTLY = Rules((), ())
FOLLOWED = [
    page.stem if page.stem in ("event-time", "from-numaflow") else pytest.param(page.stem, marks=pytest.mark.sweep)
    for page in PAGES
    if any(block.commands for block in blocks_of(page))
]
Type = Callable[[str], Awaitable[list[str]]]


@asynccontextmanager
async def shell_in(folder: Path) -> AsyncIterator[Type]:
    """Types a command in that folder, and gives the lines it prints; it has to end with exit code 0."""
    folder.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = Shell(folder, {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"})

    async def typed(command: str) -> list[str]:
        came, exit_code = await asyncio.to_thread(shell.run, command, LIMIT_S)
        assert exit_code == 0, f"{command} ended with {exit_code}:\n" + "\n".join(came)
        return came

    try:
        yield typed
    finally:
        shell.close()


@pytest.mark.parametrize("name", FOLLOWED)
async def test_what_the_page_shows_is_what_its_reader_sees(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    async with shell_in(folder) as typed:
        for block in blocks_of(HOW_TO / f"{name}.md"):
            if block.title and block.title not in OF_OTHERS:
                write(block, folder)
            for command in block.commands:
                came = await typed(command.typed)
                assert EXACTLY.are_alike(command.shown, came), f"{block}: {command.typed}: it printed\n" + "\n".join(
                    came
                )


async def test_a_whole_pipeline_is_tested(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    async with shell_in(folder) as typed:
        for file in files_of(HOW_TO / "testing.md"):
            write(file, folder)
        came = await typed("millstream test")
    assert [line for line in came if "late.case.yaml" in line], "\n".join(came)


@pytest.mark.sweep
async def test_a_function_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The environment is made without the network: it has the packages of this one."""
    folder = tmp_path / "folder"
    async with shell_in(folder) as typed:
        for file in files_of(HOW_TO / "dependencies.md"):
            write(file, folder)
        environment = folder / "enrich" / ".venv"
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").symlink_to(sys.executable)
        shutil.copy(Path(sys.prefix) / "pyvenv.cfg", environment)
        (environment / "lib").symlink_to(Path(sys.prefix) / "lib")
        await typed("millstream validate pipeline.yaml")
        await typed("millstream run --quiet pipeline.yaml")
        lines = "\n".join(await typed("cat out/*.jsonl"))
    assert "2026-01-05T10:00:00+01:00" in lines
    assert "2026-01-05T11:15:00+01:00" in lines
