"""Columns: the implementation in C and the one in Python give the same, of whatever bytes."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2
from tests.fuzzing.mutation import inputs
from tests.support.columns import IMPLEMENTATIONS, Question, differing, implemented_in

texts = st.text(max_size=3).map(str.encode)
names = st.sampled_from(["a", "name", "ü", ""])
rows = st.lists(
    st.tuples(
        st.binary(max_size=9),
        st.lists(texts, max_size=3),
        st.dictionaries(names, st.binary(max_size=3), max_size=3),
        st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=12,
)
Row = tuple[bytes, list[bytes], dict[str, bytes], int]


def encoded(given_rows: Sequence[Row]) -> list[bytes]:
    """Columns of every kind."""
    values, keys, headers, times = zip(*given_rows, strict=True)
    return [
        columns.pack_bytes(values),
        columns.pack_lists(keys),
        columns.pack_lists([[b"".join(key)] for key in keys]),
        columns.pack_no_lists(len(keys)),
        columns.pack_headers(headers),
        columns.pack_no_headers(len(headers)),
        columns.pack_times(times),
        b"",
    ]


def questions(found: Sequence[bytes], records: int, rng: random.Random) -> list[Question]:
    """About each column, with another beside it."""
    return [
        Question(
            column,
            records,
            start := rng.randrange(records + 1),
            rng.randrange(start, records + 2),
            tuple(array("I", [rng.randrange(records) for _ in range(rng.randrange(5))]) for _ in range(2)),
            rng.choice(found),
        )
        for column in found
    ]


@pytest.mark.slow
@settings(max_examples=40)
@given(rows, st.randoms(use_true_random=False))
def test_both_make_the_same_of_a_column(given_rows: list[Row], rng: random.Random) -> None:
    found = encoded(given_rows)
    for question in questions(found, len(given_rows), rng):
        assert differing(question) == [], question


@pytest.mark.slow
@settings(max_examples=40)
@given(rows, st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_both_make_the_same_of_a_damaged_column(given_rows: list[Row], seed: int, rng: random.Random) -> None:
    damaged = list(inputs([column for column in encoded(given_rows) if column], 4, seed))
    for question in questions(damaged, len(given_rows), rng):
        assert differing(question) == [], question


@pytest.mark.slow
@settings(max_examples=40)
@given(rows, st.randoms(use_true_random=False))
def test_both_make_the_same_of_a_column_that_ends_early(given_rows: list[Row], rng: random.Random) -> None:
    cut = [column[: rng.randrange(len(column) + 1)] for column in encoded(given_rows)]
    for question in questions(cut, len(given_rows), rng):
        assert differing(question) == [], question


ODD = {
    "an index beyond the end": Question(columns.pack_bytes([b"a"]), 1, 0, 1, (array("I", [1]),), b""),
    "a field that is not ours": Question(columns.pack_bytes([b"a"]) + b"\x1a\x00", 1, 0, 1, (array("I", [0]),), b""),
    "fields in another order": Question(
        b"\x12\x01a\x0a\x08" + columns.pack_offsets([0, 1]), 1, 0, 1, (array("I", [0]),), b""
    ),
    "a length in more bytes than it needs": Question(
        b"\x0a\x88\x00" + columns.pack_offsets([0, 1]) + b"\x12\x81\x00a", 1, 0, 1, (array("I", [0]),), b""
    ),
    "a length that does not fit": Question(b"\x0a\xff\xff\xff\xff\xff\xff\x7f", 1, 0, 1, (), b""),
    "a name twice": Question(
        frame_pb2.SealedHeadersColumn(
            starts=columns.pack_offsets([0, 2]), names=["a", "a"], values=[b"1", b"2"]
        ).SerializeToString(),
        1,
        0,
        1,
        (array("I", [0]),),
        b"",
    ),
    "starts that fall": Question(
        frame_pb2.SealedListColumn(
            starts=columns.pack_offsets([0, 2, 1, 3]),
            items=frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets([0, 1, 2, 3]), data=b"abc"),
        ).SerializeToString(),
        3,
        0,
        2,
        (array("I", [2, 0]),),
        b"",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_both_make_the_same_of_what_is_odd(name: str) -> None:
    assert differing(ODD[name]) == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_large_column_is_cut_and_joined(implementation: str) -> None:
    with implemented_in(implementation):
        items = [b"%d" % number * (number % 300) for number in range(5000)]
        column = columns.pack_bytes(items)
        assert columns.unpack_bytes(column) == items
        assert columns.unpack_bytes(columns.slice_bytes(column, 100, 4900)) == items[100:4900]
        odd, even = columns.split_bytes(column, [array("I", range(1, 5000, 2)), array("I", range(0, 5000, 2))])
        assert columns.unpack_bytes(odd) == items[1::2]
        assert columns.unpack_bytes(columns.join_bytes([odd, even])) == items[1::2] + items[::2]


@pytest.mark.parametrize(("prefix", "start", "stop"), [(b"id#", 0, 1), (b"", 9, 12), (b"id#", 5, 300), (b"x", 3, 3)])
def test_numbered_texts_are_packed(prefix: bytes, start: int, stop: int) -> None:
    texts = [b"%b%d" % (prefix, number) for number in range(start, stop)]
    assert columns.pack_numbered(prefix, start, stop) == columns.pack_bytes(texts)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_packed_is_bytes(implementation: str) -> None:
    with implemented_in(implementation):
        assert columns.pack_bytes((b"a", b"b")) == columns.pack_bytes([b"a", b"b"])
        for item in ("a", None, 7):
            with pytest.raises(TypeError):
                columns.pack_bytes([b"a", item])  # type: ignore[list-item]  # what is tried
