"""A lane whose function remembers, from owner to owner: outputs and state are those of its records, each once."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from millstream.clock import SystemClock
from millstream.errors import DamageError
from millstream.frame import Frame, frame_of_records
from millstream.ledger.protocol import Ledger, StoredFrame, Witness
from millstream.record import BufferId, Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.udf.answers import MapAnswer, Outcome, Result
from millstream.udf.states import DeclaredState, StateChanges, StateEntries, StateKind
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.stored_states import state_of
from millstream_udf.columns import pack_bytes, pack_offsets
from millstream_vertex.keyed import stage as stage_module
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed.changelog import Changelog, changelog_buffer, read_changelog
from millstream_vertex.keyed.disk import image as image_module
from millstream_vertex.keyed.disk.image import open_disk_image
from millstream_vertex.keyed.disk.store import Changes, StoreIdentity
from millstream_vertex.keyed.image import Image, StateImage
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import LATEST_BYTES_MAX, KeyedState
from millstream_vertex.lane import Lane
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Committer
from millstream_writer.routing import Route
from tests.unit.vertex.lane_rig import LANE, Rig, open_rig

OUT = BufferId("map-out", 0)
STATES = (DeclaredState("total", StateKind.VALUE, "bytes"),)
POLICY = RetryPolicy(Backoff(0.0, steps=3), OnFailure.STOP)
WIDTH = 80


class Summing:
    """A function that puts out, for each record, the total of its key so far. A 13 succeeds at the second attempt, and
    holds up what follows of its key until then."""

    calls_max = 8
    takes_arrow = False
    states = STATES

    async def call(self, frame: Frame, **options: Any) -> MapAnswer:
        raise AssertionError("its calls have states")

    async def keyed_call(self, frame: Frame, states: StateEntries, *, attempt: int = 0, **options: Any) -> MapAnswer:
        options["meanwhile"]()
        assert frame.records == 1 or states.size <= stage_module.CALL_STATE_BYTES_MAX
        totals = dict.fromkeys(states.record_keys, 0)
        totals |= {key: int(value) for key, value in zip(states.keys, states.values, strict=True)}
        held, changed = set[int](), dict[int, int]()
        outputs, parents, outcomes = list[bytes](), list[int](), list[Outcome]()
        for index, (key, value) in enumerate(zip(states.record_keys, frame.values(), strict=True)):
            if key in held:
                outcomes.append(Outcome(index, Result.HELD_UP))
            elif int(value) == 13 and not attempt:
                held.add(key)
                outcomes.append(Outcome(index, Result.ERROR, "unlucky"))
            else:
                totals[key] += int(value)
                changed[key] = totals[key]
                outputs.append(str(totals[key]).encode())
                parents.append(index)
        values = [str(total).encode().rjust(WIDTH) for total in changed.values()]
        changes = StateChanges(array("I", changed), bytes(len(changed)), [], values)
        return MapAnswer(
            records=len(outputs),
            values=pack_bytes(outputs),
            parents=pack_offsets(parents),
            outcomes=outcomes,
            changes=changes if changed else StateChanges(),
        )


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


Trim = Callable[[Mapping[BufferId, int]], Awaitable[None]]


@asynccontextmanager
async def owned(
    rig: Rig, stores: Path | None = None, trim: Trim | None = None, latest_max: int = LATEST_BYTES_MAX
) -> AsyncIterator[Lane]:
    """The lane of the next owner, with what was committed. `stores`: where its state is on disk. `trim`: in place
    of the ledger's. `latest_max`: see `KeyedState`."""
    async with AsyncExitStack() as stack:
        ledger = await rig.ledger(LANE.vertex)
        identity = StoreIdentity(ledger.ledger_id, LANE.key)
        image: Image = StateImage()
        if stores is not None:
            image = await stack.enter_async_context(open_disk_image(stores, identity, str(LANE)))
        yield await stack.enter_async_context(over(rig, image, trim, latest_max))


@asynccontextmanager
async def over(
    rig: Rig, image: Image, trim: Trim | None = None, latest_max: int = LATEST_BYTES_MAX
) -> AsyncIterator[Lane]:
    """The lane of the next owner, with this image."""
    ledger = await rig.ledger(LANE.vertex)
    stored = await ledger.mark(LANE)
    mark = mark_pb2.Mark() if stored is None else stored.mark
    trimmer = Trimmer(trim or ledger.trim)
    state = KeyedState(str(LANE), size_max=1 << 20, key_size_max=1 << 10, image=image, latest_max=latest_max)
    last: list[Committer] = []
    changelog = Changelog(LANE, trimmer, lambda: last[0].mark)
    state.stored_states(mark.states.get(LANE.vertex, b""))
    await changelog.load(ledger, LANE, mark, state)
    state.declare(STATES)
    clock = SystemClock()
    stage = KeyedStage(
        Summing(),
        POLICY,
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


class TrimmedMeanwhile:
    """A ledger that another owner trims once, while a buffer is read."""

    def __init__(self, ledger: Ledger, through: Mapping[BufferId, int]) -> None:
        self._ledger = ledger
        self.through = dict(through)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    @asynccontextmanager
    async def read(self, *arguments: Any, **options: Any) -> AsyncIterator[AsyncIterator[StoredFrame]]:
        async def frames(stored: AsyncIterator[StoredFrame]) -> AsyncIterator[StoredFrame]:
            async for frame in stored:
                yield frame
                await self._ledger.trim(self.through)
                self.through.clear()

        async with self._ledger.read(*arguments, **options) as stored:
            yield frames(stored)


async def put_out(rig: Rig) -> list[tuple[str, int]]:
    """Key and total of each output."""
    return [(record.keys[0], int(record.value)) for frame in await rig.stored(OUT) for record in frame.to_records()]


async def remembered(rig: Rig) -> dict[str, int]:
    """What is committed, by key."""
    state, mark = KeyedState(str(LANE), size_max=0, key_size_max=0), await rig.mark()
    state.stored_states(mark.states[LANE.vertex])
    await read_changelog(await rig.ledger(LANE.vertex), LANE, mark, state)
    return {key.decode(): int(stored.value) for key, _, _, stored in state.all()}


def frame_of(rows: Sequence[tuple[str, int]]) -> Frame:
    return frame_of_records([Record(str(number).encode(), 0, (key,)) for key, number in rows], ingest_time_us=0)


async def until_put_out(rig: Rig, count: int) -> None:
    async with asyncio.timeout(20):
        while len(await put_out(rig)) < count:  # noqa: ASYNC110 - a buffer has no event for it
            await asyncio.sleep(0.001)


def by_key(rows: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key, number in rows:
        found[key].append(number)
    return found


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize(
    ("seed", "is_on_disk"),
    [
        (0, False),
        (3, True),
        *(pytest.param(*one, marks=pytest.mark.sweep) for one in ((1, False), (2, False), (4, True))),
    ],
)
async def test_outputs_and_state_are_those_of_the_records_whoever_owns_the_lane(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_on_disk: bool
) -> None:
    stores = tmp_path if is_on_disk else None
    monkeypatch.setattr(image_module, "WRITTEN_FROM_BYTES", 2000)
    # So that slots are written anew with each result, and all of them within the work of a few owners.
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 1)
    rng, rows = random.Random(seed), list[tuple[str, int]]()
    for _ in range(12):
        first = len(rows)
        for _ in range(10):
            part = [(f"k{rng.randrange(60)}", rng.randrange(20)) for _ in range(8)]
            rows += part
            await rig.feed(frame_of(part))
        async with owned(rig, stores, latest_max=rng.choice([0, 100, LATEST_BYTES_MAX])) as lane:
            running = asyncio.create_task(lane.run())
            await until_put_out(rig, first + rng.randrange(1, 81))
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    async with owned(rig, stores) as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(rig, len(rows))
        lane.stop()
        await running
    wanted = by_key(rows)
    assert by_key(await put_out(rig)) == {key: list(accumulate(numbers)) for key, numbers in wanted.items()}
    assert await remembered(rig) == {key: sum(numbers) for key, numbers in wanted.items()}
    # What is not needed any more was removed: less than what two cycles write.
    left = await rig.stored(changelog_buffer(LANE))
    (total,) = [one for one in (await rig.mark()).written if one.edge == changelog_buffer(LANE).edge]
    assert len(left) < total.frames / 2


@pytest.mark.guarantee("I4")
async def test_what_was_held_up_follows_in_order(rig: Rig) -> None:
    rows = [("a", 1), ("b", 5), ("a", 13), ("a", 2), ("b", 6), ("a", 3)]
    await rig.feed(frame_of(rows))
    async with owned(rig) as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(rig, len(rows))
        lane.stop()
        await running
    assert by_key(await put_out(rig)) == {"a": [1, 14, 16, 19], "b": [5, 11]}
    assert await remembered(rig) == {"a": 19, "b": 11}


async def test_a_call_brings_no_more_state_than_fits_into_a_message(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "CALL_STATE_BYTES_MAX", 3 * WIDTH)
    rows = [(f"k{number % 10}", number) for number in range(10)] * 2
    await rig.feed(frame_of(rows[:10]), frame_of(rows[10:]))
    async with owned(rig) as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(rig, len(rows))
        lane.stop()
        await running
    assert by_key(await put_out(rig)) == {key: list(accumulate(numbers)) for key, numbers in by_key(rows).items()}


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I8")
async def test_the_changelog_of_owners_that_commit_little_does_not_grow(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As much as what five of them change.
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 5 * WIDTH)
    rows = [(f"k{number % 3}", 20 + number) for number in range(40)]
    for number, row in enumerate(rows):
        await rig.feed(frame_of([row]))
        async with owned(rig) as lane:
            running = asyncio.create_task(lane.run())
            await until_put_out(rig, number + 1)
            lane.stop()
            await running
    assert await remembered(rig) == {key: sum(numbers) for key, numbers in by_key(rows).items()}
    assert len(await rig.stored(changelog_buffer(LANE))) < 15


@pytest.mark.guarantee("I7", "I10")
async def test_a_changelog_that_is_trimmed_while_it_is_read_is_no_damage(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 1)
    rows, held = [(f"k{number % 7}", number) for number in range(60)], dict[BufferId, int]()

    async def hold(through: Mapping[BufferId, int]) -> None:
        held.update(through)

    async with owned(rig, trim=hold, latest_max=0) as lane:
        running = asyncio.create_task(lane.run())
        for start in range(0, len(rows), 5):
            await rig.feed(frame_of(rows[start : start + 5]))
            await until_put_out(rig, start + 5)
        lane.stop()
        await running
    wanted = {key: sum(numbers) for key, numbers in by_key(rows).items()}
    ledger, mark = await rig.ledger(LANE.vertex), await rig.mark()
    assert held[changelog_buffer(LANE)] > 2

    def values(state: KeyedState) -> dict[str, int]:
        return {key.decode(): int(stored.value) for key, _, _, stored in state.all()}

    # Half of it while a query reads, and the rest while the next owner does.
    half = {buffer: sequence // 2 for buffer, sequence in held.items()}
    queried: Any = TrimmedMeanwhile(ledger, half)
    seen = await state_of(queried, LANE)
    assert seen is not None
    assert (values(seen.keyed), queried.through) == (wanted, {})
    owner: Any = TrimmedMeanwhile(ledger, held)
    state = KeyedState(str(LANE), size_max=0, key_size_max=0)
    state.stored_states(mark.states[LANE.vertex])
    await Changelog(LANE, Trimmer(ledger.trim), lambda: mark).load(owner, LANE, mark, state)
    assert (values(state), owner.through) == (wanted, {})


@pytest.mark.guarantee("I10")
async def test_a_changelog_that_lost_a_part_is_damage(rig: Rig) -> None:
    async with owned(rig, latest_max=0) as lane:
        running = asyncio.create_task(lane.run())
        for number in (1, 2):
            await rig.feed(frame_of([("a", number)]))
            await until_put_out(rig, number)
        lane.stop()
        await running
    ledger, buffer = await rig.ledger(LANE.vertex), changelog_buffer(LANE)
    (first, _) = await ledger.peek(buffer, 0, 10)
    await ledger.trim({buffer: first.sequence})
    with pytest.raises(DamageError, match="its changelog has frames 2 to 2 of 2"):
        await remembered(rig)


@pytest.mark.guarantee("I7", "I10")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda frame: frame, "0 of the 2 frames"),
        (lambda frame: frame._replace(number=3), "has frame 3, which the ledger has not"),
        (lambda frame: frame._replace(commit=1), "is another one in the ledger"),
        (lambda frame: frame._replace(sequence=1000), "is no longer in the ledger"),
    ],
)
async def test_a_store_that_is_not_of_what_the_ledger_has_is_not_used(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Witness], Witness], why: str
) -> None:
    caplog.set_level("INFO")
    async with owned(rig, tmp_path, latest_max=0) as lane:
        running = asyncio.create_task(lane.run())
        for number in (1, 2):
            await rig.feed(frame_of([("a", number)]))
            await until_put_out(rig, number)
        lane.stop()
        await running
    identity = StoreIdentity((await rig.ledger(LANE.vertex)).ledger_id, LANE.key)
    async with open_disk_image(tmp_path, identity, str(LANE)) as image:
        assert image.kept is not None
        position, cycle = image.kept
        # Of another history, of which the ledger has nothing.
        changes: Changes = {(b"a", 0, b""): b"100".rjust(WIDTH)} if "0 of" not in why else {}
        image._store.write(changes, position._replace(frame=change(position.frame)), cycle)
    async with owned(rig, tmp_path, latest_max=0) as lane:
        assert why in caplog.text
        running = asyncio.create_task(lane.run())
        await rig.feed(frame_of([("a", 3)]))
        await until_put_out(rig, 3)
        lane.stop()
        await running
    assert by_key(await put_out(rig)) == {"a": [1, 3, 6]}
