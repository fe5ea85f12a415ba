"""Cuts the output of a process into lines of bounded length.

Above it: everything that reads the output or the log of a process. Below it: bytes. The same rule applies everywhere: a
line ends with a line feed, and the bytes after the last line feed are a line when the output has ended. A line of more
than LINE_BYTES_MAX bytes becomes pieces of at most that size, cut between characters. So no output is left out, and a
line that never ends takes limited memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

LINE_BYTES_MAX = 64 * 1024
"""Largest size of a line, or of a piece of a longer line."""
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
        """The remaining bytes when the stream has ended without a line feed."""
        rest, self._rest = self._rest, b""
        if rest:
            yield rest


def text_of(line: bytes) -> str:
    """A line as text, without a carriage return at its end. Bytes that are not UTF-8 are escaped."""
    return line.removesuffix(b"\r").decode(errors="backslashreplace")


def _pieces(line: bytes) -> Iterator[bytes]:
    while len(line) > LINE_BYTES_MAX:
        cut = _cut(line)
        yield line[:cut]
        line = line[cut:]
    yield line


def _cut(line: bytes) -> int:
    """Where to cut a line that is too long: not inside a character, if the line is UTF-8."""
    for cut in range(LINE_BYTES_MAX, LINE_BYTES_MAX - _CHARACTER_BYTES_MAX, -1):
        if line[cut] & 0xC0 != 0x80:
            return cut
    return LINE_BYTES_MAX


class LastLines:
    """The last lines that a process wrote, for the message that says how it ended."""

    def __init__(self, count: int) -> None:
        self._lines: deque[str] = deque(maxlen=count)

    def add(self, *lines: str) -> None:
        self._lines.extend(lines)

    def clear(self) -> None:
        """Forgets the lines, because a new process begins."""
        self._lines.clear()

    @property
    def last(self) -> str:
        """The last line; empty if there is none."""
        return self._lines[-1] if self._lines else ""

    def text(self, before_each: str = "") -> str:
        """The kept lines, each with that prefix; empty if there are none."""
        return "\n".join(f"{before_each}{line}" for line in self._lines)
