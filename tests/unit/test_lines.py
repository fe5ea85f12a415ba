"""Lines of a process's output: bounded, and complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.lines import LINE_BYTES_MAX, LastLines, LineSplitter, text_of


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    """What a splitter makes of a stream that comes in pieces."""
    splitter = LineSplitter()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    return found + list(splitter.flush())


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" "))), st.data())
def test_lines_come_out_as_they_went_in_wherever_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    assert split(stream, cuts) == lines


def test_the_last_line_needs_no_line_feed() -> None:
    assert split(b"one\ntwo", []) == [b"one", b"two"]
    assert split(b"", []) == []


def test_a_line_without_an_end_comes_in_pieces_and_nothing_of_it_is_lost() -> None:
    splitter = LineSplitter()
    found: list[bytes] = []
    for _ in range(100):
        found += splitter.feed(b"x" * 10_000)
    assert sum(map(len, found)) >= 1_000_000 - LINE_BYTES_MAX, "what is kept is bounded"
    found += splitter.feed(b"y\nnext\nrest")
    found += splitter.flush()
    assert found[-2:] == [b"next", b"rest"]
    assert b"".join(found[:-2]) == b"x" * 1_000_000 + b"y"
    assert max(map(len, found)) == LINE_BYTES_MAX


def test_a_long_line_is_the_same_pieces_however_it_arrives() -> None:
    stream = b"z" * (3 * LINE_BYTES_MAX) + b"\nshort\n"
    whole = split(stream, [])
    assert whole == [b"z" * LINE_BYTES_MAX] * 3 + [b"short"]
    assert split(stream, list(range(0, len(stream), 1000))) == whole


def test_a_long_line_is_not_cut_inside_a_character() -> None:
    text = "x" + "\N{GRINNING FACE}" * LINE_BYTES_MAX
    pieces = split(text.encode(), [])
    assert "".join(piece.decode() for piece in pieces) == text


def test_a_line_as_text() -> None:
    assert text_of(b"done\r") == "done"
    assert text_of(b"caf\xe9 \xc3\xa9") == "caf\\xe9 \N{LATIN SMALL LETTER E WITH ACUTE}"


def test_the_last_lines_are_kept() -> None:
    lines = LastLines(2)
    assert (lines.last, lines.text()) == ("", "")
    lines.add("one", "two")
    lines.add("three")
    assert (lines.last, lines.text("  ")) == ("three", "  two\n  three")
    lines.clear()
    assert lines.text() == ""
