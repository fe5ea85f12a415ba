"""Windows by columns are the windows they were made of: whole, cut, joined, and as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable
from tests.support.errors import raises

TIMES = st.integers(-(2**63), 2**63 - 1)
PIECES = st.builds(
    Piece,
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.integers(64, 2**40),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**32 - 1),
)
WINDOWS = st.builds(Window, TIMES, TIMES, st.none() | st.binary(max_size=5), st.integers(0, 2**32 - 1))
CONTENTS = st.builds(
    WindowContents, WINDOWS, st.lists(PIECES, max_size=4).map(tuple), st.integers(0, 2**40)
)  # fmt: skip
LISTS = st.lists(CONTENTS, max_size=6)


def as_bytes_and_back(table: WindowTable) -> WindowTable:
    return WindowTable.from_message(wal_pb2.WindowTable.FromString(table.message().SerializeToString()))


@pytest.mark.guarantee("I3")
@given(LISTS)
def test_a_table_gives_the_windows_it_was_made_of(windows: list[WindowContents]) -> None:
    table = WindowTable.of(windows)
    copied = as_bytes_and_back(table)
    for one in (table, copied, as_bytes_and_back(copied)):
        assert list(one) == windows
        assert one.rows.tolist() == [item.rows for item in windows]
    hand_over = wal_pb2.HandOver(table=table.message())
    assert list(WindowTable.of_hand_over(hand_over)) == windows


@given(LISTS, st.data())
def test_some_of_the_windows_in_any_order(windows: list[WindowContents], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(windows) - 1), max_size=8) if windows else st.just([]))
    for table in (WindowTable.of(windows), as_bytes_and_back(WindowTable.of(windows))):
        some = table.take(chosen)
        assert list(some) == [windows[index] for index in chosen]
        assert list(as_bytes_and_back(some)) == list(some)
        assert len(some.entries) == len({piece.location for item in some for piece in item.pieces})
        assert list(table[1:4]) == windows[1:4]


@given(st.lists(LISTS, max_size=3))
def test_tables_that_are_joined_follow_each_other(lists: list[list[WindowContents]]) -> None:
    joined = WindowTable.joined([WindowTable.of(windows) for windows in lists])
    assert list(joined) == [item for windows in lists for item in windows]
    assert list(as_bytes_and_back(joined)) == list(joined)


def test_hand_overs_of_the_format_before_are_read() -> None:
    """Each window was a message of its own."""
    hand_over = wal_pb2.HandOver(number=1)
    pieces = wal_pb2.Pieces(segments=[1, 2], offsets=[0, 64], lengths=[64, 128], first_rows=[3, 0], rows=[2, 5])
    hand_over.windows.add(start_us=-5, end_us=7, key=b"a\x1fb", early=2, rows=7, released=4, pieces=pieces)
    hand_over.windows.add(start_us=0, end_us=9)
    assert list(WindowTable.of_hand_over(hand_over)) == [
        WindowContents(Window(-5, 7, b"a\x1fb", 2), (Piece(1, 0, 64, 3, 2), Piece(2, 64, 128, 0, 5)), 4),
        WindowContents(Window(0, 9), ()),
    ]


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(
    "change",
    [
        {"count": 3},
        {"starts_us": b"1234567"},
        {"pieces": b"\x01\0\0\0"},
        {"piece_entries": b"\x09\0\0\0" * 2},
        {"piece_rows": b"\x01\0\0\0"},
        {"segments": b"\x01\0\0\0\0\0\0\0" * 3},
        {"keys": b"abc"},
        {"key_lengths": b"\xfe\xff\xff\xff" * 2},
    ],
)
def test_columns_that_do_not_fit_together_are_damage(change: dict[str, bytes | int]) -> None:
    windows = [WindowContents(Window(1, 2, b"k"), (Piece(1, 64, 64, 5, 1),)) for _ in range(2)]
    message = WindowTable.of(windows).message()
    for name, value in change.items():
        setattr(message, name, value)
    with raises(codes.SEGMENT_DAMAGED, match="do not fit together"):
        WindowTable.from_message(message)
