"""Frames as record batches: the same records, in the layout of the log."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.frame import Frame, build_frame, frame_of_records, join_frames
from millstream.record import Record
from millstream.values import Values
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce import batches
from millstream_reduce.group_keys import join_key
from millstream_udf import arrow_values, columns
from millstream_udf.wire.frame.v1 import frame_pb2
from tests.support.errors import raises

keys = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=3).map(tuple)
records = st.builds(
    Record,
    value=st.binary(max_size=20),
    event_time_us=st.integers(START_OF_TIME_US, END_OF_TIME_US),
    keys=st.one_of(st.just(()), st.just(("one",)), keys),
    headers=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.binary(max_size=4)),
)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """With values, or with one of two sets of Arrow columns in place of them."""
    items = draw(st.lists(records, min_size=1, max_size=12))
    frame = frame_of_records(items, ingest_time_us=5)
    numbers = list(range(len(items)))
    match draw(st.integers(0, 2)):
        case 0:
            return frame
        case 1:
            rows = pa.RecordBatch.from_pydict({"n": numbers, "text": [f"text {number}" for number in numbers]})
        case _:
            rows = pa.RecordBatch.from_pydict({"n": [number / 2 for number in numbers]})
    return replace(frame, contents=Values(arrow=arrow_values.packed(rows)))


def append_of(batch: pa.RecordBatch) -> wal_pb2.Append:
    """What an entry says about its body."""
    names = batch.schema.names
    return wal_pb2.Append(
        has_keys="keys" in names, has_headers="headers" in names, value_fields=batches.value_fields_of(batch)
    )


def frame_of(batch: pa.RecordBatch) -> Frame:
    names = batch.schema.names
    return batches.frame_of_columns(
        batches.as_bytes(batch.column("value")),
        batches.event_times(batch),
        keys=batch.column("keys") if "keys" in names else None,
        headers=batch.column("headers") if "headers" in names else None,
        ingest_time_us=5,
    )


def kept(frame: Frame) -> list[Record]:
    return [replace(record, id=None) for record in frame.to_records()]


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(frames(), min_size=1, max_size=4))
def test_records_are_the_same_in_a_batch_in_the_log_and_in_a_frame_again(parts: list[Frame]) -> None:
    batch = batches.batch_of_frames(parts)
    body = batches.encoded(batch)
    again = batches.decoded(body, append_of(batch))
    frame = frame_of(again)
    whole = join_frames(parts)
    assert kept(frame) == kept(whole)
    assert (frame.event_time_min_us, frame.event_time_max_us) == (whole.event_time_min_us, whole.event_time_max_us)
    assert batches.event_times(again).tolist() == list(whole.event_times_us())


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(frames(), min_size=1, max_size=3), st.randoms())
def test_taken_rows_keep_their_order(parts: list[Frame], rng: object) -> None:
    whole = join_frames(parts)
    order = list(range(whole.records))
    rng.shuffle(order)  # type: ignore[attr-defined]  # a random.Random
    batch = batches.taken(batches.batch_of_frames(parts), np.array(order, np.int64))
    assert kept(frame_of(batch)) == [kept(whole)[index] for index in order]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=4),
            st.none() | keys,
            st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=4)),
        ),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_a_part_of_columns_with_nulls_is_a_frame(
    rows: list[tuple[bytes, tuple[str, ...] | None, dict[str, bytes] | None]], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    values: pa.Array[Any] = pa.array([row[0] for row in rows], pa.binary())
    lists: pa.Array[Any] = pa.array([row[1] for row in rows], pa.list_(pa.string()))
    maps: pa.Array[Any] = pa.array([row[2] and list(row[2].items()) for row in rows], batches.HEADERS)
    frame = batches.frame_of_columns(
        values[first:],
        np.arange(first, len(rows), dtype=np.int64),
        keys=lists[first:],
        headers=maps[first:],
        ingest_time_us=5,
    )
    records = [Record(row[0], first + at, row[1] or (), row[2] or {}) for at, row in enumerate(rows[first:])]
    assert kept(frame) == records


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(frames(), min_size=1, max_size=3))
def test_key_codes_name_the_joined_keys_and_each_once(parts: list[Frame]) -> None:
    coded = batches.key_codes(batches.batch_of_frames(parts))
    whole = join_frames(parts)
    assert [coded.values[code] for code in coded.codes.tolist()] == [
        join_key(key) for key in (whole.keys() or [()] * whole.records)
    ]
    assert len(set(coded.values)) == len(coded.values)
    assert coded.codes.dtype == np.int32


def test_the_values_of_a_single_frame_are_not_joined_anew() -> None:
    frame = build_frame([b"x" * 100] * 1000, array("q", range(1000)), ingest_time_us=1)
    batch = batches.batch_of_frames([frame])
    assert batch.schema == batches.schema(False, False)
    batch.validate(full=True)


def column(offsets: list[int], data: bytes) -> bytes:
    packed = columns.pack_offsets(offsets)
    return frame_pb2.SealedBytesColumn(offsets=packed, data=data).SerializeToString()


@pytest.mark.parametrize(
    "values",
    [
        column([0, 9, 3], b"abc"),
        column([0, 1, 2], b"abc"),
        column([1, 2, 3], b"abc"),
        column([0, 3], b"abc"),
        column([0, 2**32 - 1, 3], b"abc"),
        b"not a column",
        b"",
    ],
)
def test_columns_that_are_none_are_damage(values: bytes) -> None:
    frame = build_frame([b"a", b"bc"], array("q", [1, 2]), ingest_time_us=1)
    with raises(codes.SEGMENT_DAMAGED):
        batches.batch_of_frames([replace(frame, contents=Values(values))])


def test_keys_that_are_no_text_are_damage() -> None:
    frame = build_frame([b"a"], array("q", [1]), ingest_time_us=1, keys=[[b"\xff\xfe"]])
    with raises(codes.SEGMENT_DAMAGED):
        batches.batch_of_frames([frame])


def test_bytes_that_are_no_batch_are_damage() -> None:
    with raises(codes.SEGMENT_DAMAGED):
        batches.decoded(memoryview(b"x" * 64), wal_pb2.Append())


def test_fields_that_are_no_schema_are_damage() -> None:
    with raises(codes.SEGMENT_DAMAGED):
        batches.decoded(memoryview(b"x" * 64), wal_pb2.Append(value_fields=b"x" * 64))


def test_columns_stay_columns_if_all_frames_have_the_same() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [1, 2], "text": ["a", None]})
    values = build_frame([b"{}", b"{}"], array("q", [1, 2]), ingest_time_us=1)
    of_columns = replace(values, contents=Values(arrow=arrow_values.packed(rows)))
    together: Any = batches.batch_of_frames([of_columns, of_columns]).column("value")
    assert together.to_pylist() == [*rows.to_pylist(), *rows.to_pylist()]
    objects = [b'{"n":1,"text":"a"}', b'{"n":2,"text":null}']
    assert batches.as_bytes(together).to_pylist() == [*objects, *objects]
    mixed = batches.batch_of_frames([of_columns, values]).column("value")
    assert mixed.to_pylist() == [*objects, b"{}", b"{}"]
