"""Messages that are put together of encoded parts, or cut into them, are what protobuf reads as the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.udf.native.messages import MAP_COLUMNS
from millstream_udf import fields
from millstream_udf.answering import encode_map, map_call_of
from millstream_udf.fields import content, field, repeated, without_large
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2


@pytest.mark.parametrize("size", [1, 127, 128, 16383, 16384, 1 << 21])
def test_a_field_is_what_protobuf_writes(size: int) -> None:
    joined = b"".join(field(2, bytes(1), bytes(size - 1)))
    assert joined == frame_pb2.SealedBytesColumn(data=bytes(size)).SerializeToString()


def test_an_empty_field_is_not_written() -> None:
    assert field(2) == field(2, b"", b"") == []


def test_an_answer_is_whole() -> None:
    answer = udf_pb2.SealedMapAnswer(
        call_id=7,
        records=2,
        values=b"v" * 200,
        parents=b"p",
        keys=b"k",
        tags=b"t",
        headers=b"h",
        event_times_us=b"e",
        error="wrong",
        arrow=b"a",
        changes=b"c",
        unfinished=True,
        lacks_tables=True,
    )
    answer.outcomes.add(index=1, reason="why")
    filled = {descriptor.name for descriptor, _ in answer.ListFields()}
    assert filled == set(answer.DESCRIPTOR.fields_by_name), "a field that is new has to be sent, too"
    assert udf_pb2.SealedMapResponse.FromString(b"".join(encode_map(answer))).answer == answer


COLUMNS = (2, 3, 4, 5, 6)
LARGE_BYTES = 16
LARGE = st.binary(min_size=LARGE_BYTES, max_size=LARGE_BYTES + 2)
FIELDS = st.tuples(st.integers(0, 8), st.sampled_from([0, 1, 2, 3, 5]), st.binary(max_size=12) | LARGE)
"""Number, encoding and contents of fields: right ones, wrong ones, and some that no message has."""


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Fields are large that are easily generated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "LARGE_BYTES", LARGE_BYTES)
        yield


def encoded(parts: Sequence[tuple[int, int, bytes]]) -> bytes:
    whole = bytearray()
    for number, kind, data in parts:
        whole.append(number << 3 | kind)
        whole += b"".join(field(1, data))[1:] if kind == 2 else data
    return bytes(whole)


def read(kind: type[Message], data: bytes) -> Message | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


@given(st.lists(FIELDS, max_size=5).map(encoded))
@example(encoded([(2, 2, bytes(50)), (2, 2, b"x")]))
@example(encoded([(2, 2, b"x"), (2, 2, bytes(50))]))
@example(encoded([(2, 2, bytes(50)), (2, 0, b"\1")]))
@example(encoded([(2, 2, bytes(50)), (1, 2, b"x")]))
@example(encoded([(2, 2, bytes(50))])[:-1])
@example(encoded([(0, 2, bytes(50)), (2, 2, bytes(50))]))
@example(b"\x92\x80\x80\x80\x80\x00" + b"\x32" + bytes(50))
@example(b"\x12" + b"\xb2\x80\x80\x80\x80\x00" + bytes(50))
def test_a_message_without_its_large_fields_is_the_same_with_them(data: bytes) -> None:
    rest, large = without_large(data, COLUMNS)
    whole, cut = read(frame_pb2.SealedFrame, data), read(frame_pb2.SealedFrame, rest)
    if cut is not None:
        for number, taken in large.items():
            name = frame_pb2.SealedFrame.DESCRIPTOR.fields_by_number[number].name
            assert not getattr(cut, name)
            setattr(cut, name, bytes(taken))
    assert cut == whole


@given(st.lists(FIELDS, max_size=3).map(encoded), st.lists(FIELDS, max_size=2).map(encoded))
@example(encoded([(2, 2, bytes(50))]), encoded([(2, 2, encoded([(1, 0, b"\1")]))]))
@example(encoded([(2, 2, bytes(50))]), encoded([(2, 2, encoded([(2, 2, bytes(60))]))]))
@example(encoded([(2, 2, bytes(50))]), encoded([(1, 2, b"")]))
@example(encoded([(2, 2, bytes(50))]), encoded([(2, 2, encoded([(2, 2, b"x")]))]))
def test_a_large_field_inside_another_message_is_found(inner: bytes, beside: bytes) -> None:
    data = encoded([(2, 2, inner)]) + beside
    rest, large = without_large(data, (2,), (2,))
    whole, cut = read(udf_pb2.SealedMapRequest, data), read(udf_pb2.SealedMapRequest, rest)
    if cut is not None and large:
        assert isinstance(cut, udf_pb2.SealedMapRequest)
        cut.call.frame = content(2, large, b"")
    assert cut == whole


def test_the_frame_of_a_large_call_is_cut_out() -> None:
    frame = frame_pb2.SealedFrame(values=bytes(LARGE_BYTES)).SerializeToString()
    call = udf_pb2.SealedMapCall(call_id=7, frame=frame, id_prefix="x")
    found, apart = map_call_of(udf_pb2.SealedMapRequest(call=call).SerializeToString())
    assert (found.call_id, found.id_prefix, found.frame, bytes(apart)) == (7, "x", b"", frame)
    rest, large = without_large(apart, COLUMNS)
    assert (rest, bytes(large[2])) == (b"", bytes(LARGE_BYTES))


def test_many_fields_are_left_to_protobuf() -> None:
    many = encoded([(7, 2, bytes(100))] * 100 + [(2, 2, bytes(50))])
    assert without_large(many, COLUMNS) == (many, {})
    assert repeated(many, 7) is None


@given(st.lists(st.binary(max_size=4) | LARGE, max_size=4), st.lists(FIELDS, max_size=1).map(encoded))
def test_a_repeated_field_is_what_protobuf_reads(items: list[bytes], beside: bytes) -> None:
    data = encoded([(3, 2, item) for item in items]) + beside
    found = repeated(data, 3)
    if found is not None:
        whole = read(frame_pb2.SealedHeadersColumn, data)
        assert isinstance(whole, frame_pb2.SealedHeadersColumn)
        assert list(map(bytes, found)) == list(whole.values)


def test_any_column_of_an_answer_may_be_large() -> None:
    columns = [one for one in udf_pb2.SealedMapAnswer.DESCRIPTOR.fields if one.type == one.TYPE_BYTES]
    assert {one.number: one.name for one in columns} == MAP_COLUMNS
