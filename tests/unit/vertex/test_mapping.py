"""What becomes of a stretch of records in a function: outputs, failures by policy, and the account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream import limits
from millstream.errors import UdfError
from millstream.frame import Frame, frame_of_records
from millstream.record import Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream_udf import DeadLetter, Drop, Message, Retry
from millstream_udf import map as map_function
from millstream_udf.values import Record as Input
from millstream_vertex.mapping import DETAIL_HEADER, REASON_HEADER, Mapped
from tests.unit.vertex.lane_rig import STOP, mapper_of, open_stream, records_of


async def mapped(
    function: Callable[..., Any], frame: Frame, policy: RetryPolicy = STOP, *, dead_letter: bool = False
) -> Mapped:
    async with open_stream(function) as stream:
        return await mapper_of(stream, policy, dead_letter=dead_letter, tags=True).map(frame, watermark_us=0)


def values_of(frame: Frame | None) -> list[bytes]:
    return [] if frame is None else frame.values()


def policy(steps: int, on_failure: OnFailure) -> RetryPolicy:
    return RetryPolicy(Backoff(0.0, steps=steps), on_failure)


async def test_outputs_inherit_what_the_function_does_not_say() -> None:
    def function(value: bytes) -> list[bytes | Message]:
        return [value + b"1", Message(value + b"2", keys=["new"], headers={"h": b"2"}, tags=["t"])]

    records = [Record(b"a", 10, ("x", "y"), {"h": b"1"}), Record(b"b", 20)]
    result = await mapped(function, frame_of_records(records, ingest_time_us=5))
    assert result.frame is not None
    assert [(r.value, r.event_time_us, r.keys, r.headers) for r in result.frame.to_records()] == [
        (b"a1", 10, ("x", "y"), {"h": b"1"}),
        (b"a2", 10, ("new",), {"h": b"2"}),
        (b"b1", 20, (), {}),
        (b"b2", 20, ("new",), {"h": b"2"}),
    ]
    assert result.tags == [(), (b"t",), (), (b"t",)]
    assert (result.frame.event_time_min_us, result.frame.event_time_max_us, result.frame.ingest_time_us) == (10, 20, 5)


@pytest.mark.guarantee("I2", "I4")
async def test_outputs_keep_their_order_however_often_some_inputs_are_tried() -> None:
    attempts: dict[bytes, int] = {}

    def function(value: bytes) -> list[bytes]:
        made = attempts[value] = attempts.get(value, 0) + 1
        if value == b"2" and made < 2:
            raise ValueError("not yet")
        if value == b"3":
            raise Drop("unwanted")
        if value == b"4" and made < 3:
            raise Retry(0.0)
        if value == b"5":
            raise DeadLetter("hopeless")
        return [value] * (int(value) % 3)

    frame = records_of(*(b"%d" % number for number in range(9)))
    result = await mapped(function, frame, policy(3, OnFailure.DEAD_LETTER), dead_letter=True)
    assert values_of(result.frame) == [b"1", b"2", b"2", b"4", b"7", b"8", b"8"]
    assert values_of(result.dead_letters) == [b"5"]
    account = result.account
    assert (account.inputs, account.processed, account.filtered, account.dead_lettered) == (9, 5, 2, 1)
    assert (account.dropped, account.outputs, account.difference) == ({"unwanted": 1}, 7, 0)
    assert result.errors == 1


@pytest.mark.guarantee("I2")
async def test_a_batch_function_that_fails_on_one_record_does_not_take_its_neighbours_with_it() -> None:
    @map_function(batch=True)
    def function(records: Sequence[Input]) -> list[bytes]:
        if any(record.value == b"bad" for record in records):
            raise ValueError("a bad one")
        return [record.value for record in records]

    values = [b"%d" % number for number in range(100)]
    values[37] = b"bad"
    result = await mapped(function, records_of(*values), policy(2, OnFailure.DEAD_LETTER), dead_letter=True)
    assert values_of(result.frame) == [value for value in values if value != b"bad"]
    assert values_of(result.dead_letters) == [b"bad"]
    assert (result.account.processed, result.account.dead_lettered, result.account.difference) == (99, 1, 0)


@pytest.mark.parametrize("on_failure", [OnFailure.STOP, OnFailure.RETRY])
async def test_an_answer_that_is_too_large_for_a_message_is_asked_for_in_parts(on_failure: OnFailure) -> None:
    def function(value: bytes) -> bytes:
        return value * (3 * limits.MIB)

    result = await mapped(function, records_of(*[b"x"] * 30), policy(1, on_failure))
    assert [len(value) for value in values_of(result.frame)] == [3 * limits.MIB] * 30


@pytest.mark.guarantee("I2")
async def test_an_output_that_cannot_be_sent_is_its_own_inputs_failure() -> None:
    def function(value: bytes) -> list[bytes | Message]:
        if value == b"long":
            return [b"", b"x" * (limits.RECORD_BYTES_MAX + 1)]
        if value == b"headed":
            return [Message(b"x" * limits.RECORD_BYTES_MAX, headers={"more": b"x"})]
        if value == b"largest":
            return [b"x" * limits.RECORD_BYTES_MAX]
        return [value]

    frame = records_of(b"a", b"long", b"largest", b"headed", b"b")
    result = await mapped(function, frame, policy(3, OnFailure.DEAD_LETTER), dead_letter=True)
    assert [len(value) for value in values_of(result.frame)] == [1, limits.RECORD_BYTES_MAX, 1]
    assert values_of(result.dead_letters) == [b"long", b"headed"]
    assert result.account.difference == 0
    with pytest.RaisesGroup(
        pytest.RaisesExc(UdfError, match=r"put out a record of 7340033 bytes; at most 7340032"), flatten_subgroups=True
    ):
        await mapped(function, frame, policy(3, OnFailure.STOP))


@pytest.mark.guarantee("I2")
async def test_the_largest_record_fits_a_message_as_a_dead_letter_whatever_is_said_of_it() -> None:
    def function(value: bytes) -> bytes:
        raise DeadLetter("ü" * len(value))

    frame = records_of(b"x" * limits.RECORD_BYTES_MAX)
    result = await mapped(function, frame, policy(1, OnFailure.DEAD_LETTER), dead_letter=True)
    assert result.dead_letters is not None
    (headers,) = result.dead_letters.headers()
    assert set(headers[REASON_HEADER].decode()) == {"ü"}
    assert DETAIL_HEADER in headers
    assert len(result.dead_letters.encode()) < limits.RECORD_BYTES_MAX + 16 * limits.KIB
