"""Colours on a terminal, and none elsewhere.

Above it: the command line and the screen. Below it: the stream they print to. Users' data cannot set colours:
`PrintableStream` escapes it, and only the sequences of this module bypass that.

`NO_COLOR` (any value) turns colours off, `FORCE_COLOR` (any value) turns them on without a terminal; `NO_COLOR` has
precedence. A terminal that says it is `dumb` gets none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TextIO

from millstream.printable import PrintableStream

RESET = "\x1b[0m"
# The source and kind of a message: `millstream run: error[MS-4010]: …`, `warning: …`.
_LABEL = re.compile(r"(?P<who>millstream[a-z ]*: )?(?P<label>(?P<kind>error|warning|note)(?:\[MS-\d+\])?: )")


class Style(Enum):
    """The kind of a text; its value is the terminal's code for it."""

    ERROR = "\x1b[1;31m"
    WARNING = "\x1b[1;33m"
    NOTE = "\x1b[1;36m"
    HEADING = "\x1b[1m"
    NAME = "\x1b[36m"
    GOOD = "\x1b[32m"


class Heading(str):
    """A line that is a heading, of a table or a section."""

    __slots__ = ()


Part = str | tuple[Style, str]


def is_coloured(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether text printed there should have colours."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    return environment.get("TERM") != "dumb" and stream.isatty()


def show(*parts: Part, file: TextIO) -> None:
    """Print a line of parts, each of them a text or a style with a text."""
    coloured = is_coloured(file)
    raw = file.stream if isinstance(file, PrintableStream) else file
    for part in parts:
        if isinstance(part, str) or not coloured:
            file.write(part if isinstance(part, str) else part[1])
            continue
        style, text = part
        raw.write(style.value)
        file.write(text)
        raw.write(RESET)
    file.write("\n")


def show_message(text: str, file: TextIO) -> None:
    """Print something that a person should read; `error`, `warning` or `note` at its beginning is coloured."""
    found = _LABEL.match(text)
    if found is None:
        show(text, file=file)
        return
    style = Style[found["kind"].upper()]
    show(found["who"] or "", (style, found["label"].rstrip()), " ", text[found.end() :], file=file)


def show_lines(lines: Iterable[str], file: TextIO) -> None:
    """Print lines; those that are a `Heading` are highlighted."""
    for line in lines:
        show((Style.HEADING, line) if isinstance(line, Heading) else line, file=file)
