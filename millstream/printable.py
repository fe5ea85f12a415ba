r"""Makes text from users' data safe to print: a terminal obeys the control sequences in it.

Above it: everything that prints. Below it: nothing. A record, a key, a name in a file or a line of a function's log may
contain sequences that rename a window, change colours, move the cursor over existing text, or reverse the direction of
the text. They are shown as `\u001b`, as JSON writes them: JSON that is printed stays the same JSON. The whole command
line prints through `printable_output`, so no command has to remember it. A module that puts a value into a line of its
own uses `in_line`, so that the value cannot begin a line that looks like ours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from millstream.descriptors import OutputDescriptor, open_output

# C0 except tab and line feed, DEL and C1; marks, embeddings, overrides and isolates of direction; line and paragraph
# separators; halves of surrogate pairs, which no output can encode.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def printable(text: str) -> str:
    """The text, with every character escaped that a terminal would obey. Tabs and line feeds stay."""
    return _OBEYED.sub(_escape, text)


def in_line(text: str) -> str:
    """Like `printable`, for a part of a line: it escapes line feeds as well."""
    return printable(text).replace("\n", "\\n")


def indented(text: str) -> str:
    """Indents all lines except the first, so that they cannot be mistaken for lines of another process."""
    return text.replace("\n", "\n    ")


class PrintableStream:
    """A text stream that escapes everything that is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        """The underlying stream, for intended control sequences."""

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output() -> Iterator[OutputDescriptor]:
    """Escapes everything that is printed to standard output and standard error, until the end of the block. Gives what
    becomes of standard output.

    An error of standard output is raised and remembered; one of standard error, which has only messages, is not.
    """
    before = sys.stdout, sys.stderr
    out, raw = _over_descriptor(sys.stdout)
    err, _ = _over_descriptor(sys.stderr, may_be_lost=True)
    sys.stdout = cast("TextIO", PrintableStream(out))
    sys.stderr = cast("TextIO", PrintableStream(err))
    try:
        yield raw
    finally:
        sys.stdout, sys.stderr = before


def _over_descriptor(stream: TextIO, *, may_be_lost: bool = False) -> tuple[TextIO, OutputDescriptor]:
    """The stream in our own form, if it has a descriptor; a program that calls this one may have replaced it."""
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        # Nothing is written to this one, so it has no error.
        return stream, OutputDescriptor(-1)
    return open_output(descriptor, stream, may_be_lost=may_be_lost)
