"""What functions may take and give, through the test kit: the same path as in a running sidecar."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.testing import arun, run


@pytest.mark.parametrize(
    ("output", "values"),
    [
        (b"x", [b"x"]),
        ("grün", ["grün".encode()]),
        (bytearray(b"x"), [b"x"]),
        (memoryview(b"x"), [b"x"]),
        (None, []),
        ([], []),
        ([b"a", "b", udf.Message("c")], [b"a", b"b", b"c"]),
        ((b"a", b"b"), [b"a", b"b"]),
        (udf.Message(b"x"), [b"x"]),
        (udf.Record(b"x"), [b"x"]),
    ],
)
def test_what_a_function_may_return(output: Any, values: list[bytes]) -> None:
    results = run(lambda value: output, [b"in"])
    assert results.values == values
    assert not results.outcomes


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (7, "not int 7; for JSON return json.dumps"),
        ({"a": object}, "a dict cannot be written as JSON: JSON has no type (field `a`)"),
        (True, "not bool True"),
        (
            [b"a", None],
            "a list of outputs can contain bytes, str, Message, dict, dataclass or model, not NoneType None",
        ),
        ([[b"a"]], "a list of outputs can contain bytes, str, Message, dict, dataclass or model, not list"),
        (object, "not type"),
    ],
)
def test_what_a_function_may_not_return(output: Any, message: str) -> None:
    results = run(lambda value: output if value == b"bad" else value, [b"a", b"bad", b"b"])
    assert results.values == [b"a", b"b"]
    assert list(results.parents) == [0, 2]
    (outcome,) = results.outcomes
    assert (outcome.index, outcome.result) == (1, "error")
    assert message in outcome.reason
    assert outcome.detail == ""


def test_texts_among_whatever_else() -> None:
    def some(value: bytes) -> Any:
        return {b"text": "ü", b"none": None, b"list": ["a", b"b"], b"half": "\ud800"}.get(value, value)

    assert run(some, [b"text", b"text"]).values == ["ü".encode()] * 2
    assert run(some, [b"text", b"x", b"none"]).values == ["ü".encode(), b"x"]
    assert run(some, [b"none", b"list", b"text"]).values == [b"a", b"b", "ü".encode()]
    # A text without a UTF-8 form fails alone.
    results = run(some, [b"text", b"half", b"none", b"x"])
    assert results.values == ["ü".encode(), b"x"]
    assert [outcome.index for outcome in results.outcomes] == [1]
    assert "surrogates not allowed" in results.outcomes[0].reason


def test_an_iterator_is_used_up() -> None:
    assert run(lambda value: (part.encode() for part in value.decode()), [b"ab", b"c"]).values == [b"a", b"b", b"c"]


def test_outputs_inherit_what_they_do_not_say() -> None:
    def dress(record: udf.Record) -> list[udf.Message]:
        return [
            udf.Message(b"same"),
            udf.Message(b"keys", keys=["k"]),
            udf.Message(b"none", keys=[], headers={}),
            udf.Message(b"tags", tags=["t", "u"], headers={"new": b"2"}),
        ]

    given = udf.Record(b"v", event_time=5, keys=("a", "b"), headers={"old": b"1"})
    messages = run(dress, [given]).messages
    assert [message.keys for message in messages] == [("a", "b"), ("k",), (), ("a", "b")]
    assert [message.headers for message in messages] == [{"old": b"1"}, {"old": b"1"}, {}, {"new": b"2"}]
    assert [message.tags for message in messages] == [(), (), (), ("t", "u")]
    assert {message.event_time_us for message in messages} == {5}


def test_keys_can_be_taken_away() -> None:
    results = run(
        lambda value: udf.Message(value, keys=(), headers={}), [udf.Record(b"v", keys=("a",), headers={"h": b""})]
    )
    assert results.messages[0].keys == ()
    assert results.messages[0].headers == {}


def test_a_record_can_be_handed_on() -> None:
    @udf.map
    def big(record: udf.Record) -> udf.Record | None:
        return record if len(record.value) > 1 else None

    given = [udf.Record(b"ab", keys=("k",), headers={"h": b"1"}), udf.Record(b"c")]
    (message,) = run(big, given).messages
    assert (message.value, message.keys, message.headers) == (b"ab", ("k",), {"h": b"1"})


def test_failures_belong_to_their_record_and_show_the_users_lines_only() -> None:
    def fail(value: bytes) -> bytes:
        if value == b"bad":
            return _deeper(value)
        return value

    results = run(fail, [b"a", b"bad", b"b", b"bad"])
    assert results.values == [b"a", b"b"]
    with pytest.raises(AssertionError, match=r"failed on input 0: KeyError: b'bad'\nTraceback") as shown:
        run(fail, [b"bad"]).values  # noqa: B018  # reading it is what raises
    assert 'return {b"good": b""}[value]' in str(shown.value), "a test of the outputs shows why there are none"
    assert [outcome.index for outcome in results.outcomes] == [1, 3]
    detail = results.outcomes[0].detail
    assert results.outcomes[0].reason == "KeyError: b'bad'"
    assert "in fail" in detail
    assert "in _deeper" in detail
    assert "millstream_udf" not in detail.replace("tests/unit/udf_sdk", "")


def _deeper(value: bytes) -> bytes:
    return {b"good": b""}[value]


def test_tracebacks_are_bounded() -> None:
    def fail(value: bytes) -> bytes:
        raise ValueError("x" * 100_000)

    results = run(fail, [b"a"] * 200)
    assert len(results.outcomes) == 200
    assert all(len(outcome.reason) <= 1000 for outcome in results.outcomes)
    assert sum(len(outcome.detail) for outcome in results.outcomes) < 1_100_000


def test_stop_iteration_is_a_failure_not_an_end() -> None:
    def fail(value: bytes) -> bytes:
        return next(iter(())) if value == b"bad" else value

    results = run(fail, [b"bad", b"a", b"bad", b"b", b"bad"])
    assert results.values == [b"a", b"b"]
    assert [outcome.index for outcome in results.outcomes] == [0, 2, 4]
    assert "StopIteration" in results.outcomes[0].reason


@pytest.mark.parametrize(
    ("raised", "result", "reason", "delay_s"),
    [
        (udf.Retry(2.5), "retry", "", 2.5),
        (udf.Retry(timedelta(minutes=1), "rate limit"), "retry", "rate limit", 60),
        (udf.DeadLetter("poison"), "dead letter", "poison", 0),
        (udf.Drop("old"), "drop", "old", 0),
        (udf.Fallback(), "error", "Fallback is only for sinks; in a map raise DeadLetter(reason)", 0),
    ],
)
def test_outcomes(raised: Exception, result: str, reason: str, delay_s: float) -> None:
    def process(value: bytes) -> bytes:
        raise raised

    (outcome,) = run(process, [b"x"]).outcomes
    assert (outcome.result, outcome.reason, outcome.delay_s) == (result, reason, delay_s)


def _generator(value: bytes) -> Iterator[bytes]:
    for part in value.split():
        if part == b"bad":
            raise ValueError("half-way")
        yield part


async def _coroutine(value: bytes) -> list[bytes]:
    return list(_generator(value))


async def _async_generator(value: bytes) -> AsyncIterator[bytes]:
    for part in _generator(value):
        yield part


@pytest.mark.parametrize("function", [_generator, _coroutine, _async_generator])
def test_flavours_are_the_same_to_the_outside(function: Callable[[bytes], Any]) -> None:
    results = run(function, [b"a b", b"", b"c bad", b"d"])
    assert results.values == [b"a", b"b", b"d"]
    assert list(results.parents) == [0, 0, 3]
    (outcome,) = results.outcomes
    assert (outcome.index, outcome.reason) == (2, "ValueError: half-way")


async def test_the_kit_works_inside_a_loop() -> None:
    assert (await arun(_coroutine, [b"a"])).values == [b"a"]


def test_event_times_are_for_source_transforms() -> None:
    def stamp(record: udf.Record) -> udf.Message:
        return udf.Message(record.value, event_time=datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1))))

    (outcome,) = run(udf.map(stamp), [b"a"]).outcomes
    assert "only a source transform can set event times" in outcome.reason
    results = run(udf.source_transform(stamp), [b"a"])
    assert results.messages[0].event_time_us == int(datetime(2023, 12, 31, 23, tzinfo=UTC).timestamp()) * 1_000_000


def test_an_event_time_needs_a_zone() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        udf.Message(b"", event_time=datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point


def test_a_record_knows_its_time() -> None:
    record = udf.Record(b"", event_time=datetime(2024, 1, 1, 0, 0, 0, 7, tzinfo=UTC))
    assert record.event_time == datetime(2024, 1, 1, 0, 0, 0, 7, tzinfo=UTC)


def test_keys_are_no_string() -> None:
    with pytest.raises(TypeError, match=r"keys=\[key\]"):
        udf.Message(b"", keys="key")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (udf.Message(b"x", keys=[7]), "keys of a message must be texts, not tuple (7,)"),  # type: ignore[list-item]
        (udf.Message(b"x", tags=[None]), "tags of a message must be texts"),  # type: ignore[list-item]
        (udf.Message(b"x", headers={"a": "b"}), "headers of a message must be a mapping of texts to bytes"),  # type: ignore[dict-item]
        (udf.Message(b"x", headers={1: b"b"}), "headers of a message must be a mapping of texts to bytes"),  # type: ignore[dict-item]
        (udf.Message(b"x", keys=["\ud800"]), "keys of a message must be texts"),
        (udf.Message(b"x", event_time=2**70), "event_time of a message must be in the years 1 to 9999"),
    ],
)
def test_a_message_that_cannot_be_encoded_fails_alone(message: udf.Message, fault: str) -> None:
    def process(value: bytes) -> Any:
        return [b"before", message] if value == b"bad" else udf.Message(value, keys=["k"])

    results = run(process, [b"a", b"bad", b"b"], kind="source transform")
    assert results.values == [b"a", b"b"]
    assert [m.keys for m in results.messages] == [("k",), ("k",)]
    (outcome,) = results.outcomes
    assert outcome.index == 1
    assert outcome.reason.startswith(fault)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_function_that_calls_exit_fails_its_record_only(threads: int) -> None:
    @udf.map(threads=threads)
    def leaves(value: bytes) -> bytes:
        if value == b"bad":
            sys.exit("no more")
        return value

    results = run(leaves, [b"a", b"bad", b"c"])
    assert results.values == [b"a", b"c"]
    (outcome,) = results.outcomes
    assert (outcome.index, outcome.reason) == (1, "the function called sys.exit('no more'): raise an exception instead")
    assert "in leaves" in outcome.detail
