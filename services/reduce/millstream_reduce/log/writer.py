"""Writes the log and makes it durable. Blocking: the methods run in the log's one thread, one at a time.

Above it: the log, which has encoded each entry and decided its place before it is written. Below it: `Files`. The
thread holds the GIL only while it passes the buffers to the kernel: each time it released the lock in between, it might
have to wait for it as long as the event loop is busy.

A write that ran out of space is repeated at the same place: what a short write left there is overwritten, or, if the
process ends first, cut off as a torn tail. Data passed to this module is durable when `flush` returns, and not before.

A full disk must not prevent the log from deleting what is no longer needed, which requires a header after all admitted
entries. So a file reserves that much space; it is removed when the disk is full, and until it has been recreated,
nothing more should be admitted (`is_short`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.durable import step
from millstream.errors import FencedError, InfrastructureError, StorageFullError
from millstream_reduce.log.files import BUFFERS_AT_ONCE_MAX, NO_SPACE, Files, write_all
from millstream_reduce.log.segments import UNNAMED_SUFFIX, LogIdentity, check_claim, segment_path

RESERVE = "reserve"
_WRITE_BYTES_MAX = 1 << 30
"""Bytes of one writev: Linux takes a little less than 2 GiB."""


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """An entry on its way to the current segment."""

    offset: int
    length: int
    buffers: Sequence[memoryview | bytes]


@dataclass(frozen=True, slots=True)
class BeginSegment:
    """The current segment is complete: its entries become durable, then a new one begins."""

    number: int
    header: Sequence[memoryview | bytes]
    removed: tuple[int, ...]
    """Segments that are not needed once the header is durable."""


class LogWriter:
    """One thread's access to a log's files. After an error other than `StorageFullError` it must not be used again."""

    def __init__(self, directory: Path, identity: LogIdentity, files: Files, reserve_bytes: int) -> None:
        self._reserve = directory / RESERVE
        self._reserve_bytes = reserve_bytes
        self.is_short = False
        """Whether the disk was full, and the reserve has not been recreated."""
        self._directory = directory
        self._identity = identity
        self._files = files
        self._descriptor: int | None = None
        self._path = directory
        self._dirty = False
        self.syncs = 0
        self.sync_s = 0.0
        """Sum over all fsyncs of entries."""
        self.written_bytes = 0

    def flush(self, items: deque[WriteEntry | BeginSegment]) -> None:
        """Make everything durable; removes completed items from the left of `items`.

        Raises `StorageFullError`: nothing new is durable, call again with the remaining items. Raises `FencedError` if
        another owner has opened the log, and `InfrastructureError` if the contents of the disk are no longer known.
        """
        self._with_reserve(lambda: self._flush(items))

    def begin(self, item: BeginSegment) -> None:
        """Begin a segment. Raises the same as `flush`; with `StorageFullError` nothing has changed."""
        self._with_reserve(lambda: self._begin(item))

    def reserve(self) -> None:
        """Create the reserve, if the disk has space for it."""
        try:
            with step("log.reserve", self._identity.vertex):
                self._files.reserve(self._reserve, self._reserve_bytes)
        except OSError as error:
            # On file systems that reserve nothing the disk may be full without warning; the write then waits for space.
            self.is_short = error.errno in (errno.ENOSPC, errno.EDQUOT)
        else:
            self.is_short = False

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Write. If the disk is full, remove the reserve and write again."""
        try:
            write()
        except StorageFullError:
            if self.is_short:
                raise
            self.is_short = True
            with contextlib.suppress(OSError), step("log.reserve.give_up", self._identity.vertex):
                self._files.remove(self._reserve)
            write()

    def _flush(self, items: deque[WriteEntry | BeginSegment]) -> None:
        while items:
            item = items[0]
            if isinstance(item, BeginSegment):
                self._sync()
                self._begin(item)
                items.popleft()
            else:
                batch = _batch(items)
                self._write(batch)
                for _ in batch:
                    items.popleft()
        self._sync()
        # Only what a newer owner has seen may be reported as durable: see `segments`.
        try:
            check_claim(self._directory, self._identity)
        except OSError as error:
            raise self._explained(error, self._directory, "list the owners of") from error

    def _begin(self, item: BeginSegment) -> None:
        """Begin a segment. It gets its name once its header is durable; from then on the name is taken."""
        path = segment_path(self._directory, item.number)
        unnamed = path.with_name(f".{path.stem}.{self._identity.epoch}.{os.getpid()}{UNNAMED_SUFFIX}")
        vertex = self._identity.vertex
        descriptor: int | None = None
        try:
            with step("log.segment.write", vertex):
                self._files.remove(unnamed)
                descriptor = self._files.create(unnamed)
                write_all(self._files, descriptor, item.header, 0)
            with step("log.segment.sync", vertex):
                self._files.sync(descriptor)
            with step("log.segment.name", vertex):
                self._files.publish(unnamed, path)
        except OSError as error:
            if descriptor is not None:
                self._files.close(descriptor)
            with contextlib.suppress(OSError), step("log.segment.abandon", vertex):
                self._files.remove(unnamed)
            raise self._explained(error, path, "begin") from error
        self.close()
        self._descriptor, self._path, self._dirty = descriptor, path, False
        try:
            with step("log.segment.name.sync", vertex):
                self._files.sync_directory(self._directory)
        except OSError as error:
            raise self._failed_sync(error, self._directory) from error
        self.written_bytes += sum(map(len, item.header))
        for number in item.removed:
            with contextlib.suppress(OSError), step("log.segment.remove", vertex):
                # What cannot be removed now is left over, and is removed at the next opening.
                self._files.remove(segment_path(self._directory, number))

    def close(self) -> None:
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    def _write(self, batch: Sequence[WriteEntry]) -> None:
        """Write entries to the current segment."""
        assert self._descriptor is not None
        buffers = [buffer for item in batch for buffer in item.buffers]
        self._dirty = True
        try:
            with step("log.entries.write", self._identity.vertex):
                write_all(self._files, self._descriptor, buffers, batch[0].offset)
        except OSError as error:
            raise self._explained(error, self._path, "write to") from error
        self.written_bytes += sum(map(len, buffers))

    def _sync(self) -> None:
        """Make the entries written so far durable."""
        if not self._dirty or self._descriptor is None:
            return
        started = time.perf_counter()
        try:
            with step("log.entries.sync", self._identity.vertex):
                self._files.sync(self._descriptor)
        except OSError as error:
            raise self._failed_sync(error, self._path) from error
        self._dirty = False
        self.sync_s += time.perf_counter() - started
        self.syncs += 1

    def _failed_sync(self, error: OSError, path: Path) -> InfrastructureError:
        # The kernel may have dropped the pages and forgotten the error: a second fsync that succeeds says nothing.
        return InfrastructureError(
            codes.FSYNC_FAILED,
            f"{self._identity}: fsync of {path} failed ({error.strerror}). Nothing that was not durable before is "
            "acknowledged; the lane has to restart. Check the disk",
        )

    def _explained(self, error: OSError, path: Path, doing: str) -> Exception:
        if error.errno in NO_SPACE:
            return StorageFullError(
                codes.DISK_FULL,
                f"{self._identity}: no space to {doing} {path} ({error.strerror}); nothing acknowledged is lost, and "
                "the lane continues when there is space",
            )
        if error.errno == errno.EEXIST:
            return FencedError(codes.LOG_TAKEN_OVER, f"{self._identity}: {path} was begun by another owner")
        return InfrastructureError(
            codes.CANNOT_WRITE, f"{self._identity}: cannot {doing} {path}: {error.strerror}. Check the disk"
        )


def _batch(items: deque[WriteEntry | BeginSegment]) -> list[WriteEntry]:
    """What one writev can take from the left: consecutive entries of a segment."""
    batch: list[WriteEntry] = []
    size = 0
    for item in items:
        if not isinstance(item, WriteEntry) or 3 * len(batch) >= BUFFERS_AT_ONCE_MAX - 3:
            break
        size += item.length
        if batch and size > _WRITE_BYTES_MAX:
            break
        batch.append(item)
    return batch
