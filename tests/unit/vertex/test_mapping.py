"""What becomes of a stretch of records in a function: outputs, failures by policy, and the account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from millstream import codes, limits
from millstream.dead_letter import CODE_HEADER, DETAIL_HEADER, REASON_HEADER
from millstream.errors import UdfError, UserError
from millstream.frame import Frame, frame_of_records
from millstream.naming import MISFIT, Naming, Origin
from millstream.record import Record
from millstream.retry import Backoff, OnFailure, RepeatedAsking, RetryPolicy
from millstream.udf.answers import MapAnswer, Outcome, Result
from millstream.watermark.future import DROPPED, FutureBound
from millstream_udf import Context, DeadLetter, Drop, Message, Retry, source_transform
from millstream_udf import map as map_function
from millstream_udf.values import Record as Input
from millstream_vertex.stage import StageInput, StageResult
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import STOP, open_stream, records_of, stage_of


@dataclass
class Pair:
    a: int
    b: int


async def mapped(
    function: Callable[..., Any], frame: Frame, policy: RetryPolicy = STOP, *, dead_letter: bool = False
) -> StageResult:
    async with open_stream(function) as stream:
        return await stage_of(stream, policy, dead_letter=dead_letter, tags=True).on_frame(StageInput(frame, 0))


def values_of(frame: Frame | None) -> list[bytes]:
    return [] if frame is None else frame.values()


def policy(steps: int, on_failure: OnFailure) -> RetryPolicy:
    return RetryPolicy(Backoff(0.0, steps=steps), on_failure)


@pytest.mark.parametrize("is_retried", [False, True])
async def test_a_function_makes_no_dead_letter_by_a_header(is_retried: bool) -> None:
    failed: list[bytes] = []

    def function(value: bytes) -> Message:
        if is_retried and not failed:
            failed.append(value)
            raise ValueError("once")
        return Message(value, headers={REASON_HEADER: b"mine", CODE_HEADER: b"MS-1", "h": b"1"})

    plain = frame_of_records([Record(b"a", 0), Record(b"b", 0)], ingest_time_us=5)
    result = await mapped(function, plain, policy(2, OnFailure.STOP))
    assert result.frame is not None
    assert [record.headers for record in result.frame.to_records()] == 2 * [{"h": b"1"}]
    # Of a dead letter, it may pass them on.
    letters = frame_of_records([Record(b"a", 0, headers={REASON_HEADER: b"theirs"})], ingest_time_us=5)
    result = await mapped(function, letters)
    assert result.frame is not None
    assert [REASON_HEADER in record.headers for record in result.frame.to_records()] == [True]


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
async def test_a_record_that_does_not_fit_is_not_tried_again() -> None:
    def function(value: int) -> str:
        return str(value + 1)

    frame = records_of(b"1", b"x", b"3")
    for on_failure in OnFailure.DEAD_LETTER, OnFailure.RETRY:
        result = await mapped(function, frame, policy(9, on_failure), dead_letter=True)
        assert values_of(result.frame) == [b"2", b"4"]
        assert values_of(result.dead_letters) == [b"x"]
        assert result.dead_letters is not None
        (headers,) = result.dead_letters.headers()
        assert headers[CODE_HEADER] == codes.RECORD_MISFIT.id.encode()
        assert (result.retries, result.account.difference) == (0, 0)
    result = await mapped(function, frame, policy(9, OnFailure.DROP))
    assert result.account.dropped == {MISFIT: 1}
    stopped = pytest.RaisesExc(UdfError, check=lambda error: error.code is codes.RECORD_MISFIT)
    with pytest.RaisesGroup(stopped, flatten_subgroups=True):
        await mapped(function, frame, policy(9, OnFailure.STOP))


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


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", [OnFailure.STOP, pytest.param(OnFailure.RETRY, marks=pytest.mark.sweep)])
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
        pytest.RaisesExc(UdfError, match="of 7340033 bytes; the limit is 7340032"), flatten_subgroups=True
    ):
        await mapped(function, frame, policy(3, OnFailure.STOP))


@pytest.mark.slow
@pytest.mark.guarantee("I2")
@pytest.mark.parametrize("error", [DeadLetter, ValueError])
async def test_the_largest_record_fits_a_message_as_a_dead_letter_whatever_is_said_of_it(
    error: type[Exception],
) -> None:
    def function(value: bytes) -> bytes:
        raise error("ü" * len(value))

    frame = records_of(b"x" * limits.RECORD_BYTES_MAX)
    result = await mapped(function, frame, policy(1, OnFailure.DEAD_LETTER), dead_letter=True)
    assert result.dead_letters is not None
    (headers,) = result.dead_letters.headers()
    assert set(headers[REASON_HEADER].decode().removeprefix("ValueError: ")) == {"ü"}
    assert (DETAIL_HEADER in headers) == (error is ValueError), "a stack trace, where there is one"
    assert len(result.dead_letters.encode()) < limits.RECORD_BYTES_MAX + 16 * limits.KIB


ORIGIN = Origin("map/in-map/0/345/", 12, run="ledger-1")


async def test_a_dead_letter_says_which_record_it_was_and_in_which_run() -> None:
    def function(value: bytes) -> bytes:
        if value == b"b":
            raise DeadLetter("hopeless")
        return value

    async with open_stream(function) as stream:
        stage = stage_of(stream, policy(1, OnFailure.DEAD_LETTER), dead_letter=True)
        result = await stage.on_frame(StageInput(records_of(b"a", b"b", b"c"), 0, ORIGIN))
    assert result.dead_letters is not None
    (record,) = result.dead_letters.to_records()
    assert (record.value, record.id) == (b"b", "map/in-map/0/345/13"), "the same id at every attempt"
    assert record.headers == {
        "millstream-dead-letter-reason": b"hopeless",
        "millstream-dead-letter-at": b"p/map/in-map.0",
        "millstream-dead-letter-position": b"map/in-map/0/345/13",
        "millstream-dead-letter-run": b"ledger-1",
    }


async def test_the_id_that_a_source_gave_stays_that_of_a_dead_letter() -> None:
    def function(value: bytes) -> bytes:
        raise DeadLetter("hopeless")

    frame = frame_of_records([Record(b"a", 0, id="web-7")], ingest_time_us=0)
    async with open_stream(function) as stream:
        stage = stage_of(stream, policy(1, OnFailure.DEAD_LETTER), dead_letter=True)
        result = await stage.on_frame(StageInput(frame, 0, ORIGIN))
    assert result.dead_letters is not None
    assert [record.id for record in result.dead_letters.to_records()] == ["web-7"]


async def test_a_function_sees_the_id_of_a_record_the_same_at_every_attempt() -> None:
    seen: dict[bytes, list[str | None]] = {}

    @map_function
    def function(record: Input) -> bytes:
        seen.setdefault(record.value, []).append(record.id)
        if record.value in (b"b", b"d") and len(seen[record.value]) < 3:
            raise ValueError("not yet")
        return record.value

    async with open_stream(function) as stream:
        stage = stage_of(stream, policy(5, OnFailure.STOP))
        await stage.on_frame(StageInput(records_of(b"a", b"b", b"c", b"d"), 0, ORIGIN))
        own = frame_of_records([Record(b"own", 0, id="web-7")], ingest_time_us=0)
        result = await stage.on_frame(StageInput(own, 0, ORIGIN))
        await stage.on_frame(StageInput(records_of(b"transformed"), 0))
    assert seen == {
        b"a": ["map/in-map/0/345/12"],
        b"b": ["map/in-map/0/345/13"] * 3,
        b"c": ["map/in-map/0/345/14"],
        b"d": ["map/in-map/0/345/15"] * 3,
        b"own": ["web-7"],
        b"transformed": [None],
    }
    assert result.frame is not None
    assert result.frame.ids() is None, "what a function makes of a record is another"


@pytest.mark.parametrize("values", [True, False])
async def test_the_record_that_stops_a_lane_is_named(values: bool) -> None:
    def function(value: bytes) -> bytes:
        if value == b"bad":
            raise ValueError("no")
        return value

    async with open_stream(function) as stream:
        stage = stage_of(stream, STOP, naming=Naming(values=values))
        with pytest.raises(UdfError) as stopped:
            await stage.on_frame(StageInput(records_of(b"good", b"bad"), 0, ORIGIN))
    shown = "value 'bad'" if values else "value of 3 bytes"
    name = f"record map/in-map/0/345/13 (sequence 345, index 13, event time 1970-01-01T00:00:00.000001Z, {shown})"
    assert f"the function failed on {name} after 1 attempt: ValueError: no\n" in str(stopped.value)
    assert ("bad" in str(stopped.value).split("Traceback")[0]) == values


STACK = "panic: assignment to entry in nil map\n\ngoroutine 7 [running]:\nmain.shout(...)\n\t/app/main.go:12 +0x1d\n"


class Answering:
    """A function in another language: it gives these answers, whatever it is asked."""

    calls_max = 1
    takes_arrow = False

    def __init__(self, answer: MapAnswer) -> None:
        self._answer = answer

    async def call(
        self,
        frame: Frame,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
        alone: bool = False,
    ) -> MapAnswer:
        return self._answer


@pytest.mark.parametrize(
    "answer",
    [
        MapAnswer(error=STACK),
        MapAnswer(outcomes=[Outcome(0, Result.ERROR, reason=STACK)]),
        MapAnswer(outcomes=[Outcome(0, Result.DEAD_LETTER, reason=STACK)]),
    ],
    ids=["of the call", "error", "dead letter"],
)
async def test_the_reason_is_the_beginning_of_what_went_wrong(answer: MapAnswer) -> None:
    stage = stage_of(Answering(answer), policy(1, OnFailure.DEAD_LETTER), dead_letter=True)
    result = await stage.on_frame(StageInput(records_of(b"a"), 0))
    assert result.dead_letters is not None
    (headers,) = result.dead_letters.headers()
    assert headers[REASON_HEADER] == b"panic: assignment to entry in nil map"
    assert headers[DETAIL_HEADER].decode().strip() == STACK.strip()


async def test_the_reason_of_a_drop_is_one_line() -> None:
    outcome = Outcome(0, Result.DROP, reason=STACK)
    stage = stage_of(Answering(MapAnswer(outcomes=[outcome])))
    result = await stage.on_frame(StageInput(records_of(b"a"), 0))
    assert result.account.dropped == {"panic: assignment to entry in nil map": 1}


async def test_a_function_that_always_asks_to_see_a_record_again_is_warned_of_and_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts: list[int] = []

    def function(value: bytes, context: Context) -> bytes:
        if value == b"2":
            attempts.append(context.attempt)
            raise Retry(0.0, "not there yet")
        return value

    async with open_stream(function) as stream:
        capped = RetryPolicy(Backoff(0.0, steps=2), OnFailure.DEAD_LETTER, asked_max=25)
        stage = stage_of(stream, capped, dead_letter=True)
        result = await stage.on_frame(StageInput(records_of(b"1", b"2", b"3"), 0, ORIGIN))
    assert (values_of(result.frame), values_of(result.dead_letters)) == ([b"1", b"3"], [b"2"])
    assert attempts == list(range(26)), "a function can see how often it has asked"
    assert result.dead_letters is not None
    (headers,) = result.dead_letters.headers()
    assert headers[REASON_HEADER] == b"the function returned Retry 26 times: not there yet"
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 2, "after ten times and twenty"
    assert "record map/in-map/0/345/13 (sequence 345, index 13" in warnings[0]
    assert warnings[0].endswith("holds up the lane: not there yet")


async def test_without_an_end_a_function_may_ask_as_often_as_it_likes() -> None:
    asked = 0

    def function(value: bytes) -> bytes:
        nonlocal asked
        asked += 1
        if asked < 100:
            raise Retry(0.0)
        return value

    forever = RetryPolicy(Backoff(0.0), OnFailure.RETRY, asked_max=5)
    result = await mapped(function, records_of(b"1"), forever)
    assert values_of(result.frame) == [b"1"]


def test_a_long_wait_is_said_however_seldom_the_function_asks() -> None:
    waiting = RepeatedAsking()
    assert [waiting.again(6.0) for _ in range(8)] == [False, True, False, True, False, False, False, True]


@pytest.mark.guarantee("I2")
async def test_an_input_is_given_up_whose_output_lies_too_far_in_the_future() -> None:
    clock = SettableClock()
    now_us = clock.now_us()

    def function(value: bytes) -> Message:
        return Message(value, event_time=now_us + 61_000_000) if value == b"set" else Message(value)

    records = [Record(b"now", now_us), Record(b"set", now_us), Record(b"far", now_us + 99_000_000)]
    frame = frame_of_records(records, ingest_time_us=0)

    async def with_policy(on_future: OnFailure) -> StageResult:
        bound = FutureBound(clock, 60.0, on_future, where="p/in/source.0")
        async with open_stream(source_transform(function)) as stream:
            return await stage_of(stream, dead_letter=True, bound=bound).on_frame(StageInput(frame, 0))

    result = await with_policy(OnFailure.DEAD_LETTER)
    assert values_of(result.frame) == [b"now"]
    assert values_of(result.dead_letters) == [b"set", b"far"]
    assert result.dead_letters is not None
    assert b"60 s ahead of the clock" in result.dead_letters.headers()[0][REASON_HEADER]
    assert (result.account.dead_lettered, result.account.difference) == (2, 0)
    dropped = await with_policy(OnFailure.DROP)
    assert (dropped.account.dropped, dropped.account.difference) == ({DROPPED: 2}, 0)
    stopped = pytest.RaisesExc(UserError, match=r"(?s)p/in/source\.0: .*value 'set'.*watermark\.maxFuture")
    with pytest.RaisesGroup(stopped, flatten_subgroups=True):
        await with_policy(OnFailure.STOP)


@pytest.mark.parametrize(
    ("fate", "said"),
    [(OnFailure.DEAD_LETTER, "so it goes to the dead-letter edge"), (OnFailure.DROP, "so it is dropped")],
)
async def test_the_first_failure_of_each_kind_is_logged_where_the_run_goes_on(
    fate: OnFailure, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def function(value: bytes) -> bytes:
        if value == b"3":
            raise DeadLetter("hopeless")
        return {b"1": b"one"}[value] if value < b"5" else value.attribute  # type: ignore[attr-defined]

    async with open_stream(function) as stream:
        stage = stage_of(stream, policy(1, fate), dead_letter=True)
        for _ in range(2):
            await stage.on_frame(StageInput(records_of(b"1", b"2", b"3", b"4", b"5", b"6"), 0, ORIGIN))
    first, second = (record.message.splitlines() for record in caplog.records)
    assert first[0].endswith(f"made the function fail, {said}: KeyError: b'2'")
    assert first[0].startswith("p/map/in-map.0: record map/in-map/0/345/13 (")
    assert "test_mapping.py:" in first[1]
    assert "AttributeError" in second[0]


@pytest.mark.parametrize(
    ("fate", "said"),
    [(OnFailure.DEAD_LETTER, "so it goes to the dead-letter edge"), (OnFailure.DROP, "so it is dropped")],
)
async def test_the_first_record_that_does_not_fit_is_logged_for_each_field(
    fate: OnFailure, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def function(order: Pair) -> None: ...

    values = (b'{"a": 1}', b'{"a": 2}', b'{"a": "x", "b": 1}', b'{"a": 1, "b": 2}', b"junk", b'{"a": "y", "b": 1}')
    async with open_stream(function) as stream:
        await stage_of(stream, policy(9, fate), dead_letter=True).on_frame(StageInput(records_of(*values), 0))
    told = [record.message.splitlines()[0] for record in caplog.records]
    assert len(told) == 3
    assert f"does not fit the function, {said}: the value does not fit Pair: field `b` is missing" in told[0]
    assert 'field `a` is "x"' in told[1]
    assert "it is not JSON" in told[2]
