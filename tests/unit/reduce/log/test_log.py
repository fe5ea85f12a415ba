"""An open log: entries become durable in groups, segments follow one another and go when they are not needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import FencedError
from millstream_reduce.log.entries import read_entry, segment_name
from millstream_reduce.log.files import Files
from millstream_reduce.log.log import open_log
from millstream_reduce.log.segments import segment_numbers
from tests.support.errors import raises
from tests.unit.reduce.log.kept_entries import SMALL, KeptEntries, body_of, identity, make_log, opened, read_back


class HeldFiles(Files):
    """Holds every fsync of a file back until told otherwise, and takes few bytes at a time."""

    def __init__(self, bytes_at_once: int = 2**30) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.syncing = threading.Event()
        self.syncs = 0
        self._bytes_at_once = bytes_at_once

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        return super().write(descriptor, [memoryview(buffers[0])[: self._bytes_at_once]], offset)

    def sync(self, descriptor: int) -> None:
        self.syncing.set()
        assert self.go_on.wait(timeout=10)
        super().sync(descriptor)
        self.syncs += 1


async def test_what_is_synced_is_read_back_in_order(tmp_path: Path) -> None:
    written = await make_log(tmp_path / "log", 100)
    kept = await read_back(tmp_path / "log", 2)
    assert kept.prefix == written.acknowledged == 100
    assert kept.locations == written.kept.locations
    assert len({location.segment for location in kept.locations.values()}) > 5


async def test_an_entry_lies_where_its_location_says(tmp_path: Path) -> None:
    written = await make_log(tmp_path, 30)
    for number, location in written.kept.locations.items():
        data = memoryview((tmp_path / segment_name(location.segment)).read_bytes())
        entry = read_entry(data, location.offset)
        assert (entry.length, bytes(entry.body)) == (location.length, body_of(number))


async def test_an_entry_larger_than_a_segment_has_one_for_itself(tmp_path: Path) -> None:
    number = 12
    async with opened(tmp_path, sizes=SMALL.__class__(segment_bytes=128, reserve_bytes=4096)) as written:
        written.append(number)
        await written.sync()
    assert (await read_back(tmp_path, 2)).prefix == number


async def test_short_writes_are_completed(tmp_path: Path) -> None:
    async with opened(tmp_path, files=HeldFiles(bytes_at_once=37)) as written:
        written.append(40)
        await written.sync()
    assert (await read_back(tmp_path, 2)).prefix == 40


async def test_entries_appended_during_an_fsync_become_durable_together_with_the_next(tmp_path: Path) -> None:
    files = HeldFiles()
    sizes = SMALL.__class__(segment_bytes=2**20, reserve_bytes=4096)
    async with opened(tmp_path, files=files, sizes=sizes) as written, asyncio.TaskGroup() as tasks:
        files.go_on.clear()
        files.syncing.clear()
        before = files.syncs
        written.append()
        first = tasks.create_task(written.log.sync())
        await asyncio.to_thread(files.syncing.wait, 10)
        others = []
        for _ in range(50):
            written.append()
            others.append(tasks.create_task(written.log.sync()))
        await asyncio.sleep(0)
        assert written.log.durable < written.log.sequence - 49
        files.go_on.set()
        await asyncio.wait([first, *others])
        assert files.syncs == before + 2
        assert written.log.durable == written.log.sequence
        assert written.log.unsynced_bytes == 0


async def test_a_sync_that_is_cancelled_changes_nothing(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(tmp_path, files=files) as written:
        files.go_on.clear()
        files.syncing.clear()
        written.append()
        waiting = asyncio.ensure_future(written.log.sync())
        await asyncio.to_thread(files.syncing.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        files.go_on.set()
        written.append()
        await written.sync()
    assert (await read_back(tmp_path, 2)).prefix == 2


async def test_nothing_to_sync_costs_no_fsync(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(tmp_path, files=files) as written:
        written.append()
        await written.sync()
        before = files.syncs
        await written.sync()
        assert files.syncs == before


async def test_segments_that_are_not_needed_go_with_the_next_one(tmp_path: Path) -> None:
    kept = KeptEntries()
    async with opened(tmp_path, kept=kept) as written:
        written.append(60)
        await written.sync()
        newest = segment_numbers(tmp_path)[-1]
        kept.needed = {newest - 1}
        assert written.log.removable_bytes() > 0
        written.log.begin_segment()
        await written.sync()
        assert segment_numbers(tmp_path) == [newest - 1, newest, newest + 1]
        assert written.log.segments() == (newest - 1, newest, newest + 1)
        size = sum((tmp_path / segment_name(n)).stat().st_size for n in segment_numbers(tmp_path))
        assert written.log.total_bytes == size
    again = await read_back(tmp_path, 2)
    assert again.numbers == [n for n, location in kept.locations.items() if location.segment >= newest - 1]
    assert again.last == 60


async def test_a_log_without_contents_leaves_one_short_segment(tmp_path: Path) -> None:
    async with opened(tmp_path, kept=KeptEntries(needed=set())) as written:
        written.append(60)
        await written.sync()
        written.log.begin_segment()
        await written.sync()
    (left,) = segment_numbers(tmp_path)
    assert (tmp_path / segment_name(left)).stat().st_size < 512
    assert (await read_back(tmp_path, 2)).last == 60


async def test_a_checkpoint_lets_segments_in_the_middle_go(tmp_path: Path) -> None:
    kept = KeptEntries()
    async with opened(tmp_path, kept=kept) as written:
        written.append(20)
        first = min(location.segment for location in kept.locations.values())
        kept.needed = {first}
        written.append(100)
        await written.sync()
        # By then the middle has become worth a checkpoint, more than once.
        assert segment_numbers(tmp_path)[0] == first
        assert len(segment_numbers(tmp_path)) <= 8
    again = KeptEntries(needed={first})
    async with opened(tmp_path, 2, kept=again) as written:
        assert again.restored is not None
        assert again.numbers == list(range(int(again.restored) + 1, 121))
        assert first in segment_numbers(tmp_path)


async def test_what_a_deletion_left_behind_is_removed_at_the_next_opening(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    await make_log(directory, 60)
    saved = directory / segment_name(1)
    old = saved.read_bytes()
    kept = KeptEntries(needed=set())
    async with opened(directory, 2, kept=kept):
        pass
    saved.write_bytes(old)
    (directory / ".0000000000000099.1.1.new").write_bytes(b"half a header")
    again = await read_back(directory, 3)
    assert again.numbers == []
    assert not saved.exists()
    assert not list(directory.glob(".*"))


@pytest.mark.parametrize(
    ("entries", "message"), [(1, "newer owner .epoch 2, ours is 1"), (20, "begun by another owner")]
)
async def test_an_owner_that_was_replaced_acknowledges_nothing_and_adds_nothing(
    tmp_path: Path, entries: int, message: str
) -> None:
    async with opened(tmp_path, 1) as old:
        old.append(5)
        await old.sync()
        async with opened(tmp_path, 2) as new:
            assert new.kept.prefix == 5
            old.append(entries)
            with raises(codes.LOG_TAKEN_OVER, match=message):
                await old.sync()
            with pytest.raises(FencedError):
                old.append()
            new.append(3)
            await new.sync()
    assert (await read_back(tmp_path, 3)).prefix == 8


async def test_what_was_appended_before_the_newer_owner_read_is_kept(tmp_path: Path) -> None:
    """The owner before has written, but is paused in its fsync while it is replaced."""
    files = HeldFiles()
    async with opened(tmp_path, 1, files=files) as old:
        files.go_on.clear()
        files.syncing.clear()
        old.append(3)
        syncing = asyncio.ensure_future(old.log.sync())
        await asyncio.to_thread(files.syncing.wait, 10)
        async with opened(tmp_path, 2) as new:
            assert new.kept.prefix == 3
            files.go_on.set()
            with pytest.raises(FencedError):
                await syncing


async def test_an_owner_that_is_too_late_does_not_open_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path, 5) as new:
        with raises(codes.LOG_TAKEN_OVER, match="epoch 5, ours is 4"):
            async with opened(tmp_path, 4):
                pass
        new.append()
        await new.sync()
    with pytest.raises(FencedError):
        await read_back(tmp_path, 4)
    assert (await read_back(tmp_path, 5)).prefix == 1


class SegmentStolen(Files):
    """An owner that is replaced just now begins segments, each under the nose of the new one."""

    def __init__(self, old: KeptEntries, directory: Path, steals: int) -> None:
        self._old, self._directory, self.steals = old, directory, steals

    def publish(self, temporary: Path, path: Path) -> None:
        if self.steals:
            self.steals -= 1
            # What the other one writes is a valid header of its own, under the very number.
            path.write_bytes(temporary.read_bytes())
        super().publish(temporary, path)


async def test_segments_begun_while_the_log_is_opened_are_read_as_well(tmp_path: Path) -> None:
    written = await make_log(tmp_path, 30)
    files = SegmentStolen(written.kept, tmp_path, steals=3)
    kept = KeptEntries()
    async with opened(tmp_path, 2, kept=kept, files=files) as new:
        assert files.steals == 0
        assert kept.prefix == 30
        new.append()
        await new.sync()
    assert (await read_back(tmp_path, 3)).prefix == 31


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"pipeline": "q"}, "contains the log of p/sum/window.0, not that of q/sum/window.0"),
        ({"vertex": "mean"}, "not that of p/mean/window.0"),
        ({"ledger_id": "ledger-2"}, "the log of another run of p/sum/window.0, whose ledger is missing"),
    ],
)
async def test_the_log_of_somebody_else_is_refused(tmp_path: Path, other: dict[str, str], message: str) -> None:
    await make_log(tmp_path, 3)
    with raises(codes.LOG_OF_ANOTHER, match=message):
        async with open_log(tmp_path, identity(2, **other), KeptEntries()):
            pass


async def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a directory")
    with raises(codes.LOG_OF_ANOTHER):
        await make_log(tmp_path / "log", 1)


async def test_statistics_tell_what_there_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as written:
        written.append(10)
        before = written.log.statistics()
        assert (before.unsynced_entries, before.syncs) == (written.log.sequence - 1, 0)
        assert before.unsynced_bytes == written.log.unsynced_bytes > 0
        await written.sync()
        after = written.log.statistics()
        assert (after.unsynced_entries, after.unsynced_bytes) == (0, 0)
        assert after.segments == len(segment_numbers(tmp_path))
        assert after.bytes == after.written_bytes == written.log.total_bytes
        assert after.syncs >= 1
        assert after.sync_s > 0
        assert not after.is_short
