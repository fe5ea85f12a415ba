"""Keys as bytes: different lists of parts have different bytes, one by one and in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_reduce.batches import joined_keys
from millstream_reduce.group_keys import join_key, key_parts
from millstream_reduce.spark.rows import key_of

ODD = ["", "a", "b", "\x1f", "\x01", "\x00", "/", "\\", "ÿ"]
PARTS = st.lists(st.sampled_from(ODD), max_size=4).map("".join)


@pytest.mark.guarantee("I3")
@given(st.lists(st.lists(PARTS, max_size=3), max_size=12), st.integers(0, 3))
def test_a_column_of_keys_has_the_bytes_of_each(keys: list[list[str]], skipped: int) -> None:
    column: Any = pa.array(keys, pa.list_(pa.string()))
    expected = [join_key([part.encode() for part in key]) for key in keys]
    assert joined_keys(column.slice(skipped)).to_pylist() == expected[skipped:]


@pytest.mark.guarantee("I3")
@given(st.lists(st.lists(st.sampled_from([b"", b"a", b"\x1f", b"\xff", b"\x00", b"\x01"]), max_size=4).map(b"".join)))
def test_the_parts_of_a_key_are_read_back(parts: list[bytes]) -> None:
    assert key_parts(join_key(parts)) == tuple(parts)


def test_keys_without_a_separator_have_the_bytes_that_logs_had_before() -> None:
    assert [join_key(key) for key in ([], [b"a"], [b"a", b"b"], [b"", b""])] == [b"", b"a", b"a\x1fb", b"\x1f"]


@given(st.lists(st.lists(PARTS, min_size=2, max_size=3), max_size=12), st.integers(0, 3))
def test_the_key_of_a_query_names_one_list_of_several_parts(keys: list[list[str]], skipped: int) -> None:
    column: Any = pa.array([[], ["a/b"], [""], *keys], pa.list_(pa.string()))
    texts = key_of(column.slice(skipped)).to_pylist()
    assert texts[: 3 - skipped] == [None, "a/b", ""][skipped:]
    assert len(set(texts[3 - skipped :])) == len({tuple(key) for key in keys})
