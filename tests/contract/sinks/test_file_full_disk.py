"""A file sink on a disk that is full, or broken: it waits or stops, and what becomes visible is whole.

A real file system of a few hundred kilobytes where one can be mounted (as root); each call of the operating system that
may fail for lack of space, everywhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import InfrastructureError, RetryLaterError
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream_connectors.file.sink.directory import HIDDEN
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import (
    file_spec,
    finished_files,
    leftovers,
    numbers_in,
    sink_owner,
    value_of,
)
from tests.small_disk import open_small_disk
from tests.unit.writer.sink_frames import sink_frame

DISK_BYTES = 512 * 1024
FORMATS = ["jsonl", "csv", "parquet"]
FRAMES = 40
FRAME_RECORDS = 100
ALL = list(range(FRAMES * FRAME_RECORDS))


def frame(number: int) -> SinkFrame:
    numbers = range((number - 1) * FRAME_RECORDS, number * FRAME_RECORDS)
    return sink_frame([value_of(n) for n in numbers], number)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with open_small_disk(tmp_path / "disk", DISK_BYTES) as path:
        yield path


class Disk:
    """Lets chosen calls of the operating system fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, int] = {}
        """Step to the error it fails with."""
        self.failures = 0
        monkeypatch.setattr(os, "open", self._guard("open", os.open))
        monkeypatch.setattr(os, "write", self._guard("write", os.write))
        monkeypatch.setattr(os, "rename", self._guard("rename", os.rename))
        monkeypatch.setattr(os, "fsync", self._guard("fsync", os.fsync))

    def _guard(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            name = step
            if step == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode):
                hidden = HIDDEN in Path(os.readlink(f"/proc/self/fd/{arguments[0]}")).parts
                name = "hidden directory fsync" if hidden else "directory fsync"
            creates = step != "open" or arguments[1] & os.O_CREAT
            if name in self.failing and creates:
                self.failures += 1
                raise OSError(self.failing[name], os.strerror(self.failing[name]))
            return call(*arguments, **options)

        return guarded


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.guarantee("I1", "I6", "I8")
@pytest.mark.parametrize("file_format", FORMATS)
async def test_a_full_disk_makes_the_lane_wait_and_loses_nothing(small_disk: Path, file_format: str) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (DISK_BYTES - 24 * 1024))
    path = small_disk / "out"
    policy = RetryPolicy(Backoff(0.001, cap_s=0.01, factor=2), OnFailure.RETRY)
    async with open_sink(file_spec(path, file_format, maxRecords=1000), sink_owner(1)) as lane:
        limits = DeliveryLimits(10**9, 10**12)
        delivery = Delivery(lane, None, policy, limits, where="p/out/in-out.0", rng=random.Random(1))

        async def deliver_all() -> None:
            for number in range(1, FRAMES + 1):
                await delivery.write([frame(number)], Position(number))
            await delivery.flush()

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            delivering = group.create_task(deliver_all())
            while not delivery.statistics().waiting:
                assert not delivering.done(), "the disk was never full"
                await asyncio.sleep(0.001)
            assert "No space left on device" in delivery.statistics().waiting
            assert "Free some space" in delivery.statistics().waiting
            seen = numbers_in(path)
            assert seen == ALL[: len(seen)]
            ballast.unlink()
        settled = delivery.take_settled()
    assert settled is not None
    assert (settled.position, settled.account.processed) == (Position(FRAMES), len(ALL))
    assert numbers_in(path) == ALL
    assert leftovers(path) == []


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("step", ["open", "write", "rename"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
async def test_lack_of_space_at_any_step_takes_nothing_and_keeps_what_was_taken(
    tmp_path: Path, disk: Disk, file_format: str, step: str, error: int
) -> None:
    async with open_sink(file_spec(tmp_path, file_format, maxRecords=150), sink_owner(1)) as lane:
        disk.failing[step] = error
        # The first is taken: its records are in memory before anything can fail.
        await lane.write([frame(1), frame(2)], Position(2))
        assert disk.failures == 1
        for _ in range(3):
            with pytest.raises(RetryLaterError, match="Free some space"):
                await lane.write([frame(3)], Position(3))
        with pytest.raises(RetryLaterError):
            await lane.tick()
        with pytest.raises(RetryLaterError):
            await lane.flush()
        assert (finished_files(tmp_path), lane.durable) == ([], Position(0))
        disk.failing.clear()
        await lane.write([frame(3)], Position(3))
        await lane.flush()
        assert lane.durable == Position(3)
    assert numbers_in(tmp_path) == ALL[: 3 * FRAME_RECORDS]
    assert leftovers(tmp_path) == []


@pytest.mark.guarantee("I1", "I6")
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("fsync", errno.EIO),
        ("fsync", errno.ENOSPC),
        ("write", errno.EIO),
        ("directory fsync", errno.EIO),
        ("hidden directory fsync", errno.EIO),
    ],
)
async def test_what_may_be_damaged_is_never_made_visible(
    tmp_path: Path, disk: Disk, file_format: str, step: str, error: int
) -> None:
    spec = file_spec(tmp_path, file_format)
    async with open_sink(spec, sink_owner(1)) as lane:
        await lane.write([frame(1)], Position(1))
        disk.failing[step] = error
        with pytest.raises(InfrastructureError):
            await lane.flush()
        # The next fsync of the same file would succeed, and mean nothing.
        disk.failing.clear()
        with pytest.raises(InfrastructureError):
            await lane.flush()
        assert lane.durable == Position(0)
    visible = numbers_in(tmp_path)
    assert visible == (ALL[:FRAME_RECORDS] if step == "directory fsync" else [])
    assert leftovers(tmp_path) == []
    # The lane goes on from its mark, under its next owner.
    async with open_sink(spec, sink_owner(2)) as lane:
        await lane.write([frame(1)], Position(1))
        await lane.flush()
        assert lane.durable == Position(1)
    assert numbers_in(tmp_path) == ALL[:FRAME_RECORDS]
