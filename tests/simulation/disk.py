"""The disks under simulated logs: file operations during which a process dies, that fail, or that the power cuts off.

The files are real ones, below a directory of the run. What was written and not synced is known here, so that a loss of
power can leave any part of it.

Above it: `world`. Below it: the log's own seam, `millstream_reduce.log.files`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream_reduce.log.files import Files

BLOCK = 512
"""What a disk writes as a whole."""


class Died(BaseException):
    """The process has died in the middle of a thread's work: nothing of it goes on, not even its handlers."""


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)


class Disk:
    """All files of a run: what is durable of them, and of their names."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        """By number of the inode."""
        self._names: dict[Path, int] = {}
        self._durable_names: dict[Path, int] = {}

    def created(self, path: Path, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        self._files[inode] = _File()
        self._names[path] = inode

    def written(self, descriptor: int, data: bytes, offset: int) -> None:
        self._files[os.fstat(descriptor).st_ino].unsynced.append((offset, data))

    def synced(self, descriptor: int) -> None:
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is not None and file.unsynced:
            file.durable = _merged(file.durable, file.unsynced)
            file.unsynced.clear()

    def published(self, temporary: Path, path: Path) -> None:
        self._names[path] = self._names.pop(temporary)

    def removed(self, path: Path) -> None:
        self._names.pop(path, None)

    def directory_synced(self, path: Path) -> None:
        for name in [name for name in self._durable_names if name.parent == path and name not in self._names]:
            del self._durable_names[name]
        self._durable_names.update((name, inode) for name, inode in self._names.items() if name.parent == path)

    def lose(self, directory: Path) -> None:
        """The files below `directory` are gone. A process that goes on must not have them open."""
        for path in {*self._names, *self._durable_names}:
            if directory in path.parents:
                path.unlink(missing_ok=True)
                self._names.pop(path, None)
                self._durable_names.pop(path, None)

    def lose_power(self, directory: Path, rng: random.Random) -> None:
        """Make the files below `directory` what they may be after the power was lost: what was synced is there, of
        the rest anything. A process that goes on must not have them open."""
        for path in sorted({*self._names, *self._durable_names}):
            if directory not in path.parents:
                continue
            before, after = self._durable_names.get(path), self._names.get(path)
            inode = before if before == after or rng.random() < 0.5 else after
            path.unlink(missing_ok=True)
            self._names.pop(path, None)
            self._durable_names.pop(path, None)
            if inode is None:
                continue
            left = _left_of(self._files[inode], rng)
            path.write_bytes(left)
            inode = path.stat().st_ino
            self._files[inode] = _File(left)
            self._names[path] = self._durable_names[path] = inode


def _merged(durable: bytes, writes: Sequence[tuple[int, bytes]]) -> bytes:
    content = bytearray(durable)
    for offset, data in writes:
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
    return bytes(content)


def _left_of(file: _File, rng: random.Random) -> bytes:
    whole = _merged(file.durable, file.unsynced)
    length = rng.randint(min(len(file.durable), len(whole)), len(whole))
    left = bytearray(length)
    left[: len(file.durable)] = file.durable[:length]
    for offset, data in file.unsynced:
        for block in range(offset // BLOCK * BLOCK, offset + len(data), BLOCK):
            low, high = max(block, offset), min(block + BLOCK, offset + len(data), length)
            if low < high and rng.random() < 0.5:
                left[low:high] = data[low - offset : high - offset]
    return bytes(left)


class SimFiles(Files):
    """The log's file operations for one process."""

    def __init__(self, disk: Disk, before: Callable[[str], None]) -> None:
        """`before`: told each operation before it is done; it may raise `OSError` or `Died`."""
        self._disk = disk
        self._before = before

    def create(self, path: Path) -> int:
        self._before("create")
        descriptor = super().create(path)
        self._disk.created(path, descriptor)
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        data = b"".join(buffers)
        try:
            self._before("write")
        except OSError:
            raise
        except Died:
            # The last write of a process may be done in part.
            self._write(descriptor, data[: len(data) // 2], offset)
            raise
        return self._write(descriptor, data, offset)

    def _write(self, descriptor: int, data: bytes, offset: int) -> int:
        written = os.pwrite(descriptor, data, offset)
        self._disk.written(descriptor, data[:written], offset)
        return written

    def sync(self, descriptor: int) -> None:
        self._before("sync")
        self._disk.synced(descriptor)

    def reserve(self, path: Path, length: int) -> None:
        # Room is what the faults say.
        self._before("reserve")
        path.touch()

    def publish(self, temporary: Path, path: Path) -> None:
        self._before("publish")
        super().publish(temporary, path)
        self._disk.published(temporary, path)

    def sync_directory(self, path: Path) -> None:
        self._before("sync_directory")
        self._disk.directory_synced(path)

    def remove(self, path: Path) -> None:
        self._before("remove")
        super().remove(path)
        self._disk.removed(path)
