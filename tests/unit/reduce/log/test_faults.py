"""Death at every step, loss of power, calls that fail: what a sync has acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import InfrastructureError, StorageFullError
from millstream_reduce.log.entries import segment_name
from millstream_reduce.log.log import LogSizes
from millstream_reduce.log.segments import segment_numbers
from tests.small_disk import open_small_disk
from tests.support.errors import raises
from tests.unit.reduce.log.faulty_files import DyingFiles, FailingFiles, PowerLossFiles
from tests.unit.reduce.log.kept_entries import KeptEntries, opened, read_back

ROUNDS = 6
DISK_BYTES = 256 * 1024


async def write_rounds(directory: Path, kept: KeptEntries, files: DyingFiles) -> int:
    """Several groups of entries, over some segments, of which old ones go. Returns what was acknowledged."""
    acknowledged = 0
    try:
        async with opened(directory, kept=kept, files=files) as written:
            for _ in range(ROUNDS):
                written.append(4)
                await written.sync()
                acknowledged = written.acknowledged
    except InfrastructureError:
        assert files.dead
    return acknowledged


@pytest.mark.slow
@pytest.mark.guarantee("I6", "I9")
@pytest.mark.parametrize("half", [False, True])
async def test_what_was_acknowledged_is_there_whatever_step_was_the_last(tmp_path: Path, half: bool) -> None:
    steps, died, acknowledged_somewhere = 0, True, set()
    while died:
        directory = tmp_path / str(steps)
        files, kept = DyingFiles(steps, half=half), KeptEntries()
        acknowledged = await write_rounds(directory, kept, files)
        again = await read_back(directory, 2)
        assert acknowledged <= again.prefix <= kept.last
        # And once more, over what the new owner has left.
        assert (await read_back(directory, 3)).prefix == again.prefix
        died, steps = files.dead, steps + 1
        acknowledged_somewhere.add(acknowledged)
    assert acknowledged_somewhere == {4 * done for done in range(ROUNDS + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
async def test_what_was_acknowledged_survives_the_loss_of_power(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files, kept = PowerLossFiles(), KeptEntries()
    async with opened(tmp_path / "log", kept=kept, files=files) as written:
        for _ in range(rng.randint(1, 12)):
            written.append(rng.randint(1, 6))
            if rng.random() < 0.6:
                await written.sync()
        # Into the page cache only: a flush that fails its last fsync has written everything.
        sync, files.sync = files.sync, _fail  # type: ignore[method-assign]
        written.append(3)
        with pytest.raises(InfrastructureError):
            await written.sync()
        files.sync = sync  # type: ignore[method-assign]
    for attempt in range(5):
        target = tmp_path / f"after-{attempt}"
        files.lose_power(target, rng)
        again = await read_back(target, 2)
        assert written.acknowledged <= again.prefix <= kept.last


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("seed", range(10))
async def test_what_a_new_owner_read_survives_the_loss_of_power(tmp_path: Path, seed: int) -> None:
    """The owner before died between its write and its fsync. Its successor reads that, and lets the lane's mark count
    on it, without having written it."""
    files, kept = PowerLossFiles(), KeptEntries()
    async with opened(tmp_path / "log", kept=kept, files=files) as written:
        written.append(3)
        await written.sync()
        sync, files.sync = files.sync, _fail  # type: ignore[method-assign]
        written.append(3)
        with pytest.raises(InfrastructureError):
            await written.sync()
        files.sync = sync  # type: ignore[method-assign]
    async with opened(tmp_path / "log", 2, files=files) as successor:
        assert successor.kept.prefix == 6
        files.lose_power(tmp_path / "after", random.Random(seed))
    assert (await read_back(tmp_path / "after", 3)).prefix == 6


@pytest.mark.slow
@pytest.mark.guarantee("I1")
async def test_a_segment_goes_only_when_the_log_does_without_it(tmp_path: Path) -> None:
    steps, died = 0, True
    while died:
        directory = tmp_path / str(steps)
        files, kept = DyingFiles(steps), KeptEntries()
        acknowledged = await _write_and_need_nothing(directory, kept, files)
        # Nothing that the log still names is missing.
        assert acknowledged <= (await read_back(directory, 2)).last <= kept.last
        died, steps = files.dead, steps + 1
    assert steps > 20


async def _write_and_need_nothing(directory: Path, kept: KeptEntries, files: DyingFiles) -> int:
    acknowledged = 0
    with contextlib.suppress(InfrastructureError):
        async with opened(directory, kept=kept, files=files) as written:
            for _ in range(2):
                kept.needed = None
                written.append(20)
                await written.sync()
                acknowledged = written.acknowledged
                kept.needed = set()
                written.log.begin_segment()
                await written.sync()
    return acknowledged


def _fail(descriptor: int) -> None:
    raise OSError(errno.EIO, "gone")


@pytest.mark.parametrize("call", ["sync", "write", "create", "publish", "sync_directory"])
async def test_after_a_call_that_failed_nothing_more_is_acknowledged(tmp_path: Path, call: str) -> None:
    files = FailingFiles()
    async with opened(tmp_path, files=files) as written:
        written.append(3)
        await written.sync()
        files.failing[call] = errno.EIO
        written.append(20)
        with pytest.raises(InfrastructureError, match=r"Input/output error.*Check the disk"):
            await written.sync()
        assert not files.failing
        # The call would work now, which says nothing about what it did before.
        with pytest.raises(InfrastructureError):
            await written.log.sync()
        with pytest.raises(InfrastructureError):
            written.append()
        assert written.log.durable < written.log.sequence
    assert 3 <= (await read_back(tmp_path, 2)).prefix <= 23


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", ["write", "short write", "create", "publish"])
async def test_what_found_no_room_is_written_when_there_is_some(tmp_path: Path, call: str, error: int) -> None:
    files = FailingFiles()
    sizes = LogSizes(segment_bytes=1024, reserve_bytes=4096)
    async with opened(tmp_path, files=files, sizes=sizes) as written:
        assert (tmp_path / "reserve").stat().st_size == 4096
        written.append(3)
        await written.sync()
        files.failing[call] = error
        written.append(20)
        # The reserve is given up for it.
        await written.sync()
        assert not files.failing
        assert written.log.statistics().is_short
        assert not (tmp_path / "reserve").exists()
        files.failing[call] = error
        written.append(20)
        with raises(codes.DISK_FULL):
            await written.sync()
        written.append(5)
        await written.sync()
        files.failing["reserve"] = errno.ENOSPC
        await written.log.reserve()
        assert written.log.statistics().is_short
        await written.log.reserve()
        assert not written.log.statistics().is_short
    assert (await read_back(tmp_path, 2)).prefix == 48


async def test_a_file_system_that_reserves_nothing_is_not_short(tmp_path: Path) -> None:
    files = FailingFiles()
    files.failing["reserve"] = errno.EOPNOTSUPP
    async with opened(tmp_path, files=files) as written:
        assert not written.log.statistics().is_short
        written.append(3)
        await written.sync()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with open_small_disk(tmp_path / "disk", DISK_BYTES) as path:
        yield path


@pytest.mark.process
async def test_a_full_disk_loses_nothing_and_the_log_goes_on_when_there_is_room(small_disk: Path) -> None:
    hog = small_disk / "hog"
    directory = small_disk / "log"
    async with opened(directory, sizes=LogSizes(segment_bytes=16384, reserve_bytes=32768)) as written:
        written.append(100)
        await written.sync()
        _fill(hog)
        while not written.log.statistics().is_short:
            written.append(20)
            await written.sync()
        _fill(hog)
        before = written.acknowledged
        written.append(200)
        for _ in range(3):
            with pytest.raises(StorageFullError):
                await written.sync()
        hog.unlink()
        await written.sync()
        assert written.acknowledged == before + 200
    assert (await read_back(directory, 2)).prefix == before + 200


@pytest.mark.process
async def test_a_full_disk_does_not_keep_a_log_from_deleting(small_disk: Path) -> None:
    """What is no longer needed is deleted with what the reserve had kept free, and then there is room."""
    kept = KeptEntries()
    sizes = LogSizes(segment_bytes=16384, reserve_bytes=32768)
    async with opened(small_disk / "log", kept=kept, sizes=sizes) as written:
        written.append(400)
        await written.sync()
        _fill(small_disk / "hog")
        while not written.log.statistics().is_short:
            written.append(20)
            await written.sync()
        kept.needed = set()
        written.log.begin_segment()
        await written.sync()
        assert len(segment_numbers(small_disk / "log")) == 1
        await written.log.reserve()
        assert not written.log.statistics().is_short
        written.append(20)
        await written.sync()


@pytest.mark.process
async def test_an_opening_on_a_full_disk_uses_the_reserve_of_the_owner_before(small_disk: Path) -> None:
    directory = small_disk / "log"
    sizes = LogSizes(segment_bytes=16384, reserve_bytes=32768)
    async with opened(directory, sizes=sizes) as written:
        written.append(50)
        await written.sync()
    _fill(small_disk / "hog")
    async with opened(directory, 2, sizes=sizes) as written:
        assert written.kept.prefix == 50
    (directory / "reserve").unlink(missing_ok=True)
    _fill(small_disk / "hog")
    with pytest.raises(StorageFullError):
        await read_back(directory, 3)
    (small_disk / "hog").unlink()
    assert (await read_back(directory, 3)).prefix == 50


def _fill(path: Path) -> None:
    """Take all the room that is left on a disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while _takes(descriptor):
            pass
    finally:
        os.close(descriptor)


def _takes(descriptor: int) -> bool:
    try:
        return os.write(descriptor, b"x" * 4096) > 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


async def test_a_directory_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).mkdir()
    with raises(codes.SEGMENT_MISPLACED):
        await read_back(tmp_path, 1)
