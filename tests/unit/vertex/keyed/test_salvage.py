"""What is left of a damaged changelog: entries that are certain, slots that are in doubt, and a changelog made anew."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import pytest

from millstream.compression import Compression
from millstream.errors import DamageError, FencedError
from millstream.ledger.protocol import Ledger, StoredFrame
from millstream.udf.states import StateKind
from millstream.wire.state.v1 import state_pb2
from millstream_vertex.keyed import owned as owned_module
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed.changelog import changelog_buffer, read_changelog
from millstream_vertex.keyed.image import LAST_SLOT
from millstream_vertex.keyed.owned import OwnedState, StateBounds, open_owned_state
from millstream_vertex.keyed.salvage import Salvage, salvage, slots_text, write_anew
from millstream_vertex.keyed.state import EntryChange, KeyedState
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import LANE, Rig, open_rig

TOTAL = state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1)
Values = dict[bytes, bytes]


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(owned_module, "PART_BYTES_MAX", 300)
    # Each commit is a frame.
    monkeypatch.setattr(state_module, "LATEST_BYTES_MAX", 0)
    async with open_rig() as opened:
        yield opened


@asynccontextmanager
async def owned(rig: Rig) -> AsyncIterator[OwnedState]:
    async with open_owned_state(
        await rig.ledger(LANE.vertex),
        LANE,
        "test",
        StateBounds(1 << 20, 1 << 10),
        compression=Compression.LZ4,
        clock=SettableClock(),
    ) as state:
        yield state


class Damaged:
    """A ledger in which some frames of the changelog are gone, or have other bytes."""

    def __init__(self, ledger: Ledger, gone: Sequence[int] = (), broken: Sequence[int] = ()) -> None:
        """Frames are known by their numbers."""
        self._ledger = ledger
        self._gone, self._broken = gone, broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def peek(self, *arguments: Any) -> list[StoredFrame]:
        found = []
        for frame in await self._ledger.peek(*arguments):
            assert frame.witness is not None
            if frame.witness.number in self._broken:
                found.append(frame._replace(data=frame.data[:-3]))
            elif frame.witness.number not in self._gone:
                found.append(frame)
        return found


async def written(rig: Rig, seed: int, rounds: int = 12) -> Values:
    """Entries that are changed again and again, each time in a frame of the changelog. Returns what they are."""
    rng, values = random.Random(seed), Values()
    for _ in range(rounds):
        async with owned(rig) as state:
            number = state.keyed.adopt(TOTAL)
            key = b"k%d" % rng.randrange(20)
            stored = None if key in values and rng.random() < 0.5 else b"%d" % rng.randrange(1 << 30)
            await state.apply([EntryChange(key, number, b"", stored)])
            if stored is None:
                values.pop(key, None)
            else:
                values[key] = stored
    return values


async def salvaged(rig: Rig, ledger: Ledger | Damaged) -> tuple[Salvage, KeyedState]:
    mark = await rig.mark()
    state = KeyedState(str(LANE), size_max=1 << 20, key_size_max=1 << 10)
    state.stored_states(mark.states[LANE.vertex])
    return await salvage(ledger, LANE, mark, state), state


def values_of(state: KeyedState) -> Values:
    return {key: stored.value for key, _, _, stored in state.all()}


async def remembered(rig: Rig) -> Values:
    mark = await rig.mark()
    state = KeyedState(str(LANE), size_max=0, key_size_max=0)
    state.stored_states(mark.states[LANE.vertex])
    await read_changelog(await rig.ledger(LANE.vertex), LANE, mark, state)
    return values_of(state)


@pytest.mark.slow
@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("compacted_from", [1, 200, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
async def test_what_is_not_in_doubt_is_as_it_was(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, compacted_from: int, seed: int
) -> None:
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", compacted_from)
    values = await written(rig, seed)
    ledger = await rig.ledger(LANE.vertex)
    frames = await ledger.peek(changelog_buffer(LANE), 0, 1000)
    found, state = await salvaged(rig, ledger)
    assert (found.lost, found.in_doubt, values_of(state)) == ([], [], values)
    for frame in frames:
        assert frame.witness is not None
        number = frame.witness.number
        for damaged in (Damaged(ledger, gone=[number]), Damaged(ledger, broken=[number])):
            found, state = await salvaged(rig, damaged)
            if frame is frames[0] and not found.in_doubt:
                # It may have been the first that was needed no more.
                continue
            assert found.is_damaged
            doubt, read = set(found.in_doubt), values_of(state)
            for key in values.keys() | read.keys():
                if crc32(key) & LAST_SLOT not in doubt:
                    assert read.get(key) == values.get(key)
    # Whatever is lost at the end affects everything.
    found, _ = await salvaged(rig, Damaged(ledger, gone=[number]))
    assert len(found.in_doubt) == LAST_SLOT + 1


@pytest.mark.guarantee("I10")
async def test_lost_frames_are_named(rig: Rig) -> None:
    await written(rig, 1, rounds=9)
    ledger = await rig.ledger(LANE.vertex)
    found, _ = await salvaged(rig, Damaged(ledger, gone=[2, 3, 9], broken=[5]))
    first, second, third = found.lost
    assert (first, third) == ("frames 2 to 3", "frame 9")
    assert second.startswith("frame 5: buffer _state-map.0: ")
    found, state = await salvaged(rig, Damaged(ledger, gone=range(1, 10)))
    assert (found.lost, values_of(state)) == (["frames 1 to 9"], {})


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I10")
@pytest.mark.parametrize("commits", [None, 1, 3])
async def test_a_changelog_that_is_written_anew_is_read_like_any_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, commits: int | None
) -> None:
    from millstream_vertex.keyed import salvage as salvage_module

    monkeypatch.setattr(salvage_module, "FRAME_BYTES_MAX", 200)
    await written(rig, 2)
    ledger, before = await rig.ledger(LANE.vertex), await rig.mark()
    _, state = await salvaged(rig, Damaged(ledger, gone=[3]))
    kept = values_of(state)
    # As if the broker had lost it.
    third = (await ledger.peek(changelog_buffer(LANE), 0, 100))[2]
    ledger._stream.remove(third.sequence)  # type: ignore[attr-defined]
    options: dict[str, Any] = {"compression": Compression.LZ4, "clock": SettableClock()}
    with pytest.raises(DamageError):
        await remembered(rig)
    if commits is not None:
        for _ in range(commits + 1):
            rig.faults.lose_answer(landed=True, vertex=LANE.vertex)
        rig.faults.fence(vertex=LANE.vertex)
        with pytest.raises(FencedError):
            await write_anew(ledger, LANE, state, "repair", **options)
        with pytest.raises(DamageError):
            await remembered(rig)
        found, state = await salvaged(rig, ledger)
        assert found.is_damaged
        assert values_of(state) == kept
    await write_anew(ledger, LANE, state, "repair", **options)
    assert await remembered(rig) == kept
    found, _ = await salvaged(rig, ledger)
    assert not found.is_damaged
    after = await rig.mark()
    assert (after.states, after.watermark_us) == (before.states, before.watermark_us)
    async with owned(rig) as owner:
        await owner.apply([EntryChange(b"more", 0, b"", b"1")])
    assert await remembered(rig) == kept | {b"more": b"1"}


def test_slots_are_said_as_ranges() -> None:
    assert slots_text([0, 1, 2, 7, 9, 10]) == "slots 0 to 2, 7, 9 to 10"
    assert slots_text(range(1024)) == "all slots"
