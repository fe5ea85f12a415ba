"""Frames: what goes in comes out, whatever is cut and joined on the way."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DamageError
from millstream.frame import Frame, build_frame, frame_of_records, join_frames, partition_of
from millstream.record import Record

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


@given(records, st.data())
def test_cutting_and_joining_keeps_every_record(given_records: list[Record], data: st.DataObject) -> None:
    frame = frame_of_records(given_records, ingest_time_us=7)
    middle = data.draw(st.integers(1, len(given_records)))
    parts = [frame.slice(0, middle)]
    if middle < frame.records:
        parts.append(frame.slice(middle, frame.records))
    assert list(join_frames(parts).to_records()) == given_records


def test_ids_are_kept_when_every_record_has_one() -> None:
    frame = frame_of_records([Record(b"a", 1, id="x"), Record(b"b", 2, id="y")], ingest_time_us=0)
    assert Frame.decode(frame.encode()).ids() == ["x", "y"]
    assert frame.take([1]).ids() == ["y"]
    assert join_frames([frame, frame_of_records([Record(b"c", 3)], ingest_time_us=0)]).ids() is None


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x0a\x02\x08\x01"])
def test_bytes_that_are_no_frame_are_named_as_damage(data: bytes) -> None:
    with pytest.raises(DamageError, match="frame"):
        Frame.decode(data)


def test_offsets_that_do_not_fit_are_refused() -> None:
    frame = build_frame([b"ab", b"c"], array("q", [1, 2]), ingest_time_us=0)
    column = bytearray(frame.values_column)
    column[6] = 9
    damaged = Frame(2, 1, 2, 0, bytes(column), frame.event_times_column)
    with pytest.raises(ValueError, match="offsets"):
        damaged.values()


def test_the_partition_of_a_key_never_changes() -> None:
    # Stored data and other programs rely on these numbers: CRC-32 of the parts joined by 0x1F.
    assert partition_of([b"AA"], 1 << 32) == 0xA9601DBD
    assert partition_of([b"a", b"b"], 1 << 32) == 0xD8B276EF
    assert partition_of([b"a:b"], 1 << 32) == 0x3041A608
    assert partition_of([b"AA"], 3) == 0xA9601DBD % 3
