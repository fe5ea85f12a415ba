"""File operations that go wrong: a process that dies at any step, a machine that loses its power, calls that fail."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream_reduce.log.files import Files

BLOCK = 512
"""What a disk writes as a whole."""


class DyingFiles(Files):
    """Does so many steps, and then no more, as if the process were dead. The last step may be done in part."""

    def __init__(self, steps: int, *, half: bool = False) -> None:
        self.left = steps
        self._half = half
        self.dead = False

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.dead = True
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        if self.left == 0 and self._half and not self.dead:
            data = b"".join(buffers)
            os.pwrite(descriptor, data[: len(data) // 2], offset)
        self._step()
        return super().write(descriptor, buffers, offset)

    def sync(self, descriptor: int) -> None:
        self._step()
        super().sync(descriptor)

    def publish(self, temporary: Path, path: Path) -> None:
        self._step()
        super().publish(temporary, path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)


class FailingFiles(Files):
    """One call fails, once, when told to; the others do what they should."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        """Name of a call to the error it fails with."""

    def _fail(self, name: str) -> None:
        error = self.failing.pop(name, None)
        if error is not None:
            raise OSError(error, os.strerror(error))

    def create(self, path: Path) -> int:
        self._fail("create")
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        self._fail("write")
        if "short write" in self.failing:
            super().write(descriptor, [memoryview(buffers[0])[:50]], offset)
            self._fail("short write")
        return super().write(descriptor, buffers, offset)

    def sync(self, descriptor: int) -> None:
        self._fail("sync")
        super().sync(descriptor)

    def publish(self, temporary: Path, path: Path) -> None:
        self._fail("publish")
        super().publish(temporary, path)

    def sync_directory(self, path: Path) -> None:
        self._fail("sync_directory")
        super().sync_directory(path)

    def reserve(self, path: Path, length: int) -> None:
        self._fail("reserve")
        super().reserve(path, length)


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unsynced: list[tuple[int, int]] = field(default_factory=list)


class PowerLossFiles(Files):
    """Keeps book of what a disk has for sure, to make up what it may hold after the power was lost."""

    def __init__(self) -> None:
        self._open: dict[int, _File] = {}
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._names[path] = self._open[descriptor] = _File()
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        written = super().write(descriptor, buffers, offset)
        file, data = self._open[descriptor], b"".join(buffers)[:written]
        file.content.extend(bytes(max(0, offset + written - len(file.content))))
        file.content[offset : offset + written] = data
        file.unsynced.append((offset, offset + written))
        return written

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        file = self._open.get(descriptor) or self._of_others(descriptor)
        if file is not None:
            file.durable = bytes(file.content)
            file.unsynced.clear()

    def _of_others(self, descriptor: int) -> _File | None:
        """The file, opened by a process that does not write it."""
        wanted = os.fstat(descriptor)
        names = (path for path in self._names if path.exists() and os.path.samestat(path.stat(), wanted))
        return next((self._names[path] for path in names), None)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        del self._open[descriptor]

    def publish(self, temporary: Path, path: Path) -> None:
        super().publish(temporary, path)
        self._names[path] = self._names.pop(temporary)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._names.pop(path, None)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._durable_names = dict(self._names)

    def lose_power(self, target: Path, rng: random.Random) -> None:
        """Write what may be left into `target`: what was synced, and anything of what was not."""
        target.mkdir()
        keep: Callable[[], bool] = lambda: rng.random() < 0.5  # noqa: E731  # a coin
        for path in {*self._names, *self._durable_names}:
            before, after = self._durable_names.get(path), self._names.get(path)
            file = before if before is after or keep() else after
            if file is not None:
                (target / path.name).write_bytes(_left_of(file, rng))


def _left_of(file: _File, rng: random.Random) -> bytes:
    length = rng.randint(len(file.durable), len(file.content)) if file.content else 0
    left = bytearray(length)
    left[: len(file.durable)] = file.durable
    for begin, end in file.unsynced:
        for block in range(begin // BLOCK * BLOCK, end, BLOCK):
            low, high = max(block, begin), min(block + BLOCK, end, length)
            if low < high and rng.random() < 0.5:
                left[low:high] = file.content[low:high]
    return bytes(left)
