"""Images of a state, in memory and on disk: they are the fold of what was committed, whatever their owners do."""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import InfrastructureError, StorageFullError
from millstream.udf.states import StateClock
from millstream_vertex.keyed import state as state_module
from millstream_vertex.keyed.disk import directory as directory_module
from millstream_vertex.keyed.disk import image as image_module
from millstream_vertex.keyed.disk import rows
from millstream_vertex.keyed.disk import store as store_module
from millstream_vertex.keyed.disk.directory import held_directory
from millstream_vertex.keyed.disk.store import StoreIdentity
from millstream_vertex.keyed.image import Versioned
from millstream_vertex.keyed.room import wait_for_room
from millstream_vertex.keyed.steps import decode_step
from tests.support.children import started
from tests.support.sizes import sized
from tests.unit.vertex.keyed.image_process import model_of
from tests.unit.vertex.keyed.images import Changes, Lane, Result, changed, lmdb_of, store_of

KINDS = ["memory", "disk"]


@pytest.fixture(params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much happens with little data."""
    monkeypatch.setattr(state_module, "COMPACTED_FROM_BYTES", 2000)
    monkeypatch.setattr(image_module, "WRITTEN_FROM_BYTES", 1500)
    monkeypatch.setattr(image_module, "LOADED_FROM_BYTES", 700)
    monkeypatch.setattr(image_module, "IN_USE_BYTES_MAX", 4000)


KEYS = [b"", b"a", b"b", b"a\0", b"a\0\0", b"k" * rows.KEY_BYTES_MAX, b"k" * (rows.KEY_BYTES_MAX + 1), b"k" * 4000]
ITEMS = [b"", b"i", b"i\0", b"i" * rows.ITEM_BYTES_MAX, b"i" * (rows.ITEM_BYTES_MAX + 1), b"h" * 3000, b"j"]


def some_changes(rng: random.Random, keys: int) -> Changes:
    found: dict[Any, Any] = {}
    for _ in range(rng.randrange(1, 12)):
        key = rng.choice(KEYS) if rng.random() < 0.2 else b"key-%d" % rng.randrange(keys)
        state = rng.randrange(2)
        item = rng.choice(ITEMS) if state else b""
        value = (rng.randbytes(rng.randrange(60)), rng.choice([0, 0, rng.randrange(1, 1000)]))
        found[key, state, item] = None if rng.random() < 0.25 else value
    return list(found.items())


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize(
    ("seed", "latest_max"),
    [
        (0, 0),
        pytest.param(1, 0, marks=pytest.mark.sweep),
        (2, 800),
        pytest.param(3, 200, marks=pytest.mark.sweep),
    ],
)
async def test_an_image_is_the_fold_of_what_was_committed(
    directory: Path | None, tmp_path: Path, seed: int, latest_max: int
) -> None:
    rng, lane = random.Random(seed), Lane(directory, latest_max, by_item=bool(seed % 2))
    for owner in range(8):
        stack = AsyncExitStack()
        await lane.open(stack)
        lane.check()
        for _ in range(rng.randrange(5, 60)):
            lane.state.begin()
            before, results = lane.model, len(lane.results)
            for _ in range(rng.randrange(1, 3)):
                model, changes = lane.model, some_changes(rng, 40)
                # An entry by event time never becomes older.
                kept = {entry: value[1] for entry, value in model.items() if entry[1] == 0}
                aimed = [
                    (entry, None if value is None else (value[0], max(value[1], kept.get(entry, 0)) if value[1] else 0))
                    for entry, value in changes
                ]
                lane.apply(changes)
                lane.take(changed(model, aimed))
            if rng.random() < 0.2:
                lane.state.undo()
                del lane.results[results:]
                assert lane.model == before
            elif rng.random() < 0.5:
                lane.commit(rng.randrange(len(lane.results) + 1))
            if rng.random() < 0.1:
                lane.check()
        lane.check()
        if rng.random() < 0.5:
            lane.commit(len(lane.results))
        if directory is not None and rng.random() < 0.5:
            # The next one finds the store as it is at this moment: its owner was killed.
            lane.directory = tmp_path / f"killed-{owner}"
            shutil.copytree(store_of(lane.image).parent, lane.directory / "1")
        await stack.aclose()
        read, directory = lane.read, lane.directory
        assert directory is None or owner == 0 or read < len(lane.frames) or not lane.frames


@pytest.mark.guarantee("I7")
async def test_a_store_brings_all_but_the_last_results(tmp_path: Path) -> None:
    lane, rng = Lane(tmp_path), random.Random(3)
    for expected in (0, 0, 50):
        async with AsyncExitStack() as stack:
            await lane.open(stack)
            lane.check()
            assert lane.read == expected
            for number in range(50):
                changes = [((b"k%d" % rng.randrange(99), 0, b""), (b"%d" % number, 0))]
                lane.apply(changes)
                lane.take(changed(lane.model, changes))
            lane.commit(50)
            if expected == 0 and len(lane.log) > 50:
                # The next one has to do without the end.
                lane.directory = tmp_path / "earlier"
                shutil.copytree(tmp_path / "1", lane.directory / "1")
    async with AsyncExitStack() as stack:
        lane.first = len(lane.log) + 1
        await lane.open(stack)
        assert lane.read == len(lane.log), "what it needs was trimmed"
        lane.check()


async def test_times_are_taken_in_order_each_once(directory: Path | None) -> None:
    rng, lane = random.Random(5), Lane(directory)
    for _ in range(3):
        async with AsyncExitStack() as stack:
            await lane.open(stack)
            for _ in range(30):
                changes = some_changes(rng, 30)
                changes = [change for change in changes if change[0][1] == 1]
                if changes:
                    lane.apply(changes)
                    lane.take(changed(lane.model, changes))
                lane.commit(rng.randrange(len(lane.results) + 1))
            found = list(lane.due())
            wanted = {(value[1], entry) for entry, value in lane.model.items() if value[1]}
            assert set(found) == wanted
            assert [time_us for time_us, _ in found] == sorted(time_us for time_us, _ in found)


async def test_what_expires_is_found_again_after_it_was_taken_back(directory: Path | None) -> None:
    async with AsyncExitStack() as stack:
        lane = Lane(directory)
        await lane.open(stack)
        changes = [((b"k%d" % number, 1, b"i"), (bytes(100), 10 + number)) for number in range(60)]
        lane.apply(changes)
        lane.take(changed({}, changes))
        lane.commit(1)
        left = changed({}, changes[30:])
        for number in range(2):
            lane.state.begin()
            assert lane.state.sweep(StateClock.PROCESSING_TIME, 39)
            assert not lane.state.sweep(StateClock.PROCESSING_TIME, 39)
            if not number:
                lane.state.undo()
                lane.check()
        assert lane.state.next_expiry_us == 40
        lane.take(left)
        lane.commit(1)
        assert lane.state.next_expiry_us == 40
        lane.check()


@pytest.mark.guarantee("I7")
async def test_the_owner_that_resumes_goes_on_with_the_next_slot(tmp_path: Path) -> None:
    lane, written = Lane(tmp_path), list[tuple[int, int]]()
    for _ in range(3):
        async with AsyncExitStack() as stack:
            await lane.open(stack)
            assert lane.read == 0
            for number in range(20):
                changes = [((b"k%d" % (one * 20 + number), 0, b""), (bytes(100), 0)) for one in range(10)]
                lane.apply(changes)
                lane.take(changed(lane.model, changes))
                steps = map(decode_step, lane.results[-1].frame)
                written += [(step.first_slot, step.slots) for step in steps if step.slots]
                lane.commit(1)
    assert len(written) > 3
    assert all((first + slots) % 1024 == after for (first, slots), (after, _) in pairwise(written))


@pytest.mark.slow
@pytest.mark.guarantee("I7")
async def test_only_keys_in_use_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "IN_USE_BYTES_MAX", 20_000)
    async with AsyncExitStack() as stack:
        lane = Lane(tmp_path)
        await lane.open(stack)
        for number in range(0, 2000, 20):
            changes = [((b"k%d" % one, 0, b""), (bytes(100), 0)) for one in range(number, number + 20)]
            lane.apply(changes)
            lane.take(changed(lane.model, changes))
            lane.commit(1)
        for number in range(2000):
            lane.state.begin()
            assert lane.image.size_of_key(b"k%d" % number) == len(b"k%d" % number) + 116
            assert isinstance(lane.image, image_module.DiskImage)
            assert sum(map(len, lane.image._slots)) < 60
        lane.check()


@pytest.mark.guarantee("I7")
async def test_what_the_mark_has_of_items_is_not_read_from_the_store(tmp_path: Path) -> None:
    lane = Lane(tmp_path, by_item=True)
    both: Changes = [((b"ada", 1, item), (b"1", 0)) for item in (b"i", b"j")]
    for latest_max, changes in ((0, both), (1000, [(both[0][0], None)]), (1000, [(both[1][0], (b"2", 0))])):
        lane.latest_max = latest_max
        async with AsyncExitStack() as stack:
            await lane.open(stack)
            lane.check()
            lane.state.begin()
            lane.apply(changes)
            lane.take(changed(lane.model, changes))
            lane.commit(1)
    async with AsyncExitStack() as stack:
        await lane.open(stack)
        assert lane.model == {(b"ada", 1, b"j"): (b"2", 0)}
        lane.check()


@pytest.mark.slow
@pytest.mark.guarantee("I7")
async def test_of_a_state_that_is_read_by_item_only_changes_are_in_memory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lane = Lane(tmp_path, by_item=True)
        await lane.open(stack)
        image = lane.image
        assert isinstance(image, image_module.DiskImage)
        for number in range(0, 2000, 20):
            changes = [((b"ada", 1, b"%06d" % one), (bytes(100), 0)) for one in range(number, number + 20)]
            lane.apply(changes)
            lane.take(changed(lane.model, changes))
            lane.commit(1)
            assert sum(len(items) for keys in image._changed_items for items in keys.values()) <= 20
        assert image.get(1, b"ada", b"000777") == bytes(100)
        items = iter(image.items_from(1, b"ada", b"001000", b""))
        assert [next(items), next(items)] == [b"001000", b"001001"]
        assert [*image.of_key_without(b"ada", [1])] == []
        assert not any(keys.get(b"ada") for keys in image._slots)
        lane.check()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.guarantee("I7", "I12")
async def test_a_store_whose_process_is_killed_is_that_of_a_commit(tmp_path: Path) -> None:
    rng, kept = random.Random(4), 0
    for _ in range(sized(5, 12)):
        async with started(
            sys.executable, "-m", "tests.unit.vertex.keyed.image_process", str(tmp_path), stdout=asyncio.subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            told = kept
            for _ in range(rng.randrange(1, 120)):
                told = int(await process.stdout.readline())
            await asyncio.sleep(rng.random() / 50)
            process.kill()
            told = max([told, *map(int, (await process.stdout.read()).split(b"\n")[:-1])])
        async with AsyncExitStack() as stack:
            lane = Lane(tmp_path)
            await lane.open_kept(stack)
            before, kept = kept, 0 if lane.state.kept is None else lane.state.kept.frame.number
            assert before <= kept <= told + 1
            lane.results = [Result([], model_of(kept))]
            lane.check()
            assert {entry for _, entry in lane.due()} == {entry for entry, value in lane.model.items() if value[1]}
    assert kept > 100


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data.write_bytes(b"\xff" * 5000), "damaged"),
        (lambda data: data.write_bytes(data.read_bytes()[:9000]), "damaged"),
        (lambda data: (data.parent / "unclean").write_text("another boot"), "the machine ended"),
        (lambda data: data.unlink(), ""),
        (lambda data: None, "another run"),
    ],
)
@pytest.mark.guarantee("I7", "I10")
async def test_a_store_that_cannot_be_used_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], says: str
) -> None:
    caplog.set_level("INFO")
    lane = Lane(tmp_path)
    async with AsyncExitStack() as stack:
        await lane.open(stack)
        changes = [((b"k%d" % number, 0, b""), (bytes(100), 0)) for number in range(300)]
        lane.apply(changes)
        lane.take(changed({}, changes))
        lane.commit(1)
        data = store_of(lane.image)
    caplog.clear()
    damage(data)
    async with AsyncExitStack() as stack:
        other = StoreIdentity("ledger-2", "in-v.0")
        await lane.open(stack, identity=other if says == "another run" else other._replace(ledger_id="ledger-1"))
        assert lane.read == 1
        lane.check()
        assert says in caplog.text
        assert store_of(lane.image) == data


async def test_a_store_that_another_process_holds_is_left_to_it(tmp_path: Path) -> None:
    lane, paused = Lane(tmp_path), Lane(tmp_path)
    changes = [((b"k", 0, b""), (b"1", 0))]
    async with AsyncExitStack() as stack:
        await paused.open(stack)
        paused.apply(changes)
        paused.take(changed({}, changes))
        paused.commit(1)
        lane.log, lane.states = list(paused.log), paused.states
        async with AsyncExitStack() as next_stack:
            await lane.open(next_stack)
            assert store_of(lane.image) != store_of(paused.image)
            lane.check()
    # The newest one is what stays.
    with held_directory(tmp_path) as held:
        assert held.path.name == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


@pytest.mark.slow
@pytest.mark.guarantee("I7", "I9")
async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lane = Lane(tmp_path)
        await lane.open(stack)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (store_of(lane.image).stat().st_size, limit[1]))
        try:
            changes = [((b"k%d" % number, 0, b""), (bytes(1000), 0)) for number in range(500)]
            lane.apply(changes)
            lane.take(changed({}, changes))
            lane.commit(1)
            is_full = lane.state.is_behind
            with pytest.raises(StorageFullError, match="cannot grow"):
                lane.state.store()
            lane.check()
            waiting = asyncio.create_task(wait_for_room(lane.state, "p/v"))
            await asyncio.sleep(0)
            assert not waiting.done()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        await waiting
        assert (is_full, lane.state.is_behind) == (True, False)
        lane.check()
        lane.directory = tmp_path / "killed"
        shutil.copytree(tmp_path / "1", lane.directory / "1")
        await lane.open(stack)
        assert lane.read == 0
        lane.check()


@pytest.mark.guarantee("I7", "I10")
async def test_a_store_that_is_found_damaged_is_removed_and_made_anew(tmp_path: Path) -> None:
    lane = Lane(tmp_path)
    changes = [((b"k%d" % number, 1, b"i"), (bytes(100), 7)) for number in range(100)]
    async with AsyncExitStack() as stack:
        await lane.open(stack)
        lane.apply(changes)
        lane.take(changed({}, changes))
        lane.commit(1)
        with lmdb_of(lane.image).begin(write=True) as transaction:
            transaction.drop(lmdb_of(lane.image).open_db(b"entries", transaction), delete=False)
        with pytest.raises(InfrastructureError, match=r"is damaged .* Nothing is lost"):
            list(lane.due())
        assert not store_of(lane.image).exists()
    async with AsyncExitStack() as stack:
        await lane.open(stack)
        assert lane.read == 1
        lane.check()


async def test_a_store_grows_beyond_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MAP_BYTES", 1 << 16)
    async with AsyncExitStack() as stack:
        lane = Lane(tmp_path)
        await lane.open(stack)
        for part in range(20):
            changes = [((b"k%d-%d" % (part, number), 0, b""), (bytes(500), 0)) for number in range(100)]
            lane.apply(changes)
            lane.take(changed(lane.model, changes))
            lane.commit(1)
        lane.check()
        assert store_of(lane.image).stat().st_size > 1 << 20


@given(
    key=st.binary(max_size=300),
    item=st.binary(max_size=300),
    state=st.integers(0, 255),
    value=st.binary(max_size=50),
    expires_us=st.integers(-(2**63), 2**63 - 1),
    version=st.integers(1, 2**32 - 1),
)
@settings(max_examples=sized(100, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_are_what_was_stored(
    key: bytes, item: bytes, state: int, value: bytes, expires_us: int, version: int
) -> None:
    for stored in (value, Versioned(value, expires_us or 1, version)):
        name, data = rows.name_of(rows.key_prefix(key), state, item), rows.data_of(key, item, stored)
        assert rows.stored_of(data) == stored
        assert rows.names_of(name, data) == (key, state, item)
        assert rows.size_in(name, data) == len(key) + len(item) + len(value) + 16
        assert len(rows.time_name(state, expires_us, name)) <= rows.NAME_BYTES_MAX
        assert rows.time_in(rows.time_name(state, expires_us, name)) == (state, expires_us, name)
        assert rows.state_in(name) == state


def test_a_machine_that_does_not_tell_its_boots_trusts_no_open_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "_BOOT_ID", tmp_path / "none")
    with held_directory(tmp_path / "stores") as held:
        assert not held.begin()
        held.data.write_bytes(b"x")
        assert held.begin()
        assert not held.data.exists()
        held.data.write_bytes(b"x")
        held.end()
        assert not held.begin()
        assert held.data.exists()
