"""One entry: what is written is read, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_reduce.log.entries import (
    ALIGNMENT,
    EntryError,
    entry_buffers,
    entry_length,
    read_entry,
    segment_name,
    segment_number,
    whole_entries,
)

blobs = st.binary(max_size=300)


def encoded(sequence: int, meta: bytes, body: bytes) -> bytes:
    return b"".join(entry_buffers(sequence, meta, body))


@given(st.integers(0, 2**64 - 1), blobs, blobs, st.integers(0, 3))
def test_what_is_written_is_read(sequence: int, meta: bytes, body: bytes, blocks_before: int) -> None:
    before = bytes(blocks_before * ALIGNMENT)
    data = memoryview(before + encoded(sequence, meta, body) + b"behind")
    entry = read_entry(data, len(before))
    assert (entry.sequence, bytes(entry.meta), bytes(entry.body)) == (sequence, meta, body)
    assert entry.length == entry_length(len(meta), len(body)) == len(data) - len(before) - len(b"behind")
    assert entry.length % ALIGNMENT == 0


@given(st.binary(min_size=1, max_size=300))
def test_a_body_lies_where_arrow_wants_it_and_is_not_copied(body: bytes) -> None:
    view = memoryview(body)
    buffers = entry_buffers(1, b"meta", view)
    assert buffers[1] is view
    assert len(buffers[0]) % ALIGNMENT == 0


def test_every_flipped_bit_is_seen() -> None:
    data = encoded(7, b"the meta", b"the body")
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EntryError):
            read_entry(memoryview(damaged), 0)


def test_every_cut_is_seen() -> None:
    data = encoded(7, b"the meta", b"the body")
    for length in range(len(data)):
        with pytest.raises(EntryError):
            read_entry(memoryview(data)[:length], 0)


@given(st.binary(max_size=400))
def test_other_bytes_are_no_entry(data: bytes) -> None:
    with pytest.raises(EntryError):
        read_entry(memoryview(data), 0)


def test_a_meta_that_cannot_be_decoded_is_a_fault() -> None:
    entry = read_entry(memoryview(encoded(1, b"\xff\xff\xff", b"")), 0)
    with pytest.raises(EntryError, match="meta cannot be decoded"):
        entry.message()


def test_entries_are_found_behind_what_cannot_be_read() -> None:
    first, second, third = (encoded(n, b"m", b"b" * 100) for n in (1, 2, 3))
    data = first + second[:-1] + b"?" + third
    assert [entry.sequence for entry in whole_entries(memoryview(data), 0)] == [1, 3]


@given(st.integers(1, 10**16 - 1))
def test_names_of_segments(number: int) -> None:
    assert segment_number(segment_name(number)) == number


@pytest.mark.parametrize("name", ["1.wal", "reserve", "owners", "000000000000000a.wal", ".0000000000000001.1.2.new"])
def test_other_names_are_no_segments(name: str) -> None:
    assert segment_number(name) is None
