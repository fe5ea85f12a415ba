"""Parts of groups as messages: nothing is lost, moved to another group, or larger than it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.udf.native import reduce_parts
from millstream.udf.native.reduce_parts import (
    PartEncoder,
    PartMessage,
    check_reduce_answer,
    check_reduce_groups,
    decode_answer,
    one_by_one,
)
from millstream_udf import columns
from millstream_udf.groups import Group, Part, decode_part
from millstream_udf.reduce_arrow import ArrowRows
from millstream_udf.values import Window
from millstream_udf.wire.udf.v1 import udf_pb2

Record = tuple[bytes, int, tuple[str, ...] | None, tuple[tuple[str, bytes], ...] | None]

TEXTS = st.text(max_size=3)
RECORDS = st.tuples(
    st.binary(max_size=40),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.lists(TEXTS, max_size=2).map(tuple),
    st.none() | st.dictionaries(TEXTS, st.binary(max_size=3), max_size=2).map(lambda headers: tuple(headers.items())),
)
CONTENTS = st.lists(st.lists(RECORDS, max_size=12), max_size=8)


def group(number: int) -> Group:
    return Group(Window(number, number + 10, number % 3), (str(number),) if number % 2 else ())


def parts_of(contents: Sequence[Sequence[Record]], cuts: Sequence[int]) -> list[Part]:
    """The records of all groups, cut into parts in front of the rows `cuts`."""
    rows = [(number, record) for number, records in enumerate(contents) for record in records]
    ends = [*sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]
    parts: list[Part] = []
    start, begun = 0, 0
    for end in ends:
        some = rows[start:end]
        last = some[-1][0] if some and end < len(rows) and rows[end][0] == some[-1][0] else -1
        upto = last if last >= 0 else (some[-1][0] if end < len(rows) else len(contents) - 1)
        first = begun - 1 if parts and parts[-1].unfinished else begun
        counts = [sum(number == one for number, _ in some) for one in range(first, upto + 1)]
        batch = pa.record_batch(
            {
                "value": pa.array([record[0] for _, record in some], pa.binary()),
                "event_time": pa.array([record[1] for _, record in some], pa.timestamp("us", tz="UTC")),
                "keys": pa.array([record[2] for _, record in some], pa.list_(pa.string())),
                "headers": pa.array([record[3] for _, record in some], pa.map_(pa.string(), pa.binary())),
            }
        )
        parts.append(Part([group(one) for one in range(begun, upto + 1)], counts, ArrowRows(batch), last >= 0))
        start, begun = end, upto + 1
    return parts


def read(messages: Iterable[PartMessage]) -> dict[Group, list[Record]]:
    """What a function would see."""
    seen: dict[Group, list[Record]] = {}
    open_group: Group | None = None
    for message in messages:
        assert message.continues == (open_group is not None)
        sealed = udf_pb2.SealedReduceRequest.FromString(message.data).part
        part = decode_part(sealed, continues=message.continues)
        rows, start = part.rows, 0
        keys, headers = rows.own_keys, rows.own_headers
        groups = [*([] if open_group is None else [open_group]), *part.groups]
        for one, count in zip(groups, part.counts, strict=True):
            for at in range(start, start + count):
                own = None if keys is None else keys[at]
                some = None if headers is None else tuple(headers[at].items())
                seen.setdefault(one, []).append((rows.values[at], rows.event_times_us[at], own, some))
            start += count
        open_group = groups[-1] if part.unfinished else None
    assert open_group is None
    return seen


def same(one: Record, other: Record) -> bool:
    """Absent keys and headers are the same as empty ones."""
    return one[:2] == other[:2] and (one[2] or ()) == (other[2] or ()) and (one[3] or ()) == (other[3] or ())


@pytest.fixture(autouse=True, scope="module")
def _small_messages() -> Iterable[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce_parts, "PART_BYTES", 120)
        patch.setattr(reduce_parts, "PART_GROUPS", 3)
        yield


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(CONTENTS, st.lists(st.integers(0, 60), max_size=6))
def test_every_record_arrives_in_its_group(contents: list[list[Record]], cuts: list[int]) -> None:
    encoder = PartEncoder()
    messages = [message for part in parts_of(contents, cuts) for message in encoder.messages(part)]
    expected = {group(number): records for number, records in enumerate(contents) if records}
    seen = read(messages)
    assert list(seen) == list(expected)
    for one, records in expected.items():
        assert len(seen[one]) == len(records)
        assert all(map(same, seen[one], records))
    # Groups without records are not counted either.
    assert encoder.count == len(expected)
    assert [encoder.group(number) for number in range(encoder.count)] == list(expected)
    for message in messages:
        part = udf_pb2.SealedReduceRequest.FromString(message.data).part
        assert message.last - message.first + 1 == len(part.counts) <= 3


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(CONTENTS, st.lists(st.integers(0, 60), max_size=6), st.integers(0, 9))
def test_what_is_sent_again_is_the_same(contents: list[list[Record]], cuts: list[int], left_out: int) -> None:
    encoder = PartEncoder()
    messages = [message for part in parts_of(contents, cuts) for message in encoder.messages(part)]
    again = list(one_by_one(messages, left_out))
    assert all(message.first == message.last for message in again)
    expected = dict(islice(read(messages).items(), left_out, None))
    seen = read(again)
    assert list(seen) == list(expected)
    for one, records in expected.items():
        assert all(map(same, seen[one], records))
    # And once more, as when that stream breaks too.
    assert [message.data for message in one_by_one(again, left_out)] == [message.data for message in again]


def answer(
    counts: list[int], values: list[bytes], keys: bytes = b"", headers: bytes = b""
) -> udf_pb2.SealedReduceAnswer:
    packed = columns.pack_bytes(values)
    return udf_pb2.SealedReduceAnswer(counts=counts, values=packed, keys=keys, headers=headers)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (answer([], []), "contains no group"),
        (answer([0, 0, 0], []), "contains 3 groups, but 2 are unanswered"),
        (answer([1, 1], [b"a"]), "values: a column has 1 items for 2 records"),
        (
            answer([1], [b"a"], keys=columns.pack_lists([[b"k"], [b"l"]])),
            "keys: a list column has 2 entries for 1 records",
        ),
        (
            answer([1], [b"a"], headers=columns.pack_headers([{"a": b""}, {}])),
            "headers: a list column has 2 entries for 1 records",
        ),
        (
            udf_pb2.SealedReduceAnswer(counts=[0], failures=[udf_pb2.GroupFailure(index=1)]),
            "a failure is for group 1 of 1",
        ),
        (
            udf_pb2.SealedReduceAnswer(counts=[0, 0], failures=[udf_pb2.GroupFailure(index=1)] * 2),
            "two failures are for one group",
        ),
    ],
)
def test_answers_that_do_not_fit(wrong: udf_pb2.SealedReduceAnswer, reason: str) -> None:
    def check() -> None:
        check_reduce_groups(wrong, 2)
        check_reduce_answer(wrong)

    with pytest.raises(ValueError, match=reason):
        check()


def test_a_failed_group_with_a_large_result_fails_once() -> None:
    large = b"x" * (8 << 20)
    message = answer([1, 1], [large, large])
    message.failures.add(index=0, error="why")
    decoded = decode_answer(message, [group(0), group(1)])
    assert [(failure.index, failure.error[:20]) for failure in decoded.failures] == [
        (0, "why"),
        (1, "a result has 8,388,6"),
    ]
