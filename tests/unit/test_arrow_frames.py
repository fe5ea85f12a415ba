"""Frames with Arrow columns: whatever is done with them, they say what the same frames say with values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.frame import Frame, frame_of_records, join_frames
from millstream.ledger.packs import Pack
from millstream.record import BufferId, Record
from millstream.values import Values
from millstream_udf import arrow_values
from millstream_udf.json_rows import rows_as_json
from millstream_writer.committer import join_small, packed
from millstream_writer.routing import FrameLimits, cut
from tests.support.arrow_tables import tables
from tests.support.columns import IMPLEMENTATIONS, implemented_in
from tests.support.errors import raises


@pytest.fixture(scope="module", params=IMPLEMENTATIONS, autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of this file is true of both."""
    with implemented_in(request.param):
        yield


def of_columns(rows: pa.RecordBatch) -> tuple[Frame, Frame]:
    """A frame with columns, and the same with values. The records have keys, headers and times of their own."""
    records = [
        Record(value, number, (f"key-{number % 3}",), {"name": b"%d" % number})
        for number, value in enumerate(rows_as_json(rows))
    ]
    frame = frame_of_records(records, ingest_time_us=7)
    return replace(frame, contents=Values(arrow=arrow_values.packed(rows))), frame


def same(frame: Frame, other: Frame) -> None:
    """They have the same records, one of them in columns."""
    assert frame.contents.arrow
    assert not frame.contents.column
    frame.check()
    assert frame.with_values() == other


@pytest.mark.slow
@given(tables(), st.data())
def test_frames_are_cut_split_and_joined_as_they_are_with_values(rows: pa.RecordBatch, data: st.DataObject) -> None:
    frame, other = of_columns(rows)
    same(Frame.decode(frame.encode()), other)
    start = data.draw(st.integers(0, frame.records - 1))
    stop = data.draw(st.integers(start + 1, frame.records))
    same(frame.slice(start, stop), other.slice(start, stop))
    indexes = data.draw(st.lists(st.integers(0, frame.records - 1), min_size=1))
    same(frame.take(indexes), other.take(indexes))
    parts, of_values = frame.by_partition(2, keyless=0), other.by_partition(2, keyless=0)
    for (partition, part), (expected, values) in zip(parts, of_values, strict=True):
        assert partition == expected
        same(part, values)
    same(join_frames([part for _, part in parts]), join_frames([part for _, part in of_values]))
    assert list(frame.to_records()) == list(other.to_records())
    assert not frame.times_only().contents.arrow


@pytest.mark.slow
@given(tables(), tables())
def test_frames_of_several_forms_are_joined(rows: pa.RecordBatch, more: pa.RecordBatch) -> None:
    (frame, other), (second, other_second) = of_columns(rows), of_columns(more)
    expected = join_frames([other, other_second])
    assert join_frames([frame, second]).with_values() == expected
    assert join_frames([frame, other_second]) == expected
    assert join_frames([other, second]) == expected


@pytest.mark.slow
@given(tables(rows_max=40), st.integers(1, 9), st.integers(300, 3000))
def test_pieces_of_a_frame_keep_the_limits(rows: pa.RecordBatch, records: int, size: int) -> None:
    frame, other = of_columns(rows)
    limits = FrameLimits(records, size)
    pieces = cut(frame, limits)
    assert all(piece.records == 1 or (piece.records <= records and piece.size <= size) for piece in pieces)
    assert join_frames([piece.with_values() for piece in pieces]) == other
    for piece in pieces:
        piece.check()


ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
BUFFER = BufferId("e", 0)


def test_a_commit_joins_only_frames_of_one_form() -> None:
    """As values, frames of columns may exceed what a frame or a pack may have."""
    frame, other = of_columns(ROWS)
    third, _ = of_columns(pa.RecordBatch.from_pydict({"text": ["a", "b", "c"]}))
    given = [(BUFFER, one) for one in (frame, frame.slice(0, 2), other, other, third, frame)]
    joined = join_small(given, lambda _: 100)
    assert [one.records for _, one in joined] == [5, 6, 3, 3]
    assert [bool(one.contents.arrow) for _, one in joined] == [True, False, True, True]
    packs = [one for _, one in packed(given, lambda _: FrameLimits(100, 10_000))]
    assert [len(one.frames) if isinstance(one, Pack) else 1 for one in packs] == [2, 2, 1, 1]


def test_frames_of_the_same_columns_have_the_same_form() -> None:
    frame, other = of_columns(ROWS)
    assert frame.form == frame.slice(1, 2).form == join_frames([frame, frame]).form != b""
    assert other.form == b""
    assert frame.form != of_columns(ROWS.rename_columns(["m"]))[0].form


def test_what_is_done_with_columns_that_cannot_be_read() -> None:
    frame, other = of_columns(ROWS)
    for damaged in (b"not Arrow", arrow_values.packed(ROWS.slice(1))):
        column = replace(frame, contents=Values(arrow=damaged))
        with pytest.raises(ValueError, match="Arrow columns"):
            column.check()
        for use in (column.with_values, column.check_arrow, lambda: column.slice(0, 1), lambda: column.take([0])):  # noqa: B023 - of this round
            with raises(codes.FUNCTION_PROTOCOL, match="Arrow columns"):
                use()
    with pytest.raises(ValueError, match="besides values"):
        replace(frame, contents=replace(frame.contents, column=other.contents.column)).check()


def test_without_pyarrow_columns_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pipeline is looked at, or continued, with fewer packages than it ran with."""
    frame, _ = of_columns(ROWS)
    monkeypatch.setattr("millstream.values.reads_arrow", lambda: False)
    for use in (frame.check, frame.values, lambda: frame.slice(0, 1)):
        with raises(codes.EXTRA_NEEDED, match="pyarrow.*pip install"):
            use()
