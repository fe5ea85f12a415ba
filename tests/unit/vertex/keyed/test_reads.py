"""What a function reads during a call: the entries of its keys, as they were when the call began."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.clock import END_OF_TIME_US
from millstream.udf.native.state_reads import read_of
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateFound, StateKind, StateRead, StateReader
from millstream_udf.state_found import Found
from millstream_udf.state_reads import unpack_found
from millstream_udf.state_specs import StateError
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.keyed import image as image_module
from millstream_vertex.keyed import reads as reads_module
from millstream_vertex.keyed.disk.image import open_disk_image
from millstream_vertex.keyed.disk.store import StoreIdentity
from millstream_vertex.keyed.image import Image, StateImage, size_of
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import decode_step
from millstream_vertex.keyed.timers import Timer

TOTAL = DeclaredState("total", StateKind.VALUE, "bytes")
ORDERS = DeclaredState("orders", StateKind.MAP, "bytes", "bytes", is_lazy=True)
SEEN = DeclaredState("seen", StateKind.MAP, "bytes", "bytes", clock=StateClock.PROCESSING_TIME, is_lazy=True)
LAST = DeclaredState("last", StateKind.MAP, "bytes", "bytes", version=2)
STATES = (TOTAL, ORDERS, SEEN, LAST)
KEYS = [b"ada", b"bob"]
ITEMS = [b"%03d" % number for number in range(20)]


@pytest.fixture(params=["memory", "disk"])
async def image(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Image]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield StateImage()
        else:
            yield await stack.enter_async_context(open_disk_image(tmp_path, StoreIdentity("ledger", "l"), "p/v/l"))


@pytest.fixture
def state(image: Image) -> KeyedState:
    found = KeyedState("p/v/l", size_max=1 << 30, key_size_max=1 << 20, image=image)
    found.start_over()
    found.loaded()
    found.declare(STATES)
    return found


def put(state: KeyedState, key: bytes, number: int, values: dict[bytes, bytes | None], expires_us: int = 0) -> None:
    count = len(values)
    changes = StateChanges(
        array("I", [0] * count),
        bytes([number]) * count,
        list(values),
        [value or b"" for value in values.values()],
        bytes(value is None for value in values.values()),
        [expires_us if value is not None else 0 for value in values.values()],
    )
    assert state.apply([key], changes) is None


def reader_of(state: KeyedState, now_us: int = 0, timers: tuple[Timer, ...] = ()) -> StateReader:
    reader = state.reader(KEYS, now_us, timers)
    assert reader is not None
    return reader


def test_items_and_ranges(state: KeyedState) -> None:
    put(state, b"ada", 1, {item: b"v" + item for item in reversed(ITEMS)})
    put(state, b"ada", 2, {b"005": b"another state"})
    put(state, b"bob", 1, {b"005": b"another key"})
    put(state, b"ada", 0, {b"": b"7"})
    put(state, b"ada", 3, {b"x": b"y"})
    entries = state.entries(KEYS, [0, 1], 0)
    assert (list(entries.states), entries.values, entries.versions) == ([0, 3], [b"7", b"y"], [1, 2])
    read = reader_of(state)
    assert read(StateRead(0, 1, [b"005", b"no", b"001"])) == StateFound(
        [b"005", b"001"], [b"v005", b"v001"], [1, 1], covered=3
    )
    assert read(StateRead(1, 1, [b"005", b"001"])) == StateFound([b"005"], [b"another key"], [1], covered=2)
    assert read(StateRead(0, 1, [b"005"], items_only=True)) == StateFound([b"005"], [], [], covered=1)
    assert read(StateRead(0, 1)).items == ITEMS
    assert read(StateRead(0, 1, first=b"007", end=b"010")).items == [b"007", b"008", b"009"]
    assert read(StateRead(0, 1, first=b"0075", end=b"0075")).items == []
    assert read(StateRead(1, 2)) == StateFound([], [], [])
    page = read(StateRead(0, 1, first=b"003", entries_max=2, items_only=True))
    assert page == StateFound([b"003", b"004"], [], [], has_more=True)
    assert not read(StateRead(0, 1, first=b"018", entries_max=2)).has_more
    # After a later page, an earlier one.
    assert read(StateRead(0, 1, first=b"002", entries_max=1)).items == [b"002"]


def test_answers_have_bounds(state: KeyedState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "STATE_FOUND_BYTES_MAX", 20)
    put(state, b"ada", 1, {b"a": b"x" * 100, b"b": b"y" * 8, b"c": b"z" * 8, b"d": b"w" * 9})
    read = reader_of(state)
    assert read(StateRead(0, 1, [b"no", b"a", b"b"])) == StateFound([b"a"], [b"x" * 100], [1], covered=2)
    assert read(StateRead(0, 1, [b"b", b"c", b"d"])).covered == 2
    assert read(StateRead(0, 1)) == StateFound([b"a"], [b"x" * 100], [1], has_more=True)
    assert read(StateRead(0, 1, first=b"a\0")).items == [b"b", b"c"]
    assert read(StateRead(0, 1, items_only=True)).items == [b"a", b"b", b"c", b"d"]


def test_what_is_over_is_not_there(state: KeyedState) -> None:
    put(state, b"ada", 1, {b"a": b"1"}, expires_us=50)
    put(state, b"ada", 1, {b"b": b"2"}, expires_us=51)
    put(state, b"ada", 2, {b"a": b"3"}, expires_us=100)
    state.watermark_us = 50
    assert reader_of(state)(StateRead(0, 1)).items == [b"b"]
    assert reader_of(state)(StateRead(0, 1, [b"a", b"b"])) == StateFound([b"b"], [b"2"], [1], covered=2)
    assert reader_of(state, 99)(StateRead(0, 2)).items == [b"a"]
    assert reader_of(state, 100)(StateRead(0, 2)).items == []
    state.watermark_us = END_OF_TIME_US
    assert reader_of(state)(StateRead(0, 1)).items == [b"a", b"b"]
    # A timer sees what expires with it, and with its clock only.
    timer = Timer(51, b"ada", b"t", StateClock.EVENT_TIME, 0)
    assert reader_of(state, 100, (timer, timer))(StateRead(0, 1)).items == [b"b"]
    assert reader_of(state, 100, (timer, timer))(StateRead(0, 2)).items == []


def test_what_cannot_be_read(state: KeyedState) -> None:
    read = reader_of(state)
    for key, number in ((2, 1), (0, 0), (0, 3), (0, 4)):
        with pytest.raises(ValueError, match=f"key {key} of the call has no lazy state {number}"):
            read(StateRead(key, number))
    message = udf_pb2.StateRead(call_id=1, read_id=5, items=[b""] * 4097)
    found = read_of(udf_pb2.SealedMapResponse(read=message).SerializeToString())
    assert found is not None
    number, answer = unpack_found(found.reply(read))
    assert number == 5
    assert isinstance(answer, StateError)
    assert "4,097 items were asked for; at most 4,096" in str(answer)
    _, answer = unpack_found(found.reply("it is over"))
    assert "it is over" in str(answer)
    with pytest.raises(ValueError, match="more fields"):
        read_of(udf_pb2.SealedMapResponse(read=udf_pb2.StateRead(items=[b""] * 10_000)).SerializeToString())
    assert read_of(udf_pb2.SealedMapResponse(answer=udf_pb2.SealedMapAnswer(call_id=1)).SerializeToString()) is None


def test_an_answer_is_the_same_on_the_other_side() -> None:
    message = udf_pb2.StateRead(call_id=1, read_id=5, items=[b"a", b"b"])
    read = read_of(udf_pb2.SealedMapResponse(read=message).SerializeToString())
    assert read is not None
    assert read.read == StateRead(0, 0, (b"a", b"b"))
    for found in (
        StateFound([], [], [], covered=2),
        StateFound([b"a", b""], [b"", b"2"], [1, 3], covered=1),
        StateFound([b"a"], [], [], has_more=True),
    ):
        number, answer = unpack_found(read.reply(lambda _, found=found: found))  # type: ignore[misc]
        assert number == 5
        assert isinstance(answer, Found)
        expected = list(found.versions) if any(version != 1 for version in found.versions) else []
        assert (list(answer.items), list(answer.values), list(answer.versions)) == (
            found.items,
            found.values,
            expected,
        )
        assert (answer.covered, answer.has_more) == (found.covered, found.has_more)


def test_lazy_is_not_stored(state: KeyedState) -> None:
    """What one function has read item by item comes along for another, and back."""
    put(state, b"ada", 1, dict.fromkeys(ITEMS, b"v"))
    steps = [decode_step(data) for data, _ in state.take_steps()]
    eager = KeyedState("p/v/l", size_max=1 << 30, key_size_max=1 << 20)
    eager.stored_states(state.encoded_states)
    for step in steps:
        eager.load(step)
    eager.loaded()
    eager.declare([replace(one, is_lazy=False) for one in STATES])
    assert eager.encoded_states == state.encoded_states
    assert eager.reader(KEYS, 0) is None
    assert eager.entries(KEYS, [0, 1], 0).items == ITEMS


def test_the_bytes_of_a_large_key_are_counted_as_they_change(
    state: KeyedState, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_module, "LARGE_KEY_BYTES", 400)

    def counted(key: bytes) -> int:
        return sum(size_of(key, item, stored) for _, item, stored in image.of_key(key))

    for round_ in range(6):
        state.begin()
        put(state, b"ada", 1, dict.fromkeys(ITEMS, b"v" * (round_ * 7 % 5)))
        assert image.size_of_key(b"ada") == counted(b"ada")
        state.undo() if round_ % 2 else state.take_steps()
        assert image.size_of_key(b"ada") == counted(b"ada")
    put(state, b"ada", 1, dict.fromkeys(ITEMS[2:]))
    assert b"ada" not in image.large_keys
    assert image.size_of_key(b"ada") == counted(b"ada")
