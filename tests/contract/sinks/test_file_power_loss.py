"""A file sink on a machine that loses its power: what it called durable is there, and what is visible is whole.

A disk keeps what was fsynced, and of the rest whatever it likes: so a file that was renamed may have its new name
without its contents, and a file that has its contents may have lost its name.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millstream.record import Position
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import NOWHERE, file_spec, finished_files, numbers_in, sink_owner, value_of
from tests.unit.writer.sink_frames import sink_frame

FRAME_RECORDS = 20


def frame(number: int) -> SinkFrame:
    numbers = range((number - 1) * FRAME_RECORDS, number * FRAME_RECORDS)
    return sink_frame([value_of(n) for n in numbers], number)


class SureDisk:
    """Keeps book of what is on the disk for sure: contents by file, names by directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[found.st_ino] = path.read_bytes()

    def is_whole(self, file: Path) -> bool:
        """The file's contents are on the disk."""
        return self._contents.get(file.stat().st_ino) == file.read_bytes()

    def is_named(self, file: Path) -> bool:
        """The file's name is on the disk."""
        names = self._names.get(file.parent.stat().st_ino, {})
        return names.get(file.name) == file.stat().st_ino


@pytest.mark.guarantee("I1", "I6")
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
async def test_what_is_durable_survives_the_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    path = tmp_path / "out"
    disk = SureDisk(monkeypatch)
    async with open_sink(file_spec(path, file_format, maxRecords=30), sink_owner(1)) as lane:
        durable = NOWHERE
        for number in range(1, 8):
            await lane.write([frame(number)], Position(number))
            if number % 3 == 0:
                await lane.flush()
            files = finished_files(path)
            assert all(map(disk.is_whole, files))
            # Told durable: the names that say so, and the directories that contain them, must be on the disk as well.
            assert lane.durable is not None
            if lane.durable > durable:
                durable = lane.durable
                assert all(map(disk.is_named, files))
                assert disk.is_named(path)
                assert len(numbers_in(path)) == durable.sequence * FRAME_RECORDS + durable.record_index
        assert durable == Position(6)


async def test_names_that_a_former_owner_left_are_made_durable_before_they_are_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    async with open_sink(file_spec(path, "jsonl"), sink_owner(1)) as lane:
        await lane.write([frame(1)], Position(1))
        await lane.flush()
    # It may have been killed between naming the file and making the name durable: nothing of it was seen to be synced.
    disk = SureDisk(monkeypatch)
    async with open_sink(file_spec(path, "jsonl"), sink_owner(2)) as lane:
        assert lane.durable == Position(1)
        assert all(map(disk.is_named, finished_files(path)))
