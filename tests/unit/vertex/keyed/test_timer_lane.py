"""A lane whose function sets timers, from owner to owner: each fires exactly once, with its time, and never late."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

import millstream_udf as udf
from millstream.frame import Frame, frame_of_records
from millstream.record import BufferId, Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.watermark.store import follow
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex import lane as lane_module
from millstream_vertex.input import LaneInput
from millstream_vertex.keyed.changelog import Changelog, changelog_buffer, read_changelog
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.timers import timer_of
from millstream_vertex.lane import Lane
from millstream_vertex.trimming import Trimmer
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
    rig: Rig, stream: KeyedStream, clock: SettableClock | None = None, policy: RetryPolicy = STOP
) -> AsyncIterator[Lane]:
    """The lane of the next owner, with what was committed."""
    ledger = await rig.ledger(LANE.vertex)
    stored = await ledger.mark(LANE)
    mark = mark_pb2.Mark() if stored is None else stored.mark
    trimmer = Trimmer(ledger.trim)
    state = KeyedState(str(LANE), size_max=1 << 24, key_size_max=1 << 20)
    state.watermark_us = mark.watermark_us
    changelog = Changelog(changelog_buffer(LANE), trimmer)
    state.stored_states(mark.states.get(LANE.vertex, b""))
    await changelog.load(ledger, LANE, mark, state)
    state.declare(stream.states)
    clock = clock or SettableClock()
    stage = KeyedStage(
        stream,
        policy,
        state=state,
        changelog=changelog,
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


@pytest.mark.guarantee("I1", "I2", "I5", "I7", "I12")
@pytest.mark.parametrize("seed", range(4))
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
