"""Frames: what goes in comes out, whatever is cut and joined on the way."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.frame import Frame, build_frame, frame_of_records, join_frames, partition_of
from millstream.record import Record
from millstream.values import Values
from millstream_udf import columns
from millstream_udf.fields import LARGE_BYTES
from millstream_udf.wire.frame.v1 import frame_pb2
from tests.support.columns import IMPLEMENTATIONS, implemented_in
from tests.support.errors import raises


@pytest.fixture(scope="module", params=IMPLEMENTATIONS, autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of this file is true of both."""
    with implemented_in(request.param):
        yield


names = st.text(min_size=1, max_size=5)
records = st.lists(
    st.builds(
        Record,
        value=st.binary(max_size=20),
        event_time_us=st.integers(-(2**63), 2**63 - 1),
        keys=st.lists(st.text(max_size=4), max_size=3).map(tuple),
        headers=st.dictionaries(names, st.binary(max_size=5), max_size=2),
    ),
    min_size=1,
    max_size=20,
)


@given(records)
def test_records_survive_encoding(given_records: list[Record]) -> None:
    frame = frame_of_records(given_records, ingest_time_us=7)
    decoded = Frame.decode(frame.encode())
    assert decoded == frame
    assert list(decoded.to_records()) == given_records
    assert decoded.event_time_min_us == min(record.event_time_us for record in given_records)
    assert decoded.event_time_max_us == max(record.event_time_us for record in given_records)


@pytest.mark.parametrize("count", [1, LARGE_BYTES // 8])
def test_large_columns_survive_encoding(count: int) -> None:
    given_records = [
        Record(b"v" * 12, number, (f"key-{number}",), {"name": b"h" * 12}, id=f"number-{number}")
        for number in range(count)
    ]
    frame = frame_of_records(given_records, ingest_time_us=7, traceparent="00-1-1-1")
    columns_of = (frame.contents.column, frame.event_times_column, frame.keys_column, frame.headers_column)
    assert all((len(column) >= LARGE_BYTES) == (count > 1) for column in (*columns_of, frame.ids_column))
    decoded = Frame.decode(memoryview(frame.encode()))
    assert decoded == frame
    assert list(decoded.to_records()) == given_records
    with raises(codes.FRAME_UNREADABLE):
        Frame.decode(frame.encode()[:-1])


@pytest.mark.slow
@given(records)
def test_what_is_joined_is_what_protobuf_would_write(given_records: list[Record]) -> None:
    data = frame_of_records(given_records, ingest_time_us=7, traceparent="00-1-1-1").encode()
    assert frame_pb2.SealedFrame.FromString(data).SerializeToString() == data


@given(records, st.data())
def test_cutting_and_joining_keeps_every_record(given_records: list[Record], data: st.DataObject) -> None:
    frame = frame_of_records(given_records, ingest_time_us=7)
    middle = data.draw(st.integers(1, len(given_records)))
    parts = [frame.slice(0, middle)]
    if middle < frame.records:
        parts.append(frame.slice(middle, frame.records))
    assert list(join_frames(parts).to_records()) == given_records


@given(records, st.data(), st.booleans())
def test_a_slice_has_what_its_records_have(given_records: list[Record], data: st.DataObject, with_ids: bool) -> None:
    if with_ids:
        given_records = [replace(record, id=f"id-{number}") for number, record in enumerate(given_records)]
    frame = frame_of_records(given_records, ingest_time_us=7)
    start = data.draw(st.integers(0, frame.records - 1))
    stop = data.draw(st.integers(start + 1, frame.records))
    part = frame.slice(start, stop)
    assert list(part.to_records()) == given_records[start:stop]
    assert (part.event_time_min_us, part.event_time_max_us) == (min(part.event_times_us()), max(part.event_times_us()))
    assert Frame.decode(part.encode()) == part


def test_a_slice_costs_what_it_holds() -> None:
    def calls_of(count: int) -> int:
        record = Record(bytes(100), 1, keys=("a", "b"), headers={"h": b"v"}, id="x")
        frame = frame_of_records([record] * count, ingest_time_us=0)
        calls = 0

        def count_calls(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count_calls)
        try:
            frame.slice(count // 2, count // 2 + 8)
        finally:
            sys.setprofile(None)
        return calls

    assert calls_of(4096) == calls_of(16)


def test_a_column_that_falls_is_not_sliced() -> None:
    fallen = frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets([0, 3, 1, 4]), data=b"abcd").SerializeToString()
    assert columns.unpack_bytes(columns.slice_bytes(fallen, 0, 1)) == [b"abc"]
    for start, stop, words in ((0, 2, "fall"), (0, 4, "no items")):
        with pytest.raises(ValueError, match=words):
            columns.slice_bytes(fallen, start, stop)
    short = frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets([0, 3]), data=b"a").SerializeToString()
    with pytest.raises(ValueError, match="pass the end"):
        columns.slice_bytes(short, 0, 1)


def test_ids_are_kept_when_every_record_has_one() -> None:
    frame = frame_of_records([Record(b"a", 1, id="x"), Record(b"b", 2, id="y")], ingest_time_us=0)
    assert Frame.decode(frame.encode()).ids() == ["x", "y"]
    assert frame.take([1]).ids() == ["y"]
    assert join_frames([frame, frame_of_records([Record(b"c", 3)], ingest_time_us=0)]).ids() is None


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x0a\x02\x08\x01"])
def test_bytes_that_are_no_frame_are_named_as_damage(data: bytes) -> None:
    with raises(codes.FRAME_UNREADABLE):
        Frame.decode(data)


def test_offsets_that_do_not_fit_are_refused() -> None:
    frame = build_frame([b"ab", b"c"], array("q", [1, 2]), ingest_time_us=0)
    column = bytearray(frame.contents.column)
    column[6] = 9
    damaged = Frame(2, 1, 2, 0, Values(bytes(column)), frame.event_times_column)
    with pytest.raises(ValueError, match="offsets"):
        damaged.values()


def test_the_partition_of_a_key_never_changes() -> None:
    # Stored data and other programs rely on these numbers: CRC-32 of the parts joined by 0x1F.
    assert partition_of([b"AA"], 1 << 32) == 0xA9601DBD
    assert partition_of([b"a", b"b"], 1 << 32) == 0xD8B276EF
    assert partition_of([b"a:b"], 1 << 32) == 0x3041A608
    assert partition_of([b"AA"], 3) == 0xA9601DBD % 3
