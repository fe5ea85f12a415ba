"""Result files: results that are too large for one commit, kept until all of them are committed. Blocking.

    <log>/0000000000000012.3.result    one entry in the log's format: number 12 of the hand-over, body = the results, as
                                       the owner of epoch 3 computed them

A commit in parts must be completed with exactly the same results as it was begun, so they are durable before its first
part. They are those of the newest owner that stored any: an earlier owner has committed nothing of them, and a paused
owner that resumes after it was replaced writes to its own file.

Above it: the queue. Below it: `Files`. It does not know what the results look like.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from millstream import codes
from millstream.durable import step
from millstream.errors import REPAIR, DamageError, InfrastructureError, StorageFullError
from millstream_reduce.log.entries import EntryError, entry_buffers, read_entry
from millstream_reduce.log.files import NO_SPACE, Files, write_all
from millstream_reduce.log.segments import UNNAMED_SUFFIX, LogIdentity

_SUFFIX = ".result"


class ResultFiles:
    """The result files of one log."""

    def __init__(self, directory: Path, files: Files, identity: LogIdentity) -> None:
        self._directory = directory
        self._files = files
        self._where = str(identity)
        self._vertex = identity.vertex
        self._epoch = identity.epoch
        self._kept: set[tuple[int, int]] = set()
        """Hand-overs with stored results, each with the epoch of the owner that stored them."""

    def load(self) -> None:
        """Find what earlier owners have stored."""
        self._kept = set(self._found())

    @property
    def oldest(self) -> int | None:
        """The first hand-over with stored results; None if there is none."""
        return min((number for number, _ in self._kept), default=None)

    def write(self, number: int, data: bytes) -> None:
        """Store the results of a hand-over, in place of those stored for it before. Raises `StorageFullError`."""
        path = self._path(number, self._epoch)
        unnamed = path.with_name(f".{path.name}.{os.getpid()}{UNNAMED_SUFFIX}")
        descriptor: int | None = None
        try:
            with step("result.write", self._vertex):
                self._files.remove(unnamed)
                descriptor = self._files.create(unnamed)
                write_all(self._files, descriptor, entry_buffers(number, b"", data), 0)
            with step("result.sync", self._vertex):
                self._files.sync(descriptor)
            with step("result.replace", self._vertex):
                self._files.remove(path)
            with step("result.name", self._vertex):
                self._files.publish(unnamed, path)
            with step("result.name.sync", self._vertex):
                self._files.sync_directory(self._directory)
            self._kept.add((number, self._epoch))
        except OSError as error:
            with contextlib.suppress(OSError), step("result.abandon", self._vertex):
                self._files.remove(unnamed)
            message = f"{self._where}: cannot keep the results of hand-over {number} in {path}: {error.strerror}"
            if error.errno in NO_SPACE:
                raise StorageFullError(codes.DISK_FULL, message) from error
            raise InfrastructureError(codes.CANNOT_WRITE, message) from error
        finally:
            if descriptor is not None:
                self._files.close(descriptor)

    def read(self, number: int) -> bytes | None:
        """The stored results of a hand-over; None if there are none. Raises `DamageError`."""
        epoch = max((epoch for found, epoch in self._found() if found == number), default=None)
        if epoch is None:
            return None
        path = self._path(number, epoch)
        data = path.read_bytes()
        try:
            entry = read_entry(memoryview(data), 0)
            if entry.sequence != number:
                raise EntryError(0, f"it contains the results of hand-over {entry.sequence}")
        except EntryError as fault:
            raise DamageError(
                codes.RESULTS_LOST,
                f"{self._where}: {path}, {fault}. The results of hand-over {number} were committed in part, and the "
                f"rest is lost. {REPAIR}",
            ) from fault
        return bytes(entry.body)

    def remove(self, through: int) -> None:
        """Remove the stored results of hand-overs up to this number."""
        for number, epoch in sorted(kept for kept in self._kept if kept[0] <= through):
            with contextlib.suppress(OSError), step("result.remove", self._vertex):
                # A file that cannot be removed now is found again at the next opening.
                self._files.remove(self._path(number, epoch))
            self._kept.discard((number, epoch))

    def _found(self) -> list[tuple[int, int]]:
        """Hand-overs with stored results, and the epoch of each file."""
        names = (path.name.removesuffix(_SUFFIX).split(".") for path in self._directory.glob(f"*{_SUFFIX}"))
        return [(int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(str.isdecimal, name))]

    def _path(self, number: int, epoch: int) -> Path:
        return self._directory / f"{number:016d}.{epoch}{_SUFFIX}"
