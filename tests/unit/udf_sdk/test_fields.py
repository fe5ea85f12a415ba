"""Messages put together of encoded parts are what protobuf reads as the whole."""

from __future__ import annotations

import pytest

from millstream_udf.answering import encode_map
from millstream_udf.fields import field
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
    )
    answer.outcomes.add(index=1, reason="why")
    filled = {descriptor.name for descriptor, _ in answer.ListFields()}
    assert filled == set(answer.DESCRIPTOR.fields_by_name), "a field that is new has to be sent, too"
    assert udf_pb2.SealedMapResponse.FromString(b"".join(encode_map(answer))).answer == answer
