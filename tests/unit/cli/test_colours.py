"""Colours at a terminal, none elsewhere, and none that data asks for."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import TextIO, cast

import pytest

from millstream.printable import PrintableStream
from millstream_runner.colours import Heading, Style, is_coloured, show, show_lines, show_message
from tests.support.sizes import first

COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm-256color"}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (True, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_where_there_are_colours(terminal: bool, environment: dict[str, str], coloured: bool) -> None:
    assert is_coloured(Terminal() if terminal else StringIO(), environment) is coloured


def test_data_colours_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    behind = Terminal()
    out = cast("TextIO", PrintableStream(behind))
    show("of a user: \x1b[31m ", (Style.ERROR, "\x1b[32m"), file=out)
    assert behind.getvalue() == f"of a user: \\u001b[31m {Style.ERROR.value}\\u001b[32m\x1b[0m\n"


@pytest.mark.parametrize(
    ("text", "painted"),
    [
        ("error[MS-4010]: in use", "error[MS-4010]:"),
        ("millstream run: error[MS-4010]: in use", "error[MS-4010]:"),
        ("warning: late", "warning:"),
        ("note: it is so", "note:"),
        ("worker.1: error: no", ""),
        ("all is well", ""),
    ],
)
def test_what_a_message_is_stands_out(text: str, painted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = StringIO()
    show_message(text, out)
    assert COLOUR.sub("", out.getvalue()) == f"{text}\n"
    assert re.findall(r"\x1b\[[\d;]+m([^\x1b]+)\x1b\[0m", out.getvalue()) == ([painted] if painted else [])


def test_headings_stand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = StringIO()
    show_lines([Heading("VERTEX"), "in", Heading("EDGE")], out)
    assert out.getvalue() == f"{Style.HEADING.value}VERTEX\x1b[0m\nin\n{Style.HEADING.value}EDGE\x1b[0m\n"


@pytest.mark.process
@pytest.mark.parametrize("words", first(1, [["run", "--help"], ["rn"], ["explain", "nothing-like-it"]]))
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_at_a_real_terminal(words: list[str], variables: dict[str, str], tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment = {**kept, "TERM": "xterm", **variables}
    command = [sys.executable, "-m", "millstream_runner", *words]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path) as process:
        os.close(theirs)
        text = b"".join(_read(ours)).decode()
        process.wait(60)
    os.close(ours)
    assert bool(COLOUR.search(text)) is (not variables)
    piped = subprocess.run(command, capture_output=True, env=environment, cwd=tmp_path, check=False)
    assert b"\x1b" not in piped.stdout + piped.stderr


def _read(descriptor: int) -> list[bytes]:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            # The other end is closed.
            return parts
        if not part:
            return parts
        parts.append(part)
