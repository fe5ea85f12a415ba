"""A lane whose function sets timers, from owner to owner: each fires exactly once, with its time, and never late."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

import millstream_udf as udf
from millstream.clock import END_OF_TIME_US
from millstream.dead_letter import POSITION_HEADER
from millstream.frame import Frame, frame_of_records
from millstream.record import BufferId, Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.udf.answers import MapAnswer
from millstream.udf.states import StateEntries
from millstream.watermark.store import follow
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex import lane as lane_module
from millstream_vertex.input import LaneInput
from millstream_vertex.keyed import stage as stage_module
from millstream_vertex.keyed.changelog import Changelog, read_changelog
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.timers import timer_of
from millstream_vertex.lane import Lane
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Committer
from millstream_writer.routing import Route
from tests.support.ledgers import SettableClock
from tests.unit.vertex.keyed.keyed_stream import KeyedStream, open_keyed_stream
from tests.unit.vertex.lane_rig import LANE, Rig, open_rig

OUT, DEAD = BufferId("map-out", 0), BufferId("map-dead", 0)
STOP = RetryPolicy(Backoff(0.0, steps=1), OnFailure.STOP)
SECOND = 1_000_000


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


@asynccontextmanager
async def owned(
    rig: Rig,
    stream: KeyedStream,
    clock: SettableClock | None = None,
    policy: RetryPolicy = STOP,
    size_max: int = 1 << 24,
) -> AsyncIterator[Lane]:
    """The lane of the next owner, with what was committed."""
    ledger = await rig.ledger(LANE.vertex)
    stored = await ledger.mark(LANE)
    mark = mark_pb2.Mark() if stored is None else stored.mark
    trimmer = Trimmer(ledger.trim)
    state = KeyedState(str(LANE), size_max=size_max, key_size_max=1 << 20)
    state.watermark_us = mark.watermark_us
    last: list[Committer] = []
    changelog = Changelog(LANE, trimmer, lambda: last[0].mark)
    state.stored_states(mark.states.get(LANE.vertex, b""))
    await changelog.load(ledger, LANE, mark, state)
    state.declare(stream.states)
    clock = clock or SettableClock()
    stage = KeyedStage(
        stream,
        policy,
        state=state,
        changelog=changelog,
        inbox=Inbox(ledger, LANE, trimmer),
        clock=clock,
        by_key=True,
        needs_keys=False,
        where=str(LANE),
        has_dead_letter=policy is not STOP,
        needs_tags=False,
        rng=random.Random(1),
    )
    async with rig.stage_lane(
        stage, [Route(OUT.edge, 1, None)], clock, [Route(DEAD.edge, 1, None)] if policy is not STOP else ()
    ) as lane:
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


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await look():  # noqa: ASYNC110 - a buffer has no event for it
            await asyncio.sleep(0.001)


async def put_out(rig: Rig) -> list[tuple[str, str, int]]:
    """Key, value and second of each output."""
    return [
        (record.keys[0], record.value.decode(), record.event_time_us // SECOND)
        for frame in await rig.stored(OUT)
        for record in frame.to_records()
    ]


async def until_put_out(rig: Rig, count: int) -> list[tuple[str, str, int]]:
    async def is_there() -> bool:
        return len(await put_out(rig)) >= count

    await until(is_there)
    return await put_out(rig)


async def stored_state(rig: Rig) -> KeyedState:
    state, mark = KeyedState(str(LANE), size_max=0, key_size_max=0), await rig.mark()
    state.stored_states(mark.states[LANE.vertex])
    await read_changelog(await rig.ledger(LANE.vertex), LANE, mark, state)
    return state


async def set_timers(rig: Rig) -> list[tuple[str, str, int]]:
    """Key, name and second of each timer that is committed as set."""
    state = await stored_state(rig)
    found = []
    for key, number, item, stored in state.all():
        if state.stored[number].name == "timers":
            found.append((key.decode(), item.decode(), timer_of(key, item, stored.value).at_us // SECOND))
    return sorted(found)


def frame_of(rows: Sequence[tuple[str, int, str]]) -> Frame:
    """Key, second and value of each record."""
    return frame_of_records(
        [Record(value.encode(), second * SECOND, (key,)) for key, second, value in rows], ingest_time_us=0
    )


@udf.map
class Watching:
    """Sets a timer for each record, one that the next record of its key moves, and some that are cancelled."""

    seen = udf.value(int, default=0)

    def process(self, record: udf.Record) -> str:
        number = int(record.value)
        self.seen += 1
        udf.timer(f"one-{number}", after=timedelta(seconds=7))
        udf.timer("idle", after=timedelta(seconds=30))
        if number % 5 == 0:
            udf.timer("never", after=timedelta(seconds=10_000))
        if number % 7 == 0:
            udf.timer("again", after=timedelta(seconds=5))
        return f"record {number}"

    def on_timer(self, timer: udf.Timer) -> str:
        self.seen += 1
        if timer.name == "idle":
            udf.cancel_timer("never")
        if timer.name == "again" and timer.at_us % (4 * SECOND):
            udf.timer("again", at=timer.at + timedelta(seconds=1))
        return f"{timer.name} {timer.at_us // SECOND}"


async def late_records(rig: Rig, downstream: LaneInput) -> int:
    """How many outputs were behind the watermark that the lane had published before them."""
    frames = await (await rig.ledger(LANE.vertex)).peek(OUT, 0, 100_000)
    found, sequence = 0, 0
    for stored, frame in zip(frames, await rig.stored(OUT), strict=True):
        found += frame.late_records(downstream.watermark_at(sequence))
        sequence = stored.sequence
    return found


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2", "I5", "I7", "I12")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (2, 3))])
async def test_each_timer_fires_once_whoever_owns_the_lane(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lane_module, "TIMERS_MAX", 7)
    rng, rows, second = random.Random(seed), list[tuple[str, int, str]](), 100
    downstream = LaneInput(OUT, [LANE], back_edge=False)
    async with open_keyed_stream(Watching) as stream, asyncio.TaskGroup() as tasks:
        observing = tasks.create_task(follow(await rig.stores.store(LANE.vertex), [downstream.observe]))
        for _ in range(10):
            put_out_before = len(await put_out(rig))
            for _ in range(8):
                part = [(f"k{rng.randrange(30)}", second + rng.randrange(3), str(len(rows) + at)) for at in range(6)]
                rows += part
                await rig.feed(frame_of(part), watermark_us=second * SECOND)
                second += rng.randrange(1, 4)
            async with owned(rig, stream) as lane, running(lane):
                await until_put_out(rig, put_out_before + rng.randrange(1, 60))
        await rig.feed(frame_of([("end", second, str(len(rows)))]), ended=True)
        rows.append(("end", second, str(len(rows))))
        async with asyncio.timeout(20), owned(rig, stream) as lane:
            await lane.run()
        assert await late_records(rig, downstream) == 0
        observing.cancel()
    outputs = await put_out(rig)
    fired = Counter((key, value) for key, value, _ in outputs if not value.startswith("record"))
    assert max(fired.values()) == 1, fired.most_common(3)
    assert all(value.endswith(f" {at}") for _, value, at in outputs if not value.startswith("record"))
    wanted = Counter((key, f"one-{number} {at + 7}") for key, at, number in rows)
    assert Counter({each: count for each, count in fired.items() if each[1].startswith("one-")}) == wanted
    last = {key: at for key, at, _ in rows}
    idle = defaultdict[str, list[int]](list)
    for key, value in fired:
        if value.startswith("idle"):
            idle[key].append(int(value.split()[1]))
    assert all(
        max(times) >= last[key] + 30 and set(times) <= {at + 30 for one, at, _ in rows if one == key}
        for key, times in idle.items()
    )
    assert idle.keys() == last.keys()
    # Set by a timer that fired at the end; everything else has fired or was cancelled.
    assert {name for _, name, _ in await set_timers(rig)} <= {"again"}
    state = await stored_state(rig)
    seen = {key.decode(): int(one.value) for key, number, _, one in state.all() if state.stored[number].name == "seen"}
    assert seen == Counter(key for key, _, _ in outputs)
    account = await rig.account()
    assert (account.inputs, account.timers, account.difference) == (len(rows), sum(fired.values()), 0)


@udf.map
class Told:
    """Does what its records say: sets timers, which put out what they see."""

    seen = udf.value(str, default="", ttl=timedelta(seconds=50))

    def process(self, record: udf.Record) -> str | None:
        for word in record.value.decode().split(","):
            name, _, when = word.partition(" ")
            if name == "clock":
                udf.timer(name, at=int(when) * SECOND, clock="processing")
            elif when:
                udf.timer(name, at=int(when) * SECOND)
            else:
                self.seen += name
        return None

    def on_timer(self, timer: udf.Timer) -> str | None:
        if timer.name == "fails":
            raise OSError("away")
        if timer.name == "again":
            udf.timer("again", at=timer.at)
        if timer.name == "large":
            return f"large {self.seen}".ljust(900_000)
        return f"{timer.name} {self.seen}"


async def test_by_processing_time_they_fire_by_the_clock_and_never_behind_the_watermark(rig: Rig) -> None:
    clock = SettableClock()
    now = int(clock.time_s)
    async with open_keyed_stream(Told) as stream:
        await rig.feed(frame_of([("a", 10, f"clock {now + 5}"), ("b", 20, f"clock {now + 3600}")]), watermark_us=0)
        async with owned(rig, stream, clock) as lane, running(lane):

            async def all_set() -> bool:
                return bool((await rig.mark()).states) and len(await set_timers(rig)) == 2

            await until(all_set)
            await rig.tell(15 * SECOND)
            await until_published(lane, 15 * SECOND)
            await (await rig.stores.store(LANE.vertex)).flush()
        # The next owner is late.
        clock.time_s += 6
        async with owned(rig, stream, clock) as lane, running(lane):
            assert await until_put_out(rig, 1) == [("a", "clock ", 15)]
        assert await set_timers(rig) == [("b", "clock", now + 3600)]
        await rig.feed(frame_of([("c", 30, "x 40")]), ended=True)
        async with asyncio.timeout(20), owned(rig, stream, clock) as lane:
            await lane.run()
        assert await put_out(rig) == [("a", "clock ", 15), ("c", "x ", 40)]
        # At the end, those by processing time stay.
        assert await set_timers(rig) == [("b", "clock", now + 3600)]


@pytest.mark.guarantee("I1", "I5")
async def test_outputs_with_an_earlier_time_are_not_late(rig: Rig) -> None:
    @udf.map
    class Holding:
        def process(self, record: udf.Record) -> None:
            udf.timer("x", at=record.event_time + timedelta(seconds=50), output_at=record.event_time)

        def on_timer(self, timer: udf.Timer) -> list[str | udf.Message]:
            return ["first", udf.Message("then", event_time=timer.event_time + timedelta(seconds=3))]

    downstream = LaneInput(OUT, [LANE], back_edge=False)
    async with open_keyed_stream(Holding) as stream, asyncio.TaskGroup() as tasks:
        observing = tasks.create_task(follow(await rig.stores.store(LANE.vertex), [downstream.observe]))
        await rig.feed(frame_of([("a", 20, ""), ("b", 30, "")]), watermark_us=10 * SECOND)
        await rig.feed(frame_of([("c", 60, "")]), watermark_us=60 * SECOND)
        async with owned(rig, stream) as lane, running(lane):

            async def all_set() -> bool:
                return bool((await rig.mark()).states) and len(await set_timers(rig)) == 3

            await until(all_set)
            # The input is at 60, and the lane at the first of the output times.
            await until_published(lane, 20 * SECOND)
            assert lane.core.watermark_us == 20 * SECOND
        # The next owner holds it, too, until the first has fired.
        async with owned(rig, stream) as lane, running(lane):
            await until_published(lane, 20 * SECOND)
            await rig.tell(75 * SECOND)
            assert await until_put_out(rig, 2) == [("a", "first", 20), ("a", "then", 23)]
            await until_published(lane, 30 * SECOND)
        await rig.feed(frame_of([("d", 80, "")]), ended=True)
        async with asyncio.timeout(20), owned(rig, stream) as lane:
            await lane.run()
        assert await late_records(rig, downstream) == 0
        observing.cancel()
    assert (await put_out(rig))[2:] == [
        (key, value, at + more)
        for key, at in (("b", 30), ("c", 60), ("d", 80))
        for value, more in (("first", 0), ("then", 3))
    ]


@pytest.mark.guarantee("I5")
async def test_the_watermark_waits_for_the_result_of_a_timer_that_is_slow(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, entered, gate = SettableClock(), asyncio.Event(), asyncio.Event()
    due_us = (int(clock.time_s) + 5) * SECOND
    downstream = LaneInput(OUT, [LANE], back_edge=False)

    @udf.map
    class Slow:
        seen = udf.counter()

        async def process(self, record: udf.Record) -> None:
            udf.timer("clock", at=due_us, clock="processing")

        async def on_timer(self, timer: udf.Timer) -> str:
            entered.set()
            await gate.wait()
            return timer.name

    async with open_keyed_stream(Slow) as stream, asyncio.TaskGroup() as tasks:
        observing = tasks.create_task(follow(await rig.stores.store(LANE.vertex), [downstream.observe]))
        await rig.feed(frame_of([("a", 10, "")]), watermark_us=0)
        async with owned(rig, stream, clock) as lane, running(lane):

            async def is_set() -> bool:
                return bool((await rig.mark()).states) and len(await set_timers(rig)) == 1

            await until(is_set)
        clock.time_s += 6
        async with owned(rig, stream, clock) as lane, running(lane):
            commit = lane.core.committer.commit

            async def commit_slowly(*arguments: Any, **options: Any) -> Any:
                # It has the time to promise too much.
                for _ in range(100):
                    await asyncio.sleep(0)
                return await commit(*arguments, **options)

            async def knows_watermark() -> bool:
                return lane._input.watermark_after(()) >= 15 * SECOND

            monkeypatch.setattr(lane.core.committer, "commit", commit_slowly)
            await entered.wait()
            await rig.tell(15 * SECOND)
            await until(knows_watermark)
            gate.set()
            assert await until_put_out(rig, 1) == [("a", "clock", 10)]
            await until_published(lane, 15 * SECOND)
            await (await rig.stores.store(LANE.vertex)).flush()
        assert await late_records(rig, downstream) == 0
        observing.cancel()


async def until_published(lane: Lane, watermark_us: int) -> None:
    async def is_published() -> bool:
        return lane.core.watermark_us >= watermark_us

    await until(is_published)


@pytest.mark.guarantee("I5")
async def test_the_watermark_waits_for_the_next_timer_and_holds_nothing_else_back(rig: Rig) -> None:
    async with open_keyed_stream(Told) as stream:
        await rig.feed(frame_of([("a", 10, "x 40")]), watermark_us=0)
        async with owned(rig, stream) as lane, running(lane):
            await rig.tell(30 * SECOND)
            await until_published(lane, 30 * SECOND)
            await rig.tell(70 * SECOND)
            assert await until_put_out(rig, 1) == [("a", "x ", 40)]
            await until_published(lane, 70 * SECOND)
            # Too late: it fires at once, with the watermark as its time.
            await rig.feed(frame_of([("a", 71, "y 50")]), watermark_us=70 * SECOND)
            assert (await until_put_out(rig, 2))[1:] == [("a", "y ", 70)]


async def test_a_timer_sees_what_expires_with_it_and_the_sweep_comes_after_it(rig: Rig) -> None:
    async with open_keyed_stream(Told) as stream:
        await rig.feed(frame_of([("a", 10, "kept,x 60"), ("b", 10, "kept,y 61")]), watermark_us=0)
        async with owned(rig, stream) as lane, running(lane):
            await rig.tell(70 * SECOND)
            assert await until_put_out(rig, 2) == [("a", "x kept", 60), ("b", "y ", 61)]


@pytest.mark.guarantee("I1")
async def test_at_the_end_all_fire_and_what_they_set_stays(rig: Rig) -> None:
    async with open_keyed_stream(Told) as stream:
        rows = [("a", 10, "again 5000"), ("b", 11, "x 400,y 300"), ("c", 12, "z 9999")]
        await rig.feed(frame_of(rows), ended=True)
        async with asyncio.timeout(20), owned(rig, stream) as lane:
            await lane.run()
    assert await put_out(rig) == [("b", "y ", 300), ("b", "x ", 400), ("a", "again ", 5000), ("c", "z ", 9999)]
    assert await set_timers(rig) == [("a", "again", 5000)]
    assert (await rig.mark()).watermark_us == END_OF_TIME_US


@pytest.mark.guarantee("I2")
async def test_one_that_is_given_up_is_a_dead_letter_that_names_it(rig: Rig) -> None:
    policy = RetryPolicy(Backoff(0.0, steps=2), OnFailure.DEAD_LETTER)
    async with open_keyed_stream(Told) as stream:
        await rig.feed(frame_of([("a", 10, "fails 40,x 41"), ("b", 10, "x 40")]), ended=True)
        async with asyncio.timeout(20), owned(rig, stream, policy=policy) as lane:
            await lane.run()
    assert sorted(await put_out(rig)) == [("a", "x ", 41), ("b", "x ", 40)]
    (letter,) = [record for frame in await rig.stored(DEAD) for record in frame.to_records()]
    assert json.loads(letter.value) == {"timer": "fails", "at_us": 40 * SECOND, "clock": "event"}
    assert (letter.keys, letter.event_time_us) == (("a",), 40 * SECOND)
    assert letter.headers[POSITION_HEADER].decode().startswith(f"map/in-map/0/timer/{40 * SECOND}-")
    assert stream.timer_calls == [2, 1, 1]
    account = await rig.account()
    assert (account.inputs, account.timers, account.dead_lettered, account.difference) == (2, 3, 1, 0)


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I2")
async def test_results_that_are_too_large_for_a_commit_are_made_in_parts(rig: Rig) -> None:
    async with open_keyed_stream(Told) as stream:
        await rig.feed(frame_of([(f"k{number:02}", 10, f"seen,large {number}") for number in range(40)]), ended=True)
        async with asyncio.timeout(20), owned(rig, stream) as lane:
            await lane.run()
    outputs = await put_out(rig)
    assert [(key, value.strip(), at) for key, value, at in outputs] == [
        (f"k{number:02}", "large seen", number) for number in range(40)
    ]
    assert sum(stream.timer_calls) > 40
    assert (await rig.account()).timers == 40


class HeldBack(KeyedStream):
    """Calls wait that have a certain text in a value, until they may go on."""

    text = b""

    def hold(self, text: bytes) -> None:
        self.text, self.called, self.may_go_on = text, asyncio.Event(), asyncio.Event()

    async def keyed_call(
        self, frame: Frame, states: StateEntries, *, alone: bool = False, timers: bool = False, **options: Any
    ) -> MapAnswer:
        if self.text and any(self.text in value for value in frame.values()):
            self.called.set()
            await self.may_go_on.wait()
        return await super().keyed_call(frame, states, timers=timers, **options)


@pytest.mark.guarantee("I5")
async def test_nothing_passes_a_timer_whose_result_is_not_committed(rig: Rig) -> None:
    async with open_keyed_stream(Told) as given:
        stream = HeldBack(given._lane, given._hello)
        stream.hold(b"timer")
        await rig.feed(frame_of([("a", 10, "x 40")]), watermark_us=0)
        async with owned(rig, stream) as lane, running(lane):
            await rig.tell(70 * SECOND)
            await stream.called.wait()
            rig.faults.hold()
            stream.may_go_on.set()
            await rig.faults.held()
            await rig.tell(80 * SECOND)
            await until(lambda: _is(rig.input is not None and rig.input.watermark_at(1 << 40) == 80 * SECOND))
            for _ in range(20):
                # The task that follows the watermark has had its turn.
                await asyncio.sleep(0)
            assert lane.core.publisher.watermark_us <= 40 * SECOND
            rig.faults.release()
            assert await until_put_out(rig, 1) == [("a", "x ", 40)]
            await until_published(lane, 80 * SECOND)


async def _is(so: bool) -> bool:
    return so


@pytest.mark.guarantee("I4")
async def test_timers_come_before_the_records_that_follow_their_watermark(rig: Rig) -> None:
    async with open_keyed_stream(Told) as stream:
        held = HeldBack(stream._lane, stream._hello)
        held.hold(b"wait")
        await rig.feed(frame_of([("a", 10, "one,x 40")]), watermark_us=0)
        async with asyncio.timeout(20), owned(rig, held) as lane, asyncio.TaskGroup() as tasks:
            tasks.create_task(lane.run())
            await until(lambda: _is(lane.core.committer.mark.account.inputs == 1))
            await rig.feed(frame_of([("b", 11, "wait")]), watermark_us=0)
            await held.called.wait()
            # While the lane is busy, a watermark comes, and then a record.
            await rig.tell(50 * SECOND)
            await until(lambda: _is(rig.input is not None and rig.input.watermark_at(1 << 40) == 50 * SECOND))
            await rig.feed(frame_of([("a", 50, "two,y 55")]), ended=True)
            held.may_go_on.set()
    assert await put_out(rig) == [("a", "x one", 40), ("a", "y onetwo", 55)]


@udf.map
class Repeating:
    def process(self, record: udf.Record[bytes]) -> None:
        udf.timer("same" if record.value == b"same" else "later", at=record.event_time)

    def on_timer(self, timer: udf.Timer) -> bytes:
        udf.timer(timer.name, at=timer.at_us + SECOND * (timer.name == "later"))
        return timer.name.encode()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["same", "later"])
async def test_a_timer_that_sets_itself_for_the_same_time_again_and_again_is_reported_once(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stage_module, "AGAIN_REPORTED", 5)
    async with open_keyed_stream(Repeating) as stream:
        await rig.feed(frame_of([("a", 1, name)]), watermark_us=0)
        async with owned(rig, stream) as lane, running(lane):
            await rig.tell(100 * SECOND)
            await until_put_out(rig, 20)
    said = [record.message for record in caplog.records if "no record is processed" in record.message]
    assert len(said) == (name == "same")
    assert all("keys ['a']" in one and '"timer":"same"' in one and "for the 5th time" in one for one in said)
