"""Edits of a state while its lane runs: made once, in order, by whoever owns the lane, or refused by name."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

import millstream_udf as udf
from millstream.compression import Compression
from millstream.errors import FencedError
from millstream.frame import build_frame, frame_of_records
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredMark
from millstream.record import BufferId, LaneId, Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.udf.states import DeclaredState, StateKind
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2
from millstream_udf.timer_entries import CLOCKS, TimerTime, pack_timer
from millstream_vertex.keyed import edits as edits_module
from millstream_vertex.keyed import inbox as inbox_module
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed.changelog import Changelog, read_changelog
from millstream_vertex.keyed.edits import Edit, EditResult, decode_edit, decode_result, make_edit
from millstream_vertex.keyed.image import Stored, stored_of
from millstream_vertex.keyed.inbox import (
    HandedOver,
    Inbox,
    found_edit,
    hand_over,
    inbox_buffer,
    result_of,
    results_buffer,
    until_made,
)
from millstream_vertex.keyed.owned import StateBounds, open_owned_state
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import EntryChange, KeyedState
from millstream_vertex.lane import Lane
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Committer, Unit
from millstream_writer.routing import Route, Router
from tests.support.ledgers import SettableClock
from tests.unit.vertex.keyed.keyed_stream import KeyedStream, open_keyed_stream
from tests.unit.vertex.lane_rig import LANE, Rig, open_rig

OUT = BufferId("map-out", 0)
STOP = RetryPolicy(Backoff(0.0, steps=1), OnFailure.STOP)
DECLARED = (
    DeclaredState("total", StateKind.VALUE, "json", version=3, oldest_version=2),
    DeclaredState("seen", StateKind.MAP, "json", "json"),
)
TOTAL = state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1)
SEEN = state_pb2.StoredState(name="seen", kind=StateKind.MAP, codec="json", item_codec="json", clock=1)


def entry(key: bytes, stored: Stored | None, state: int = 0, item: bytes = b"") -> EntryChange:
    return EntryChange(key, state, item, stored)


# An edit alone


def state_with(entries: Sequence[EntryChange] = (), *, size_max: int = 1000) -> KeyedState:
    state = KeyedState("lane", size_max=size_max, key_size_max=500, latest_max=0)
    state.declare(DECLARED)
    for one in entries:
        state.write(one)
    state.take_steps()
    return state


def entries_of(state: KeyedState) -> dict[tuple[bytes, int, bytes], Stored]:
    return {(key, number, item): stored_of(*stored) for key, number, item, stored in state.all()}


def test_an_edit_says_what_it_has_changed_and_what_that_was() -> None:
    state = state_with([entry(b"a", b"1"), entry(b"b", b"2"), entry(b"a", b"3", 1, b"x")])
    wanted = [entry(b"a", b"9"), entry(b"b", b"2"), entry(b"c", b"4"), entry(b"a", None, 1, b"x"), entry(b"d", None)]
    # The states of an edit are numbered as it likes.
    edit = Edit("one", (SEEN, TOTAL), [one._replace(state=1 - one.state) for one in wanted])
    result = make_edit(state, decode_edit(edit.encode()), 7, DECLARED)
    assert result[1:5] == ("", 3, 2, 7)
    assert result.before == [entry(b"a", b"1", 1), entry(b"c", None, 1), entry(b"a", b"3", 0, b"x")]
    assert entries_of(state) == {(b"a", 0, b""): b"9", (b"b", 0, b""): b"2", (b"c", 0, b""): b"4"}
    assert decode_result(result.encode()) == result
    steps = state.take_steps()
    assert steps
    assert make_edit(state, edit, 8, DECLARED) == EditResult("one", unchanged=5, epoch=8)
    assert not state.take_steps()


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit("e", (state_pb2.StoredState(name="sum", kind=1),), [entry(b"a", b"1")]), "does not declare `sum`"),
        (
            Edit("e", (state_pb2.StoredState(name="total", kind=StateKind.COUNTER),), [entry(b"a", b"1")]),
            "`total` is another kind of state",
        ),
        (
            Edit(
                "e",
                (state_pb2.StoredState(name="total", kind=1, codec="json", version=4, oldest_version=4),),
                [entry(b"a", stored_of(b"1", 0, 4))],
            ),
            "of version 4 to 4, and the function that runs reads 2 to 3",
        ),
        (Edit("e", (TOTAL,), [entry(b"a", b"9")], [entry(b"a", b"8")]), "`total` has another value now"),
        (Edit("e", (TOTAL,), [entry(b"a", b"9")], [entry(b"a", None)]), "there is an entry of `total`"),
        (Edit("e", (TOTAL,), [entry(b"a", b"9")], [entry(b"c", b"8")]), "there is no entry of `total`"),
        (Edit("e", (TOTAL,), [entry(b"a", b"9"), entry(b"b", b"8" * 600)]), r"maxBytesPerKey"),
        (Edit("e", (TOTAL,), [entry(b"%d" % number, b"8" * 100) for number in range(9)]), r"state\.maxBytes`"),
    ],
)
def test_an_edit_that_is_refused_changes_nothing(edit: Edit, why: str) -> None:
    state = state_with([entry(b"a", b"1")])
    before = entries_of(state)
    result = make_edit(state, decode_edit(edit.encode()), 7, DECLARED)
    assert why.replace("\\", "") in result.refused
    assert (result.changed, result.before, entries_of(state)) == (0, (), before)
    assert not state.take_steps()
    # What follows is made.
    assert make_edit(state, Edit("f", (TOTAL,), [entry(b"a", b"2")], [entry(b"a", b"1")]), 7, DECLARED).changed == 1


def test_an_edit_with_an_expectation_may_be_repeated() -> None:
    state, edit = state_with([entry(b"a", b"1")]), Edit("e", (TOTAL,), [entry(b"a", b"2")], [entry(b"a", b"1")])
    assert make_edit(state, edit, 1, DECLARED).changed == 1
    assert make_edit(state, edit, 2, DECLARED) == EditResult("e", unchanged=1, epoch=2)


def test_an_entry_may_keep_its_time() -> None:
    state = state_with([entry(b"a", stored_of(b"1", 50, 3))])
    edit = Edit(
        "e", (TOTAL,), [entry(b"a", stored_of(b"2", 0, 3)), entry(b"b", stored_of(b"2", 9, 3))], keeps_expiry=True
    )
    make_edit(state, edit, 1, DECLARED)
    assert entries_of(state) == {(b"a", 0, b""): stored_of(b"2", 50, 3), (b"b", 0, b""): stored_of(b"2", 9, 3)}
    make_edit(state, edit._replace(keeps_expiry=False), 1, DECLARED)
    assert entries_of(state)[b"a", 0, b""] == stored_of(b"2", 0, 3)


def test_a_result_says_so_if_what_was_before_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits_module, "BEFORE_BYTES_MAX", 40)
    state = state_with([entry(b"a", b"1" * 30)])
    result = make_edit(state, Edit("e", (TOTAL,), [entry(b"a", None)]), 1, DECLARED)
    assert (result.changed, result.before, result.before_bytes) == (1, None, 47)
    assert decode_result(result.encode()) == result


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        state_pb2.Edit(entries=b"\xff").SerializeToString(),
        Edit("e", (), [entry(b"a", b"1")]).encode(),
    ],
)
def test_what_is_no_edit_is_an_error_of_its_own(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not|does not have"):
        decode_edit(data)


# Edits of a lane


@udf.map
class Adding:
    """Puts out the total of the key so far."""

    total = udf.value(int, default=0)
    late = udf.value(int, default=0)

    def process(self, record: udf.Record) -> str:
        self.total += int(record.value)
        if int(record.value) < 0:
            udf.timer("unused", after=timedelta(seconds=9))
        return str(self.total)

    def on_timer(self, timer: udf.Timer) -> str:
        return f"{timer.name} at {timer.at_us}"


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 1)
    async with open_rig() as opened:
        yield opened


@asynccontextmanager
async def owned(rig: Rig, stream: KeyedStream) -> AsyncIterator[Lane]:
    """The lane of the next owner, with what was committed."""
    ledger = await rig.ledger(LANE.vertex)
    stored = await ledger.mark(LANE)
    mark = mark_pb2.Mark() if stored is None else stored.mark
    trimmer, last, clock = Trimmer(ledger.trim), list[Committer](), SettableClock()
    state = KeyedState(str(LANE), size_max=1 << 20, key_size_max=1 << 10)
    state.watermark_us = mark.watermark_us
    changelog = Changelog(LANE, trimmer, lambda: last[0].mark)
    state.stored_states(mark.states.get(LANE.vertex, b""))
    await changelog.load(ledger, LANE, mark, state)
    state.declare(stream.states)
    stage = KeyedStage(
        stream,
        STOP,
        state=state,
        changelog=changelog,
        inbox=Inbox(ledger, LANE, trimmer),
        clock=clock,
        by_key=True,
        needs_keys=False,
        where=str(LANE),
        has_dead_letter=False,
        needs_tags=False,
        rng=random.Random(1),
    )
    async with rig.stage_lane(stage, [Route(OUT.edge, 1, None)], clock) as lane:
        last.append(lane.core.committer)
        yield lane
    await trimmer.finish()


@asynccontextmanager
async def running(lane: Lane) -> AsyncIterator[None]:
    """The lane runs in the block, and is killed at its end."""
    task = asyncio.create_task(lane.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def drained(lane: Lane, reached: Callable[[], Awaitable[object]]) -> None:
    """The lane runs until something is reached, and then ends what it has begun."""
    task = asyncio.create_task(lane.run())
    async with asyncio.timeout(20):
        await reached()
        lane.stop()
        await task


async def given(rig: Rig, name: str, value: bytes | None, before: bytes | None = b"-", key: bytes = b"k") -> HandedOver:
    expected = () if before == b"-" else (entry(key, before),)
    edit = Edit(name, (TOTAL,), [entry(key, value)], expected)
    ledger = await rig.ledger(LANE.vertex)
    return await hand_over(ledger, LANE, edit, "test", compression=Compression.LZ4, clock=SettableClock())


async def made(rig: Rig, handed: HandedOver) -> EditResult:
    result = (await until_made(await rig.ledger(LANE.vertex), handed)).result
    assert result is not None
    return result


async def results_in(ledger: Ledger) -> list[EditResult]:
    """Every result that is stored."""
    buffer = results_buffer(LANE)
    frames = await ledger.peek(buffer, 0, 1000)
    return [decode_result(value) for frame in frames for value in decoded(LANE.vertex, buffer, frame).values()]


async def remembered(rig: Rig) -> dict[bytes, bytes]:
    state, mark = KeyedState(str(LANE), size_max=0, key_size_max=0), await rig.mark()
    state.stored_states(mark.states[LANE.vertex])
    await read_changelog(await rig.ledger(LANE.vertex), LANE, mark, state)
    return {key: stored.value for key, number, _, stored in state.all() if state.stored[number].name == "total"}


async def put_out(rig: Rig) -> list[tuple[str, str]]:
    return [
        (record.keys[0] if record.keys else "", record.value.decode())
        for frame in await rig.stored(OUT)
        for record in frame.to_records()
    ]


async def until_put_out(rig: Rig, count: int) -> None:
    while len(await put_out(rig)) < count:  # noqa: ASYNC110 - a buffer has no event for it
        await asyncio.sleep(0.001)


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize("seed", range(3))
async def test_each_edit_is_made_once_and_in_order_whoever_owns_the_lane(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(inbox_module, "RESULTS_KEPT", 1000)
    rng, handed, fed = random.Random(seed), list[HandedOver](), 0
    ledger = await rig.ledger(LANE.vertex)
    async with open_keyed_stream(Adding) as stream:
        for _ in range(8):
            for _ in range(rng.randrange(6)):
                number = len(handed)
                before = b"%d" % (number - 1) if number else None
                handed.append(await given(rig, f"e{number}", b"%d" % number, before))
            rows = [Record(b"1", 0, (f"r{rng.randrange(4)}",)) for _ in range(6)]
            await rig.feed(frame_of_records(rows, ingest_time_us=0))
            fed += len(rows)
            if rng.random() < 0.5:
                rig.faults.lose_answer(landed=bool(rng.randrange(2)), vertex=LANE.vertex)
            async with owned(rig, stream) as lane, running(lane):
                if handed and rng.random() < 0.7:
                    async with asyncio.timeout(20):
                        await until_made(ledger, rng.choice(handed))
        async with owned(rig, stream) as lane:
            handed.append(await given(rig, "last", b"end", b"%d" % (len(handed) - 1)))

            async def all_is_done() -> None:
                await until_made(ledger, handed[-1])
                await until_put_out(rig, fed)

            await drained(lane, all_is_done)
    results = await results_in(ledger)
    assert [(one.id, one.refused, one.changed) for one in results] == [(one.id, "", 1) for one in handed]
    assert (await remembered(rig))[b"k"] == b"end"
    totals: dict[str, int] = {}
    for key, value in await put_out(rig):
        totals[key] = totals.get(key, 0) + 1
        assert int(value) == totals[key]
    assert sum(totals.values()) == fed


@pytest.mark.guarantee("I12")
async def test_a_function_sees_an_edit_from_its_commit_on(rig: Rig) -> None:
    async with open_keyed_stream(Adding) as stream, owned(rig, stream) as lane, running(lane):
        await rig.feed(frame_of_records([Record(b"5", 0, ("k",))], ingest_time_us=0))
        await until_put_out(rig, 1)
        result = await made(rig, await given(rig, "one", b"100"))
        assert (result.changed, result.before, result.epoch) == (1, [entry(b"k", b"5")], (await rig.mark()).epoch)
        await rig.feed(frame_of_records([Record(b"5", 0, ("k",))], ingest_time_us=0))
        await until_put_out(rig, 2)
        # It was another one when this was asked for.
        result = await made(rig, await given(rig, "two", b"0", b"100"))
        assert "`total` has another value now" in result.refused
        result = await made(rig, await given(rig, "three", None))
        assert result.before == [entry(b"k", b"105")]
        await rig.feed(frame_of_records([Record(b"5", 0, ("k",))], ingest_time_us=0))
        await until_put_out(rig, 3)
    assert await put_out(rig) == [("k", "5"), ("k", "105"), ("k", "5")]


@pytest.mark.guarantee("I7")
async def test_an_edit_that_waits_is_made_by_whoever_owns_the_lane_between_two_runs(rig: Rig) -> None:
    ledger = await rig.ledger(LANE.vertex)
    first, second = await given(rig, "one", b"1"), await given(rig, "two", b"2", b"1")
    assert await result_of(ledger, first) is None
    bounds = StateBounds(1 << 20, 1 << 10)
    for _ in range(2):
        async with open_owned_state(
            ledger, LANE, "test", bounds, compression=Compression.LZ4, clock=SettableClock()
        ) as state:
            assert state.keyed.last_edit == (second.sequence, 2)
    assert [one.id for one in await results_in(ledger)] == ["one", "two"]
    assert (await made(rig, first)).changed == (await made(rig, second)).changed == 1
    assert await remembered(rig) == {b"k": b"2"}


@pytest.mark.guarantee("I7")
async def test_inbox_and_results_do_not_grow(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "RESULTS_KEPT", 3)
    ledger = await rig.ledger(LANE.vertex)
    async with open_keyed_stream(Adding) as stream:
        async with owned(rig, stream) as lane, running(lane):
            first = await given(rig, "e0", b"0")
            for number in range(1, 12):
                handed = await given(rig, f"e{number}", b"%d" % number)
                assert (await made(rig, handed)).changed == 1
        assert len(await ledger.peek(inbox_buffer(LANE), 0, 100)) <= 1
        assert [one.id for one in await results_in(ledger)] == ["e9", "e10", "e11"]
        # It was made, and nobody knows any more what became of it.
        assert (await until_made(ledger, first)).result is None
        async with owned(rig, stream) as lane, running(lane):
            assert (await made(rig, await given(rig, "more", b"x"))).before == [entry(b"k", b"11")]


async def test_an_edit_that_does_not_decode_is_refused_and_the_lane_goes_on(rig: Rig) -> None:
    ledger, inbox = await rig.ledger(LANE.vertex), inbox_buffer(LANE)
    writer = inbox_module.writer_of(LANE)
    committer = await rig.committer(writer, Router([]))
    committer.sequences[inbox] = 0
    frame = build_frame([b"\xff"], array("q", [0]), ingest_time_us=0)
    await committer.commit([Unit(frames=[(inbox, frame)], size=frame.size, pieces=0)], watermark_us=0)
    async with open_keyed_stream(Adding) as stream, owned(rig, stream) as lane, running(lane):
        assert (await made(rig, await given(rig, "one", b"1"))).changed == 1
    first, _ = await results_in(ledger)
    assert "it is not an edit" in first.refused


@pytest.mark.guarantee("I7")
async def test_of_two_who_write_into_an_inbox_at_once_one_is_told(rig: Rig) -> None:
    ledger = await rig.ledger(LANE.vertex)

    class Meanwhile:
        """The ledger, in which another one takes the inbox over as soon as this one has."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
            taken_over = await ledger.take_over(lane, owner)
            await ledger.take_over(lane, "another")
            return taken_over

    edit = Edit("one", (TOTAL,), [entry(b"k", b"1")])
    with pytest.raises(FencedError):
        await hand_over(Meanwhile(), LANE, edit, "test", compression=Compression.LZ4, clock=SettableClock())
    assert await found_edit(ledger, LANE, "one") is None
    handed = await given(rig, "two", b"2")
    async with open_keyed_stream(Adding) as stream, owned(rig, stream) as lane, running(lane):
        assert await found_edit(ledger, LANE, "two") == handed._replace(results_after=0)
        assert (await made(rig, handed)).before == [entry(b"k", None)]
    found = await found_edit(ledger, LANE, "two")
    assert found is not None
    assert (await made(rig, found)).changed == 1


@pytest.mark.guarantee("I7")
async def test_a_timer_that_an_edit_sets_for_a_time_that_has_come_fires_at_once(rig: Rig) -> None:
    ledger = await rig.ledger(LANE.vertex)
    async with open_keyed_stream(Adding) as stream, owned(rig, stream) as lane, running(lane):
        await rig.feed(frame_of_records([Record(b"5", 70, ("k",))], ingest_time_us=0), watermark_us=50)
        await until_put_out(rig, 1)
        timers = next(one for one in stream.states if one.kind is StateKind.TIMER)
        of = state_pb2.StoredState(name=timers.name, kind=timers.kind, codec=timers.codec, clock=timers.clock)
        value = pack_timer(TimerTime(CLOCKS["event"], 30))
        edit = Edit("one", (of,), [entry(b"k", value, 0, b"asked")])
        handed = await hand_over(ledger, LANE, edit, "test", compression=Compression.LZ4, clock=SettableClock())
        assert (await made(rig, handed)).changed == 1
        await until_put_out(rig, 2)
    assert await put_out(rig) == [("k", "5"), ("k", "asked at 30")]
