"""What a process writes, cut into lines of bounded length.

Above it: all that reads the output of a process, or a log of one. Below it: bytes. One rule for all: a line ends with a
line feed, and what is behind the last one is a line when the output has ended. A line of more than LINE_BYTES_MAX bytes
is given in pieces of at most that many, cut between characters; so nothing that was written is left out, and a line
without an end takes no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

LINE_BYTES_MAX = 64 * 1024
"""Of one line, or one piece of a longer one."""
_CHARACTER_BYTES_MAX = 4


class LineSplitter:
    """Cuts one stream of bytes. Pure."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, without their line feeds."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from _pieces(line)
        *pieces, self._rest = _pieces(rest)
        yield from pieces

    def flush(self) -> Iterator[bytes]:
        """What is left when the stream has ended without a line feed."""
        rest, self._rest = self._rest, b""
        if rest:
            yield rest


def text_of(line: bytes) -> str:
    """A line as text: without a carriage return at its end, and with what is not UTF-8 shown as such."""
    return line.removesuffix(b"\r").decode(errors="backslashreplace")


def _pieces(line: bytes) -> Iterator[bytes]:
    while len(line) > LINE_BYTES_MAX:
        cut = _cut(line)
        yield line[:cut]
        line = line[cut:]
    yield line


def _cut(line: bytes) -> int:
    """Where to cut a line that is too long: not inside a character, where it is UTF-8."""
    for cut in range(LINE_BYTES_MAX, LINE_BYTES_MAX - _CHARACTER_BYTES_MAX, -1):
        if line[cut] & 0xC0 != 0x80:
            return cut
    return LINE_BYTES_MAX


class LastLines:
    """The last lines that were written, for the message that says how their process ended."""

    def __init__(self, count: int) -> None:
        self._lines: deque[str] = deque(maxlen=count)

    def add(self, *lines: str) -> None:
        self._lines.extend(lines)

    def clear(self) -> None:
        """A new process begins."""
        self._lines.clear()

    @property
    def last(self) -> str:
        """The very last one; empty when there is none."""
        return self._lines[-1] if self._lines else ""

    def text(self, before_each: str = "") -> str:
        """All that are kept, each with that before it; empty when there are none."""
        return "\n".join(f"{before_each}{line}" for line in self._lines)
