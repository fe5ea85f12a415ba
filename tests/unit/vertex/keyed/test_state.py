"""The state of a lane: it equals the fold of what was applied, from memory and from its changelog."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import END_OF_TIME_US
from millstream.errors import DamageError, UdfError
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateKind
from millstream.wire.state.v1 import state_pb2
from millstream_udf.columns import pack_lists
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed import steps as steps_module
from millstream_vertex.keyed.image import SLOTS, StateImage
from millstream_vertex.keyed.keys import distinct_keys, key_of, parts_of
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import Entries, decode_step, encode_steps
from tests.support.columns import IMPLEMENTATIONS, implemented_in
from tests.support.errors import raises

TOTAL = DeclaredState("total", StateKind.VALUE, "json")
SEEN = DeclaredState("seen", StateKind.MAP, "json", "json")
STATES = (TOTAL, SEEN)

Model = dict[tuple[bytes, str, bytes], bytes]


def opened(
    steps: list[bytes] | None = None, states: bytes = b"", declared: tuple[DeclaredState, ...] = STATES, **limits: int
) -> KeyedState:
    given = {"size_max": 1 << 30, "key_size_max": 1 << 20, "latest_max": 0, **limits}
    state = KeyedState(
        "p/v/in-v.0",
        size_max=given["size_max"],
        key_size_max=given["key_size_max"],
        latest_max=given["latest_max"],
    )
    state.stored_states(states)
    for data in steps or ():
        state.load(decode_step(data))
    state.loaded()
    state.declare(declared)
    return state


def put(
    state: KeyedState, key: bytes, value: bytes, name: int = 0, item: bytes = b"", expires_us: int = 0
) -> str | None:
    changes = StateChanges(array("I", [0]), bytes([name]), [item], [value], b"", [expires_us])
    return state.apply([key], changes)


def contents(state: KeyedState, keys: set[bytes], now_us: int = 0) -> Model:
    ordered = sorted(keys)
    entries = state.entries(ordered, range(len(ordered)), now_us)
    rows = zip(entries.keys, entries.states, entries.items, entries.values, strict=True)
    return {(ordered[key], STATES[number].name, item): value for key, number, item, value in rows}


@pytest.mark.slow
@pytest.mark.guarantee("I7")
@pytest.mark.parametrize("seed", range(8))
def test_the_changelog_makes_the_state_again(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 2000)
    rng = random.Random(seed)
    state, model, log = opened(), Model(), list[tuple[bytes, int]]()
    keys = [b"key-%d" % number for number in range(200)]
    for _ in range(400):
        state.begin()
        before = dict(model)
        if rng.random() < 0.1:
            state.compact()
            state.undo()
        for _ in range(rng.randrange(1, 4)):
            if rng.random() < 0.5:
                state.compact()
            chosen = rng.sample(keys, rng.randrange(1, 20))
            columns = StateChanges(
                array("I", range(len(chosen))),
                bytes(rng.randrange(2) for _ in chosen),
                [],
                [rng.randbytes(rng.randrange(40)) for _ in chosen],
                bytes(rng.random() < 0.2 for _ in chosen),
            )
            items = [b"i%d" % rng.randrange(5) if number else b"" for number in columns.states]
            changes = StateChanges(columns.keys, columns.states, items, columns.values, columns.deleted)
            assert state.apply(chosen, changes) is None
            for key, number, item, value, gone in zip(
                chosen, changes.states, items, changes.values, changes.deleted, strict=True
            ):
                name = (key, STATES[number].name, item)
                if gone:
                    model.pop(name, None)
                else:
                    model[name] = value
        steps = state.take_steps()
        if rng.random() < 0.2:
            state.undo()
            model = before
        else:
            log.extend(steps)
    assert contents(state, set(keys)) == model
    covered, first = 0, len(log)
    while first and covered < SLOTS:
        first -= 1
        covered += log[first][1]
    assert covered >= SLOTS, "every slot was written anew"
    assert first > 0, "what lies before is not needed"
    again = opened([data for data, _ in log[first:]], state.encoded_states)
    assert contents(again, set(keys)) == model
    assert again.size == state.size


@pytest.mark.slow
def test_as_many_bytes_of_slots_are_written_as_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 500)
    monkeypatch.setattr(StateImage, "cycle_results_max", 1 << 30)
    state, rng = opened(), random.Random(1)
    keys = [b"key-%d" % number for number in range(30_000)]
    for key in keys:
        put(state, key, bytes(100))
    for _ in range(2):
        # With the result after that of the changes.
        state.take_steps()
    changes = slots = 0
    for _ in range(3000):
        put(state, rng.choice(keys), bytes(100))
        *others, last = [data for data, _ in state.take_steps()]
        changes, slots = changes + len(last), slots + sum(map(len, others))
    assert 0.7 < slots / changes < 1.5


@pytest.mark.slow
@pytest.mark.guarantee("I7")
def test_slots_are_written_anew_even_if_no_owner_lives_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 2000)
    log, states = list[tuple[bytes, int]](), b""
    for number in range(60):
        state = opened([data for data, _ in log], states)
        put(state, b"key-%d" % number, bytes(200))
        log += state.take_steps()
        states = state.encoded_states
    assert sum(slots for _, slots in log) > 100


def test_the_rest_of_large_slots_is_not_taken_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "STEP_BYTES_MAX", 300)
    state = opened()
    for number in range(2000):
        put(state, b"key-%d" % number, bytes(100))
    log = state.take_steps() + state.take_steps()
    assert any(decode_step(data).continues for data, _ in log)
    again = opened([data for data, _ in log], state.encoded_states)
    put(again, b"a", b"1")
    assert len(again.take_steps()) == 1, "nothing is left to be written anew"


@pytest.mark.slow
def test_a_key_that_is_refreshed_again_and_again_expires_once() -> None:
    image = StateImage()
    state = KeyedState("p/v/in-v.0", size_max=1 << 30, key_size_max=1 << 20, image=image)
    state.declare(STATES)
    for number in range(5000):
        put(state, b"a", b"1", expires_us=100 + number)
    assert len(image.agenda(0)) < 3000
    assert not state.sweep(StateClock.EVENT_TIME, 5098)
    assert state.sweep(StateClock.EVENT_TIME, 5099)
    assert state.size == 0


@pytest.mark.guarantee("I7")
def test_what_is_written_anew_keeps_its_expiry_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 1)
    declared = (DeclaredState("total", StateKind.VALUE, "json", version=3), SEEN)
    state, written = opened(declared=declared), list[bytes]()
    for number in range(200):
        put(state, b"key-%d" % number, b"x" * 50, expires_us=1000 + number)
    # What was written first is not needed once all slots have been written anew.
    state.take_steps()
    slots = 0
    while slots < SLOTS:
        put(state, b"other", b"y" * 5000)
        for data, begun in state.take_steps():
            written, slots = [*written, data], slots + begun
    again = opened(written, state.encoded_states, declared)
    assert [(key, stored) for key, _, _, stored in again.all()] == [(key, stored) for key, _, _, stored in state.all()]
    assert {stored.version for _, _, _, stored in again.all()} == {3}
    assert again.sweep(StateClock.EVENT_TIME, 1100)
    assert sum(stored.expires_us > 0 for _, _, _, stored in again.all()) == 99


@pytest.mark.guarantee("I7", "I12")
def test_what_is_taken_back_was_never_there() -> None:
    state = opened()
    put(state, b"a", b"1")
    state.take_steps()
    state.begin()
    put(state, b"a", b"2")
    put(state, b"b", b"3")
    put(state, b"b", b"x", name=1, item=b"i")
    assert state.take_steps()
    state.undo()
    assert contents(state, {b"a", b"b"}) == {(b"a", "total", b""): b"1"}
    assert state.take_steps() == []


@pytest.mark.guarantee("I7", "I12")
def test_a_refused_change_leaves_the_others_of_the_result() -> None:
    state = opened(key_size_max=100)
    state.begin()
    assert put(state, b"a", b"1") is None
    refused = put(state, b"b", bytes(200))
    assert refused is not None
    assert "state.maxBytesPerKey" in refused
    assert contents(state, {b"a", b"b"}) == {(b"a", "total", b""): b"1"}
    (step,) = state.take_steps()
    assert decode_step(step[0]).entries.keys == [b"a"]


def test_a_full_state_still_lets_deletions_through() -> None:
    state = opened(size_max=200)
    assert put(state, b"a", bytes(100)) is None
    refused = put(state, b"b", bytes(100))
    assert refused is not None
    assert "state.maxBytes" in refused
    assert state.apply([b"a"], StateChanges(array("I", [0]), b"\0", [], [b""], b"\1")) is None
    assert put(state, b"b", bytes(100)) is None


def test_expired_entries_are_invisible_at_once_and_removed_later() -> None:
    by_clock = DeclaredState("total", StateKind.VALUE, "json", clock=StateClock.PROCESSING_TIME)
    state = opened(declared=(by_clock, SEEN))
    put(state, b"a", b"1", expires_us=100)
    put(state, b"a", b"x", name=1, item=b"i", expires_us=50)
    state.take_steps()
    assert len(contents(state, {b"a"}, now_us=99)) == 2
    assert contents(state, {b"a"}, now_us=100) == {(b"a", "seen", b"i"): b"x"}
    state.watermark_us = 50
    assert contents(state, {b"a"}, now_us=100) == {}
    assert state.next_expiry_us == 100
    assert state.sweep(StateClock.PROCESSING_TIME, 100)
    assert state.sweep(StateClock.EVENT_TIME, 50)
    assert not state.sweep(StateClock.PROCESSING_TIME, 100)
    (step,) = state.take_steps()
    assert list(decode_step(step[0]).entries.deleted) == [1, 1]
    assert state.size == 0
    assert state.next_expiry_us is None


def test_an_entry_that_was_written_again_survives_its_first_expiry() -> None:
    state = opened()
    put(state, b"a", b"1", expires_us=100)
    put(state, b"a", b"2", expires_us=200)
    assert not state.sweep(StateClock.EVENT_TIME, 150)
    # Also if it is written in the commit that removes it.
    assert state.sweep(StateClock.EVENT_TIME, 200)
    put(state, b"a", b"3", expires_us=300)
    again = opened([data for data, _ in state.take_steps()], state.encoded_states)
    assert contents(again, {b"a"}) == {(b"a", "total", b""): b"3"}
    assert again.sweep(StateClock.EVENT_TIME, 300)


def test_what_a_sweep_removed_and_was_taken_back_is_removed_again() -> None:
    state = opened()
    put(state, b"a", b"1", expires_us=100)
    state.take_steps()
    state.begin()
    assert state.sweep(StateClock.EVENT_TIME, 100)
    state.undo()
    assert contents(state, {b"a"})
    assert state.sweep(StateClock.EVENT_TIME, 100)
    assert state.size == 0


def test_a_late_record_does_not_make_an_entry_older() -> None:
    state = opened()
    put(state, b"a", b"1", expires_us=200)
    put(state, b"a", b"2", expires_us=150)
    assert not state.sweep(StateClock.EVENT_TIME, 199)
    assert state.sweep(StateClock.EVENT_TIME, 200)


def test_what_expires_before_1970_does() -> None:
    state = opened()
    state.watermark_us = -1000
    put(state, b"a", b"1", expires_us=-200)
    put(state, b"a", b"2", expires_us=-300)
    assert not state.sweep(StateClock.EVENT_TIME, -201)
    assert state.sweep(StateClock.EVENT_TIME, -200)
    # An entry that never expired before does so from the record on that writes it.
    put(state, b"b", b"1")
    put(state, b"b", b"2", expires_us=-100)
    assert state.sweep(StateClock.EVENT_TIME, -100)
    assert state.size == 0


@pytest.mark.parametrize("kind", [0, 99])
def test_a_state_of_an_unknown_kind_is_damage(kind: int) -> None:
    stored = state_pb2.KeyedState(slots=SLOTS, states=[state_pb2.StoredState(name="total", kind=kind)])
    with raises(codes.STATE_UNREADABLE, f"its state 'total' is of kind {kind}"):
        opened(states=stored.SerializeToString())


def test_nothing_expires_at_the_end_of_the_input() -> None:
    state = opened()
    put(state, b"a", b"1", expires_us=100)
    state.watermark_us = END_OF_TIME_US
    assert not state.sweep(StateClock.EVENT_TIME, END_OF_TIME_US)
    assert contents(state, {b"a"})


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ((TOTAL,), "does not declare `seen`"),
        ((DeclaredState("total", StateKind.COUNTER, ""), SEEN), "and the function declares a counter. Give"),
        ((DeclaredState("total", StateKind.VALUE, "bytes"), SEEN), "declares a value of bytes"),
        ((DeclaredState("total", StateKind.VALUE, "json", version=3, oldest_version=3), SEEN), "migrate={2: ...}"),
        ((DeclaredState("total", StateKind.VALUE, "json"), SEEN), "Run the newer function"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_by_name(declared: tuple[DeclaredState, ...], expected: str) -> None:
    second = DeclaredState("total", StateKind.VALUE, "json", version=2)
    state = opened(declared=(second, SEEN))
    put(state, b"a", b"1")
    with pytest.raises(UdfError) as refused:
        opened([data for data, _ in state.take_steps()], state.encoded_states, declared)
    assert refused.value.code is codes.STATE_MISFIT
    assert expected in str(refused.value)


def test_states_may_change_their_order_and_new_ones_be_added() -> None:
    state = opened()
    put(state, b"a", b"1")
    put(state, b"a", b"x", name=1, item=b"i")
    steps = [data for data, _ in state.take_steps()]
    more = DeclaredState("more", StateKind.LIST, "bytes")
    again = opened(steps, state.encoded_states, (more, SEEN, TOTAL))
    entries = again.entries([b"a"], [0], 0)
    assert list(zip(entries.states, entries.values, strict=True)) == [(2, b"1"), (1, b"x")]


def test_damage_is_named() -> None:
    with pytest.raises(DamageError, match="does not decode"):
        opened(states=b"\xff\xff")
    entries = Entries()
    entries.add(b"a", 7, b"", b"1", 0, 1)
    with pytest.raises(DamageError, match="state 7"):
        opened(list(encode_steps(entries)))
    with pytest.raises(ValueError, match="not a step"):
        decode_step(b"\xff")


@pytest.mark.parametrize(
    "parts", [(), (b"",), (b"", b""), (b"a",), (b"a", b"b"), (b"a\x1fb",), (b"\x1e",), (b"\x1e0",), (b"\x1f", b"\x1e1")]
)
def test_a_key_has_bytes_of_its_own(parts: tuple[bytes, ...]) -> None:
    assert parts_of(key_of(parts)) == parts


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(st.lists(st.lists(st.binary(max_size=3).map(lambda part: part.replace(b"a", b"\x1e")), max_size=3), max_size=20))
def test_each_key_is_named_once(implementation: str, keys: list[list[bytes]]) -> None:
    rows = [tuple(parts) for parts in keys]
    with implemented_in(implementation):
        found, numbers = distinct_keys(pack_lists(rows), len(rows))
    assert [found[number] for number in numbers] == [key_of(parts) for parts in rows]
    assert found == list(dict.fromkeys(map(key_of, rows))), "each is there once, in the order of the records"


def test_large_results_are_several_steps() -> None:
    entries = Entries()
    for number in range(20):
        entries.add(b"k%d" % number, 0, b"", bytes(100_000), 0, 1)
    steps = [decode_step(data) for data in encode_steps(entries, first_slot=3, slots=5)]
    assert len(steps) > 3
    assert [step.slots for step in steps] == [5] + [0] * (len(steps) - 1)
    assert sum(len(step.entries) for step in steps) == 20


@pytest.mark.guarantee("I12")
def test_a_few_changes_are_in_the_mark_until_they_are_a_frame() -> None:
    state = opened(latest_max=200)
    assert put(state, b"a", b"1") is None
    assert state.take_steps() == []
    assert contents(opened(states=state.encoded_states), {b"a"}) == {(b"a", "total", b""): b"1"}
    kept = state.encoded_states
    state.begin()
    for value in (b"2", b"3" * 300):
        # The first one is a change more in the mark; with the second one they are a frame.
        assert put(state, b"a", value) is None
        assert bool(state.take_steps()) is (len(value) > 1)
        state.undo()
        assert state.encoded_states == kept
        state.begin()
    assert put(state, b"a", b"4") is None
    assert put(state, b"b", b"5" * 300) is None
    frame = [data for data, _ in state.take_steps()]
    assert not len(state.latest()), "the mark has nothing of it any more"
    again = opened(frame, state.encoded_states)
    assert contents(again, {b"a", b"b"}) == {(b"a", "total", b""): b"4", (b"b", "total", b""): b"5" * 300}
    (step,) = map(decode_step, frame)
    assert step.entries.values[:2] == [b"1", b"4"], "what the mark had comes first"


def test_what_the_next_owner_finds_in_the_mark_stays_there() -> None:
    state = opened(latest_max=1000)
    for number in range(3):
        assert put(state, b"a", b"%d" % number) is None
        assert state.take_steps() == []
        state = opened(states=state.encoded_states, latest_max=1000)
    assert [bytes(value) for value in state.latest().values] == [b"0", b"1", b"2"]
    assert put(state, b"a", b"3" * 2000) is None
    (frame,) = [data for data, _ in state.take_steps()]
    assert decode_step(frame).entries.values[:3] == [b"0", b"1", b"2"]


def test_damaged_changes_in_a_mark_are_named() -> None:
    state = opened(latest_max=1000)
    assert put(state, b"a", b"1") is None
    assert state.take_steps() == []
    good = state.encoded_states
    damaged = good.replace(state._states.latest, b"\xff" * len(state._states.latest))
    assert damaged != good
    with pytest.raises(DamageError, match="latest changes"):
        opened(states=damaged)
