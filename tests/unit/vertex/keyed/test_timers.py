"""Timers in the state of a lane: in which order they are due, and what becomes of those that are moved, taken back,
refused or stored."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from millstream import codes
from millstream.clock import END_OF_TIME_US
from millstream.errors import UdfError
from millstream.udf.answers import MapAnswer
from millstream.udf.checks import check_changes, check_times
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateKind
from millstream_udf.columns import pack_offsets, pack_times
from millstream_udf.timer_entries import TimerTime, pack_timer
from millstream_vertex.keyed import timers as timers_module
from millstream_vertex.keyed.image import Stored, Versioned
from millstream_vertex.keyed.image import parts_of as image_parts
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import Entries, decode_step, encode_steps
from millstream_vertex.keyed.timers import Timer
from tests.support.errors import raises

TOTAL = DeclaredState("total", StateKind.VALUE, "json")
TIMERS = DeclaredState("timers", StateKind.TIMER, "")
EVENT, PROCESSING = StateClock.EVENT_TIME, StateClock.PROCESSING_TIME
LARGE = 1 << 30


def opened(
    steps: Sequence[bytes] = (),
    states: bytes = b"",
    declared: tuple[DeclaredState, ...] = (TOTAL, TIMERS),
    **limits: int,
) -> KeyedState:
    given = {"size_max": LARGE, "key_size_max": LARGE, "latest_max": 0, **limits}
    state = KeyedState(
        "p/v/in-v.0",
        size_max=given["size_max"],
        key_size_max=given["key_size_max"],
        latest_max=given["latest_max"],
    )
    state.stored_states(states)
    for data in steps:
        state.load(decode_step(data))
    state.loaded()
    state.declare(declared)
    return state


def setting(name: str, at: int | None, clock: StateClock = EVENT, event: int = 0) -> StateChanges:
    """The change that sets a timer of the key, or cancels it (None)."""
    value = b"" if at is None else pack_timer(TimerTime(clock, at, event))
    return StateChanges(array("I", [0]), b"\1", [name.encode()], [value], bytes([at is None]))


def put(
    state: KeyedState, key: str, name: str, at: int | None, clock: StateClock = EVENT, event: int = 0
) -> str | None:
    return state.apply([key.encode()], setting(name, at, clock, event))


def due(state: KeyedState, until: int, clock: StateClock = EVENT, most: int = LARGE) -> list[str]:
    """What fires until this time, taken in calls of at most `most`; a bar between two calls."""
    found: list[str] = []
    while taken := state.take_due(clock, until, most):
        assert len(found) < 1000, "they end"
        found.append(",".join(f"{one.key.decode()}.{one.name.decode()}@{one.at_us}" for one in taken))
    return found


def test_they_are_due_by_time_key_and_name_and_one_of_a_key_at_a_time() -> None:
    state = opened()
    for key, name, at in (("b", "x", 20), ("a", "y", 20), ("c", "x", 10), ("a", "x", 20), ("d", "x", 31)):
        put(state, key, name, at)
    assert state.next_timer_us(EVENT) == 10
    assert due(state, 9) == []
    assert due(state, 30) == ["c.x@10,a.x@20", "a.y@20,b.x@20"]
    assert state.next_timer_us(EVENT) == 31
    assert due(state, 31, most=1) == ["d.x@31"]
    assert state.next_timer_us(EVENT) is None
    assert state.size == 0


def test_one_that_is_moved_fires_at_its_new_time_only() -> None:
    state = opened()
    put(state, "a", "x", 10)
    put(state, "a", "x", 30)
    assert due(state, 29) == []
    put(state, "a", "x", 5)
    put(state, "a", "x", 10)
    assert due(state, 40) == ["a.x@10"]


def test_one_that_is_cancelled_does_not_fire_and_what_is_not_set_is_no_change() -> None:
    state = opened()
    put(state, "a", "x", 10)
    state.take_steps()
    put(state, "a", "x", 10)
    put(state, "a", "unknown", None)
    assert state.take_steps() == []
    put(state, "a", "x", None)
    assert due(state, 40) == []
    assert state.take_steps()


def test_a_name_has_one_timer_by_whatever_clock() -> None:
    state = opened()
    put(state, "a", "x", 10)
    put(state, "a", "x", 20, PROCESSING, 7)
    assert due(state, 40) == []
    assert state.next_timer_us(PROCESSING) == 20
    (timer,) = state.take_due(PROCESSING, 20, 1)
    assert (timer.event_us, timer.clock) == (7, PROCESSING)


@pytest.mark.guarantee("I7", "I12")
def test_what_was_taken_and_is_taken_back_fires_again() -> None:
    state = opened()
    put(state, "a", "x", 10)
    put(state, "b", "x", 50)
    state.take_steps()
    before = state.encoded_states
    state.begin()
    assert due(state, 20) == ["a.x@10"]
    put(state, "a", "x", 15)
    put(state, "b", "x", 5)
    state.undo()
    assert state.encoded_states == before
    assert state.take_steps() == []
    assert due(state, 60) == ["a.x@10,b.x@50"]


@pytest.mark.guarantee("I7", "I12")
def test_a_refused_change_leaves_the_timer_as_it_was() -> None:
    state = opened(key_size_max=100)
    put(state, "a", "x", 10)
    columns = array("I", [0, 0]), b"\1\0", [b"x", b""], [pack_timer(TimerTime(EVENT, 5)), bytes(200)]
    refused = state.apply([b"a"], StateChanges(*columns))
    assert refused is not None
    assert "state.maxBytesPerKey" in refused
    assert due(state, 40) == ["a.x@10"]


@pytest.mark.guarantee("I7")
def test_it_is_out_of_the_state_before_what_it_sets_is_in() -> None:
    state = opened()
    put(state, "a", "x", 10)
    assert due(state, 10, most=1) == ["a.x@10"]
    put(state, "a", "x", 10)
    assert due(state, 10) == ["a.x@10"]


@pytest.mark.guarantee("I1")
def test_each_has_a_name_of_its_own_that_does_not_depend_on_how_they_are_taken() -> None:
    def names(most: int) -> list[str]:
        state, found = opened(), []
        for number in range(20):
            put(state, f"k{number}", "x", number)
        while taken := state.take_due(EVENT, 100, most):
            found += [timer.id for timer in taken]
        for key in ("k1", "k1", "k2"):
            put(state, key, "x", 15)
            found += [timer.id for timer in state.take_due(EVENT, 100, most)]
        return found

    assert names(3) == names(100)
    assert len(set(names(3))) == 23
    assert Timer(1, b"a", b"bc", EVENT, 0).id != Timer(1, b"ab", b"c", EVENT, 0).id


def test_at_the_end_those_fire_that_were_set_before() -> None:
    state = opened()
    for number in range(3):
        put(state, f"k{number}", "x", number)
    put(state, "k0", "clock", 5, PROCESSING)
    state.watermark_us = END_OF_TIME_US
    taken = state.take_due(EVENT, END_OF_TIME_US, 2)
    put(state, "k0", "x", 1)
    put(state, "k0", "y", 99)
    assert [timer.key for timer in taken] == [b"k0", b"k1"]
    assert due(state, END_OF_TIME_US) == ["k2.x@2"]
    # The next owner, and then a run that has more input.
    again = opened([data for data, _ in state.take_steps()], state.encoded_states)
    again.watermark_us = END_OF_TIME_US
    assert due(again, END_OF_TIME_US) == []
    again = opened([data for data, _ in opened_again(again)], state.encoded_states)
    assert due(again, 200) == ["k0.x@1", "k0.y@99"]
    assert due(again, 5, PROCESSING) == ["k0.clock@5"]


def opened_again(state: KeyedState) -> list[tuple[bytes, int]]:
    """Steps with everything that is in a state."""
    put(state, "other", "x", 1000)
    state._unwritten = 1 << 30
    return [*state._compacted()]


@pytest.mark.slow
def test_the_next_owner_has_them_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "STALE_MAX", 10)
    rng, state, model = random.Random(3), opened(), dict[tuple[str, str], int]()
    steps = list[bytes]()
    for _ in range(3000):
        key, name = f"k{rng.randrange(40)}", rng.choice("xyz")
        at = None if rng.random() < 0.2 else rng.randrange(1000)
        put(state, key, name, at)
        model.pop((key, name), None)
        if at is not None:
            model[key, name] = at
        steps += [data for data, _ in state.take_steps()]
    assert sum(map(len, state._timers._heaps.values())) <= 2 * len(model) + 10
    again = opened(steps, state.encoded_states)
    wanted = [f"{key}.{name}@{at}" for at, key, name in sorted((at, *each) for each, at in model.items())]
    for one in (state, again):
        assert len(one._timers) == len(model)
        assert ",".join(due(one, 1000)).split(",") == wanted


def test_entries_of_a_call_have_no_timers_and_what_expires_with_one() -> None:
    state = opened()
    put(state, "a", "x", 100)
    state.apply([b"a"], StateChanges(array("I", [0]), b"\0", [], [b"1"], b"", [100]))
    state.watermark_us = 100
    assert list(state.entries([b"a"], [0], 0).values) == []
    (timer,) = state.take_due(EVENT, 100, 1)
    assert list(state.entries([b"a"], [0], 0, [timer]).values) == [b"1"]
    assert list(state.entries([b"a"], [0], 0, [timer._replace(at_us=101)]).values) == []


def test_a_function_without_timers_is_refused_while_some_are_set() -> None:
    state = opened()
    put(state, "a", "x", 100)
    steps = [data for data, _ in state.take_steps()]
    with pytest.raises(UdfError, match="the function has no `on_timer`, and 1 timers are set") as refused:
        opened(steps, state.encoded_states, (TOTAL,))
    assert refused.value.code is codes.STATE_MISFIT
    put(state, "a", "x", None)
    steps += [data for data, _ in state.take_steps()]
    assert opened(steps, state.encoded_states, (TOTAL,)).size == 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (b"x", bytes(16), "17 bytes"),
        (b"x", pack_timer(TimerTime(3, 0)), "17 bytes"),
        (b"x", pack_timer(TimerTime(1, 2**62)), "years 1 to 9999"),
        (b"x", pack_timer(TimerTime(2, 0, 2**62, holds=True)), "years 1 to 9999"),
        (b"x", pack_timer(TimerTime(1, 5, 6, holds=True)), "later than its time"),
        (b"", pack_timer(TimerTime(1, 0)), "0 bytes"),
        (b"\xff", pack_timer(TimerTime(1, 0)), "utf-8"),
    ],
)
def test_a_change_that_is_no_timer_breaks_the_protocol(name: bytes, value: bytes, says: str) -> None:
    changes = StateChanges(array("I", [0]), b"\1", [name], [value])
    with pytest.raises(ValueError, match=says):
        check_changes(MapAnswer(changes=changes), 1, (TOTAL, TIMERS))


def test_timers_of_both_clocks_have_names_of_their_own() -> None:
    ids = {Timer(5, b"a", b"x", clock, 0).id for clock in StateClock}
    assert len(ids) == len(StateClock)


def test_moves_leave_few_stale_times_and_all_that_are_set_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "STALE_MAX", 10)
    state = opened()
    for at_us in range(1, 200):
        put(state, "a", "x", at_us)
    put(state, "b", "x", 5)
    assert sum(map(len, state._timers._heaps.values())) < 30
    assert due(state, 1000) == ["b.x@5,a.x@199"]


def hold(state: KeyedState, key: str, at: int, output: int, clock: StateClock = EVENT) -> None:
    value = pack_timer(TimerTime(clock, at, output, holds=True))
    assert state.apply([key.encode()], StateChanges(array("I", [0]), b"\1", [b"x"], [value])) is None


def test_output_times_are_held_until_their_timers_have_fired_are_moved_or_cancelled() -> None:
    state = opened()
    put(state, "d", "x", 90)
    assert state.timers_hold_us == 90
    hold(state, "a", 100, 20)
    hold(state, "b", 50, 30)
    hold(state, "c", 1000, 10, PROCESSING)
    assert state.timers_hold_us == 10
    (fired,) = state.take_due(PROCESSING, 1000, 9)
    assert (fired.output_us, state.timers_hold_us) == (10, 20)
    hold(state, "a", 100, 40)
    assert state.timers_hold_us == 30
    assert [(one.key, one.output_us) for one in state.take_due(EVENT, 60, 9)] == [(b"b", 30)]
    assert state.timers_hold_us == 40
    steps = [data for data, _ in state.take_steps()]
    state.begin()
    put(state, "a", "x", None)
    assert state.timers_hold_us == 90
    state.undo()
    assert state.timers_hold_us == 40
    again = opened(steps, state.encoded_states)
    assert again.timers_hold_us == 40
    # As an earlier version has stored it.
    put(again, "a", "x", 100)
    assert again.timers_hold_us == 90


@pytest.mark.guarantee("I8")
def test_output_times_that_were_moved_leave_few_stale_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "STALE_MAX", 10)
    state = opened()
    for output in range(500):
        hold(state, f"k{output % 5}", 1000, output)
    assert len(state._timers._held) <= 2 * 5 + 10
    assert state.timers_hold_us == 495


def test_an_output_before_its_timer_breaks_the_protocol() -> None:
    answer = MapAnswer(records=2, parents=pack_offsets([0, 1]), event_times_us=pack_times([20, 29]))
    check_times(answer, [20, 29])
    with pytest.raises(ValueError, match="an output of timer 1 is earlier"):
        check_times(answer, [20, 30])
    with pytest.raises(ValueError, match="only a source transform can"):
        check_times(answer, None)


@pytest.mark.parametrize("value", [b"short", Versioned(pack_timer(TimerTime(EVENT, 5)), 7, 1)])
def test_a_stored_timer_that_is_none_is_damage(value: Stored) -> None:
    entries = Entries()
    entries.add(b"a", 1, b"x", *image_parts(value))
    (step,) = encode_steps(entries)
    before = opened()
    with raises(codes.STATE_UNREADABLE, "a timer is not one"):
        opened([step], before.encoded_states)
