"""`millstream repair` and the changelogs of what functions remember, in JetStream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.compression import Compression
from millstream.errors import DamageError
from millstream.ledger.protocol import LedgerLimits
from millstream.record import ALL_INPUTS, LaneId
from millstream.udf.states import StateKind
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.repair.finding import Finding
from millstream_runner.local.stored_states import state_of
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed.changelog import Changelog, changelog_buffer
from millstream_vertex.keyed.disk.image import open_disk_image
from millstream_vertex.keyed.disk.store import StoreIdentity
from millstream_vertex.keyed.owned import StateBounds, open_owned_state
from millstream_vertex.keyed.state import EntryChange, KeyedState
from millstream_vertex.trimming import Trimmer
from tests.contract.ledger.test_repair import found, remove, repairing
from tests.support.ledgers import JetStreamHarness, SettableClock, open_jetstream_harness

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 100}}}
    - {name: a, udf: {python: "a.py:f", state: {store: disk}}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: a, chain: false}
    - {from: a, to: out}
"""
LANE = LaneId("a", ALL_INPUTS, 0)
TOTAL = state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1)


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetStreamHarness]:
    # Each commit is a frame.
    monkeypatch.setattr(state_module, "LATEST_BYTES_MAX", 0)
    (tmp_path / "a.py").write_text("def f(value: bytes, state) -> bytes:\n    return value\n")
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


async def store(harness: JetStreamHarness, numbers: range) -> None:
    """Store entries, each in a frame of the changelog."""
    ledger = await harness.broker.ledger("a", LedgerLimits(frames_per_buffer_max=1000))
    bounds = StateBounds(1 << 20, 1 << 10)
    async with open_owned_state(
        ledger, LANE, "test", bounds, compression=Compression.NONE, clock=SettableClock()
    ) as state:
        total = state.keyed.adopt(TOTAL)
        for number in numbers:
            await state.apply([EntryChange(b"k%d" % number, total, b"", b"%d" % number)])


@asynccontextmanager
async def read_into_store(harness: JetStreamHarness, tmp_path: Path) -> AsyncIterator[KeyedState]:
    """What a worker does when it opens the lane."""
    ledger = await harness.broker.existing_ledger("a")
    assert ledger is not None
    stored = await ledger.mark(LANE)
    assert stored is not None
    place = tmp_path / "states" / "a" / "0"
    async with open_disk_image(place, StoreIdentity(ledger.ledger_id, LANE.key), "lane") as image:
        state = KeyedState("lane", size_max=1 << 20, key_size_max=1 << 10, image=image)
        state.stored_states(stored.mark.states["a"])
        await Changelog(LANE, Trimmer(ledger.trim), lambda: stored.mark).load(ledger, LANE, stored.mark, state)
        yield state


async def lose(harness: JetStreamHarness, number: int) -> None:
    ledger = await harness.broker.existing_ledger("a")
    assert ledger is not None
    frames = await ledger.peek(changelog_buffer(LANE), 0, 100)
    gone = [one.sequence for one in frames if one.witness is not None and one.witness.number == number]
    await remove(harness, *gone, vertex="a")


async def findings(harness: JetStreamHarness, tmp_path: Path, *, accept: bool = False) -> list[Finding]:
    async with repairing(harness, tmp_path, PIPELINE) as repair:
        return [one for one in await found(repair, accept=accept) if one.kind == "state"]


async def remembered(harness: JetStreamHarness) -> set[str]:
    ledger = await harness.broker.existing_ledger("a")
    assert ledger is not None
    state = await state_of(ledger, LANE)
    assert state is not None
    return {entry.key[0] for entry in state.entries()}


@pytest.mark.guarantee("I10")
async def test_a_damaged_changelog_is_written_anew_from_what_can_be_read(
    harness: JetStreamHarness, tmp_path: Path
) -> None:
    await store(harness, range(6))
    assert not await findings(harness, tmp_path)
    await lose(harness, 3)
    with pytest.raises(DamageError):
        await remembered(harness)
    (finding,) = await findings(harness, tmp_path)
    assert "of its 6 frames, frame 3 cannot be read. In doubt are all slots" in finding.what
    assert "entries may be older than they were, or missing" in finding.affects
    assert finding.records is None
    (keys,) = finding.lost
    assert keys.what == "5 keys in doubt that can be read; how many others there were is not known"
    assert keys.records == [f"key k{number}" for number in (0, 1, 3, 4, 5)] or len(keys.records) == 5
    with pytest.raises(DamageError):
        await remembered(harness)
    await findings(harness, tmp_path, accept=True)
    assert await remembered(harness) == {"k0", "k1", "k3", "k4", "k5"}
    assert not await findings(harness, tmp_path)
    await store(harness, range(2, 3))
    assert await remembered(harness) == {f"k{number}" for number in range(6)}


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("on_disk", [False, True])
async def test_frames_that_are_missing_before_a_whole_cycle_of_slots_are_not_needed(
    harness: JetStreamHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_disk: bool
) -> None:
    # A broker that is killed while it trims may have removed the second of two frames, and have the first one again.
    monkeypatch.setattr(Trimmer, "consumed", lambda *_: None)
    await store(harness, range(2))
    if on_disk:
        async with read_into_store(harness, tmp_path):
            pass
    await store(harness, range(2, 4))
    with monkeypatch.context() as patch:
        patch.setattr(state_module, "COMPACTED_FROM_BYTES", 1)
        await store(harness, range(4, 6))
    await store(harness, range(6, 7))
    await lose(harness, 4)
    assert await remembered(harness) == {f"k{number}" for number in range(7)}
    assert not await findings(harness, tmp_path)
    async with read_into_store(harness, tmp_path) as state:
        assert {key for key, *_ in state.all()} == {b"k%d" % number for number in range(7)}
    await lose(harness, 6)
    with pytest.raises(DamageError):
        await remembered(harness)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("behind", [0, 3])
async def test_what_a_store_on_disk_has_is_not_lost(harness: JetStreamHarness, tmp_path: Path, behind: int) -> None:
    await store(harness, range(6))
    async with read_into_store(harness, tmp_path):
        pass
    await store(harness, range(6, 6 + behind))
    await lose(harness, 3)
    (finding,) = await findings(harness, tmp_path)
    assert finding.affects == f"nothing is lost: the store of lane {LANE} on disk has what these frames had"
    assert (finding.records, finding.lost) == (0, ())
    await findings(harness, tmp_path, accept=True)
    assert await remembered(harness) == {f"k{number}" for number in range(6 + behind)}
    async with read_into_store(harness, tmp_path):
        pass


@pytest.mark.guarantee("I10")
async def test_a_store_that_lacks_lost_frames_is_the_beginning(harness: JetStreamHarness, tmp_path: Path) -> None:
    await store(harness, range(4))
    async with read_into_store(harness, tmp_path):
        pass
    await store(harness, range(4, 8))
    await lose(harness, 2)
    await lose(harness, 6)
    # The lane that cannot be opened leaves the store.
    with pytest.raises(DamageError):
        async with read_into_store(harness, tmp_path):
            pass
    (finding,) = await findings(harness, tmp_path)
    assert "frame 2; frame 6 cannot be read. The store of the lane has those up to frame" in finding.what
    await findings(harness, tmp_path, accept=True)
    assert await remembered(harness) == {"k0", "k1", "k2", "k3", "k4", "k6", "k7"}
    async with read_into_store(harness, tmp_path):
        pass
