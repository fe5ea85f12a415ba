"""The state of a lane is changed from outside, and moved to other lanes: whatever interrupts it, nothing is lost."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from millstream.compression import Compression
from millstream.errors import FencedError, UdfError, UserError
from millstream.frame import partition_of
from millstream.ledger.rewriting import rewritten
from millstream.record import LaneId
from millstream.udf.states import StateKind
from millstream.wire.state.v1 import state_pb2
from millstream_vertex.keyed import owned as owned_module
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed.changelog import read_changelog
from millstream_vertex.keyed.disk.image import open_disk_image
from millstream_vertex.keyed.disk.store import StoreIdentity
from millstream_vertex.keyed.image import Image, Stored, stored_of
from millstream_vertex.keyed.keys import key_of, table_key_of
from millstream_vertex.keyed.owned import OwnedState, StateBounds, open_owned_state
from millstream_vertex.keyed.redistribution import check_room, expired_until, home_of, redistribute
from millstream_vertex.keyed.state import EntryChange, KeyedState
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import LANE, Rig, open_rig

STATES = (
    state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1),
    state_pb2.StoredState(name="seen", kind=StateKind.MAP, codec="json", item_codec="json", clock=1),
)
Entries = dict[tuple[bytes, str, bytes], Stored]


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    # So that a few entries take several commits, each of which rewrites slots.
    monkeypatch.setattr(owned_module, "PART_BYTES_MAX", 400)
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 1)
    async with open_rig() as opened:
        yield opened


@asynccontextmanager
async def owned(
    rig: Rig, partition: int = 0, *, size_max: int = 1 << 20, image: Image | None = None
) -> AsyncIterator[OwnedState]:
    async with open_owned_state(
        await rig.ledger(LANE.vertex),
        LANE._replace(partition=partition),
        "test",
        StateBounds(size_max, 1 << 10),
        compression=Compression.LZ4,
        clock=SettableClock(),
        image=image,
    ) as state:
        yield state


@asynccontextmanager
async def all_owned(rig: Rig, lanes: int, *, size_max: int = 1 << 20) -> AsyncIterator[Sequence[OwnedState]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(owned(rig, partition, size_max=size_max)) for partition in range(lanes)]


async def stored(rig: Rig, partition: int = 0) -> Entries:
    """What is committed in a lane."""
    ledger, lane = await rig.ledger(LANE.vertex), LANE._replace(partition=partition)
    mark = await ledger.mark(lane)
    keyed = KeyedState(str(lane), size_max=0, key_size_max=0)
    if mark is None or lane.vertex not in mark.mark.states:
        return {}
    keyed.stored_states(mark.mark.states[lane.vertex])
    await read_changelog(ledger, lane, mark.mark, keyed)
    names = [state.name for state in keyed.stored]
    return {(key, names[number], item): stored_of(*one) for key, number, item, one in keyed.all()}


def changes_of(keyed: KeyedState, entries: Entries) -> list[EntryChange]:
    numbers = {state.name: keyed.adopt(state) for state in STATES}
    return [EntryChange(key, numbers[name], item, value) for (key, name, item), value in entries.items()]


def some_entries(rng: random.Random, count: int) -> Entries:
    found: Entries = {}
    for number in range(count):
        key = key_of([b"k%d" % number]) if number % 5 else key_of([b"k%d" % number, b"\x1f"])
        found[key, "total", b""] = stored_of(b"%d" % rng.randrange(1000), rng.choice([0, 5]), rng.choice([1, 2]))
        for item in range(rng.randrange(3)):
            found[key, "seen", b"%d" % item] = b"x" * rng.randrange(60)
    return found


def interrupted_after(rig: Rig, commits: int) -> None:
    """Another owner comes after so many commits, each of which loses its answer."""
    for _ in range(commits):
        rig.faults.lose_answer(landed=True, vertex=LANE.vertex)
    rig.faults.fence(vertex=LANE.vertex)


@pytest.mark.slow
@pytest.mark.guarantee("I7")
async def test_a_store_on_disk_has_what_was_changed_and_moved(rig: Rig, tmp_path: Path) -> None:
    entries, ledger = some_entries(random.Random(1), 40), await rig.ledger(LANE.vertex)

    @asynccontextmanager
    async def on_disk(partition: int) -> AsyncIterator[OwnedState]:
        identity = StoreIdentity(ledger.ledger_id, LANE._replace(partition=partition).key)
        async with (
            open_disk_image(tmp_path / str(partition), identity, "lane") as image,
            owned(rig, partition, image=image) as state,
        ):
            yield state

    async with on_disk(0) as state:
        changes = changes_of(state.keyed, entries)
        state.check(changes)
        assert await state.apply(changes) == len(entries)
    async with on_disk(0) as first, on_disk(1) as second:
        assert {one[:3] for one in first.keyed.all()} == {one[:3] for one in changes_of_rows(first.keyed, entries)}
        check_room([first, second], 2)
        assert await redistribute([first, second], 2) > 0
    await assert_at_home(rig, entries, 2, 2)
    async with on_disk(0) as first, on_disk(1) as second:
        assert len(list(first.keyed.all())) + len(list(second.keyed.all())) == len(entries)


def changes_of_rows(keyed: KeyedState, entries: Entries) -> list[tuple[bytes, int, bytes]]:
    return [(one.key, one.state, one.item) for one in changes_of(keyed, entries)]


@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize("commits", [0, 1, 3])
async def test_changes_that_are_interrupted_are_a_prefix_and_the_rest_is_made_the_next_time(
    rig: Rig, commits: int
) -> None:
    entries = some_entries(random.Random(commits), 40)
    async with owned(rig) as state:
        changes = changes_of(state.keyed, entries)
        interrupted_after(rig, commits)
        with pytest.raises(FencedError):
            await state.apply(changes)
    made = await stored(rig)
    assert list(made.items()) or not commits
    assert set(made.items()) == set(list(entries.items())[: len(made)])
    async with owned(rig) as state:
        assert await state.apply(changes_of(state.keyed, entries)) == len(entries) - len(made)
        assert await state.apply(changes_of(state.keyed, entries)) == 0
    assert await stored(rig) == entries


@pytest.mark.guarantee("I7")
async def test_a_change_keeps_the_place_of_the_lane_and_its_changelog_short(rig: Rig) -> None:
    ledger = await rig.ledger(LANE.vertex)
    async with rewritten(ledger, LANE, "before") as mark:
        mark.sequence, mark.watermark_us, mark.ended = 7, 5, True
        mark.account.inputs = 3
        mark.members.add(vertex="after", edge="map-after").account.inputs = 3
    before = await rig.mark()
    for seed in range(6):
        async with owned(rig) as state:
            await state.apply(changes_of(state.keyed, some_entries(random.Random(seed), 40)))
    after = await rig.mark()
    assert after.epoch > before.epoch
    for name in ("sequence", "watermark_us", "ended", "account", "members"):
        assert getattr(after, name) == getattr(before, name)
    assert [state.name for state in state.keyed.stored] == ["total", "seen"]
    (written,) = after.written
    async with owned(rig) as state:
        assert len(await rig.stored(state.changelog.buffer)) < written.frames / 2


@pytest.mark.guarantee("I7")
async def test_changes_that_exceed_a_limit_are_refused_together(rig: Rig) -> None:
    async with owned(rig, size_max=100) as state:
        fits = changes_of(state.keyed, {(b"a", "total", b""): b"1" * 50})
        state.check(fits)
        assert await state.apply(fits) == 1
        with pytest.raises(UserError, match=r"at most 100 are allowed \(`state.maxBytes`\)"):
            state.check(changes_of(state.keyed, {(b"b", "total", b""): b"1" * 50}))
        # One goes, one comes.
        state.check([fits[0]._replace(stored=None), *changes_of(state.keyed, {(b"b", "total", b""): b"1" * 50})])
    async with owned(rig) as state:
        with pytest.raises(UserError, match="maxBytesPerKey"):
            state.check(changes_of(state.keyed, {(b"b", "total", b""): b"1" * 2000}))
    assert await stored(rig) == {(b"a", "total", b""): b"1" * 50}


@pytest.mark.guarantee("I7")
async def test_a_lane_with_a_delivery_to_finish_is_left_alone(rig: Rig) -> None:
    async with rewritten(await rig.ledger(LANE.vertex), LANE, "before") as mark:
        mark.prepared.mark.sequence = 8
    with pytest.raises(UserError, match="during a delivery to its sink"):
        async with owned(rig):
            pass
    assert (await rig.mark()).HasField("prepared")


async def moved(rig: Rig, lanes: int, partitions: int) -> None:
    async with all_owned(rig, lanes) as states:
        check_room(states, partitions)
        await redistribute(states, partitions)


async def assert_at_home(rig: Rig, entries: Entries, lanes: int, partitions: int) -> None:
    """Each entry is in the lane of its key, and in no other."""
    for partition in range(lanes):
        own = {name: value for name, value in entries.items() if home_of(name[0], partitions) == partition}
        assert await stored(rig, partition) == own


@pytest.mark.slow
@pytest.mark.guarantee("I7")
@pytest.mark.parametrize("commits", [0, 2, 5, 9, 14])
async def test_entries_move_to_the_lanes_of_their_keys_whenever_that_is_interrupted(rig: Rig, commits: int) -> None:
    entries = some_entries(random.Random(commits), 60)
    for partition in range(2):
        async with owned(rig, partition) as state:
            mine = {name: value for name, value in entries.items() if home_of(name[0], 2) == partition}
            await state.apply(changes_of(state.keyed, mine))
    async with all_owned(rig, 5) as states:
        interrupted_after(rig, commits)
        with pytest.raises(FencedError):
            await redistribute(states, 5)
    # Nothing is lost at any time, and what is in several lanes is the same in each.
    found: Entries = {}
    for partition in range(5):
        for name, value in (await stored(rig, partition)).items():
            assert found.setdefault(name, value) == value == entries[name]
    assert found == entries
    await moved(rig, 5, 5)
    await assert_at_home(rig, entries, 5, 5)
    await moved(rig, 5, 3)
    await assert_at_home(rig, entries, 5, 3)


@pytest.mark.guarantee("I7")
async def test_a_move_that_was_interrupted_may_lead_elsewhere(rig: Rig) -> None:
    entries = some_entries(random.Random(1), 60)
    async with owned(rig) as state:
        await state.apply(changes_of(state.keyed, entries))
    async with all_owned(rig, 4) as states:
        interrupted_after(rig, 4)
        with pytest.raises(FencedError):
            await redistribute(states, 4)
    await moved(rig, 4, 2)
    await assert_at_home(rig, entries, 4, 2)


async def test_a_move_needs_room_for_what_is_there_afterwards(rig: Rig) -> None:
    entries: Entries = {(b"k%d" % number, "total", b""): b"1" * 50 for number in range(40)}
    for partition in range(2):
        async with owned(rig, partition) as state:
            mine = {name: value for name, value in entries.items() if home_of(name[0], 2) == partition}
            await state.apply(changes_of(state.keyed, mine))
    largest = 80 * max(len(await stored(rig, 0)), len(await stored(rig, 1)))
    async with all_owned(rig, 3, size_max=largest) as states:
        # Lane 0 gets entries before it gives some away.
        check_room(states, 3)
        with pytest.raises(UserError, match=r"lane map/in-map\.0: .*state\.maxBytes.*Nothing was changed"):
            check_room(states, 1)


@pytest.mark.guarantee("I7")
async def test_states_are_found_by_name_in_every_lane(rig: Rig) -> None:
    async with all_owned(rig, 2) as states:
        for lane, order in zip(states, (STATES, STATES[::-1]), strict=True):
            for state in order:
                lane.keyed.adopt(state)
        await states[1].apply([EntryChange(b"a", 1, b"", b"7"), EntryChange(b"a", 0, b"1", b"8")])
        await redistribute(states, 1)
    assert await stored(rig, 0) == {(b"a", "total", b""): b"7", (b"a", "seen", b"1"): b"8"}


@pytest.mark.slow
@pytest.mark.guarantee("I7")
@pytest.mark.parametrize("commits", [0, 1, 3])
async def test_every_lane_has_the_whole_table_whatever_their_number(rig: Rig, commits: int) -> None:
    table = state_pb2.StoredState(name="table rates of rates-map", kind=StateKind.TABLE, clock=1)
    rates = {(table_key_of([b"k%d" % number]), table.name, b""): b"%d" % number for number in range(40)}
    async with all_owned(rig, 5) as states:
        for lane in states[:2]:
            number = lane.keyed.adopt(table)
            await lane.apply([EntryChange(key, number, item, value) for (key, _, item), value in rates.items()])
        interrupted_after(rig, commits)
        with pytest.raises(FencedError):
            await redistribute(states, 5)
    for before, partitions in ((5, 5), (5, 2), (5, 3)):
        await moved(rig, before, partitions)
        assert [await stored(rig, lane) for lane in range(5)] == [rates] * partitions + [{}] * (5 - partitions)


async def test_lanes_whose_states_differ_do_not_mix(rig: Rig) -> None:
    async with all_owned(rig, 2) as states:
        other = state_pb2.StoredState(name="total", kind=StateKind.COUNTER, clock=1)
        await states[1].apply([EntryChange(b"a", states[1].keyed.adopt(other), b"", bytes(8))])
        states[0].keyed.adopt(STATES[0])
        with pytest.raises(UdfError, match="`total` is a value of json here, and a counter in another lane"):
            check_room(states, 1)


def test_a_key_has_the_partition_of_its_records() -> None:
    for parts in ([b"ada"], [b"ada", b"eu"], [b""], [b"a\x1fb", b"\x1e"]):
        for partitions in range(1, 9):
            assert home_of(key_of(parts), partitions) == partition_of(parts, partitions)
    assert home_of(key_of([]), 7) == 0


def test_what_had_expired_in_another_lane_stays_expired() -> None:
    first = state_pb2.KeyedState(slots=1024)
    keyed = KeyedState(str(LaneId("map", "in-map", 0)), size_max=0, key_size_max=0)
    keyed.watermark_us = 5
    keyed.stored_states(expired_until(first.SerializeToString(), 9))
    assert keyed.watermark_us == 9
    keyed.watermark_us = 10
    keyed.stored_states(keyed.encoded_states)
    assert keyed.watermark_us == 10
