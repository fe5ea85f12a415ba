r"""Text that came from users' data, made safe to show: a terminal obeys what it prints.

Above it: everything that prints. Below it: nothing. A record, a key, a name in a file or a line of a function's log may
hold sequences that rename a window, recolour, move the cursor over existing text, or turn the direction of reading.
They are shown as `\u001b`, as JSON writes them: JSON that is printed stays the same JSON. The whole command line prints
through `printable_output`, so no command has to remember it; a module that puts a value into a line of its own uses
`in_line`, so that the value cannot begin a line that looks like ours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

# C0 but for tab and line feed, DEL and C1; marks, embeddings, overrides and isolates of direction; line and paragraph
# separators; halves of surrogate pairs, which no output can encode.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def printable(text: str) -> str:
    """The text with every character that a terminal would obey escaped; tabs and line feeds stay."""
    return _OBEYED.sub(_escape, text)


def in_line(text: str) -> str:
    """As `printable`, for a part of a line: line feeds are escaped as well."""
    return printable(text).replace("\n", "\\n")


def indented(text: str) -> str:
    """A text whose further lines begin further right: none can be taken for a line of another process."""
    return text.replace("\n", "\n    ")


class PrintableStream:
    """A text stream that escapes what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        """What is behind it: for control sequences that are meant."""

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output() -> Iterator[None]:
    """Until the end of the block, what is printed to standard output and standard error is escaped."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", PrintableStream(sys.stdout))
    sys.stderr = cast("TextIO", PrintableStream(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
