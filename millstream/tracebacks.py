"""What a person needs of a traceback first: what was raised, and where in their own code. Pure.

Above it: what reports failures of functions. Below it: the text of Python's tracebacks. The whole is for the log; text
that is not a traceback of Python is given as it is.
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
"""Places that are shown: where it was raised, and from where that was called."""


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
    """Where the last traceback in a text was raised, the user's own code alone, innermost first; nothing where there
    is none."""
    frames = _frames(text)
    own = [frame for frame in frames if not _NOT_OWN.search(frame.file)] or frames[-1:]
    if not own:
        return []
    first, *callers = reversed(own)
    shown = [f"{first.place}: {first.code}" if first.code else first.place]
    shown += [f"called from {frame.place}" for frame in callers[: _LINES_MAX - 2]]
    return shown


def raised(text: str) -> str:
    """What the last traceback in a text says was raised, on one line; empty where there is no traceback."""
    begin = _begin(text)
    if begin < 0:
        return ""
    behind = [line for line in text[begin:].splitlines() if line.strip() and not line[0].isspace() and line != _BEGIN]
    return behind[0] if behind else ""


def shortened(text: str) -> list[str]:
    """The lines of a text that a person needs first: of a traceback what was raised and where, else its last ones."""
    what = raised(_aligned(text))
    if not what:
        return text.rstrip().splitlines()[-_LINES_MAX:]
    return [what, *places(_aligned(text))]


def _aligned(text: str) -> str:
    """Without an indentation that all lines have: tracebacks are quoted in messages."""
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
    """Of the last traceback in a text; -1 where there is none. What cannot be compiled has no stack: its place comes
    without the words that a traceback begins with."""
    begin = text.rfind(_BEGIN)
    if begin >= 0:
        return begin
    found = _UNCOMPILED.search(text)
    return found.start() if found is not None else -1


def _near(file: str) -> str:
    """As one would name it here."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith(os.pardir) else relative
