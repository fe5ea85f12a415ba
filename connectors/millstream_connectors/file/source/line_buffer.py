"""Lines of a text that were read and not consumed yet. Pure.

    add: block ─► lines │ open line, whose end was not read ─► first, consume
                  └─► too long to keep: its beginning, and how many bytes were omitted

Above it: `text_file`.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.limits import KIB, RECORD_BYTES_MAX

KEPT_BYTES_MAX = 64 * KIB
"""Bytes of a line that is too long to be a record that are kept for messages."""


class LineRun(NamedTuple):
    """Lines that were consumed."""

    lines: list[bytes]
    newlines: int
    """How many of them ended in a newline: all, except for the last line of a file."""
    dropped: int
    """Bytes of an overlong line that were not kept."""

    @property
    def size(self) -> int:
        """Their bytes in the text."""
        return sum(map(len, self.lines)) + self.newlines + self.dropped


class LineBuffer:
    """Lines in order, with an open line at the end."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._next = 0
        self._open = b""
        self._open_dropped = 0
        self._dropped: dict[int, int] = {}
        """Lines that were too long to keep: index of their beginning in `_lines`, and number of omitted bytes."""
        self._last_has_no_newline = False

    def __len__(self) -> int:
        """Number of lines, without the open one."""
        return len(self._lines) - self._next

    @property
    def has_open_line(self) -> bool:
        """Whether the text ends in a line without a newline."""
        return bool(self._open or self._open_dropped)

    @property
    def next_is_overlong(self) -> bool:
        """Whether the next line was too long to keep."""
        return self._next in self._dropped

    @property
    def before_overlong(self) -> int:
        """Number of lines before one that was too long to keep."""
        return min(self._dropped, default=len(self._lines)) - self._next

    def first(self, count: int) -> list[bytes]:
        """The next `count` lines, without their newlines."""
        return self._lines[self._next : self._next + count]

    def add(self, block: bytes) -> None:
        """Split a block into lines, and append them."""
        if self._next:
            del self._lines[: self._next]
            self._dropped = {index - self._next: count for index, count in self._dropped.items()}
            self._next = 0
        first, *others = block.split(b"\n")
        if self._open_dropped or (not others and len(self._open) + len(first) > RECORD_BYTES_MAX):
            kept = (self._open + first)[:KEPT_BYTES_MAX]
            self._open_dropped += len(self._open) + len(first) - len(kept)
            self._open = kept
        else:
            self._open += first
        if others:
            self._end_line()
            self._open = others.pop()
            self._lines += others

    def end(self) -> None:
        """The text ends here: an open line is its last line."""
        if self.has_open_line:
            self._end_line()
            self._last_has_no_newline = True

    def consume(self, count: int) -> LineRun:
        """Take out the next `count` lines. One that is overlong is taken alone."""
        lines = self.first(count)
        dropped = self._dropped.pop(self._next, 0)
        self._next += count
        return LineRun(lines, count - (self._last_has_no_newline and not len(self)), dropped)

    def _end_line(self) -> None:
        if len(self._open) > RECORD_BYTES_MAX:
            self._open_dropped = len(self._open) - KEPT_BYTES_MAX
            self._open = self._open[:KEPT_BYTES_MAX]
        if self._open_dropped:
            self._dropped[len(self._lines)] = self._open_dropped
        self._lines.append(self._open)
        self._open, self._open_dropped = b"", 0
