"""Timers of a function, without a pipeline: set, moved, cancelled, and what becomes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.definition import with_concurrency
from millstream_udf.state_specs import StateError
from millstream_udf.testing import KeptStates, Results, run, run_timers

SECOND = 1_000_000


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def record(key: str, second: int, value: str = "") -> udf.Record[bytes]:
    return udf.Record(value.encode(), second * SECOND, (key,))


class Doing:
    """Sets timers as a record says: `name second`, or `-name`; fails with `!`."""

    count = udf.counter()

    def do(self, value: str) -> None:
        for word in value.split(","):
            name, _, when = word.partition(" ")
            if name.startswith("-"):
                udf.cancel_timer(name[1:])
            elif name == "!":
                raise OSError("away")
            elif when:
                udf.timer(name, at=at(int(when)))

    def fired(self, timer: udf.Timer) -> str:
        self.count.add()
        if timer.name == "again" and self.count.value < 3:
            udf.timer("again", at=timer.at + timedelta(seconds=10))
        if timer.name == "first":
            udf.cancel_timer("second")
        if timer.name == "fails":
            raise OSError("away")
        return f"{timer.keys[0]} {timer.name} {timer.at_us // SECOND} {self.count.value}"


@udf.map
class Plain(Doing):
    def process(self, record: udf.Record) -> None:
        self.do(record.value.decode())

    def on_timer(self, timer: udf.Timer) -> str:
        return self.fired(timer)


@udf.map
class Async(Doing):
    async def process(self, record: udf.Record) -> None:
        self.do(record.value.decode())

    async def on_timer(self, timer: udf.Timer, context: udf.Context) -> str:
        assert context.vertex
        return self.fired(timer)


@udf.map
class Generating(Doing):
    def process(self, record: udf.Record) -> None:
        self.do(record.value.decode())

    def on_timer(self, timer: udf.Timer) -> Any:
        yield self.fired(timer)


@udf.map(threads=3)
class Threaded(Plain):
    pass


@udf.map(batch=True)
class Batched(Doing):
    def process(self, records: list[udf.Record], states: Any) -> list[None]:
        for record, state in zip(records, states, strict=True):
            for word in record.value.decode().split(","):
                name, _, when = word.partition(" ")
                if name.startswith("-"):
                    state.cancel_timer(name[1:])
                elif when:
                    state.timer(name, at=at(int(when)))
        return [None] * len(records)

    def on_timer(self, timer: udf.Timer) -> str:
        return self.fired(timer)


FORMS = pytest.mark.parametrize("form", [Plain, Async, Generating, Threaded, Batched])


def set_by(form: Any, *records: udf.Record[bytes], states: Any = None) -> KeptStates:
    states = run(form, records, states=states).states
    assert isinstance(states, KeptStates)
    return states


def texts(results: Results) -> list[str]:
    return [value.decode() for value in results.values]


@FORMS
def test_they_fire_in_order_with_their_time_and_key(form: Any) -> None:
    states = set_by(form, record("b", 1, "x 20,y 10"), record("a", 2, "x 10"), record("a", 3, "z 40"))
    results = run_timers(form, states, watermark_us=30 * SECOND)
    assert texts(results) == ["a x 10 1", "b y 10 1", "b x 20 2"]
    assert [message.event_time_us for message in results.messages] == [10 * SECOND, 10 * SECOND, 20 * SECOND]
    assert [message.keys for message in results.messages] == [("a",), ("b",), ("b",)]
    assert [(timer.name, timer.at) for timer in states.timers] == [("z", at(40))]
    assert texts(run_timers(form, states, watermark_us=40 * SECOND)) == ["a z 40 2"]
    assert states.timers == []


@FORMS
def test_they_are_moved_and_cancelled_by_name(form: Any) -> None:
    states = set_by(form, record("a", 1, "x 10,y 10"), record("a", 2, "x 30"), record("b", 2, "y 5"))
    states = set_by(form, record("a", 3, "-y,-unknown"), states=states)
    assert texts(run_timers(form, states, watermark_us=29 * SECOND)) == ["b y 5 1"]
    assert texts(run_timers(form, states, watermark_us=30 * SECOND)) == ["a x 30 1"]


@FORMS
def test_one_may_set_itself_again_and_cancel_another(form: Any) -> None:
    states = set_by(form, record("a", 1, "again 10,first 20,second 21"))
    results = run_timers(form, states, watermark_us=25 * SECOND)
    assert texts(results) == ["a again 10 1", "a again 20 2", "a first 20 3"]
    assert [(timer.name, timer.at) for timer in states.timers] == [("again", at(30))]


@pytest.mark.parametrize("form", [Plain, Async, Threaded])
def test_a_record_that_fails_sets_none(form: Any) -> None:
    states = set_by(form, record("a", 1, "x 10,!"))
    assert states.timers == []


@FORMS
def test_one_that_fails_stays_set_and_changes_nothing(form: Any) -> None:
    states = set_by(form, record("a", 1, "fails 10,x 10"))
    results = run_timers(form, states, watermark_us=10 * SECOND)
    assert texts(results) == ["a x 10 1"]
    assert [(one.index, one.result) for one in results.outcomes] == [(0, "error")]
    assert [timer.name for timer in states.timers] == ["fails"]


def test_processing_time_and_how_long_after() -> None:
    def fire(timer: udf.Timer, state: udf.State) -> str:
        return f"{timer.name} {timer.clock} {state.get('seen')}"

    @udf.map(on_timer=fire)
    def process(record: udf.Record, state: udf.State) -> None:
        state["seen"] = True
        udf.timer("clock", after=timedelta(seconds=5), clock="processing")
        udf.timer("event", after=timedelta(seconds=5))
        state.timer("third", at=17 * SECOND)

    states = run(process, [record("a", 10)], now_us=1000 * SECOND).states
    assert states is not None
    assert {timer.name: timer.at_us // SECOND for timer in states.timers} == {"event": 15, "third": 17, "clock": 1005}
    assert texts(run_timers(process, states, watermark_us=15 * SECOND)) == ["event event True"]
    results = run_timers(process, states, watermark_us=16 * SECOND, now_us=1005 * SECOND)
    assert texts(results) == ["clock processing True"]
    # Never behind the watermark.
    assert results.messages[0].event_time_us == 16 * SECOND


def test_a_function_that_only_has_timers() -> None:
    @udf.map(on_timer=lambda timer: timer.name)
    def process(record: udf.Record) -> None:
        udf.timer("x", at=record.event_time)

    assert texts(run_timers(process, set_by(process, record("a", 1)), watermark_us=SECOND)) == ["x"]
    assert run_timers(process, {"a": {"timers": {"y": at(3)}}}, watermark_us=3 * SECOND).values == [b"y"]


def test_a_timer_sees_the_state_that_expires_with_it() -> None:
    @udf.map
    class Expiring:
        seen = udf.value(str, ttl=timedelta(seconds=10))

        def process(self, record: udf.Record) -> None:
            self.seen = "yes"
            udf.timer("with", after=timedelta(seconds=10))
            udf.timer("later", after=timedelta(seconds=11))

        def on_timer(self, timer: udf.Timer) -> str:
            return f"{timer.name} {self.seen}"

    states = set_by(Expiring, record("a", 1))
    assert texts(run_timers(Expiring, states, watermark_us=100 * SECOND)) == ["with yes", "later None"]


def without(record: udf.Record) -> None:
    udf.timer("x", at=record.event_time)


def helper(seconds: int) -> None:
    udf.timer("x", at=at(seconds))


class Helped:
    timer = 3
    count = udf.counter()

    def process(self, record: udf.Record) -> None:
        self.timer += 1
        helper(1)


class Method:
    def process(self, record: udf.Record) -> None:
        self.later()

    def later(self) -> None:
        udf.timer("x", at=0)


class Mixed(Doing):
    async def process(self, record: udf.Record) -> None:
        pass

    def on_timer(self, timer: udf.Timer) -> None:
        pass


class Named:
    timers = udf.counter()

    def process(self, record: udf.Record) -> None:
        pass

    def on_timer(self, timer: udf.Timer) -> None:
        pass


@udf.map(batch=True)
class Few:
    def process(self, records: list[udf.Record]) -> list[None]:
        return [None] * len(records)

    def on_timer(self, timer: udf.Timer) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (without, "timers need what gets them"),
        (Method, "timers need what gets them"),
        (Mixed, "make both async, or neither"),
        (Named, "none of its states can be called timers"),
        (udf.map(on_timer=without)(type("Plain", (Plain,), {})), "what gets its timers is a method"),
        (udf.sink(type("Sink", (Plain,), {})), "which only maps can have"),
        (Few, r"states\[i\].timer"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_defined(function: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        define(function, "it")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: udf.timer("x", at=3.5), "must be a datetime"),  # type: ignore[arg-type]  # as users may
        (lambda: udf.timer("x", at=datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001 - as users may
        (lambda: udf.timer("x"), "needs a time"),
        (lambda: udf.timer("x", after=3), "must be a timedelta"),  # type: ignore[arg-type]  # as users may
        (lambda: udf.timer("x", at=2**62), "years 1 to 9999"),
        (lambda: udf.timer("x", at=1, clock="wall"), "must be 'event' or"),  # type: ignore[arg-type]  # as users may
        (lambda: udf.timer("", at=1), "1 to 255 bytes"),
        (lambda: udf.timer("x" * 256, at=1), "1 to 255 bytes"),
        (lambda: udf.timer(3, at=1), "is a text"),  # type: ignore[arg-type]  # as users may
    ],
)
def test_what_cannot_be_set_fails_its_record(call: Any, says: str) -> None:
    def process(record: udf.Record) -> None:
        call()

    results = run(udf.map(on_timer=lambda timer: None)(process), [record("a", 1)])
    assert says in results.outcomes[0].reason


def test_elsewhere_they_cannot_be_set() -> None:
    with pytest.raises(StateError, match="while a function with on_timer processes a record"):
        udf.timer("x", at=1)
    assert "timers need" in run(Helped, [record("a", 1)]).outcomes[0].reason

    @udf.map(batch=True, on_timer=lambda timer: None)
    def process(records: list[udf.Record], states: Any) -> list[None]:
        helper(1)
        return [None] * len(records)

    with pytest.raises(RuntimeError, match=r"use states\[i\].timer"):
        run(process, [record("a", 1)])


def test_one_that_is_late_has_the_time_of_the_watermark() -> None:
    states = run(Plain, [record("a", 1, "late 50,next 200")], watermark_us=100 * SECOND).states
    fired = run_timers(Plain, states, watermark_us=300 * SECOND)
    assert [message.event_time_us for message in fired.messages] == [100 * SECOND, 200 * SECOND]


def test_the_pipeline_says_how_many_run_at_once() -> None:
    definition = with_concurrency(define(Async, "Async"), "2")
    assert definition.on_timer is not None
    assert (definition.options.concurrency, definition.on_timer.options.concurrency) == (2, 2)


@udf.map
class Holding:
    """Sets a timer an hour after a record, whose outputs begin with the record."""

    def process(self, record: udf.Record) -> Any:
        udf.timer("hour", after=timedelta(hours=1), output_at=record.event_time)
        udf.timer("asked", at=at(9000), clock="processing", output_at=at(50))

    def on_timer(self, timer: udf.Timer) -> Any:
        if timer.name == "asked":
            return udf.Message(b"", event_time=timer.event_time - timedelta(seconds=2))
        return [b"first", udf.Message(b"later", event_time=timer.event_time + timedelta(minutes=10))]


def test_outputs_of_a_timer_have_its_output_time_or_a_later_one() -> None:
    states = run(Holding, [record("a", 100), record("b", 40)], watermark_us=60 * SECOND).states
    assert isinstance(states, KeptStates)
    assert [(one.event_time_us, one.at_us) for one in states.timers[:2]] == [
        (40 * SECOND, 3640 * SECOND),
        (100 * SECOND, 3700 * SECOND),
    ]
    results = run_timers(Holding, states, watermark_us=3700 * SECOND, now_us=0)
    # What was set for a time that the watermark had passed has that of the watermark.
    times_us = [message.event_time_us for message in results.messages]
    assert times_us == [60 * SECOND, 660 * SECOND, 100 * SECOND, 700 * SECOND]
    failed = run_timers(Holding, states, now_us=9000 * SECOND)
    assert "2 s earlier than its event_time: set the timer with output_at" in failed.outcomes[0].reason


@pytest.mark.parametrize(("when", "says"), [(at(101), "is later than its time"), (2**62, "output_at of timer x")])
def test_an_output_time_that_cannot_be(when: Any, says: str) -> None:
    @udf.map
    class Late(Holding):
        def process(self, record: udf.Record) -> None:
            udf.timer("x", at=record.event_time, output_at=when)

    (outcome,) = run(Late, [record("a", 100)]).outcomes
    assert says in outcome.reason


def test_outputs_of_records_have_no_time_of_their_own() -> None:
    @udf.map
    class Dated(Holding):
        def process(self, record: udf.Record) -> Any:
            return udf.Message(b"", event_time=record.event_time)

    (outcome,) = run(Dated, [record("a", 100)]).outcomes
    assert "only a source transform can set event times" in outcome.reason
