"""What a page of the documentation tells its reader to do: files to write, commands to type, output to see.

A fenced block with a `title` is a file of that name. A block in the language `console` holds commands, behind `$ `,
each followed by the lines it prints; a line `...` stands for any number of lines, and `…` inside a line for any text. A
block of shell commands in another language (`sh`) is not for running here.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 100

_FENCE = re.compile(r"^```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file that the page has its reader write."""

    name: str
    text: str
    peer: str
    """The program of others that it is written for; empty for what Millstream runs."""
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the page has its reader type."""

    text: str
    output: tuple[str, ...]
    """The lines that the page shows."""
    line: int


def steps_of(page: str) -> Iterator[PageFile | Command]:
    """The files and commands of a page, in its order."""
    for match in _FENCE.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        attributes = dict(_ATTRIBUTE.findall(match["rest"]))
        if match["language"] == "console":
            yield from _commands_of(match["text"], line + 1)
        elif "title" in attributes:
            yield PageFile(attributes["title"], match["text"], attributes.get("peer", ""), line)


def _commands_of(block: str, line: int) -> Iterator[Command]:
    typed: tuple[int, str] | None = None
    output: list[str] = []
    for number, text in enumerate(block.splitlines(), start=line):
        if text.startswith("$ "):
            if typed:
                yield Command(typed[1], tuple(output), typed[0])
            typed, output = (number, text.removeprefix("$ ")), []
        else:
            output.append(text)
    if typed:
        yield Command(typed[1], tuple(output), typed[0])


def write(file: PageFile, directory: Path) -> Path:
    """Write a file of the page below `directory`; a later one of the same name replaces it. Returns where it is."""
    path = directory / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8")
    return path


async def typed(command: Command, directory: Path) -> str:
    """Run the command there, as its reader would, and return all that it printed."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", command.text),
        cwd=directory,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "100",
        },
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    output = printed.decode()
    assert process.returncode == 0, f"line {command.line}: {command.text}: exit code {process.returncode}\n{output}"
    return output


def differs(command: Command, output: str) -> str:
    """What the output has that the page does not show, or the other way round; empty when they agree."""
    shown = "".join(
        "(?:[^\n]*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()).replace("…", "[^\n]*") + "\n"
        for line in command.output
    )
    plain = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
    return "" if re.fullmatch(shown, plain) else f"line {command.line}: {command.text}: it printed\n{output}"
