"""Shortens a traceback to what a person needs first: what was raised, and where in their own code. Pure.

Above it: code that reports failures of functions. Below it: the text of Python's tracebacks. The full text is for the
log. Text that is not a Python traceback is shortened to its last lines.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(, in (?P<name>.+))?')
_UNCOMPILED = re.compile(r'^ +File "[^"\n]+", line \d+$(?=(\n[ \t].*){0,3}\n\w*Error: )', re.MULTILINE)
_NOT_OWN = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|^<")
_MARKS = re.compile(r"\s*[\^~]+\s*")
_LINES_MAX = 3
"""Number of lines to show: the error, where it was raised, and where that code was called from."""


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: str
    name: str
    code: str

    @property
    def place(self) -> str:
        return f"{_near(self.file)}:{self.line}" + (f", in {self.name}" if self.name else "")


def places(text: str) -> list[str]:
    """Where the error of the last traceback in a text was raised, in the user's own code, innermost call first; empty
    if there is no traceback."""
    frames = _frames(text)
    own = [frame for frame in frames if not _NOT_OWN.search(frame.file)] or frames[-1:]
    if not own:
        return []
    first, *callers = reversed(own)
    shown = [f"{first.place}: {first.code}" if first.code else first.place]
    shown += [f"called from {frame.place}" for frame in callers[: _LINES_MAX - 2]]
    return shown


def raised(text: str) -> str:
    """The error of the last traceback in a text, on one line; empty if there is no traceback."""
    begin = _begin(text)
    if begin < 0:
        return ""
    following = [
        line for line in text[begin:].splitlines() if line.strip() and not line[0].isspace() and line != _BEGIN
    ]
    return following[0] if following else ""


def shortened(text: str) -> list[str]:
    """The lines of a text that a person needs first: for a traceback, what was raised and where; otherwise the last
    lines."""
    what = raised(_aligned(text))
    if not what:
        return text.rstrip().splitlines()[-_LINES_MAX:]
    return [what, *places(_aligned(text))]


def _aligned(text: str) -> str:
    """The text without the indentation that all lines share: messages quote tracebacks."""
    lines = text.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    return "\n".join(line[min(indents, default=0) :] for line in lines)


def _frames(text: str) -> list[_Frame]:
    begin = _begin(text)
    lines = text[begin:].splitlines() if begin >= 0 else []
    found = []
    for number, line in enumerate(lines):
        if (match := _FRAME.fullmatch(line)) is not None:
            after = lines[number + 1] if number + 1 < len(lines) else ""
            is_code = after[:1].isspace() and _FRAME.fullmatch(after) is None and _MARKS.fullmatch(after) is None
            found.append(_Frame(match["file"], match["line"], match["name"] or "", after.strip() if is_code else ""))
    return found


def _begin(text: str) -> int:
    """Where the last traceback in a text begins; -1 if there is none. Code that cannot be compiled has no stack: its
    place appears without the first line of a traceback."""
    begin = text.rfind(_BEGIN)
    if begin >= 0:
        return begin
    found = _UNCOMPILED.search(text)
    return found.start() if found is not None else -1


def _near(file: str) -> str:
    """The path relative to the working directory, if the file is below it."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith(os.pardir) else relative
