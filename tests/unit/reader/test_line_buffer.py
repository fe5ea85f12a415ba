"""Lines of a text that were read and not consumed yet."""

from __future__ import annotations

from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.file.source.line_buffer import KEPT_BYTES_MAX, LineBuffer


def test_lines_are_joined_over_blocks_and_the_last_one_may_lack_its_newline() -> None:
    lines = LineBuffer()
    for block in (b"a\nb", b"c", b"\nde"):
        lines.add(block)
    assert (len(lines), lines.first(9), lines.has_open_line) == (2, [b"a", b"bc"], True)
    consumed = lines.consume(1)
    assert (consumed.lines, consumed.size) == ([b"a"], 2)
    lines.end()
    assert not lines.has_open_line
    consumed = lines.consume(2)
    assert (consumed.lines, consumed.newlines, consumed.size) == ([b"bc", b"de"], 1, 5)
    assert len(lines) == 0


def test_of_a_line_that_is_too_long_only_the_beginning_is_kept() -> None:
    lines = LineBuffer()
    lines.add(b"first\n" + bytes(RECORD_BYTES_MAX))
    lines.add(bytes(10))
    lines.add(b"\nlast\n")
    assert (len(lines), lines.before_overlong, lines.next_is_overlong) == (3, 1, False)
    lines.consume(1)
    assert lines.next_is_overlong
    # A block that follows moves what is in memory to the front.
    lines.add(b"more\n")
    assert lines.next_is_overlong
    consumed = lines.consume(1)
    assert len(consumed.lines[0]) == KEPT_BYTES_MAX
    assert consumed.size == RECORD_BYTES_MAX + 10 + 1
    assert lines.first(9) == [b"last", b"more"]
    assert lines.before_overlong == 2
